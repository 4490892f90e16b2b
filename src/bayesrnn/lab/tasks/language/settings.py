"""The settings of a language recipe."""

from pydantic import Field

from bayesrnn.lab.recipes import schema
from bayesrnn.lab.recipes.schema import Count, Draws, Layers, Positive, Rate, Real, Section, Sections


class Paper(schema.Paper):
    """Published results: perplexities per word, entropies in nats per word; null where the paper reports none."""

    valid: Real | None = Field(None, description="validation perplexity")
    test: Real | None = Field(None, description="test perplexity")
    test_mc: Real | None = Field(None, description="test perplexity, averaged over draws")
    valid_dynamic: Real | None = Field(None, description="validation perplexity with dynamic evaluation")
    test_dynamic: Real | None = Field(None, description="test perplexity with dynamic evaluation")
    entropy_gap: Real | None = Field(None, description="entropy on reversed text minus entropy on text, over draws")
    entropy_gap_mean: Real | None = Field(None, description="the same gap with the posterior mean")
    words_per_second: Real | None = Field(None, description="training speed on the authors' GPU")


class Model(schema.WordLayers):
    """Embedding, LSTM layers and decoder of one width, and their dropout rates."""

    hidden: Count = Field(650, description="units of the embedding and of each layer")
    layers: Layers = Field(2, description="LSTM layers")
    tied: bool = Field(False, description="the decoder shares the embedding's weights")
    init: Positive = Field(0.05, description="weights start in U(-init, init)")
    forget_bias: Real = Field(0.0, description="initial bias of the forget gates")
    one_bias: bool = Field(False, description="one bias vector per layer instead of torch's two")
    cell_dropout: Rate = Field(0.0, description="dropout rate of the cell state, one mask per sequence (Moon 2015)")
    weight_dropout: Rate = Field(0.0, description="DropConnect rate of the recurrent weights")
    tied_masks: bool = Field(True, description="the four gates share their masks (arXiv 1512.05287, Eq. 7)")


class Data(Section):
    """How the text is cut."""

    batch_size: Count = Field(20, description="streams of text side by side")
    window: Count = Field(35, description="words per step of backpropagation through time")
    carry_state: bool = Field(True, description="each window starts with the last window's state")
    min_count: Count = Field(1, description="rarer words are unknown words")


class Evaluate(Section):
    """Defaults of ``bayesrnn evaluate``."""

    samples: Draws = Field(50, description="draws to average over")
    dynamic_lr: Positive = Field(0.1, description="learning rate of dynamic evaluation")
    dynamic_window: Count = Field(35, description="words per step of dynamic evaluation")


SECTIONS = Sections(paper=Paper, model=Model, data=Data, evaluate=Evaluate)
