"""Files, frames and Series as long frames, and the stamps of their rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrnn.errors import UserError
from bayesrnn.forecasting.clock import Clock
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.dates import LOOK, check_counts, date_column, forms_of, of_numbers, parse
from bayesrnn.forecasting.zones import localized

if TYPE_CHECKING:
    from bayesrnn.forecasting.panel import Panel

Array = np.ndarray
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b.*")
_PARTS = ("year", "month", "day", "hour", "minute")
CLOCKS = {"hour", "hours", "hr", "time", "he", "hourending", "hour ending", "hour_ending"}
_NUMBERED = {"no", "no.", "nr", "nr.", "id", "index", "row", "rownum", "rownames", "obs", "#", "unnamed: 0", ""}
_OTHER = (".xlsx", ".xls", ".json", ".feather", ".h5", ".pkl")


def read(path: Path) -> Any:
    """A CSV, CSV.gz or Parquet file as a frame. Fields of a CSV may be separated by ";", a tab or "|" too."""
    import pandas as pd

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pd.read_parquet(path)
        if path.suffix.lower() in _OTHER and path.is_file():
            raise UserError(f"{path} is a {path.suffix} file; give a CSV, CSV.gz or Parquet file, or a DataFrame.")
        frame = _csv(path, ",")
        for separator in ";\t|":
            if len(frame.columns) == 1 and separator in str(frame.columns[0]):
                frame = _csv(path, separator)
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
    frame = _with_stamps(_joined(frame.iloc[:, 1:] if numbered else frame))  # without the index that pandas wrote
    frame.attrs["header"] = list(map(str, frame))
    return frame


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


def _csv(path: Path, separator: str) -> Any:
    """A table of text with numbers as people write them; its index counts all lines below the header."""
    import pandas as pd

    try:
        frame = pd.read_csv(path, sep=separator, skip_blank_lines=False)
    except pd.errors.EmptyDataError:  # perhaps empty lines before the header
        frame = pd.read_csv(path, sep=separator)
    if not isinstance(frame.index, pd.RangeIndex) and frame.iloc[:, -1].isna().all():  # lines end with a separator
        frame = pd.read_csv(path, sep=separator, skip_blank_lines=False, index_col=False)
    header = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0].dropna()
    for name in header[header.duplicated()][:1]:
        raise UserError(f"Two columns of {path} are called {name!r}; rename one.")
    empty = frame.isna().all(axis=1)
    if empty.any() and not empty.all():
        whole = {n: "int64" for n, c in frame[~empty].items() if c.dtype.kind == "f" and (c % 1 == 0).all()}
        frame = frame[~empty].astype(whole)
    frame = frame.drop(columns=[n for n in frame if str(n).startswith("Unnamed: ") and frame[n].isna().all()])
    return frame.apply(_numbers, path=path, separator=separator)


def _numbers(cells: Any, path: Path, separator: str) -> Any:
    """Text with groups of thousands, decimal commas, or one sign of a currency or percent, as numbers."""
    import pandas as pd

    text = cells.dropna().astype(str).str.strip() if pd.api.types.infer_dtype(cells) == "string" else cells[:0]
    signs = text.str.extract(r"([$\u20ac\u00a3\u00a5%])", expand=False) if len(text) else text
    if not len(text) or signs.nunique() > 1 or 0 < signs.isna().sum() < len(signs):
        return cells
    bare = text.str.replace(r"^([+-]?)[$\u20ac\u00a3\u00a5]\s*|\s*[$\u20ac\u00a3\u00a5%]$", r"\1", regex=True)
    bare = bare.str.replace(r"(?<=\d)[ \u00a0\u202f'](?=\d{3}(?!\d))", "", regex=True)
    way = r"[+-]?(\d+|\d{{1,3}}({}\d{{3}})+)({}\d+)?"
    groups, decimals = (bare.str.fullmatch(way.format(*marks)).all() for marks in ((",", r"\."), (r"\.", ",")))
    if groups and decimals and bare.str.contains(",").any() and separator != ";":
        raise UserError(
            f"The commas of column {cells.name!r} of {path} ({text.iloc[0]!r}) separate thousands or decimals; write "
            "thousands without a separator, and decimals with a point."
        )
    if not groups and not decimals:
        return cells
    mark, point = (".", ",") if decimals else (",", ".")
    if groups and decimals and not bare.str.contains(",").any():
        mark = ","  # points are decimal
    plain = bare.str.replace(mark, "", regex=False).str.replace(point, ".", regex=False)
    return pd.to_numeric(plain).reindex(cells.index)


def _joined(frame: Any) -> Any:
    """Days and times of day in two columns as one column of stamps."""
    import pandas as pd

    names = {str(name).lower(): name for name in frame}
    date, clocks = names.get("date"), [names[name] for name in names if name in CLOCKS]
    if date is None or len(clocks) != 1 or {Columns.time, "datetime", "timestamp"} & set(names):
        return frame
    days, cells = frame[date].astype(str), frame[clocks[0]]
    if not forms_of(days.iloc[:LOOK].tolist()) or days.str.contains(":").any() or cells.isna().any():
        return frame
    if cells.groupby(days).nunique().median() < 2:  # one row a day
        return frame
    text = cells.astype(str).str.strip().str.replace(".", ":")
    if pd.api.types.is_integer_dtype(cells) and cells.min() == 0 and cells.max() == 23:
        text = text.str.zfill(2) + ":00"
    if not text.str.fullmatch(r"\d{1,2}(:\d{2}){1,2}").all():
        raise UserError(
            f"Columns {date!r} and {clocks[0]!r} look like one stamp; join them in one column, such as "
            "'2026-01-31 05:00'."
        )
    return frame.assign(**{date: days + " " + text}).drop(columns=clocks)


def time_column(frame: Any, name: str) -> str:
    """The column of stamps of a file: the one of this name; where the name is the default, any with dates."""
    if name in frame or name != Columns.time or frame.index.dtype.kind != "i":  # Parquet keeps an index of dates
        return name
    return date_column(frame.head(200).astype(str)) or name


def long_frame(data: Any, columns: Columns, *, target: bool = True) -> Any:
    """Any of the accepted forms as a long frame with the columns id, time and target, then further ones."""
    import pandas as pd

    frame = _framed(data, columns)
    if len(header := frame.attrs.get("header", ())) == len(frame.columns) and columns.time in frame:
        frame.attrs["stamps"] = header[frame.columns.get_loc(columns.time)]
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
        mixed = pd.api.types.infer_dtype(frame[name]).startswith("mixed")
        several = [isinstance(cell, (list, dict, set, tuple, np.ndarray)) for cell in (frame[name] if mixed else ())]
        if np.iscomplexobj(frame[name]) or any(several):
            raise UserError(
                f"Column {name!r} holds neither numbers nor text in row {several.index(True) if several else 0}; drop "
                "it, or make it one value per row."
            )
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
    if not several:
        return data
    fresh = [name for name in data.index.names if name not in data]
    return (data.reset_index(fresh) if fresh else data).reset_index(drop=True)


def _melted(frame: Any, columns: Columns) -> Any:
    """A wide frame: every column is a series."""
    if columns.id in frame or columns.target != Columns.target:
        raise UserError(
            f"The frame has no column {columns.target!r} to forecast; its columns are {_listed(frame.columns)}: "
            "name it with target_col."
        )
    values = [c for c in frame if c != columns.time]
    counts = {c: "row numbers" for c in values if str(c).lower() in _NUMBERED and _counts_rows(frame[c])}
    values = [c for c in values if c not in counts] or values
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
    made = frame.melt([columns.time], values, columns.id, columns.target)
    made.attrs = {**frame.attrs, "rows": len(frame), "unused": counts}  # messages count rows of the wide frame
    return made


def _counts_rows(cells: Any) -> bool:
    steps = np.diff(cells) if cells.dtype.kind in "iu" else np.zeros(1)
    return len(steps) > 0 and bool((steps == 1).all() or (steps == -1).all())


def _has_numbers(cells: Any) -> bool:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells) or cells.isna().all():
        return True
    return cells.dtype.kind not in "mM" and bool(pd.to_numeric(cells.astype(str), errors="coerce").notna().any())


def further_frame(data: Any, columns: Columns, ids: Sequence[str], *, target: bool = True) -> Any:
    """A long frame of further rows of these series; rows that name none are those of the only one."""
    frame = long_frame(data, columns, target=target)
    if len(ids) == 1 and (frame[columns.id] == unnamed(columns)).all():
        return frame.assign(**{columns.id: ids[0]})
    return frame


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


def stamps_of(
    frame: Any,
    columns: Columns,
    clock: Clock | None = None,
    *,
    freq: str | int | None = None,
    after: Panel | None = None,
) -> Any:
    """A DatetimeIndex, or whole numbers.

    ``clock``: that of the fitted model, or else ``freq``, says how numbers are meant. ``after``: series that the rows
    follow.
    """
    import pandas as pd

    cells, name = frame[columns.time], frame.attrs.get("stamps", columns.time)
    for row in np.flatnonzero(cells.isna() | (cells == ""))[:1]:
        raise UserError(
            f"Series {str(frame[columns.id].iloc[row])!r}: row {row} has no stamp in column {name!r}; fill it or drop "
            "the row."
        )
    if isinstance(cells.dtype, pd.PeriodDtype):
        cells = cells.dt.to_timestamp()
    rows, digits, text = _digits(cells)  # each different number once
    counts = clock.unit == "number" if clock is not None else not isinstance(freq, (str, type(None)))
    found = None if counts or digits is None else of_numbers(digits, columns.zone)
    if text and found is None and digits.str.fullmatch(r"[12]\d{3}").all() and not counts:
        found = pd.to_datetime(digits, format="%Y")
    if found is not None:
        cells = found.take(rows)
    elif digits is not None:
        numbers = _counts(rows, digits, name, columns.zone)
        if clock is None and not counts:
            check_counts(digits, name, text=text)
        return numbers
    elif not pd.api.types.is_datetime64_any_dtype(cells):
        if pd.api.types.is_float_dtype(cells) or pd.api.types.is_bool_dtype(cells):
            raise UserError(f"The column {name!r} holds {cells.dtype} values, not stamps; use dates or whole numbers.")
        mixed = pd.api.types.infer_dtype(cells).startswith("mixed-integer")
        cells = _dates(cells.astype(str) if mixed else cells, name, columns.zone)
    index = pd.DatetimeIndex(cells)
    if not columns.zone:
        return index
    if index.tz is not None:
        return index.tz_convert(columns.zone)
    return localized(index, frame[columns.id].to_numpy(), columns.zone, after)


def _digits(cells: Any) -> tuple[Array, Any, bool]:
    """Whole numbers as codes of rows and text of digits, and whether they were text; no digits: there are others."""
    import pandas as pd

    kind, none = pd.api.types.infer_dtype(cells), (np.zeros(0, int), None, False)
    if kind == "floating" and (np.abs(cells) < 2**63).all() and (cells % 1 == 0).all():
        kind, cells = "integer", cells.astype(np.int64)
    if kind not in ("integer", "string", "mixed", "categorical"):
        return none
    codes, found = pd.factorize(cells)
    digits = pd.Series(found).astype(str).str.strip()
    if kind != "integer" and not digits.str.fullmatch(r"-?\d{1,19}").all():
        return none
    return codes, digits, kind != "integer"


def _counts(rows: Array, digits: Any, name: str, zone: str) -> Array:
    if zone:
        raise UserError(
            f"timezone is {zone!r}, and the whole numbers in column {name!r} have no time zone; omit it, or give dates."
        )
    for code in np.flatnonzero(digits.str.len() > 15)[:1]:
        raise UserError(
            f"The whole number {digits[code]} in row {int(np.argmax(rows == code))} of column {name!r} is too large "
            "for a stamp; give dates or numbers of up to 15 digits."
        )
    found: Array = digits.to_numpy(dtype=object).astype(np.int64)[rows]
    return found


def _dates(text: Any, name: str, zone: str) -> Any:
    """Text as dates: ISO, else in any form that `dates.parse` knows and that can be read in one way only."""
    import pandas as pd

    try:
        return pd.Series(pd.to_datetime(text, format="ISO8601"))
    except (ValueError, TypeError, OverflowError):
        return pd.Series(parse(text.fillna("").astype(str).tolist(), name, zone))
