"""Checks of series and arguments: each raises one sentence that names the series and the rows, and a way out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from bayesrnn.checks import check_choice, check_probability, check_whole, is_number, is_whole
from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import same_kind
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.integrity import CONTEXT, SAMPLES
from bayesrnn.forecasting.network import LIKELIHOODS
from bayesrnn.forecasting.panel import Panel
from bayesrnn.forecasting.tables import further_frame, stamps_of

Array = np.ndarray
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "posterior": ("variational", "bbb", "none"),
    "likelihood": ("auto", *LIKELIHOODS),
    "scaling": ("auto", "mean_abs", "standard", "robust"),
    "transform": ("auto", "none", "log"),
    "resample": (None, "mean", "sum", "last"),
    "cell": ("gru", "lstm"),
}
_WHOLE = {"horizon": (1, "steps"), "context": (1, "steps"), "members": (0, "networks"), "hidden": (1, "units"),
          "layers": (1, "layers"), "samples": (1, "draws")}  # fmt: skip
_MOST = {"horizon": 10_000, "context": CONTEXT, "samples": SAMPLES}
_OURS = {"cutoff", "step", "path", "y", "mean", "median", "crps", "aleatoric_std", "epistemic_std", "order", "cost"}
_OURS |= {"cost_of_mean", "probability", "first_step", "p_value", "score", "alarm"}  # columns of our tables


def check_settings(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a forecaster, as JSON can hold them; one column may be given by its name alone."""
    given = given | {"freq": _freq(given["freq"]), "season": _season(given["season"])}
    for name, choices in _CHOICES.items():
        check_choice(name, given[name], choices)
    for name, (least, what) in _WHOLE.items():
        if given[name] is not None or name not in ("context", "members"):
            check_whole(name, given[name], least=least, what=what)
            if given[name] > _MOST.get(name, given[name]):
                raise UserError(f"{name} is {given[name]}; it is at most {_MOST[name]:,}.")
    check_probability("dropout", given["dropout"])
    if given["minutes"] is not None and not (is_number(given["minutes"]) and 0 <= given["minutes"] < np.inf):
        raise UserError(f"minutes is {given['minutes']!r}; it is a number from 0, such as 1.5.")
    check_seed(given["seed"])
    _check_zone(given["timezone"])
    named = {name: _listed(given[name]) for name in ("past", "future", "static")}
    named |= {name: named[name] or [] for name in ("future", "static")}
    made = {name: list(v) if isinstance(v, tuple) else v for name, v in (given | named).items()}
    _check_names(made)
    return made


def check_seed(seed: Any) -> int:
    if not is_whole(seed) or not 0 <= seed < 2**32:
        raise UserError(f"seed is {seed!r}; it is a whole number from 0 and below 2**32.")
    return int(seed)


def _freq(freq: Any) -> Any:
    """As text or a number, also where it is a pandas offset or a timedelta."""
    import pandas as pd
    from pandas.tseries.frequencies import to_offset

    offset = to_offset(pd.Timedelta(freq)) if isinstance(freq, (timedelta, np.timedelta64)) else freq
    return getattr(offset, "freqstr", freq)


def _listed(names: Any) -> Any:
    """Names of columns as a list: one name, or several in any collection."""
    if isinstance(names, str):
        return [names]
    several = isinstance(names, (Collection, np.ndarray)) and not isinstance(names, (Mapping, Set))
    return list(names) if several else names


def _season(season: Any) -> Any:
    each = list(season) if isinstance(season, (list, tuple, range, np.ndarray)) else [season]
    if season is None:
        return None
    if not each or not all(is_whole(s) and s >= 1 for s in each):
        raise UserError(f"season is {season!r}; it is a number of steps from 1, or several.")
    return int(each[0]) if is_whole(season) else [int(s) for s in each]


def _check_zone(zone: Any) -> None:
    import pandas as pd

    try:
        pd.Timestamp(0, tz="UTC").tz_convert(zone)
        known = zone is None or isinstance(zone, str)
    except (KeyError, ValueError, TypeError, OSError):
        known = False
    if not known:
        raise UserError(f"timezone is {zone!r}, which is no time zone; use a name such as 'Europe/Berlin' or 'UTC'.")


def _check_names(given: Mapping[str, Any]) -> None:
    """Refuse names of columns that are no text, there twice, or those of our own columns."""
    roles = [(key, given[key]) for key in ("id_col", "time_col", "target_col")]
    for key in ("past", "future", "static"):
        if given[key] is not None and not isinstance(given[key], list):
            raise UserError(f"{key} is {given[key]!r}; it is a list of names of columns.")
        roles += [(key, name) for name in given[key] or ()]
    taken: dict[str, str] = {}
    for key, name in roles:
        if not isinstance(name, str):
            raise UserError(f"{key} has {name!r}; names of columns are text.")
        if name in taken:
            raise UserError(f"Column {name!r} is named by {taken[name]} and by {key}; name it once.")
        taken[name] = key
        if key in ("id_col", "time_col") and (name in _OURS or re.fullmatch(r"(lo|hi|q)-[\d.]+", name)):
            raise UserError(f"{key} is {name!r}, which is a column of forecasts; rename yours.")


