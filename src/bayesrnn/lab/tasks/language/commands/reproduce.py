"""``bayesrnn reproduce``: a published table beside our own values, from records; missing rows can be run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.console.errors import one_line
from bayesrnn.lab.recipes.tables import TABLES

if TYPE_CHECKING:
    from rich.table import Table

_CHOICE = " or ".join(f"{name} ({what})" for name, what in TABLES.items())


@one_line
def command(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"{_CHOICE}.")],
    results: Annotated[Path, typer.Option(help="Folder of records, RECIPE/SEED.json.")] = Path("results"),
    data: Annotated[str | None, typer.Option(help="Text folder: rows without a record are run on it.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per row to run: 1 to this number.")] = 1,
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value for every row that is run.")] = None,
) -> None:
    """Print a paper's values beside ours; with --data, first run every row that has no record yet.

    A record counts if it has the row's settings, its seed, and a text of the same name. If it lacks a value that the
    paper has, the row's run is evaluated, or trained if --runs does not have it. The tables are gal2016 and
    fortunato2017, both of Penn Treebank: rows of records whose text is not named ptb say so. For other recipes use
    bayesrnn report.
    """
    from bayesrnn.errors import UserError
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.report.tables import Column, markdown_table, rich_table
    from bayesrnn.lab.tasks.language.reproduction import Asked, reproduce

    if table not in TABLES:
        raise UserError(f"There is no table {table}; choose {_CHOICE}.")
    console = plain_console()
    rows = reproduce(table, Asked(results, data, seeds, runs, device, overrides or []), console)
    names = ("row", "measure", "paper", "ours", "seeds")
    columns = [Column(name, name, "{:.2f}" if name == "paper" else "{}") for name in names]
    if markdown:
        typer.echo(markdown_table(rows, columns), nl=False)
    else:
        console.print(_narrow(rich_table(_named_once(rows), columns)))
    if not any(row["ours"] for row in rows):
        what = "holds no records of these rows" if results.is_dir() else "is missing"
        typer.echo(
            f"{results} {what}, so there is nothing to compare: start this in a clone of the repository, name the "
            "folder of records with --results, or train the rows with --data.",
            err=True,
        )


def _named_once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without a name that is the one above."""
    above = [None, *(row["row"] for row in rows)]
    return [{**row, "row": "" if row["row"] == name else row["row"]} for row, name in zip(rows, above, strict=False)]


def _narrow(table: "Table") -> "Table":
    """In a narrow terminal names are folded, and all values are shown."""
    for i, column in enumerate(table.columns):
        column.no_wrap, column.overflow, column.vertical = i > 0, "fold", "top"
    return table
