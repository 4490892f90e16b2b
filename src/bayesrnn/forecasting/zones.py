"""Local times of a clock that goes forward and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.forecasting.panel import Panel

Array = np.ndarray


def localized(index: Any, ids: Array, zone: str, after: Panel | None = None) -> Any:
    """Local times in their zone.

    When clocks go back, an hour is there twice. Its times are summer time until they start again, in the order of each
    series: oldest or newest first. ``after``: a series whose rows begin there, after its summer time, is past that.

    Raises:
        UserError: a time does not exist, or both hours are there in rows without an order.
    """
    import pandas as pd

    summer, winter = (
        index.tz_localize(zone, ambiguous=np.full(len(index), s), nonexistent="NaT") for s in (True, False)
    )
    for row in np.flatnonzero(summer.isna())[:1]:
        raise UserError(
            f"Row {row}: {index[row]} does not exist in {zone}, because clocks go forward; correct it, or omit "
            "timezone if the clock of these stamps never changes."
        )
    both, zero = np.asarray(summer != winter), pd.Timedelta(0)
    if not both.any():
        return summer
    rows = pd.DataFrame({"id": ids, "at": index, "day": index.normalize(), "row": np.arange(len(index))})
    first = rows[both].groupby(["id", "day"], observed=True)["at"].transform("min")
    steps = first.reindex(rows.index).fillna(rows["at"]).groupby(ids).diff()  # the hour that is there twice is one time
    rises, falls = ((steps.fillna(zero) * sign >= zero).groupby(ids).transform("all") for sign in (1, -1))
    found = rows.assign(none=~rises & ~falls, order=rows["row"].where(rises, -rows["row"]))[both]
    for row in found[found["none"] & found.duplicated(["id", "at"])]["row"][:1]:
        raise UserError(
            f"Series {str(ids[row])!r}: {index[row]} is there twice, because clocks go back in {zone}, and the rows "
            f"neither rise nor fall (row {row}); sort them by time, or write their offsets from UTC."
        )
    found = found.sort_values("order")
    group = found.groupby(["id", "day"], observed=True).ngroup()
    late = (found.groupby(group)["at"].diff() <= zero).groupby(group).cummax()
    if after is not None and not after.clock.wall:
        ends = dict(zip(after.ids, after.numbers(np.arange(len(after)), after.lengths - 1).tolist(), strict=True))
        begins = found["id"].astype(str).map(ends) >= summer.as_unit("us").asi8[found["row"]]
        begins &= rows.groupby("id", observed=True)["at"].transform("min")[found.index] == found["at"]
        late |= begins.groupby(group).transform("any") & ~late.groupby(group).transform("any")
    past = np.zeros(len(index), bool)
    past[found["row"]] = late & ~found["none"]
    return winter.where(past, summer)