def check_threshold(threshold: Any, ids: Sequence[str]) -> Array:
    """(S,): one number for all series, or one for each in a dict or a pandas Series."""
    import pandas as pd

    several = isinstance(threshold, (Mapping, pd.Series))
    named = {str(key): value for key, value in threshold.items()} if several else None
    for name in ids:
        if named is not None and name not in named:
            raise UserError(f"threshold has no value for series {name!r}; give one number, or one per series.")
        value = threshold if named is None else named[name]
        if not is_number(value) or np.isnan(value):
            of = "" if named is None else f" for series {name!r}"
            raise UserError(f"threshold is {value!r}{of}; give one number, or one per series.")
    return np.array([threshold if named is None else named[name] for name in ids], dtype=float)


def check_levels(level: Any, quantiles: Any) -> tuple[list[float], list[float]]:
    """Both as lists; a level below 1 is a fraction."""
    levels = list(level) if isinstance(level, Iterable) and not isinstance(level, str) else [level]
    for value in levels:
        if not is_number(value) or not 0 < value < 100 or value == 1:
            raise UserError(f"level has {value!r}; a level is a percentage between 0 and 100, such as 80.")
    quantiles = list(quantiles) if isinstance(quantiles, Iterable) and not isinstance(quantiles, str) else [quantiles]
    for value in quantiles:
        if not is_number(value) or not 0 < value < 1:
            raise UserError(f"quantiles has {value!r}; a quantile is a probability between 0 and 1, such as 0.9.")
    return [round(100 * value, 9) if value < 1 else value for value in levels], quantiles


def check_columns(frame: Any, columns: Columns) -> None:
    """Refuse further columns that are missing, or static and not constant."""
    for role in ("past", "future", "static"):
        for name in getattr(columns, role):
            if name not in frame:
                raise UserError(f"The frame has no column {name!r}, which {role}= names; add it, or leave it out.")
            cells, ids = frame[name], frame[columns.id].to_numpy()
            if role == "static":
                differs = (cells.groupby(ids).transform("first") != cells) & cells.notna()
                for row in np.flatnonzero(differs)[:1]:
                    raise UserError(
                        f"Series {str(ids[row])!r}: column {name!r} is static and changes in row {row}; name it in "
                        "past= or future=."
                    )


def check_trainable(panel: Panel, horizon: int) -> None:
    """Refuse data from which nothing can be learnt."""
    known = ~np.isnan(panel.y)
    counts = np.add.reduceat(known, panel.offsets[:-1])
    for i in np.flatnonzero(counts == 0)[:1]:
        raise UserError(
            f"Series {panel.ids[i]!r} has no value in any of its {panel.lengths[i]} rows; drop it from the frame."
        )
    longest = int(panel.lengths.argmax())
    rows = int(panel.lengths[longest])
    if counts.max() == 1:
        at = _stamp(panel, longest, int(np.argmax(known[panel.offsets[longest] :])))
        raise UserError(
            f"Series {panel.ids[longest]!r} has 1 value (at {at}); fit needs series with more, and predict(df) then "
            "takes short ones."
        )
    if rows < horizon + 4:
        raise UserError(
            f"Series {panel.ids[longest]!r} has {rows} rows (0 to {rows - 1}), and a horizon of {horizon} needs at "
            f"least {horizon + 4}; use a shorter horizon or a longer history."
        )
    filled = np.where(known, panel.y, -np.inf)
    highest = np.maximum.reduceat(filled, panel.offsets[:-1])
    lowest = np.minimum.reduceat(np.where(known, panel.y, np.inf), panel.offsets[:-1])
    if (highest == lowest).all():
        i = longest
        raise UserError(
            f"Series {panel.ids[i]!r} is constant (rows 0 to {rows - 1} are {highest[i]:g}); there is nothing to "
            "learn: add series that vary, or use the constant."
        )


def check_counts(panel: Panel) -> None:
    for row in np.flatnonzero((panel.y < 0) | (panel.y != np.floor(panel.y)) & ~np.isnan(panel.y))[:1]:
        i = int(np.searchsorted(panel.offsets, row, side="right")) - 1
        raise UserError(
            f"Series {panel.ids[i]!r} is {panel.y[row]:g} at {_stamp(panel, i, row - panel.offsets[i])}, and "
            'negative_binomial is for counts (0, 1, 2, ...); correct it, or set likelihood="student".'
        )


def _stamp(panel: Panel, i: int, row: int) -> Any:
    return panel.clock.stamps(panel.numbers(np.array([i]), np.array([row])))[0]


