"""Roles of a frame's columns, and numbers made of covariates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bayesrnn.errors import UserError

Array = np.ndarray
LARGEST = 1e18  # of a value
_CATEGORIES = 64  # the most frequent ones have a column each
_NUMBERS = {"decimal", "floating", "integer", "mixed-integer-float", "boolean"}  # of a column of objects


@dataclass(frozen=True)
class Columns:
    """Which columns a frame has, and what is needed to make numbers of further columns.

    ``codes`` maps a column of text or categories to its categories: one column each, so that the network's first layer
    is their embedding. ``zone``: the time zone that stamps are read in, empty for that of the data.
    """

    id: str = "unique_id"
    time: str = "ds"
    target: str = "y"
    past: tuple[str, ...] = ()
    future: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    codes: dict[str, list[str]] = field(default_factory=dict)
    means: dict[str, tuple[float, float]] = field(default_factory=dict)
    zone: str = ""

    @property
    def further(self) -> list[str]:
        """Names of covariates."""
        return [*self.past, *self.future, *self.static]

    def width(self, names: Sequence[str]) -> int:
        return sum(len(self.codes[name]) if name in self.codes else 1 for name in names)

    def learnt(self, frame: Any) -> Columns:
        """With categories, means and spreads of these rows."""
        import pandas as pd

        codes, means = {}, {}
        for name in (*self.past, *self.future, *self.static):
            cells = frame[name]
            numbers = pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_bool_dtype(cells)
            if numbers or cells.isna().all() or pd.api.types.infer_dtype(cells) in _NUMBERS:
                values = cells.to_numpy(dtype=float, na_value=np.nan)
                values = values[np.abs(values) <= LARGEST]
                spread = float(values.std()) if len(values) else 0.0
                means[name] = (float(values.mean()) if len(values) else 0.0, spread if spread > 0 else 1.0)
            else:
                codes[name] = [str(v) for v in cells.dropna().astype(str).value_counts().index[:_CATEGORIES]]
        return replace(self, codes=codes, means=means)

    def matrix(self, frame: Any, names: Sequence[str]) -> Array:
        """Columns as numbers (n, width), float32: scaled, or one per category; NaN where missing."""
        import pandas as pd

        parts: list[Array] = []
        for name in names:
            if name in self.codes:
                cells, missing = frame[name].astype(str).to_numpy(), frame[name].isna().to_numpy()
                parts += [np.where(missing, np.nan, cells == code).astype(np.float32) for code in self.codes[name]]
                continue
            mean, spread = self.means[name]
            try:
                values = frame[name].to_numpy(dtype=float, na_value=np.nan)
            except (TypeError, ValueError):
                row = int(np.argmax(pd.to_numeric(frame[name], errors="coerce").isna() & frame[name].notna()))
                cell, at = str(frame[name].iloc[row])[:60], frame[self.time].iloc[row]
                raise UserError(
                    f"Series {str(frame[self.id].iloc[row])!r}: column {name!r} has {cell!r} at {at}, and the model "
                    "was fitted to numbers; correct it or leave it empty."
                ) from None
            for row in np.flatnonzero(np.abs(values) > LARGEST)[:1]:
                what = "infinite" if np.isinf(values[row]) else "too large"
                raise UserError(
                    f"Series {str(frame[self.id].iloc[row])!r}: column {name!r} is {what} at "
                    f"{frame[self.time].iloc[row]}; correct it or leave it empty."
                )
            parts.append(np.clip((values - mean) / spread, -20, 20).astype(np.float32))
        return np.stack(parts, 1) if parts else np.zeros((len(frame), 0), np.float32)
