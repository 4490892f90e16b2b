"""Forecasting tasks and their metrics: numpy and pandas alone, so that the Python of the peers can import them too.

A task is a set of series and of origins: at each origin a method sees the values before it and forecasts ``horizon``
steps. ``fold="valid"`` cuts the same kind of origins out of the training part; nothing after it is read.

| task | series | origins |
|---|---|---|
| m4-hourly, m4-weekly | 414, 359 | the end of each training series |
| etth1-24, etth1-168 | oil temperature, 17,420 hours | every 24 hours of the last 20% |
| co2, sunspots, equipment, unemployment | carried by the statsmodels wheel | up to a horizon apart, in the last 30% |
| gaps, walk, daily, monthly | made up: a third missing in stretches, a random walk, weather, 140 months | the same |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

LEVELS = np.array([0.025, *(np.arange(1, 20) * 0.05).round(2), 0.975])
"""Probabilities of the quantiles that every method gives."""
INNER = slice(1, 20)  # 0.05, 0.1, ..., 0.95: evenly spaced, for the CRPS
COVERAGE = {80: (2, 18), 90: (1, 19), 95: (0, 20)}  # columns of the bounds


@dataclass(frozen=True)
class Task:
    """Series, and where forecasts start."""

    name: str
    horizon: int
    season: int
    """Steps per season, of seasonal naive and of the scale of MASE."""
    freq: str
    values: list[np.ndarray]
    starts: list[pd.Timestamp]
    origins: list[tuple[int, int]]
    """(series, index of the first step to forecast)"""
    train_ends: list[int]
    """Values before these may be learnt from."""
    names: list[str] = field(default_factory=list)
    made_up_dates: bool = False

    def targets(self) -> np.ndarray:
        """(N, H), NaN where missing."""
        return np.stack([self.values[s][o : o + self.horizon] for s, o in self.origins])

    def scales(self) -> np.ndarray:
        """(N,): mean absolute difference over a season in the training part, as in the M4 competition."""
        per = [_seasonal_error(v[:end], self.season) for v, end in zip(self.values, self.train_ends, strict=True)]
        return np.array([per[s] for s, _ in self.origins])

    def frame(self, *, train: bool = False) -> pd.DataFrame:
        """Long: unique_id, ds, y; only the training part if asked for."""
        ends = self.train_ends if train else [len(v) for v in self.values]
        parts = [
            pd.DataFrame({"unique_id": name, "ds": pd.date_range(start, periods=end, freq=self.freq), "y": v[:end]})
            for name, start, v, end in zip(self.names, self.starts, self.values, ends, strict=True)
        ]
        return pd.concat(parts, ignore_index=True)

    def part(self, items: np.ndarray) -> Task:
        """The same task with these origins alone."""
        return Task(**{**self.__dict__, "origins": [self.origins[i] for i in items]})


def _seasonal_error(values: np.ndarray, season: int) -> float:
    return float(np.nanmean(np.abs(values[season:] - values[:-season])))


def load(name: str, folder: Path, fold: str = "test") -> Task:
    """A task by name; ``folder`` holds ``m4/``, ``ett/``, or the folders of statsmodels' data sets."""
    if name.startswith("m4-"):
        return m4(name, folder, fold)
    if name.startswith("etth1-"):
        frame = pd.read_csv(folder / "ett/ETTh1.csv.gz", parse_dates=["date"])
        task = rolling(name, frame["OT"].to_numpy(float), frame["date"][0], "h", int(name.split("-")[1]), 24, share=0.2)
    else:
        task = other(name, folder)
    return validation(task) if fold == "valid" else task


def m4(name: str, folder: Path, fold: str) -> Task:
    """M4 hourly or weekly. The files carry no dates: every series starts at the same made-up one."""
    kind, horizon, season, freq = {"m4-hourly": ("Hourly", 48, 24, "h"), "m4-weekly": ("Weekly", 13, 1, "W")}[name]

    def read(part: str) -> pd.DataFrame:
        return pd.read_csv(folder / f"m4/{kind}-{part}.csv.gz", index_col=0)

    train = read("train")
    values = [row[~np.isnan(row)] for row in train.to_numpy(float)]
    ends = [len(row) for row in values]
    if fold == "valid":
        ends = [end - horizon for end in ends]
    else:
        values = [np.concatenate(pair) for pair in zip(values, read("test").to_numpy(float), strict=True)]
    start = pd.Timestamp("2000-01-02")
    origins = list(enumerate(ends))
    names = [str(index) for index in train.index]
    return Task(name, horizon, season, freq, values, [start] * len(values), origins, ends, names, made_up_dates=True)


