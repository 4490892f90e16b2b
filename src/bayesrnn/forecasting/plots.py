"""Pictures of forecasts: fan charts, calibration, where the model doubts itself, and the worst series. PNG bytes.

``width`` is in inches: 7.2 for a page, 4.6 for a phone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.forecasting.scores import pit, scores

if TYPE_CHECKING:
    from bayesrnn.forecasting.forecaster import Forecaster

_BLUE, _ORANGE, _BLACK, _GREY = "#0060A8", "#C04A00", "#222222", "#999999"
_STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))


def fan_chart(
    forecaster: Forecaster, series: str | None = None, *, level: Sequence[float] = (50, 80, 95),
    past: int | None = None, future: Any = None, width: float = 7.2,
) -> bytes:  # fmt: skip
    """The end of a series (None: the first) and its forecast; the darker band is the model's own doubt."""
    columns = forecaster.columns
    name = forecaster.ids[0] if series is None else series
    history = forecaster.history(name)
    found = forecaster.predict(history, level=level, future=future)
    history = history.tail(past or max(60, 3 * forecaster.horizon))
    figure, axes = _figure(width, 3.8)
    axes.plot(_ticks(history[columns.time]), history[columns.target], color=_BLACK, linewidth=1.1, label="past")
    x = _ticks(found[columns.time])
    for k, percent in enumerate(sorted(level, reverse=True)):
        ends = found[f"lo-{percent:g}"], found[f"hi-{percent:g}"]
        axes.fill_between(x, *ends, color=_BLUE, alpha=0.15 + 0.1 * k, linewidth=0, label=f"{percent:g}%")
    mean, doubt = found["mean"].to_numpy(), found["epistemic_std"].to_numpy()
    axes.fill_between(x, mean - 1.645 * doubt, mean + 1.645 * doubt, color=_ORANGE, alpha=0.5, linewidth=0,
                      label="epistemic, 90%")  # fmt: skip
    axes.plot(x, found["median"], color=_BLUE, linewidth=1.6, label="median")
    axes.set_ylabel(_short(name))
    return _png(figure, axes, x, columns=6 if width > 6 else 3)


def calibration(table: Any, *, width: float = 8.4) -> bytes:
    """Where values fell in their forecasts (PIT; flat is right), and coverage of intervals by steps ahead.

    ``table`` is that of `Forecaster.backtest`; the histogram needs its quantiles, as from quantiles=[0.1, ..., 0.9].
    """
    wide = width > 6
    figure, (left, right) = _figure(width, 3.4 if wide else 5.6, 2, rows=not wide)
    edges, shares = pit(table)
    if edges:
        sizes = np.diff(edges)
        left.bar(edges[:-1], shares / sizes, sizes, align="edge", color=_BLUE, alpha=0.6, edgecolor="white")
    left.axhline(1, color=_BLACK, linewidth=0.8, linestyle="--")
    left.set(xlabel="P(forecast ≤ value)", ylabel="density", xlim=(0, 1))
    by_step = scores(table, by="step")
    names = sorted((c for c in by_step if c.startswith("coverage-")), key=lambda c: float(c[9:]))
    for k, name in enumerate(names):
        colour = (_BLUE, _ORANGE, _BLACK)[k % 3]
        right.plot(by_step.index, by_step[name], color=colour, linestyle=_STYLES[k % 3], label=f"{name[9:]}%")
        right.axhline(float(name[9:]) / 100, color=colour, linewidth=0.8, linestyle=":")
    right.set(xlabel="steps ahead", ylabel="coverage", ylim=(0, 1.02))
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend(frameon=False, fontsize=8, loc="lower left")
    return _saved(figure)


def epistemic_share(table: Any, time_col: str = "ds", *, width: float = 7.2) -> bytes:
    """The model's own doubt and the noise over time, averaged over series and steps ahead."""
    figure, axes = _figure(width, 3.2)
    mean = table.groupby(time_col)[["aleatoric_std", "epistemic_std"]].mean()
    x = _ticks(mean.index)
    axes.plot(x, mean["aleatoric_std"], color=_BLUE, label="noise (aleatoric)")
    axes.plot(x, mean["epistemic_std"], color=_ORANGE, linestyle=_STYLES[1], label="model (epistemic)")
    axes.set(ylabel="standard deviation", ylim=(0, None))
    return _png(figure, axes, x, columns=2)


def worst_series(
    table: Any, count: int = 4, id_col: str = "unique_id", time_col: str = "ds", *, width: float = 7.2
) -> bytes:
    """The series with the largest CRPS relative to their size: what came, medians and the widest intervals."""
    order = worst_first(table, id_col)[:count]
    figure, axes = _figure(width, 1.9 * len(order), len(order), rows=True)
    widest = max((c for c in table if str(c).startswith("lo-")), key=lambda c: float(c[3:]))[3:]
    for one, name in zip(np.atleast_1d(axes), order, strict=True):
        rows = table[table[id_col] == name].drop_duplicates(time_col, keep="last").sort_values(time_col)
        x = _ticks(rows[time_col])
        one.fill_between(x, rows[f"lo-{widest}"], rows[f"hi-{widest}"], color=_BLUE, alpha=0.25, linewidth=0)
        one.plot(x, rows["median"], color=_BLUE, linewidth=1.2)
        one.plot(x, rows["y"], color=_BLACK, linewidth=1.0)
        one.set_title(f"{_short(name)} ({widest}% interval)", fontsize=9, loc="left")
        _dated(one, x)
    return _saved(figure)


def worst_first(table: Any, id_col: str = "unique_id") -> list[str]:
    """Names of series, the one with the largest CRPS relative to its size first."""
    size = table.groupby(id_col)["y"].agg(lambda v: float(np.nanmean(np.abs(v))) or 1.0)
    return (table.groupby(id_col)["crps"].mean() / size).sort_values(ascending=False).index.tolist()


def _short(name: Any) -> str:
    text = "".join(c if c.isprintable() else " " for c in str(name))
    return text if len(text) <= 40 else f"{text[:39]}…"


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


def _dated(axes: Any, x: Any) -> None:
    if np.issubdtype(np.asarray(x).dtype, np.datetime64):
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GREY, alpha=0.3, linewidth=0.6)


def _png(figure: Any, axes: Any, x: Any, *, columns: int) -> bytes:
    _dated(axes, x)
    figure.legend(loc="outside upper center", ncols=columns, frameon=False, fontsize=8.5)
    return _saved(figure)


def _saved(figure: Any) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a name starts no formula
    made = io.BytesIO()
    figure.savefig(made, format="png", dpi=150)
    return made.getvalue()
