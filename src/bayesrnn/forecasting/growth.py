"""Panels that grow: new rows and new series, beside the names of series as the data has them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.panel import Panel, assembled, too_long

_PLAIN = re.compile(r"[uU]?[iI]nt\d+|[fF]loat\d+|bool|boolean|str|string|object|datetime64\[[\w, /+:-]+\]")


def joined(old: Panel, new: Panel) -> Panel:
    """Both together; new series come last. Where both have a value at a step, it must be the same."""
    known = {name: i for i, name in enumerate(old.ids)}
    ids = [*old.ids, *(name for name in new.ids if name not in known)]
    place = {name: i for i, name in enumerate(ids)}
    parts = []
    for panel in (old, new):
        codes = np.repeat(np.array([place[name] for name in panel.ids]), panel.lengths)
        rows = np.arange(len(panel.y)) - np.repeat(panel.offsets[:-1], panel.lengths)
        numbers = np.repeat(panel.first, panel.lengths) + rows * panel.clock.every
        parts.append((codes, numbers, panel.y, panel.past, panel.future))
    for i, name in enumerate(new.ids):
        if name in known and (new.first[i] - old.first[known[name]]) % old.clock.every:
            raise UserError(f"Series {name!r}: the new stamps are off the grid of the old ones; correct them.")
        _check_distance(old, new, known.get(name, -1), i)
    fresh = np.array([i for i, name in enumerate(new.ids) if name not in known], dtype=int)
    static = np.concatenate([old.static, new.static[fresh]])
    codes, numbers, y, past, future = (np.concatenate(pair) for pair in zip(*parts, strict=True))
    both = assembled(
        ids,
        codes,
        numbers,
        y,
        past,
        future,
        static,
        old.clock,
        old.columns,
        _together(old.labels, new.labels.take(fresh)),
        "last",  # missing values replace none
    )
    codes, numbers, y = parts[0][:3]
    kept = both.y[both.offsets[codes] + (numbers - both.first[codes]) // old.clock.every]
    for row in np.flatnonzero(~np.isnan(y) & ~np.isclose(kept, y, rtol=1e-9, atol=0))[:1]:
        raise UserError(
            f"Series {ids[codes[row]]!r} already has {y[row]:g} at {old.clock.stamps(numbers[[row]])[0]}, not "
            f"{kept[row]:g}; pass only new rows, or fit again to correct old ones."
        )
    return both


def _check_distance(old: Panel, new: Panel, k: int, i: int) -> None:
    """Refuse rows so far from those of a series that one of their stamps must be wrong."""
    if k < 0:
        return
    every, ends = old.clock.every, [p.first[j] + p.lengths[j] * p.clock.every for p, j in ((old, k), (new, i))]
    length = (max(ends) - min(old.first[k], new.first[i])) // every
    if too_long(length, old.lengths[k] + new.lengths[i]):
        at = old.clock.stamps(new.first[[i]])[0]
        raise UserError(
            f"Series {new.ids[i]!r}: the new rows from {at} on are {abs(new.first[i] - ends[0]) // every:,} steps of "
            f"one {old.clock.name} from those known; correct the stamps, or fit again."
        )


def _together(old: Any, new: Any) -> Any:
    """Labels of both, with the dtype of the old ones where it holds the new ones too."""
    import pandas as pd

    if not len(new):
        return old
    values = [*old, *new]
    if isinstance(old.dtype, pd.CategoricalDtype):
        seen = old.dtype.categories
        fresh = [v for v in dict.fromkeys(new) if v not in seen]
        return pd.Categorical(values, categories=[*seen, *fresh], ordered=old.dtype.ordered)
    try:
        return pd.Series(values, dtype=object).astype(old.dtype).array
    except (TypeError, ValueError):
        return pd.Series(values, dtype=object).array


def labels_to_json(labels: Any) -> dict[str, Any]:
    import pandas as pd

    if isinstance(labels.dtype, pd.CategoricalDtype):
        of = labels_to_json(labels.categories.array)
        return {"of": of, "codes": labels.codes.tolist(), "ordered": bool(labels.ordered)}
    values = [v if isinstance(v, (str, int, float)) else str(v) for v in np.asarray(labels, dtype=object).tolist()]
    return {"dtype": str(labels.dtype), "values": values}


def labels_from_json(about: dict[str, Any]) -> Any:
    import pandas as pd

    if "of" in about:
        kind = pd.CategoricalDtype(labels_from_json(about["of"]), ordered=bool(about["ordered"]))
        return pd.Categorical.from_codes(about["codes"], dtype=kind)
    dtype = about["dtype"] if _PLAIN.fullmatch(about["dtype"]) else "object"
    return pd.Series(about["values"], dtype=object).astype(dtype).array