def rolling(
    name: str, values: np.ndarray, start: pd.Timestamp, freq: str, horizon: int, step: int, *, share: float,
    season: int = 24,
) -> Task:  # fmt: skip
    """One series; origins ``step`` apart in its last ``share``, the last one a horizon before the end."""
    end = len(values) - int(share * len(values))
    origins = [(0, o) for o in range(len(values) - horizon, end - 1, -step)][::-1]
    return Task(name, horizon, season, freq, [values], [start], origins, [origins[0][1]], [name])


def validation(task: Task) -> Task:
    """As many steps of the training part take the place of the test part."""
    span = len(task.values[0]) - task.train_ends[0]
    values = task.values[0][: task.train_ends[0]]
    step = task.origins[1][1] - task.origins[0][1] if len(task.origins) > 1 else task.horizon
    share = min(span / len(values), 0.4)
    return rolling(task.name, values, task.starts[0], task.freq, task.horizon, step, share=share, season=task.season)


OTHERS = {
    # name: folder, column, start, frequency, horizon, steps between origins, season
    "co2": ("co2", "co2", "1958-03-29", "W-SAT", 26, 13, 52),
    "sunspots": ("sunspots", "SUNACTIVITY", "1700-01-01", "YS", 5, 1, 11),
    "equipment": ("elec_equip", "STS.M.I7.W.TOVT.NS0016.4.000", "1996-01-01", "MS", 12, 1, 12),
    "unemployment": ("macrodata", "unemp", "1959-01-01", "QS", 4, 1, 4),
}
MADE_UP = {
    # name: start, frequency, horizon, steps between origins, season
    "gaps": ("2021-03-01", "h", 24, 24, 24),
    "walk": ("2010-01-01", "B", 10, 10, 1),
    "daily": ("2014-01-01", "D", 7, 7, 365),
    "monthly": ("2012-01-01", "MS", 12, 1, 12),
}


def other(name: str, folder: Path) -> Task:
    """A series of another kind: no setting was chosen on it."""
    if name in OTHERS:
        sub, column, *plan = OTHERS[name]
        values = pd.read_csv(next((folder / sub).glob("*.csv")))[column].to_numpy(float)
    else:
        plan = list(MADE_UP[name])
        make = {"gaps": _gaps, "walk": _walk, "daily": _daily, "monthly": _monthly}[name]
        values = make(np.random.default_rng(20))
    start, freq, horizon, step, season = plan
    return rolling(name, values, pd.Timestamp(start), freq, horizon, step, share=0.3, season=season)


