"""Pictures of forecasts: fan charts, calibration, where the model doubts itself, and the worst series. PNG bytes.

``width`` is in inches: 7.2 for a page, 4.6 for a phone.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from statistics import NormalDist
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
    """The end of a series (None: the first) and its forecast; the orange band is the model's own doubt."""
    name = forecaster.ids[0] if series is None else series
    return fan_charts(forecaster, [name], level=level, past=past, future=future, width=width)


def fan_charts(
    forecaster: Forecaster, series: Sequence[str], *, level: Sequence[float] = (50, 80, 95), past: int | None = None,
    future: Any = None, width: float = 7.2,
) -> bytes:  # fmt: skip
    """`fan_chart` for several series, one below the other."""
    figure, panels = _figure(width, 3.8 if len(series) == 1 else 2.4 * len(series), len(series), rows=True)
    columns, names = forecaster.columns, short_names(series)
    own = future is not None and columns.id in future
    for axes, name in zip(np.atleast_1d(panels), series, strict=True):
        history = forecaster.history(name)
        ahead = future[future[columns.id].astype(str) == name] if own else future
        found = forecaster.predict(history, level=level, future=ahead).rename(columns={columns.time: "ds"})
        history = history.rename(columns={columns.time: "ds", columns.target: "y"})
        rows, x = past or max(60, 3 * forecaster.horizon), _ticks(found["ds"])
        _fan(axes, _recent(history, rows), found)
        _named(axes, names[name], len(series))
        _dated(axes, x)
    return _with_legend(figure, np.atleast_1d(panels)[0], columns=6 if width > 6 else 3)


def alarm_charts(forecaster: Forecaster, table: Any, series: Sequence[str], *, width: float = 7.2) -> bytes:
    """New rows, in the table of `Forecaster.anomalies`, after the last rows of the model; rings are alarms."""
    figure, panels = _figure(width, 3.8 if len(series) == 1 else 2.4 * len(series), len(series), rows=True)
    columns, names = forecaster.columns, short_names(series)
    for axes, name in zip(np.atleast_1d(panels), series, strict=True):
        new = table[table[columns.id].astype(str) == name]
        if name in forecaster.ids:
            old = _recent(forecaster.history(name), max(60, len(new)), columns.target)
            axes.plot(_ticks(old[columns.time]), old[columns.target], color=_GREY, linewidth=1.2, label="known rows")
        x, y = _ticks(new[columns.time]), new[columns.target].to_numpy()
        alarm = new["alarm"].to_numpy(dtype=bool)
        axes.plot(x, y, color=_BLACK, linewidth=1.2, marker=".", markersize=3, label="new rows")
        ring = {"markersize": 8, "fillstyle": "none", "markeredgewidth": 1.8}
        axes.plot(x[alarm], y[alarm], "o", color=_ORANGE, label="alarm", **ring)
        _named(axes, names[name], len(series))
        _dated(axes, x)
    return _with_legend(figure, np.atleast_1d(panels)[0], columns=3)


def _named(axes: Any, name: str, panels: int) -> None:
    """Low panels have no room for a name at their side."""
    if panels == 1:
        axes.set_ylabel(name)
    else:
        axes.set_title(name, fontsize=9, loc="left")


def _recent(history: Any, rows: int, target: str = "y") -> Any:
    """The last rows up to the last value: those after it have nothing to show."""
    known = np.flatnonzero(history[target].notna())
    return history.iloc[: known[-1] + 1 if len(known) else None].tail(rows)


def fan(past: Any, found: Any, *, name: str, width: float = 7.2, split: int | None = None) -> bytes:
    """Values (columns ds and y) and what is forecast after them: ds, mean, lo-L and hi-L, epistemic_std.

    The line is the median, or the mean where there is no median. ``split``: a dotted line after so many steps.
    """
    figure, axes = _figure(width, 3.8)
    _fan(axes, past, found)
    x = _ticks(found["ds"])
    if split is not None and 0 < split < len(x):
        axes.axvline(x[split - 1], color=_GREY, linewidth=1, linestyle=":")
    axes.set_ylabel(_short(name))
    return _png(figure, axes, x, columns=6 if width > 6 else 3)


