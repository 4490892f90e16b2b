"""The settings of a sentiment recipe."""

import math
from typing import Literal

from pydantic import Field

from bayesrnn.lab.recipes.schema import Count, Draws, DrawsOrNone, Positive, Rate, Real, Section, Sections, Share


class Model(Section):
    """Embedding, one recurrent layer and a linear output, and their dropout rates."""

    cell: Literal["lstm", "gru"] = Field("lstm", description="recurrent layer")
    embedding: Count = Field(128, description="units of the embedding")
    hidden: Count = Field(128, description="units of the recurrent layer")
    word_dropout: Rate = Field(0.0, description="rate at which word types are dropped per sequence (p_E)")
    input_dropout: Rate = Field(0.0, description="dropout rate of the layer's input, one mask per sequence (p_W)")
    recurrent_dropout: Rate = Field(0.0, description="dropout rate of h in the recurrent product (p_U)")
    output_dropout: Rate = Field(0.0, description="dropout rate of the last state")
    step_dropout: Rate = Field(0.0, description="naive dropout: a new mask at each step, on inputs and outputs only")
    noise: Positive = Field(
        math.sqrt(0.5), description="standard deviation of the likelihood, in standard deviations of the ratings"
    )
    kl_weight: Real = Field(1.0, gt=0, le=1, description="factor of the KL: 1 is the ELBO, less a cold posterior")


class Data(Section):
    """How reviews are cut and divided."""

    batch_size: Count = Field(128, description="pieces per step")
    length: Count = Field(200, description="words per piece")
    words: Count = Field(19_996, description="most frequent words that are known (the paper: ids below 20,000)")
    split: Literal["review", "chunk"] = Field(
        "review", description="divide whole reviews, or pieces as the authors did (a review is then on both sides)"
    )
    valid: Share = Field(0.1, description="part of the training data for validation")


class Evaluate(Section):
    """Draws to average over."""

    samples: Draws = Field(50, description="draws at the end of the run and in `bayesrnn evaluate`")
    epoch_samples: DrawsOrNone = Field(10, description="draws after each epoch; 0: the posterior mean only")


SECTIONS = Sections(model=Model, data=Data, evaluate=Evaluate)
