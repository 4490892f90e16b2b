"""One description of a table, three ways to show it: in the terminal, as HTML, as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markupsafe import Markup
    from rich.table import Table

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A key of the records, its heading, and a format: a ``str.format`` pattern; a missing value shows as a dash."""

    key: str
    heading: str
    pattern: str = "{}"

    def text(self, record: Record) -> str:
        value = record.get(self.key)
        return "–" if value is None else self.pattern.format(value)


def rich_table(records: Sequence[Record], columns: Sequence[Column], *, title: str | None = None) -> "Table":
    """For the terminal; the first column is the row's name."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column.heading, justify="right" if i else "left", no_wrap=i == 0, vertical="bottom")
    for record in records:
        table.add_row(*(column.text(record) for column in columns))
    return table


def html_table(records: Sequence[Record], columns: Sequence[Column]) -> "Markup":
    """For a page."""
    from bayesrnn.lab.report import html

    rows = [[column.text(record) for column in columns] for record in records]
    return html.table([column.heading for column in columns], rows)


def markdown_table(records: Sequence[Record], columns: Sequence[Column]) -> str:
    """For documentation."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|---|" + "---:|" * (len(columns) - 1)
    rows = [line([column.text(record) for column in columns]) for record in records]
    return "\n".join([line([column.heading for column in columns]), rule, *rows]) + "\n"
