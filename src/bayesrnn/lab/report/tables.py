"""Tables: described once, shown in the terminal or as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A key of the rows, its heading, and a ``str.format`` pattern; a missing value is shown as a dash."""

    key: str
    heading: str
    pattern: str = "{}"

    def text(self, row: Row) -> str:
        value = row.get(self.key)
        return "–" if value is None else self.pattern.format(value)


def rich_table(rows: Sequence[Row], columns: Sequence[Column], *, title: str | None = None) -> Table:
    """For the terminal; the first column is the row's name."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column.heading, justify="right" if i else "left", no_wrap=i == 0, vertical="bottom")
    for row in rows:
        table.add_row(*(column.text(row) for column in columns))
    return table


def markdown_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """For documentation."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|---|" + "---:|" * (len(columns) - 1)
    lines = [line([column.text(row) for column in columns]) for row in rows]
    return "\n".join([line([column.heading for column in columns]), rule, *lines]) + "\n"
