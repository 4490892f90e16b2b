"""The settings of a forecast recipe."""

from typing import Literal

from pydantic import Field

from bayesrnn.lab.recipes.schema import Count, Draws, Layers, NotNegative, Rate, Section, Sections, Share, Whole


class Model(Section):
    """An LSTM that is read at its last step, and its dropout rates."""

    hidden: Count = Field(32, description="units of each layer")
    layers: Layers = Field(1, description="LSTM layers")
    linear: bool = Field(True, description="add a linear autoregression of the window to the mean")
    noise: Literal["same", "varying"] = Field(
        "same", description="sigma is one number per step ahead, or depends on the window"
    )
    input_dropout: Rate = Field(0.0, description="dropout rate of each layer's input, one mask per sequence (p_W)")
    recurrent_dropout: Rate = Field(0.0, description="dropout rate of h in the recurrent product (p_U)")
    output_dropout: Rate = Field(0.0, description="dropout rate of the state that the output layers see")
    linear_dropout: Rate = Field(0.0, description="dropout rate of the window that the linear part sees")
    prior_sigma: NotNegative = Field(
        0.0, description="standard deviation of a dropout model's prior over weights, an L2 term of the loss; 0: none"
    )
    components: Count = Field(1, le=100, description="networks in the mixture; a draw is one of them")


class Data(Section):
    """Which columns, how they are transformed and cut."""

    target: str = Field("", description="column to forecast; empty: the first with numbers")
    covariates: str = Field("", description="further columns for the model, separated by commas; all: every other")
    date: str = Field("", description="column of dates; empty: found by its content; none: rows are evenly spaced")
    date_format: str = Field("", description="how dates are written, such as %d/%m/%Y; empty: found by their content")
    max_gap: Whole = Field(0, description="longest gap, in steps, to fill by straight lines; missing values are masked")
    window: Whole = Field(0, description="steps that the model sees; 0: one season, 24 to 96 steps")
    horizon: Count = Field(6, description="steps ahead to forecast")
    season: Whole = Field(0, description="steps per season; 0: from the dates or the training part")
    difference: Literal["auto", "none", "last", "season"] = Field(
        "auto", description="forecast changes from the last value, or a season before; auto: by a linear model"
    )
    log: bool = Field(False, description="forecast the logarithm; zeros count as half of the smallest value above")
    valid: Share = Field(0.15, description="part of the series for validation")
    test: Share = Field(0.15, description="last part of the series, for the test")
    batch_size: Count = Field(32, description="windows per step")


class Evaluate(Section):
    """Draws, intervals and calibration."""

    samples: Draws = Field(100, description="draws to average over")
    level: Share = Field(0.95, description="probability that an interval covers the value")
    memory: NotNegative = Field(50.0, description="steps that errors count when widths are calibrated; 0: never")


SECTIONS = Sections(model=Model, data=Data, evaluate=Evaluate)
