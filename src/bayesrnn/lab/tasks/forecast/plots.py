"""Plots of what records keep of forecasts, drawn as `bayesrnn.forecasting.plots` draws a forecaster's."""

from collections.abc import Mapping, Sequence
from typing import Any

from bayesrnn.forecasting import plots
from bayesrnn.lab.report.plots import shown

_NARROW, _WIDE = 4.6, 7.2
_YEARS = range(1600, 2500)  # that an axis of dates shows


def columns_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a record under their present names: older ones call standard deviations aleatoric and epistemic."""
    stds = {f"{key}_std": record[key] for key in ("aleatoric", "epistemic") if key in record}
    return {**stds, **record}


def forecast_plot(
    past: Sequence[float], rows: Mapping[str, Any], labels: Sequence[str], *, name: str, level: float, direct: int,
    narrow: bool = False,
) -> bytes:  # fmt: skip
    """The end of a series and what is forecast after it. PNG bytes.

    Args:
        past: the last values. rows: columns mean, low, high, epistemic_std of the steps after them.
        labels: dates of both. direct: after so many steps forecasts are sampled roll-outs, and a line says so.
        narrow: to be read on a phone.
    """
    import pandas as pd

    stamps = _stamps(labels)
    history = pd.DataFrame({"ds": stamps[: len(past)], "y": [shown(v) for v in past]})
    found = _table(rows, stamps[len(past) :], level, ("mean", "epistemic_std"))
    return plots.fan(history, found, name=name, width=_NARROW if narrow else _WIDE, split=direct)


def walked(
    columns: Mapping[str, Sequence[float]], dates: Sequence[str], *, name: str, level: float, last: int,
    narrow: bool = False,
) -> bytes:  # fmt: skip
    """Forecasts one step ahead beside what came; below, both uncertainties. PNG bytes.

    Args:
        columns: mean, low, high, actual, aleatoric_std and epistemic_std, one value per date.
    """
    rows = {key: values[-last:] for key, values in columns.items()}
    table = _table(rows, _stamps(dates[-last:]), level, ("mean", "actual", "aleatoric_std", "epistemic_std"))
    table = table.rename(columns={"actual": "y"})
    return plots.walk_chart(table, name=name, width=_NARROW if narrow else _WIDE)


def _table(rows: Mapping[str, Any], stamps: Any, level: float, keys: Sequence[str]) -> Any:
    import pandas as pd

    percent = round(100 * level, 6)
    named = {"low": f"lo-{percent:g}", "high": f"hi-{percent:g}", **{key: key for key in keys}}
    return pd.DataFrame({"ds": stamps, **{named[key]: [shown(v) for v in rows[key]] for key in named}})


def _stamps(labels: Sequence[str]) -> Any:
    """Dates of a record: months, quarters and times as such; rows by their numbers; anything else by its place."""
    import pandas as pd

    if all(label.isascii() and label.isdigit() and len(label) < 10 for label in labels):
        return pd.Index([int(label) for label in labels])
    try:
        index = (
            pd.PeriodIndex(list(labels), freq="Q").to_timestamp() if all("Q" in label for label in labels)
            else pd.DatetimeIndex(pd.to_datetime(list(labels), format="ISO8601"))
        )  # fmt: skip
        if set(index.year) <= set(_YEARS):
            return index
    except (ValueError, TypeError, OverflowError):
        pass
    return pd.RangeIndex(len(labels))
