"""The settings of a digits recipe."""

from typing import Literal

from pydantic import Field

from bayesrnn.lab.recipes import schema
from bayesrnn.lab.recipes.schema import Count, DrawsOrNone, Layers, Positive, Rate, Real, Section, Sections


class Paper(schema.Paper):
    """Published test errors in percent."""

    test_error: Real | None = Field(None, description="test error in percent, without draws")
    test_error_mc: Real | None = Field(None, description="test error in percent, averaged over draws")


class Model(Section):
    """The network and its dropout rates."""

    kind: Literal["mlp", "lenet"] = Field("mlp", description="network")
    hidden: Count = Field(400, description="units of each hidden layer")
    layers: Layers = Field(2, description="hidden layers of an MLP")
    dropout: Rate = Field(0.0, description="dropout rate after each hidden layer (LeNet: after the inner product)")
    input_dropout: Rate = Field(0.0, description="dropout rate of an MLP's pixels")
    conv_dropout: Rate = Field(0.0, description="dropout rate after each convolution of LeNet")
    weight_dropout: Rate = Field(0.0, description="DropConnect rate of all weights but the last layer's")
    noise: Literal["bernoulli", "gaussian"] = Field("bernoulli", description="distribution of the dropout noise")
    kl_weight: schema.KLWeight = 1.0


class Data(Section):
    """Batches, validation images and pixels."""

    batch_size: Count = Field(64, description="images per step")
    valid: Count = Field(10_000, description="last training images, kept for validation")
    scale: Positive = Field(256.0, description="pixels are divided by this")
    kl_weighting: Literal["uniform", "geometric"] = Field(
        "uniform", description="each of M batches has 1/M of the KL, or batch i 2^(M-i)/(2^M-1) (arXiv 1505.05424)"
    )


class Evaluate(Section):
    """Defaults of ``bayesrnn evaluate``."""

    samples: DrawsOrNone = Field(50, description="draws to average over; 0: the posterior mean only")


SECTIONS = Sections(model=Model, data=Data, evaluate=Evaluate, paper=Paper)
