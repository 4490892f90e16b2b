"""A panel as a long frame."""

from __future__ import annotations

from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.panel import Panel


def frame_of(panel: Panel, series: object = None) -> Any:
    """A panel, or one of its series, as a long frame in the units of the data; rare categories are None."""
    import pandas as pd

    if series is not None:
        series = str(series)
        if series not in panel.ids:
            raise UserError(f"There is no series {series!r}; there are {', '.join(panel.ids[:8])}.")
        panel = panel.part(np.array([panel.ids.index(series)]))
    columns, each = panel.columns, np.repeat(np.arange(len(panel)), panel.lengths)
    rows = np.arange(len(panel.y)) - panel.offsets[each]
    found: dict[str, Any] = {columns.id: panel.labels.take(each)}
    found[columns.time] = panel.clock.stamps(panel.numbers(each, rows))
    found[columns.target] = panel.y
    for names, values in (
        (columns.past, panel.past), (columns.future, panel.future), (columns.static, panel.static[each])
    ):  # fmt: skip
        start = 0
        for name in names:
            size = columns.width([name])
            part, start = values[:, start : start + size], start + size
            if name in columns.codes:
                codes = np.array([*columns.codes[name], None], dtype=object)
                found[name] = codes[np.where((part > 0.5).any(1), part.argmax(1), len(codes) - 1)]
            else:
                mean, spread = columns.means[name]
                found[name] = mean + spread * part[:, 0].astype(float)
    return pd.DataFrame(found)
