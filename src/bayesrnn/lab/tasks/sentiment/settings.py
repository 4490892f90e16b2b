"""The settings of a sentiment recipe."""

import math
from typing import Literal

from pydantic import Field

from bayesrnn.lab.recipes import schema
from bayesrnn.lab.recipes.schema import Count, Draws, DrawsOrNone, Positive, Section, Sections, Share


class Data(Section):
    """How reviews are cut and divided."""

    batch_size: Count = Field(128, description="pieces per step")
    length: Count = Field(200, description="words per piece")
    split: Literal["review", "chunk"] = Field(
        "review", description="divide whole reviews, or pieces as the authors did (a review is then on both sides)"
    )
    words: Count = Field(19_996, description="most frequent words that are known (the paper: ids below 20,000)")
    valid: Share = Field(0.1, description="part of the training data for validation")


class Model(schema.WordLayers):
    """Embedding, one recurrent layer and a linear output, and their dropout rates."""

    cell: Literal["lstm", "gru"] = Field("lstm", description="recurrent layer")
    embedding: Count = Field(128, description="units of the embedding")
    hidden: Count = Field(128, description="units of the recurrent layer")
    noise: Positive = Field(
        math.sqrt(0.5), description="standard deviation of the likelihood, in standard deviations of the ratings"
    )
    kl_weight: schema.KLWeight = 1.0


class Evaluate(Section):
    """Draws to average over."""

    samples: Draws = Field(50, description="draws at the end of the run and in `bayesrnn evaluate`")
    epoch_samples: DrawsOrNone = Field(10, description="draws after each epoch; 0: the posterior mean only")


SECTIONS = Sections(model=Model, data=Data, evaluate=Evaluate)
