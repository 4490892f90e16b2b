"""The settings of a captioning recipe."""

from pydantic import Field

from bayesrnn.lab.recipes import schema


class Paper(schema.Paper):
    """Published results on the paper's data set; BLEU and CIDEr in percent."""

    test: schema.Real | None = Field(None, description="test perplexity per word")
    bleu1: schema.Real | None = Field(None, description="BLEU-1 in percent")
    bleu2: schema.Real | None = Field(None, description="BLEU-2 in percent")
    bleu3: schema.Real | None = Field(None, description="BLEU-3 in percent")
    bleu4: schema.Real | None = Field(None, description="BLEU-4 in percent")
    cider: schema.Real | None = Field(None, description="CIDEr in percent")


class Model(schema.WordLayers):
    """Embedding, LSTM layers and decoder of one width, and their dropout rates."""

    hidden: schema.Count = Field(512, description="units of the embedding and of each layer")
    layers: schema.Layers = Field(1, description="LSTM layers")
    tied: bool = Field(False, description="the decoder shares the embedding's weights")
    init: schema.Positive = Field(0.05, description="weights start in U(-init, init)")
    image_scale: schema.Positive = Field(
        8.0, description="length of an image's features; at 1 an image is as large as a word"
    )
    bayesian_image: bool = Field(True, description="the posterior includes the linear layer of the image")
    image_dropout: schema.Rate = Field(0.0, description="dropout rate of the image's features")
    kl_weight: schema.KLWeight = 1.0


class Data(schema.Section):
    """How captions and features are read."""

    batch_size: schema.Count = Field(100, description="captions per step")
    max_words: schema.Count = Field(20, description="longer captions are cut for training, never for scoring")
    min_count: schema.Count = Field(5, description="rarer words are unknown words")
    features: str = Field(
        "", description=".npy file of image features, made if missing; empty: in the data folder or runs/features"
    )


class Evaluate(schema.Section):
    """Defaults of ``bayesrnn evaluate``: each beam with each length penalty is tried on the validation images."""

    samples: schema.Draws = Field(30, description="draws to average over for perplexity and doubt about words")
    decode_samples: schema.DrawsOrNone = Field(
        30, description="draws in the search for captions; 0: the posterior mean"
    )
    beams: schema.Counts = Field((3, 5, 10), description="beam widths to try")
    length_penalties: schema.NotNegatives = Field((0.0, 0.5, 1.0), description="length penalties to try")
    max_words: schema.Count = Field(20, description="longest caption that the search returns")


SECTIONS = schema.Sections(paper=Paper, model=Model, data=Data, evaluate=Evaluate)