def _gaps(noise: np.random.Generator) -> np.ndarray:
    t = np.arange(6000)
    drift = np.cumsum(noise.normal(0, 0.05, t.size))
    day, week = np.sin(2 * np.pi * t / 24), np.where((t // 24) % 7 >= 5, -1.5, 0.0)
    values = 20 + 4 * day + week + drift + noise.standard_t(5, t.size) * (0.6 + 0.4 * (day > 0))
    while np.isnan(values).mean() < 1 / 3:
        at = noise.integers(t.size)
        values[at : at + noise.integers(3, 120)] = np.nan
    return values


def _walk(noise: np.random.Generator) -> np.ndarray:
    """Like an exchange rate: returns with heavy tails and a volatility that changes."""
    volatility = 0.005 * np.exp(0.5 * np.sin(np.arange(2500) / 200))
    return 1.2 * np.exp(np.cumsum(volatility * noise.standard_t(5, 2500) / np.sqrt(5 / 3)))


def _daily(noise: np.random.Generator) -> np.ndarray:
    """Like temperatures: a year's course, and weather that lasts for days."""
    t, weather = np.arange(3000), np.zeros(3000)
    for i in range(1, t.size):
        weather[i] = 0.75 * weather[i - 1] + noise.normal(0, 2.2)
    return 11 - 9 * np.cos(2 * np.pi * t / 365.25) + weather


def _monthly(noise: np.random.Generator) -> np.ndarray:
    t = np.arange(140)
    level = 5 + 0.006 * t + np.cumsum(noise.normal(0, 0.02, t.size))
    return np.exp(level + 0.2 * np.sin(2 * np.pi * t / 12)) + noise.normal(0, 3, t.size)


def seasonal_naive(task: Task) -> np.ndarray:
    """(N, H, Q): last season's values with Gaussian intervals, sigma √k after k seasons (k = 1, 2, …)."""
    spread = pd.Series(LEVELS).map(_normal_quantile).to_numpy()
    season, out = task.season, []
    seasons = np.arange(task.horizon) // season + 1
    for s, o in task.origins:
        past = task.values[s][:o]
        errors = past[season:] - past[:-season]
        sigma = np.sqrt(np.nanmean(errors**2))
        out.append(_last_season(past, task)[:, None] + sigma * np.sqrt(seasons)[:, None] * spread)
    return np.stack(out)


def seasonal_quantiles(task: Task) -> np.ndarray:
    """(N, H, Q): last season's values with the empirical quantiles of past errors, k seasons ahead each."""
    seasons = np.arange(task.horizon) // task.season + 1
    out = []
    for s, o in task.origins:
        past = task.values[s][:o]
        spread = {
            k: np.nanquantile(past[k * task.season :] - past[: -k * task.season], LEVELS) for k in np.unique(seasons)
        }
        out.append(_last_season(past, task)[:, None] + np.stack([spread[k] for k in seasons]))
    return np.stack(out)


def _last_season(past: np.ndarray, task: Task) -> np.ndarray:
    """The last known value at each place of the season."""
    rows = past[len(past) % task.season :].reshape(-1, task.season)
    known = pd.DataFrame(rows).ffill().iloc[-1].to_numpy()
    return np.resize(known, task.horizon)


def _normal_quantile(p: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


def metrics(task: Task, quantiles: np.ndarray, point: np.ndarray | None = None) -> dict[str, object]:
    """Scores of quantiles (N, H, Q) at `LEVELS`; ``point``: (N, H), the median if not given.

    CRPS is twice the mean pinball loss at 0.05, 0.1, …, 0.95; ``scaled_crps`` divides it by the scale of MASE.
    """
    y, scale = task.targets(), task.scales()[:, None]
    quantiles = np.sort(quantiles, axis=-1)
    point = quantiles[..., 10] if point is None else point
    error = y[..., None] - quantiles[..., INNER]
    crps = 2 * np.maximum(LEVELS[INNER] * error, (LEVELS[INNER] - 1) * error).mean(-1)
    low, high = quantiles[..., 0], quantiles[..., -1]
    width = high - low + 2 / 0.05 * (np.maximum(low - y, 0) + np.maximum(y - high, 0))
    mean = np.nanmean

    def each(values: np.ndarray, axis: int) -> list[float | None]:
        """Means along the other axis; None where nothing is known."""
        rows = (row[~np.isnan(row)] for row in (values if axis else values.T))
        return [round(float(row.mean()), 6) if len(row) else None for row in rows]

    found: dict[str, object] = {
        "smape": float(mean(200 * np.abs(y - point) / np.maximum(np.abs(y) + np.abs(point), 1e-12))),
        "mase": float(mean(np.abs(y - point) / scale)),
        "msis": float(mean(width / scale)),
        "crps": float(mean(crps)),
        "scaled_crps": float(mean(crps / scale)),
        "crps_by_step": each(crps, 0),
        "scaled_crps_by_origin": each(crps / scale, 1),
    }
    known = ~np.isnan(y)
    for level, (a, b) in COVERAGE.items():
        inside = np.where(known, (y >= quantiles[..., a]) & (y <= quantiles[..., b]), np.nan)
        found[f"coverage_{level}"] = float(mean(inside))
        found[f"coverage_{level}_by_step"] = each(inside, 0)
    return found
