"""What a forecast run keeps of its data: the parts it was cut into, its frame, and the series itself.

Both are files of the run folder, frame.json and series.csv, which may come from anywhere; reading checks them.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.forecasting.autoregression import season_of
from bayesrnn.forecasting.series import Series, parse_csv
from bayesrnn.lab.reading import counted, is_number, parse_json, shown
from bayesrnn.lab.tasks.forecast.frames import Cut, Frame, choose_lag

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Files
    from bayesrnn.lab.tasks.forecast.settings import Data

FRAME, SERIES = "frame.json", "series.csv"
_MOST = 10**9


@dataclass(frozen=True)
class Plan:
    """What the data decided: parts, season, and the frame of windows. Kept in the run folder as frame.json."""

    columns: tuple[str, ...]
    cut: Cut
    season: int
    frame: Frame

    @classmethod
    def of(cls, series: Series, settings: "Data") -> "Plan":
        values = torch.from_numpy(series.values).unsqueeze(1)
        length, horizon = len(series), settings.horizon
        suggested = (settings.season,) if settings.season else series.grid.seasons
        window = settings.window or min(max(24, suggested[0]), 96)
        cut = Cut.of(length, valid=settings.valid, test=settings.test, window=window, horizon=horizon)
        season = season_of(values[:, 0, 0], cut.train, suggested)
        lags = {"none": [0], "last": [1], "season": [season], "auto": sorted({0, 1, season})}[settings.difference]
        lag = lags[0]
        if len(lags) > 1:
            lag = choose_lag(values, cut, lags, window=window, horizon=horizon, log=settings.log)
        frame = Frame.fit(values, cut, window=window, horizon=horizon, lag=lag, log=settings.log)
        return cls(tuple(series.columns), cut, season, frame)

    def moved(self, steps: int) -> "Plan":
        """The same for values that begin so many steps later."""
        cut = Cut(*(max(0, end - steps) for end in (self.cut.train, self.cut.valid, self.cut.length)))
        return replace(self, cut=cut)

    def to_json(self) -> str:
        about = {
            "columns": list(self.columns),
            "cut": [self.cut.train, self.cut.valid, self.cut.length],
            "season": self.season,
            "frame": {k: _rounded(v) for k, v in self.frame.settings().items()},
        }
        return json.dumps(about, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: bytes) -> "Plan":
        """What :meth:`to_json` wrote.

        Raises:
            UserError: something else.
        """
        try:
            about = parse_json(text, where="it")
        except UserError as error:
            raise _damaged(FRAME, str(error).rstrip(".")) from None
        wrong = _wrong(about)
        if wrong:
            raise _damaged(FRAME, wrong)
        return cls(tuple(about["columns"]), Cut(*about["cut"]), about["season"], Frame.of(about["frame"]))


def kept_series(files: "Files", plan: Plan, *, name: str) -> Series:
    """The series as the run kept it.

    Raises:
        UserError: it is not the one that the plan was made for.
    """
    try:
        series = replace(parse_csv(files[SERIES], name="it", covariates="all"), name=name)
    except UserError as error:
        raise _damaged(SERIES, str(error).rstrip(".")) from None
    if tuple(series.columns) != plan.columns or len(series) != plan.cut.length:
        here, there = (f"{counted(n, 'step')} of {', '.join(columns)[:200]}" for n, columns in (
            (len(series), series.columns), (plan.cut.length, plan.columns)))  # fmt: skip
        raise _damaged(SERIES, f"it has {here}, and {FRAME} is for {there}")
    return series


def _damaged(name: str, what: str) -> UserError:
    return UserError(f"{name} of this run is damaged ({what}); take it from a copy of the run folder, or train again.")


def _wrong(about: Any) -> str:
    """What is wrong with the content of frame.json; empty: nothing."""
    if not isinstance(about, dict) or about.keys() != {"columns", "cut", "season", "frame"}:
        return "it should have columns, cut, season and frame"
    columns, cut, season, frame = (about[key] for key in ("columns", "cut", "season", "frame"))
    if not isinstance(columns, list) or not columns or not all(isinstance(name, str) for name in columns):
        return "columns should be a list of names"
    steps = cut if isinstance(cut, list) and all(map(_is_whole, cut)) else []
    if len(steps) != 3 or not 0 < steps[0] <= steps[1] <= steps[2]:
        return "cut should be three steps, one after the other"
    if not _is_whole(season) or season < 1:
        return f"season should be a number of steps, not {shown(season)}"
    if not isinstance(frame, dict) or frame.keys() | {"masked"} != {field.name for field in fields(Frame)}:
        return f"frame should have {', '.join(field.name for field in fields(Frame))}"
    for key, least in (("window", 1), ("horizon", 1), ("lag", 0)):
        if not _is_whole(frame[key]) or frame[key] < least:
            return f"frame.{key} should be a whole number of at least {least}, not {shown(frame[key])}"
    if frame["lag"] + frame["window"] + frame["horizon"] > steps[0]:
        return "frame.window, frame.lag and frame.horizon together are longer than the training part"
    for key in ("log", "masked"):
        if not isinstance(frame.get(key, False), bool):
            return f"frame.{key} should be true or false"
    lengths = {"center": len(columns), "spread": len(columns)}
    lengths |= {"target_center": frame["horizon"], "target_spread": frame["horizon"]}
    for key, length in lengths.items():
        numbers = frame[key]
        if not isinstance(numbers, list) or len(numbers) != length or not all(map(_is_number, numbers)):
            return f"frame.{key} should be {counted(length, 'number')}"
        if key.endswith("spread") and min(numbers) <= 0:
            return f"frame.{key} should be above 0"
    return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST


def _is_number(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _rounded(value: object) -> object:
    """Ten digits: the same on machines that add up in another order."""
    return [float(f"{v:.10g}") for v in value] if isinstance(value, tuple) else value
