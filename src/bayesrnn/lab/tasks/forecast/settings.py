"""The settings of a forecast recipe: those of `bayesrnn.forecasting.Forecaster` under the lab's names."""

from typing import Literal

from pydantic import Field

from bayesrnn.forecasting.network import LIKELIHOODS
from bayesrnn.lab.recipes.schema import Count, Draws, Layers, Rate, Section, Sections, Share, Whole


class Model(Section):
    """The networks, which learn the errors of a linear forecast."""

    components: Count = Field(1, le=100, description="networks; their forecasts are weighed on validation windows")
    cell: Literal["gru", "lstm"] = Field("gru", description="recurrent layers")
    hidden: Count = Field(64, description="units of each layer")
    layers: Layers = Field(1, description="recurrent layers of a network")
    dropout: Rate = Field(0.0, description="dropout rate, one mask per draw; 0 with a posterior over weights")
    likelihood: Literal["auto", *LIKELIHOODS] = Field(  # type: ignore[valid-type]
        "auto", description="distribution of the networks' outputs; auto: in turn student and quantiles, or counts"
    )


class Data(Section):
    """Which columns, how windows are made, and which rows are held out."""

    target: str = Field("", description="column to forecast; empty: y, or all with numbers, each as a series")
    covariates: str = Field("", description="columns known up to now, separated by commas; all: every other")
    future: str = Field("", description="columns known ahead, separated by commas")
    date: str = Field("", description="column of dates; empty: ds, or found; none: rows are evenly spaced")
    freq: str = Field("", description="step of time, such as h, D or MS; empty: found")
    resample: Literal["", "mean", "sum", "last"] = Field("", description="put uneven stamps on the grid by this rule")
    timezone: str = Field("", description="zone of the stamps' clock, such as Europe/Berlin; empty: that of the data")
    holidays: str = Field("", description="country code of holidays, such as DE")
    horizon: Count = Field(6, le=10_000, description="steps ahead to forecast")
    window: Whole = Field(0, le=20_000, description="steps that the model sees; 0: from horizon, season and length")
    season: Whole = Field(0, description="steps per season; 0: from the dates or the data")
    scaling: Literal["auto", "standard", "mean_abs", "robust"] = Field("auto", description="how a window is scaled")
    transform: Literal["auto", "none", "log"] = Field("auto", description="auto: chosen by walking forward")
    test: Share = Field(0.15, description="part of the last rows that is held out for the test")
    batch_size: Whole = Field(0, description="windows per step; 0: 32 to 128, by their number")


class Evaluate(Section):
    """Draws and intervals."""

    samples: Draws = Field(16, description="draws to average over")
    level: Share = Field(0.95, description="probability that an interval covers the value")


SECTIONS = Sections(model=Model, data=Data, evaluate=Evaluate)
