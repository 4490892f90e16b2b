"""Pictures of forecasts: fan charts, calibration, where the model doubts itself, and the worst series. PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

_BLUE, _ORANGE, _BLACK, _GREY = "#2166ac", "#d6604d", "#222222", "#999999"


def fan_chart(
    forecaster: Forecaster, series: str | None = None, *, level: Sequence[float] = (50, 80, 95),
    past: int | None = None, future: Any = None,
) -> bytes:  # fmt: skip
    """The end of a series (None: the first) and its forecast; the darker band is the model's own doubt."""
    panel = forecaster._panel
    name = panel.ids[0] if series is None else series
    if name not in panel.ids:
        raise UserError(f"There is no series {name!r}; there are {', '.join(panel.ids[:8])}.")
    found = forecaster.predict(level=level, future=future)
    found = found[found[forecaster.columns.id] == name]
    i, stamps = panel.ids.index(name), found[forecaster.columns.time]
    length = int(panel.lengths[i])
    shown = min(length, past or max(60, 3 * forecaster.horizon))
    rows = np.arange(length - shown, length)
    before = panel.clock.stamps(panel.numbers(np.full(shown, i), rows))
    figure, axes = _figure(7.2, 3.6)
    axes.plot(_ticks(before), panel.y[panel.offsets[i] + rows], color=_BLACK, linewidth=1.1, label="past")
    x = _ticks(stamps)
    for k, percent in enumerate(sorted(level, reverse=True)):
        ends = found[f"lo-{percent:g}"], found[f"hi-{percent:g}"]
        axes.fill_between(x, *ends, color=_BLUE, alpha=0.15 + 0.1 * k, linewidth=0, label=f"{percent:g}%")
    mean, doubt = found["mean"].to_numpy(), found["epistemic_std"].to_numpy()
    axes.fill_between(x, mean - 1.645 * doubt, mean + 1.645 * doubt, color=_ORANGE, alpha=0.5, linewidth=0,
                      label="epistemic, 90%")  # fmt: skip
    axes.plot(x, found["median"], color=_BLUE, linewidth=1.6, label="median")
    axes.set_ylabel(str(name)[:40])
    return _png(figure, axes, panel.clock.unit != "number", columns=6)


def calibration(table: Any) -> bytes:
    """Left: where values fell in their forecasts (PIT; flat is right). Right: coverage of intervals by steps ahead.

    ``table`` is that of `Forecaster.backtest`; the histogram needs its quantiles, as from quantiles=[0.1, ..., 0.9].
    """
    figure, (left, right) = _figure(8.4, 3.4, 2)
    quantiles = sorted(float(c[2:]) for c in table if str(c).startswith("q-"))
    y = table["y"].to_numpy()
    known = ~np.isnan(y)
    if quantiles:
        edges = np.array([0.0, *quantiles, 1.0])
        below = sum((y > table[f"q-{q:g}"].to_numpy()).astype(int) for q in quantiles)
        share = np.bincount(np.asarray(below)[known], minlength=len(edges) - 1) / known.sum()
        left.bar(edges[:-1], share / np.diff(edges), np.diff(edges), align="edge", color=_BLUE, alpha=0.6,
                 edgecolor="white")  # fmt: skip
    left.axhline(1, color=_BLACK, linewidth=0.8, linestyle="--")
    left.set(xlabel="P(forecast ≤ value)", ylabel="density", xlim=(0, 1))
    for k, name in enumerate(sorted(c for c in table if str(c).startswith("lo-"))):
        low, high = table[name], table[f"hi-{name[3:]}"]
        inside = ((y >= low) & (y <= high)).astype(float).where(known)
        cover = inside.groupby(table["step"]).mean()
        colour = (_BLUE, _ORANGE, _BLACK)[k % 3]
        right.plot(cover.index, cover, color=colour, label=f"{name[3:]}%")
        right.axhline(float(name[3:]) / 100, color=colour, linewidth=0.8, linestyle="--")
    right.set(xlabel="steps ahead", ylabel="coverage", ylim=(0, 1.02))
    right.legend(frameon=False, fontsize=8, loc="lower left")
    return _saved(figure)


def epistemic_share(table: Any, time_col: str = "ds") -> bytes:
    """The model's own doubt and the noise over time, averaged over series and steps ahead."""
    figure, axes = _figure(7.2, 3.0)
    mean = table.groupby(time_col)[["aleatoric_std", "epistemic_std"]].mean()
    x = _ticks(mean.index)
    axes.plot(x, mean["aleatoric_std"], color=_BLUE, label="noise (aleatoric)")
    axes.plot(x, mean["epistemic_std"], color=_ORANGE, label="model (epistemic)")
    axes.set(ylabel="standard deviation", ylim=(0, None))
    return _png(figure, axes, not np.issubdtype(np.asarray(x).dtype, np.number), columns=2)


def worst_series(table: Any, count: int = 4, id_col: str = "unique_id", time_col: str = "ds") -> bytes:
    """The series with the largest CRPS relative to their size: what came, medians and the widest intervals."""
    size = table.groupby(id_col)["y"].agg(lambda v: float(np.nanmean(np.abs(v))) or 1.0)
    order = (table.groupby(id_col)["crps"].mean() / size).sort_values(ascending=False).index[:count]
    figure, axes = _figure(7.2, 1.9 * len(order), len(order), rows=True)
    widest = max((c for c in table if str(c).startswith("lo-")), key=lambda c: float(c[3:]))[3:]
    for one, name in zip(np.atleast_1d(axes), order, strict=True):
        rows = table[table[id_col] == name].drop_duplicates(time_col, keep="last").sort_values(time_col)
        x = _ticks(rows[time_col])
        one.fill_between(x, rows[f"lo-{widest}"], rows[f"hi-{widest}"], color=_BLUE, alpha=0.25, linewidth=0)
        one.plot(x, rows["median"], color=_BLUE, linewidth=1.2)
        one.plot(x, rows["y"], color=_BLACK, linewidth=1.0)
        one.set_title(f"{str(name)[:40]} ({widest}% interval)", fontsize=9, loc="left")
        _dated(one, not np.issubdtype(np.asarray(x).dtype, np.number))
    return _saved(figure)


def _ticks(stamps: Any) -> Any:
    """Stamps as matplotlib takes them: without a zone."""
    import pandas as pd

    index = pd.Index(stamps)
    return index.tz_localize(None).to_numpy() if isinstance(index, pd.DatetimeIndex) and index.tz is not None else (
        index.to_numpy())  # fmt: skip


def _figure(width: float, height: float, parts: int = 1, *, rows: bool = False) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(parts if rows else 1, 1 if rows else parts)


def _dated(axes: Any, dated: bool) -> None:
    if dated:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GREY, alpha=0.3, linewidth=0.6)


def _png(figure: Any, axes: Any, dated: bool, *, columns: int) -> bytes:
    _dated(axes, dated)
    figure.legend(loc="outside upper center", ncols=columns, frameon=False, fontsize=8.5)
    return _saved(figure)


def _saved(figure: Any) -> bytes:
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=130)
    return made.getvalue()