def refuse_gaps(panel: Panel) -> NoReturn:
    """Refuse series whose values are too far apart to choose a model on: name the longest gap."""
    each = np.split(~np.isnan(panel.y), panel.offsets[1:-1])
    places = [np.concatenate([[-1], np.flatnonzero(known), [len(known)]]) for known in each]
    i = int(np.argmax([np.diff(rows).max() for rows in places]))
    k = int(np.diff(places[i]).argmax())
    before, behind = (_stamp(panel, i, row) for row in places[i][k : k + 2])
    where, remedy = f"between {before} and {behind}", "correct a mistyped stamp, or leave out the rows on one side"
    if k == 0 or k + 2 == len(places[i]):
        where, remedy = f"before {behind}" if k == 0 else f"after {before}", "leave out the rows there"
    raise UserError(
        f"Series {panel.ids[i]!r} has {len(places[i]) - 2} values in {panel.lengths[i]} steps, and none {where}, which "
        f"is too few to choose a model; {remedy}."
    )


def check_values(panel: Panel, lower: float, *, counts: bool) -> None:
    """Refuse new values that a model of counts, or of series that were never negative, cannot forecast."""
    if counts:
        check_counts(panel)
    for i, values in enumerate(np.split(panel.y, panel.offsets[1:-1])):
        known = values[~np.isnan(values)]
        if len(known) and np.median(known) < lower:
            raise UserError(
                f"Most values of series {panel.ids[i]!r} are negative, such as {known[known < lower][0]:g}, and the "
                "model was fitted to series that never are; fit it with this series too."
            )


def check_windows(panel: Panel, horizon: int, count: int, apart: int) -> Array:
    """First rows (S,) that are forecast where the last of so many windows ends with the series."""
    needed = horizon + (count - 1) * apart
    for i in np.flatnonzero(panel.lengths <= needed)[:1]:
        raise UserError(
            f"Series {panel.ids[i]!r} has {panel.lengths[i]} rows, and {count} windows of {horizon} steps, {apart} "
            f"apart, need {needed + 1}; ask for fewer windows or drop it."
        )
    first: Array = panel.lengths - needed
    return first


def check_future(panel: Panel, future: Any, horizon: int) -> Array | None:
    """Future-known columns (S, H, F) after the end of each series; None where the model has none."""
    columns = panel.columns
    if not columns.future:
        if future is not None:
            raise UserError(
                "future is given, and the model knows no columns ahead; name them in future= and fit again."
            )
        return None
    names = ", ".join(columns.future)
    if future is None:
        raise UserError(
            f"The model knows {names} ahead; give predict(future=...) a frame with {columns.id}, {columns.time} and "
            f"these columns for {horizon} steps after each series."
        )
    frame = further_frame(future, columns, panel.ids, target=False)
    missing = [c for c in columns.future if c not in frame]
    if missing:
        raise UserError(f"future has no column {missing[0]!r}, which the model knows ahead; add it.")
    stamps = stamps_of(frame, columns, panel.clock, after=panel)
    numbers, place = same_kind(panel.clock, stamps).numbers(stamps), {name: i for i, name in enumerate(panel.ids)}
    series = np.array([place.get(str(name), -1) for name in frame[columns.id]])
    for i in np.flatnonzero(~np.isin(np.arange(len(panel)), series))[:1]:
        raise UserError(
            f"Series {panel.ids[i]!r} has no rows in future, which has those of {str(frame[columns.id].iloc[0])!r}; "
            f"give its {horizon} steps, with the same {columns.id}."
        )
    step, over = np.divmod(numbers - (panel.first + panel.lengths * panel.clock.every)[series], panel.clock.every)
    for i in np.flatnonzero((series >= 0) & ((over > 0) | panel.clock.off(stamps)))[:1]:
        raise UserError(
            f"Series {panel.ids[series[i]]!r}: the stamp {stamps[i]} in row {i} of future is off the grid of one "
            f"{panel.clock.name}; correct it."
        )
    use = (series >= 0) & (step >= 0) & (step < horizon)
    rows, cell = np.flatnonzero(use), series[use] * horizon + step[use]
    order = np.argsort(cell, kind="stable")
    for k in np.flatnonzero(np.diff(cell[order]) == 0)[:1]:
        i, j = rows[order[k]], rows[order[k + 1]]
        raise UserError(
            f"Series {panel.ids[series[i]]!r}: rows {i} and {j} of future are both at {stamps[i]} (one step is one "
            f"{panel.clock.name}); drop one."
        )
    found = np.full((len(panel), horizon, columns.width(columns.future)), np.nan, np.float32)
    found[series[use], step[use]] = columns.matrix(frame, columns.future)[use]
    for i, h in np.argwhere(np.isnan(found).any(2))[:1]:
        at = panel.clock.stamps(panel.numbers(np.array([i]), np.array([panel.lengths[i] + h])))[0]
        raise UserError(
            f"Series {panel.ids[i]!r}: future has no {names} at {at} (step {h + 1} of {horizon}); give all "
            "steps of the horizon, or fit without these columns as future."
        )
    return found
