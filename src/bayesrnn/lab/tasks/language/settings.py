"""The settings of a language recipe."""

from typing import Literal

from pydantic import Field, model_validator

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes import schema
from bayesrnn.lab.recipes.schema import (
    Count,
    Counts,
    Draws,
    Layers,
    NotNegative,
    Positive,
    Rate,
    Real,
    Section,
    Sections,
    Whole,
)


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
    """Embedding, LSTM layers and decoder, and their dropout rates."""

    hidden: Count = Field(650, description="units of each layer, and of the embedding unless it has its own width")
    embedding: Count | None = Field(
        None,
        description="width of the embedding, and of the last layer if the decoder is tied; null: hidden",
    )
    layers: Layers = Field(2, description="LSTM layers")
    units: Counts = Field((), description="units of layer after layer, as in [960, 960, 620]; empty: hidden in each")
    tied: bool = Field(False, description="the decoder shares the embedding's weights")
    softmaxes: Count = Field(1, description="softmaxes whose mixture predicts the word (arXiv 1711.03953); 1: plain")
    latent_dropout: Rate = Field(0.0, description="dropout rate of each softmax's latent vector, one mask per sequence")
    mogrifier: Whole = Field(
        0, description="rounds in which input and state gate each other before a step (arXiv 1909.01792); 0: none"
    )
    mogrifier_rank: Count | None = Field(
        None, description="inner size of the rounds' matrices, each a product of two; null: whole matrices"
    )
    init: Positive = Field(0.05, description="weights start in U(-init, init)")
    torch_init: bool = Field(
        False, description="LSTM layers start as torch's do, in U(-r, r) with r = 1 / sqrt(units), decoder biases at 0"
    )
    forget_bias: Real = Field(0.0, description="initial bias of the forget gates")
    one_bias: bool = Field(False, description="one bias vector per layer instead of torch's two")
    cell_dropout: Rate = Field(0.0, description="dropout rate of the cell state, one mask per sequence (Moon 2015)")
    weight_dropout: Rate = Field(0.0, description="DropConnect rate of the recurrent weights")
    between_dropout: Rate | None = Field(
        None, description="dropout rate between layers, one mask per sequence; null: input_dropout acts there too"
    )
    tied_masks: bool = Field(True, description="the four gates share their masks (arXiv 1512.05287, Eq. 7)")
    activation: NotNegative = Field(
        0.0, description="penalty on large outputs of the last layer: factor of their mean square in the loss per word"
    )
    activation_change: NotNegative = Field(
        0.0, description="penalty on jumps of that output: factor of the mean square of its change in the loss per word"
    )
    kl_weight: schema.KLWeight = 1.0

    @property
    def stacked(self) -> bool:
        """Whether each layer is a module of its own: its width, dropout rate or kind is not that of `br.LSTM`'s."""
        return self.embedding is not None or self.between_dropout is not None or bool(self.units or self.mogrifier)

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of the embedding, then of each layer."""
        first = self.embedding or self.hidden
        last = first if self.tied else self.hidden
        return (first, *(self.units or (*[self.hidden] * (self.layers - 1), last)))

    @model_validator(mode="after")
    def _fits_together(self) -> "Model":
        (first, *_, last), one = self.widths, self.softmaxes == 1
        problems = (
            (
                self.stacked and self.step_dropout,
                "model.step_dropout is for layers of one width; use model.between_dropout in its place.",
            ),
            (
                self.units and len(self.units) != self.layers,
                f"model.units has {counted(len(self.units), 'width')}, and there are {counted(self.layers, 'layer')}.",
            ),
            (
                self.tied and one and first != last,
                f"model.tied: the embedding is {first} wide and the last layer {last}; make them equal, or set "
                "model.softmaxes above 1.",
            ),
            (one and self.latent_dropout, "model.latent_dropout is for a mixture; set model.softmaxes above 1."),
            (
                self.mogrifier_rank and not self.mogrifier,
                "model.mogrifier_rank is for Mogrifier layers; set model.mogrifier, their rounds.",
            ),
            (
                self.mogrifier and not self.tied_masks,
                "model.mogrifier gates an input once for all gates of a layer; set model.tied_masks=true.",
            ),
        )
        for holds, message in problems:
            if holds:
                raise UserError(message)
        return self


class Data(Section):
    """How the text is cut."""

    batch_size: Count = Field(20, description="streams of text side by side")
    window: Count = Field(35, description="words per step of backpropagation through time")
    carry_state: bool = Field(True, description="each window starts with the last window's state")
    shift: bool = Field(False, description="start each epoch at a random word of the first window: windows vary")
    vary: Whole = Field(
        0, description="windows have this many words less or more than window, or neither, at random: boundaries vary"
    )
    loss: Literal["window", "word"] = Field(
        "window", description="window: summed over a window's words, averaged over rows; word: the mean per word"
    )
    min_count: Count = Field(1, description="rarer words are unknown words")

    @model_validator(mode="after")
    def _fits_together(self) -> "Data":
        if self.vary >= self.window:
            raise UserError(f"data.vary is {self.vary}, and windows have {self.window} words; make it less.")
        return self


class Evaluate(Section):
    """Defaults of ``bayesrnn evaluate``, and what a draw is."""

    samples: Draws = Field(50, description="draws to average over")
    dynamic_lr: Positive = Field(0.1, description="learning rate of dynamic evaluation")
    dynamic_window: Count = Field(35, description="words per step of dynamic evaluation")
    keep_weights: bool = Field(
        False, description="draws keep all weights and drop units alone; evaluate's --noise brings weight dropout back"
    )


SECTIONS = Sections(paper=Paper, model=Model, data=Data, evaluate=Evaluate)