def _fan(axes: Any, past: Any, found: Any) -> None:
    levels, x = _levels(found), _ticks(found["ds"])
    axes.plot(_ticks(past["ds"]), past["y"], color=_BLACK, linewidth=1.3, label="observed")
    for k, level in enumerate(levels[::-1]):
        ends = found[f"lo-{level}"], found[f"hi-{level}"]
        axes.fill_between(x, *ends, color=_BLUE, alpha=0.18 + 0.1 * k, linewidth=0, label=f"{level}%")
    mean, doubt = found["mean"].to_numpy(), found["epistemic_std"].to_numpy()
    reach = NormalDist().inv_cdf(0.5 + float(levels[-1]) / 200)
    if (doubt > 0).any():
        ends = mean - reach * doubt, mean + reach * doubt
        named = f"epistemic, {levels[-1]}%"
        axes.fill_between(x, *ends, color=_ORANGE, alpha=0.5, linewidth=0, label=named)
    middle = "median" if "median" in found else "mean"
    axes.plot(x, found[middle], color=_BLUE, linewidth=1.6, label=middle)


def walk_chart(table: Any, *, name: str, width: float = 7.2) -> bytes:
    """One forecast per stamp beside the observed value, and both uncertainties below: a table of `Forecaster.backtest`
    with one series and one step."""
    figure, (top, below) = _figure(width, 4.8, 2, rows=True, heights=(3, 1))
    level, x, y = _levels(table)[-1], _ticks(table["ds"]), table["y"].to_numpy()
    low, high = table[f"lo-{level}"].to_numpy(), table[f"hi-{level}"].to_numpy()
    top.fill_between(x, low, high, color=_BLUE, alpha=0.22, linewidth=0, label=f"{level}%")
    top.plot(x, table["mean"], color=_BLUE, linewidth=1.6, label="forecast")
    inside = (low <= y) & (y <= high)
    top.plot(x, y, color=_BLACK, linewidth=0.9, alpha=0.6)
    top.plot(x[inside], y[inside], "o", color=_BLACK, markersize=3, label="observed, inside")
    top.plot(x[~inside], y[~inside], "X", color="#8E3E7C", markersize=7, label="outside")
    top.set_ylabel(_short(name))
    for key, colour, style, named in (
        ("aleatoric_std", _BLUE, "-", "noise (aleatoric)"), ("epistemic_std", _ORANGE, _STYLES[1], "model (epistemic)")
    ):  # fmt: skip
        below.plot(x, table[key], color=colour, linestyle=style, linewidth=1.4, label=named)
    highest = np.nanmax([0.0, *table["aleatoric_std"], *table["epistemic_std"]])
    below.set(ylim=(0, 1.9 * highest or 1), ylabel="sd")  # room for the legend
    below.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    _dated(below, x)
    top.tick_params(labelbottom=False)
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4 if width > 6 else 2, frameon=False, fontsize=8.5)
    return _png(figure, top, x, columns=0)


def _levels(table: Any) -> list[str]:
    """Levels of the table's intervals in percent, the narrowest first."""
    return sorted((str(c)[3:] for c in table if str(c).startswith("lo-")), key=float)


