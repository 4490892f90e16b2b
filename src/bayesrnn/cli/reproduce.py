"""``bayesrnn reproduce``: a published table beside our own figures, from records; missing rows can be run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.cli.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bayesrnn.recipes import Recipe
    from bayesrnn.report.records import Record

TABLES = {
    "gal2016": "dropout in recurrent networks, arXiv 1512.05287",
    "fortunato2017": "Bayes by Backprop for them, arXiv 1704.02798",
}
_CHOICE = " or ".join(f"{name} ({what})" for name, what in TABLES.items())
MEASURES = (
    ("valid", "valid_perplexity", "valid"),
    ("test", "test_perplexity", "test"),
    ("test_mc", "test_perplexity_mc", "test, MC"),
    ("valid_dynamic", "valid_perplexity_dynamic", "valid, dynamic"),
    ("test_dynamic", "test_perplexity_dynamic", "test, dynamic"),
    ("entropy_gap", "entropy_gap", "entropy gap"),
    ("entropy_gap_mean", "entropy_gap_mean", "entropy gap, mean"),
)


@one_line
def command(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"{_CHOICE}.")],
    results: Annotated[Path, typer.Option(help="Folder of records, RECIPE/SEED.json.")] = Path("results"),
    data: Annotated[str | None, typer.Option(help="Text folder: rows without a record are trained on it.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per row to run: 1 to this number.")] = 1,
    runs: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value for every row that is run.")] = None,
) -> None:
    """Print a paper's figures beside ours; with --data, first run every row that has no record yet.

    A record counts that has the row's settings, its seed, and a text of the same name. The tables are gal2016 and
    fortunato2017, both of Penn Treebank: rows of records whose text is not named ptb say so. For other recipes there is
    bayesrnn report.
    """
    from bayesrnn import recipes
    from bayesrnn.cli.console import plain_console
    from bayesrnn.errors import UserError
    from bayesrnn.report.tables import Column, markdown_table, rich_table

    if table not in TABLES:
        raise UserError(f"There is no table {table}; choose {_CHOICE}.")
    console = plain_console()
    rows: list[dict[str, Any]] = []
    for name in recipes.names():
        recipe = recipes.load(name)
        if recipe.table != table:
            continue
        if data is not None:
            wanted = recipes.override(recipe, overrides or [])
            for seed in range(1, seeds + 1):
                if not any(_fits(record, wanted, seed, data) for record in records_of(results / name)):
                    _run(console, name, wanted, seed, data, runs / name / str(seed), results, device, overrides)
        rows += compared(name, recipe, records_of(results / name))
    columns = (
        Column("row", "row"),
        Column("measure", "measure"),
        Column("paper", "paper", "{:.2f}"),
        Column("ours", "ours"),
        Column("seeds", "seeds"),
    )
    if markdown:
        typer.echo(markdown_table(rows, columns), nl=False)
    else:
        console.print(_narrow(rich_table(_named_once(rows), columns)))


def _named_once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without a name that is the one above."""
    above = [None, *(row["row"] for row in rows)]
    return [{**row, "row": "" if row["row"] == name else row["row"]} for row, name in zip(rows, above, strict=False)]


def _narrow(table: "Table") -> "Table":
    """Where there is little room the names are folded, and all figures are there."""
    for i, column in enumerate(table.columns):
        column.no_wrap, column.overflow, column.vertical = i > 0, "fold", "top"
    return table


def _fits(record: "Record", wanted: "Recipe", seed: int, data: str) -> bool:
    """Whether a record is of this seed, with these settings of training, on a text of this name."""
    from bayesrnn.reading import data_name
    from bayesrnn.report.changes import changed_settings

    same = record.get("seed") == seed and record.get("data") == data_name(data)
    return same and bool(record.get("settings")) and not changed_settings(record, wanted)


