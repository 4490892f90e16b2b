"""Files, frames and Series as long frames, and the stamps of their rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import Clock
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.dates import date_column, forms_of, of_numbers, parse

Array = np.ndarray
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b.*")
_PARTS = ("year", "month", "day", "hour", "minute")
_OTHER = (".xlsx", ".xls", ".json", ".feather", ".h5", ".pkl")


def read(path: Path) -> Any:
    """A CSV, CSV.gz or Parquet file as a frame. Fields of a CSV may be separated by ";", a tab or "|" too."""
    import pandas as pd

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        if path.suffix.lower() in _OTHER and path.is_file():
            raise UserError(f"{path} is a {path.suffix} file; give a CSV, CSV.gz or Parquet file, or a DataFrame.")
        frame = pd.read_csv(path)
        for separator in ";\t|":
            if len(frame.columns) == 1 and separator in str(frame.columns[0]):
                frame = pd.read_csv(path, sep=separator)
                frame = frame.apply(_decimal_commas) if separator == ";" else frame
    except FileNotFoundError:
        raise UserError(f"There is no file {path}; give the path of a CSV, CSV.gz or Parquet file.") from None
    except ImportError:
        raise UserError("Parquet files need pyarrow; pip install 'bayesrnn[forecast]'") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8; save it in that encoding.") from None
    except (ValueError, OSError) as error:
        raise UserError(
            f"{path} cannot be read as a table ({str(error).splitlines()[0][:200]}); give a CSV, CSV.gz or "
            "Parquet file with a header."
        ) from None
    names = [str(name) for name in frame.columns]
    if any(map(_DATE.fullmatch, names)) and any(re.fullmatch(r"-?\d+\.?\d*", name) for name in names):
        raise UserError(
            f"The first line of {path} has values ({_listed(names)}); put a line with names of the columns before it."
        )
    numbered = len(names) > 2 and names[0] == "Unnamed: 0" and (frame.iloc[:, 0] == np.arange(len(frame))).all()
    return _with_stamps(frame.iloc[:, 1:] if numbered else frame)  # without the index that pandas wrote


def _with_stamps(frame: Any) -> Any:
    """One column of stamps for those of the year, month, day and perhaps hour, where there is no other."""
    import pandas as pd

    names = {str(name).lower(): name for name in frame}
    parts = {part: frame[names[part]] for part in _PARTS if part in names}
    if not {*_PARTS[:3]} <= set(parts) or {Columns.time, "date", "time", "datetime", "timestamp"} & set(names):
        return frame
    stamps = pd.to_datetime(pd.DataFrame(parts), errors="coerce")
    rest = frame.drop(columns=[names[part] for part in parts])
    return frame if stamps.isna().any() else rest.assign(**{Columns.time: stamps})


def _decimal_commas(cells: Any) -> Any:
    """A column of text with decimal commas as numbers; any other as it is."""
    import pandas as pd

    text = cells.dropna()
    if pd.api.types.is_numeric_dtype(cells) or not text.astype(str).str.fullmatch(r"\s*[+-]?\d+(,\d+)?\s*").all():
        return cells
    return pd.to_numeric(cells.str.replace(",", "."))


def time_column(frame: Any, name: str) -> str:
    """The column of stamps of a file: the one of this name; where the name is the default, any with dates."""
    if name in frame or name != Columns.time or frame.index.dtype.kind != "i":  # Parquet keeps an index of dates
        return name
    return date_column(frame.head(200).astype(str)) or name


def long_frame(data: Any, columns: Columns, *, target: bool = True) -> Any:
    """Any of the accepted forms as a long frame with the columns id, time and target, then further ones."""
    import pandas as pd

    frame = _framed(data, columns)
    if columns.time not in frame:
        dated = isinstance(frame.index, (pd.DatetimeIndex, pd.PeriodIndex)) or frame.index.name == columns.time
        if not dated:
            raise UserError(
                f"The frame has no column {columns.time!r} and no DatetimeIndex; its columns are "
                f"{_listed(frame.columns)}: name the column of stamps with time_col."
            )
        frame = frame.reset_index(names=columns.time)
    if target and columns.target not in frame:
        frame = _melted(frame, columns)
    if columns.id not in frame:
        frame = frame.assign(**{columns.id: unnamed(columns)})
    if not all(isinstance(name, str) for name in frame):
        frame = frame.rename(columns=str)  # a saved forecaster keeps names as text
        _check_names(frame)
    for row in np.flatnonzero(frame[columns.id].isna())[:1]:
        raise UserError(f"Row {row} has no name of a series in column {columns.id!r}; fill it or drop the row.")
    for name in frame:
        if np.iscomplexobj(frame[name]) or isinstance(frame[name].iloc[0], (list, dict, set, np.ndarray)):
            raise UserError(f"Column {name!r} holds neither numbers nor text; drop it, or make it one value per row.")
    return frame


def _framed(data: Any, columns: Columns) -> Any:
    """A DataFrame with rows and plain names of columns; a named index of several levels becomes columns."""
    import pandas as pd

    if isinstance(data, (str, Path)):
        data = read(Path(data))
        data = data.rename(columns={time_column(data, columns.time): columns.time})
    elif not isinstance(data, (pd.DataFrame, pd.Series)) and hasattr(data, "to_pandas"):  # polars, Arrow
        data = data.to_pandas()
    if isinstance(data, pd.Series) and data.index.nlevels > 1:
        data = data.to_frame(columns.target)
    if isinstance(data, pd.Series):
        name = str(data.name) if data.name is not None else unnamed(columns)
        data = pd.DataFrame({columns.id: name, columns.time: data.index, columns.target: data.to_numpy()})
    if not isinstance(data, pd.DataFrame):
        raise UserError(
            f"The data must be a DataFrame, a Series or a path, got {type(data).__name__}; make a DataFrame of it."
        )
    if not len(data):
        raise UserError("The frame has no rows; give at least one series with values.")
    _check_names(data)
    several = data.index.nlevels > 1 and {columns.id, columns.time} & set(data.index.names)
    return data.reset_index() if several else data


def _melted(frame: Any, columns: Columns) -> Any:
    """A wide frame: every column is a series."""
    if columns.id in frame or columns.target != Columns.target:
        raise UserError(
            f"The frame has no column {columns.target!r} to forecast; its columns are {_listed(frame.columns)}: "
            "name it with target_col."
        )
    values = [c for c in frame if c != columns.time]
    text = [c for c in values if not _has_numbers(frame[c])]
    if len(text) == len(values):
        raise UserError(
            f"The frame has no column {columns.target!r} and no column of numbers; its columns are "
            f"{_listed(frame.columns)}: name the one to forecast with target_col."
        )
    for name in text[:1]:
        raise UserError(
            f"The frame has no column {columns.target!r}, so each column is a series, and {str(name)!r} holds no "
            f"numbers ({str(frame[name].iloc[0])[:60]!r} in row 0); correct or drop it, or name the columns of values "
            "and of series with target_col and id_col."
        )
    rows = len(frame)
    frame = frame.melt([columns.time], values, columns.id, columns.target)
    frame.attrs["rows"] = rows  # of the wide frame: messages count these
    return frame


def _has_numbers(cells: Any) -> bool:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) or cells.isna().all():
        return True
    return cells.dtype.kind not in "mM" and bool(pd.to_numeric(cells.astype(str), errors="coerce").notna().any())


def unnamed(columns: Columns) -> str:
    """The name of a series that has none."""
    return "series" if columns.target == Columns.target else columns.target


def _check_names(frame: Any) -> None:
    if frame.columns.nlevels > 1:
        raise UserError("The frame's columns have several levels; give each one name, for example by droplevel.")
    if frame.columns.duplicated().any():
        raise UserError(f"Two columns are called {frame.columns[frame.columns.duplicated()][0]!r}; rename one.")


def _listed(names: Any) -> str:
    shown = [repr(str(n)) for n in list(names)[:8]]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def stamps_of(frame: Any, columns: Columns, clock: Clock | None = None) -> Any:
    """A DatetimeIndex, or whole numbers; ``clock``: that of the fitted model, which says how numbers are meant."""
    import pandas as pd

    cells, name = frame[columns.time], columns.time
    if isinstance(cells.dtype, pd.PeriodDtype):
        cells = cells.dt.to_timestamp()
    kind = pd.api.types.infer_dtype(cells)
    if kind == "integer" or (kind == "floating" and (cells % 1 == 0).all()):
        if not cells.isna().any():
            whole = cells.to_numpy(dtype=np.int64)
            counts = clock is not None and clock.unit == "number"
            cells = None if counts else of_numbers(whole, sure=clock is not None)
            if cells is None:
                return whole
    elif not pd.api.types.is_datetime64_any_dtype(cells):
        if pd.api.types.is_float_dtype(cells) or pd.api.types.is_bool_dtype(cells):
            raise UserError(f"The column {name!r} holds {cells.dtype} values, not stamps; use dates or whole numbers.")
        cells = _dates(cells, columns)
        if pd.api.types.is_integer_dtype(cells):
            return cells.to_numpy()
    missing = cells.isna().to_numpy().nonzero()[0]
    if len(missing):
        raise UserError(f"Row {missing[0]} has no stamp in column {name!r}; fill it or drop the row.")
    index = pd.DatetimeIndex(cells)
    if not columns.zone:
        return index
    return _localized(index, frame[columns.id], columns.zone) if index.tz is None else index.tz_convert(columns.zone)


def _dates(text: Any, columns: Columns) -> Any:
    """Text as dates: ISO, else in any form that `dates.parse` knows and that can be read in one way only. Text of whole
    numbers that are no dates: those numbers."""
    import pandas as pd

    try:
        return pd.Series(pd.to_datetime(text, format="ISO8601"))
    except (ValueError, TypeError, OverflowError):
        cells = text.fillna("").astype(str)
        if cells.str.fullmatch(r"-?\d{1,15}").all() and not forms_of(cells.tolist()):
            return cells.astype(np.int64)
        return pd.Series(parse(cells.tolist(), columns.time, columns.zone))


def _localized(index: Any, ids: Any, zone: str) -> Any:
    """Local times in their zone. Of two equal ones, when clocks go back, the one that comes first is summer time."""
    import pandas as pd

    order = np.arange(len(index))
    if index[0] > index[-1]:
        order = order[::-1]  # newest first
    seen = pd.DataFrame({"id": ids.to_numpy(), "at": index}).iloc[order].groupby(["id", "at"], observed=True).cumcount()
    found = index.tz_localize(zone, ambiguous=(seen.sort_index() == 0).to_numpy(), nonexistent="NaT")
    for row in np.flatnonzero(found.isna())[:1]:
        raise UserError(
            f"Row {row}: {index[row]} does not exist in {zone}, because clocks go forward; correct it, or omit "
            "timezone if the clock of these stamps never changes."
        )
    return found