def calibration(table: Any, *, width: float = 8.4) -> bytes:
    """Where values fell in their forecasts (PIT; flat means calibrated), and coverage of intervals by steps ahead.

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


def epistemic_share(
    table: Any, time_col: str = "ds", *, id_col: str = "unique_id", width: float = 7.2
) -> bytes:  # fmt: skip
    """The model's own doubt and the noise over time, averaged over series and steps ahead; several series relative to
    their mean absolute values."""
    figure, axes = _figure(width, 3.2)
    mean = doubt(table, time_col, id_col)
    x = _ticks(mean.index)
    axes.plot(x, mean["aleatoric_std"], color=_BLUE, label="noise (aleatoric)")
    axes.plot(x, mean["epistemic_std"], color=_ORANGE, linestyle=_STYLES[1], label="model (epistemic)")
    several = id_col in table and table[id_col].nunique() > 1
    axes.set(ylabel="sd / mean |y|" if several else "standard deviation", ylim=(0, None))
    return _png(figure, axes, x, columns=2)


def doubt(table: Any, by: Any, id_col: str = "unique_id") -> Any:
    """Means of what `relative` gives, by a key."""
    return relative(table, id_col).groupby(table[by] if isinstance(by, str) else by).mean()


def relative(table: Any, id_col: str = "unique_id") -> Any:
    """Both standard deviations; those of several series divided by their mean absolute values."""
    spreads = table[["aleatoric_std", "epistemic_std"]]
    if id_col not in table or table[id_col].nunique() < 2:
        return spreads
    return spreads.div(table[id_col].map(_sizes(table, id_col)).astype(float), axis=0)


def worst_series(
    table: Any, count: int = 4, id_col: str = "unique_id", time_col: str = "ds", *, width: float = 7.2
) -> bytes:
    """The series with the largest CRPS relative to their size: values, medians and the widest intervals."""
    order = worst_first(table, id_col)[:count]
    figure, axes = _figure(width, 1.9 * len(order), len(order), rows=True)
    widest, names = _levels(table)[-1], short_names(order)
    for one, name in zip(np.atleast_1d(axes), order, strict=True):
        rows = table[table[id_col] == name].drop_duplicates(time_col, keep="last").sort_values(time_col)
        x = _ticks(rows[time_col])
        one.fill_between(x, rows[f"lo-{widest}"], rows[f"hi-{widest}"], color=_BLUE, alpha=0.25, linewidth=0)
        one.plot(x, rows["median"], color=_BLUE, linewidth=1.2)
        one.plot(x, rows["y"], color=_BLACK, linewidth=1.0)
        one.set_title(f"{names[name]} ({widest}% interval)", fontsize=9, loc="left")
        _dated(one, x)
    return _saved(figure)


def worst_first(table: Any, id_col: str = "unique_id") -> list[str]:
    """Names of series, the one with the largest CRPS relative to its size first; without those that have no values."""
    known = table[table["y"].notna()]
    crps = known.groupby(id_col, observed=True)["crps"].mean()
    return (crps / _sizes(known, id_col)).sort_values(ascending=False).index.tolist()


def _sizes(table: Any, id_col: str) -> Any:
    """The mean absolute value of each series; 1 where that is 0 or unknown."""
    found = table["y"].abs().groupby(table[id_col], observed=True).mean()
    return found.where(found > 0, 1.0)


def short_names(names: Sequence[Any], most: int = 40) -> dict[Any, str]:
    """A label for each name; long names are cut in the middle, and numbered where that makes them alike."""
    found: dict[Any, str] = {}
    for name in names:
        label = _short(name, most)
        found[name] = label if label not in found.values() else f"{label} ({len(found) + 1})"
    return found


def _short(name: Any, most: int = 40) -> str:
    text = "".join(c if c.isprintable() else " " for c in str(name))
    half = most // 2
    return text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}"


def _ticks(stamps: Any) -> Any:
    """Stamps as matplotlib takes them: without a zone."""
    import pandas as pd

    index = pd.Index(stamps)
    return index.tz_localize(None).to_numpy() if isinstance(index, pd.DatetimeIndex) and index.tz is not None else (
        index.to_numpy())  # fmt: skip


def _figure(width: float, height: float, parts: int = 1, *, rows: bool = False, heights: Any = None) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(parts if rows else 1, 1 if rows else parts, height_ratios=heights)


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
    return _with_legend(figure, axes, columns=columns)


def _with_legend(figure: Any, axes: Any, *, columns: int) -> bytes:
    """``columns`` of the legend, which names the parts of one panel; 0: none."""
    if columns:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=8.5)
    return _saved(figure)


def _saved(figure: Any) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a name starts no formula
    made = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name of another script has boxes
        figure.savefig(made, format="png", dpi=150, metadata={"Software": None})
    return made.getvalue()