def _free(folder: Path, seed: int, text: str) -> Path:
    """Where a record goes: to SEED.json, or beside the record of other settings or another text that is there."""
    import itertools

    names = itertools.chain((f"{seed}", f"{text}-{seed}"), (f"{text}-{seed}-{k}" for k in itertools.count(2)))
    return next(path for path in (folder / f"{name}.json" for name in names) if not path.exists())


def records_of(folder: Path) -> "list[Record]":
    """The records of one recipe, one per seed."""
    from bayesrnn.report import records

    return records.read(folder)


def compared(name: str, recipe: "Recipe", records: "list[Record]") -> list[dict[str, Any]]:
    """One line per published figure: the paper's, and the mean (± sd over seeds) of ours.

    One set of lines for each settings and text; what is not the recipe's or the papers' is in the name.
    """
    from bayesrnn.report.changes import changed_settings, other_text

    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        text = other_text(record)
        own = ([f"on {text}"] if text else []) + sorted(changed_settings(record))
        alike.setdefault(tuple(own), []).append(record)
    lines = []
    for marks, same in sorted(alike.items()) or [((), [])]:
        row = f"{name} ({', '.join(marks)})" if marks else name
        lines += [{"row": row, **line} for line in _lines(recipe, same)]
    return lines


def _lines(recipe: "Recipe", records: "list[Record]") -> list[dict[str, Any]]:
    import statistics

    sharpened = recipe.posterior.kind == "sharpened"
    lines = []
    for published, key, label in MEASURES:
        paper = getattr(recipe.paper, published)
        if paper is None:
            continue
        if sharpened and published in ("valid", "test"):
            key, label = f"{key}_bound", f"{label} (bound)"
        ours = [r["metrics"][key] for r in records if r["metrics"].get(key) is not None]
        text = None
        if ours:
            spread = f" ± {statistics.stdev(ours):.2f}" if len(ours) > 1 else ""
            text = f"{statistics.fmean(ours):.2f}{spread}"
        lines.append({"measure": label, "paper": paper, "ours": text, "seeds": len(ours) or None})
    return lines


def _run(
    console: "Console",
    name: str,
    wanted: "Recipe",
    seed: int,
    data: str,
    out: Path,
    results: Path,
    device: str | None,
    overrides: list[str] | None,
) -> None:
    from bayesrnn.cli.evaluate import record
    from bayesrnn.cli.train import reporter
    from bayesrnn.errors import UserError
    from bayesrnn.reading import data_name, read_json
    from bayesrnn.tasks.evaluation import evaluate
    from bayesrnn.tasks.language import Language
    from bayesrnn.tasks.trained import open_run
    from bayesrnn.train.launch import device_of, launch
    from bayesrnn.train.run_folder import MARKER, RECORD, write_file

    console.print(f"{name}, seed {seed}", style="bold")
    if (out / RECORD).exists():
        there = read_json(out / RECORD)
        if not isinstance(there, dict) or not _fits(there, wanted, seed, data):
            raise UserError(
                f"{out} holds a run with other settings or on another text; move it away, or choose another --runs."
            )
    else:
        with reporter(console) as told:
            again = ["--set " + o for o in overrides or []]
            launch(
                name,
                out=out,
                reporter=told,
                data=data,
                overrides=overrides,
                seed=seed,
                device=device,
                resume=(out / MARKER).exists(),
                command=" ".join(["bayesrnn reproduce", "--data", data, *again]),
            )
    where = device_of(device)
    trained = open_run(out, where)
    paper = trained.recipe.paper
    task = trained.task(data, where)
    assert isinstance(task, Language)
    if other := trained.other_data(task):
        raise UserError(f"{other} Move the run away, or choose another --runs.")
    metrics = evaluate(
        trained,
        task.streams,
        samples=trained.recipe.evaluate.samples if paper.test_mc is not None else 0,
        dynamic=paper.test_dynamic is not None,
        reversed_text=paper.entropy_gap is not None,
    )
    record(out, metrics)
    (results / name).mkdir(parents=True, exist_ok=True)
    write_file(_free(results / name, seed, data_name(data)), (out / RECORD).read_text("utf-8"))
