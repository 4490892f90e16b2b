"""``bayesrnn reproduce``: a published table beside our own figures, from records; missing rows can be run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line
from bayesrnn.lab.recipes.tables import TABLES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bayesrnn.lab.recipes import Recipe
    from bayesrnn.lab.runs.record import Record

    Metrics = Mapping[str, Any]

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
    """Print a paper's figures beside ours; with --data, first run every row that has no record yet.

    A record counts that has the row's settings, its seed, and a text of the same name. Where it lacks a figure that the
    paper has, the row's run is evaluated, or trained where --runs does not have it. The tables are gal2016 and
    fortunato2017, both of Penn Treebank: rows of records whose text is not named ptb say so. For other recipes there is
    bayesrnn report.
    """
    from bayesrnn.errors import UserError
    from bayesrnn.lab import recipes
    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.recipes.tables import rows as rows_of
    from bayesrnn.lab.report.tables import Column, markdown_table, rich_table
    from bayesrnn.lab.runs.record import read_folder
    from bayesrnn.lab.tasks.language.published import compared

    if table not in TABLES:
        raise UserError(f"There is no table {table}; choose {_CHOICE}.")
    if data is None and results.is_file():
        raise UserError(f"{results} is a file; name the folder of records with --results.")
    console = plain_console()
    rows: list[dict[str, Any]] = []
    for name, recipe in rows_of(table).items():
        if data is not None:
            wanted = recipes.override(recipe, overrides or [])
            for seed in range(1, seeds + 1):
                row = _Row(name, wanted, seed, data, runs / name / str(seed), results / name)
                found = row.record()
                if found is not None and (made := row.otherwise(found[1].metrics)):
                    told = f"{found[0]} has its figures with {', '.join(made)}, and keeps them"
                    console.print(f"{told}; move it away to have others.", soft_wrap=True, markup=False)
                if found is None or row.lacking(found[1].metrics):
                    _run(console, row, found, device, overrides)
        rows += compared(name, recipe, read_folder(results / name))
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
    """Where there is little room the names are folded, and all figures are there."""
    for i, column in enumerate(table.columns):
        column.no_wrap, column.overflow, column.vertical = i > 0, "fold", "top"
    return table


@dataclass(frozen=True)
class _Row:
    """One recipe and seed; ``out`` is the folder of its run, ``folder`` that of its records."""

    name: str
    wanted: "Recipe"
    seed: int
    data: str
    out: Path
    folder: Path

    def fits(self, record: "Record") -> bool:
        """Whether a record is of this seed, with these settings of training, on a text of this name."""
        from bayesrnn.lab.reading import data_name

        same = record.seed == self.seed and record.data == data_name(self.data)
        return same and bool(record.settings) and not record.changed_settings(self.wanted)

    def lacking(self, metrics: "Metrics") -> list[str]:
        """What the paper has figures of, and these have not."""
        from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE, by_rule
        from bayesrnn.lab.tasks.language.published import DYNAMIC, number, published_metrics

        papers = by_rule(metrics).get(PAPERS_RULE, {})
        kind = "_bound" if self.wanted.posterior.kind == "sharpened" else ""
        return [
            published
            for published, key, _ in published_metrics(self.wanted)
            if number(papers.get(key.replace("_dynamic", kind)) if published in DYNAMIC else metrics.get(key)) is None
        ]

    def otherwise(self, metrics: "Metrics") -> list[str]:
        """Settings of the evaluation that are not the recipe's, nor those that the figures there were made with."""
        from bayesrnn.lab import recipes
        from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE, by_rule
        from bayesrnn.lab.tasks.language.published import DYNAMIC, published_metrics

        published = {each[0] for each in published_metrics(self.wanted)}
        there = {}
        if set(DYNAMIC) & published:
            there["dynamic_lr"] = by_rule(metrics).get(PAPERS_RULE, {}).get("lr")
        if "test_mc" in published:
            there["samples"] = metrics.get("samples")
        own = recipes.load(self.name).evaluate
        return [
            f"evaluate.{key}={value}"
            for key, value in there.items()
            if value is not None and getattr(self.wanted.evaluate, key) not in (value, getattr(own, key))
        ]

    def record(self) -> "tuple[Path, Record] | None":
        """The row's record and its file; of several the one that lacks least."""
        from bayesrnn.lab.runs.record import read, read_folder

        read_folder(self.folder)  # refuses what is not a record
        there = [(path, read(path)) for path in sorted(self.folder.glob("*.json"))]
        found = [(path, record) for path, record in there if self.fits(record)]
        return min(found, key=lambda each: len(self.lacking(each[1].metrics)), default=None)

    def make_folder(self) -> None:
        """Before the time that training takes, not after it."""
        from bayesrnn.errors import UserError

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder} cannot be made ({error.strerror}); choose another --results.") from None

    @contextmanager
    def folder_made(self) -> Iterator[None]:
        """With the folder of records; where nothing comes of it, without those that were made for it."""
        new = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self.make_folder()
        try:
            yield
        except BaseException:
            with suppress(OSError):  # one with something in it stays, and so do those above
                for folder in new:
                    folder.rmdir()
            raise

    def free(self) -> Path:
        """Where a record goes: to SEED.json, or beside the record of other settings or another text that is there."""
        import itertools

        from bayesrnn.lab.reading import data_name

        seed, text = self.seed, data_name(self.data)
        names = itertools.chain((f"{seed}", f"{text}-{seed}"), (f"{text}-{seed}-{k}" for k in itertools.count(2)))
        return next(path for path in (self.folder / f"{name}.json" for name in names) if not path.exists())


def _begun(config: dict[str, Any], out: Path) -> "Record":
    """The configuration of an unfinished run, as its record will say it."""
    from bayesrnn.lab.reading import data_name
    from bayesrnn.lab.runs.record import from_json

    about = {key: config.get(key) for key in ("seed", "settings")}
    return from_json({**about, "data": data_name(str(config.get("data", ""))), "metrics": {}}, where=out)


def _run(
    console: "Console",
    row: _Row,
    found: "tuple[Path, Record] | None",
    device: str | None,
    overrides: list[str] | None,
) -> None:
    """Train the row where its run is not there, measure what the paper has, and write the record."""
    from bayesrnn.lab.runs.folder import MARKER
    from bayesrnn.lab.runs.record import RECORD, read
    from bayesrnn.lab.tasks.language.dynamic_metrics import by_rule, merged
    from bayesrnn.lab.tasks.language.published import DYNAMIC

    told = f"{row.name}, seed {row.seed}"
    if found is not None:
        told += f": {found[0]} lacks {', '.join(row.lacking(found[1].metrics))}"
    console.print(told, style="bold", soft_wrap=True, markup=False)
    _check_folder(row)
    with row.folder_made(), _advice(console, row):
        if not (row.out / RECORD).exists():
            if found is not None and not (row.out / MARKER).exists():
                console.print(f"Its run is not in {row.out}: it is trained.", soft_wrap=True, markup=False)
            _train(console, row, device, overrides)
        before = read(row.out / RECORD)
        same = found is not None and found[1].started == before.started
        known = merged(before.metrics, _known(found[1].metrics if found and same else {}))
        if set(DYNAMIC) & (set(row.lacking(known)) - set(row.lacking(before.metrics))):  # measured anew since
            known = merged(known, {"dynamic_by_rule": by_rule(before.metrics)})
        new = _measure(console, row, known, device)
    file = row.free() if found is None else found[0]
    if file.exists() and not same:
        kept = _before(file)
        file.replace(kept)
        console.print(f"{file} was of another run, and is now {kept}.", soft_wrap=True, markup=False)
    before.model_copy(update={"metrics": merged(known, new)}).write(file)


def _before(file: Path) -> Path:
    """A free name beside a record, for one that is replaced; no table reads it."""
    import itertools

    names = (f"{file.name}.before{'' if k == 1 else f'-{k}'}" for k in itertools.count(1))
    return next(path for path in map(file.with_name, names) if not path.exists())


def _known(metrics: "Metrics") -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if value is not None}


def _check_folder(row: _Row) -> None:
    """Refuse a folder for the run that has something else in it."""
    from bayesrnn.errors import UserError
    from bayesrnn.lab.reading import read_json
    from bayesrnn.lab.runs.folder import LOCK, MARKER
    from bayesrnn.lab.runs.record import RECORD, NotARunRecord, read

    away = "move it away, or choose another --runs."
    if (row.out / RECORD).exists():
        fits = False
        with suppress(NotARunRecord):
            fits = row.fits(read(row.out / RECORD))
        if not fits:
            raise UserError(f"{row.out} holds a run with other settings or on another text; {away}")
    elif (row.out / MARKER).exists():
        begun = read_json(row.out / "config.json") if (row.out / "config.json").exists() else None
        if isinstance(begun, dict) and not row.fits(_begun(begun, row.out)):
            raise UserError(
                f"{row.out} holds an unfinished run with other settings or on another text; go on with the same, {away}"
            )
    elif row.out.is_dir() and {path.name for path in row.out.iterdir()} - {LOCK}:
        raise UserError(f"{row.out} holds files and no run; {away}")


@contextmanager
def _advice(console: "Console", row: _Row) -> Iterator[None]:
    """Errors of training and evaluating name the options of those commands; here others are to be used."""
    from bayesrnn.errors import UserError

    try:
        yield
    except KeyboardInterrupt:
        console.print("Stopped; the same command goes on.")
        raise
    except UserError as error:
        text = str(error)
        if "--dynamic-lr" in text:
            text += " (Here the rate is --set evaluate.dynamic_lr=RATE.)"
        elif any(option in text for option in ("--force", "--out", "--resume")):
            text += f" (Those are options of bayesrnn train; here move {row.out} away, or choose another --runs.)"
        raise UserError(text) from None


def _train(console: "Console", row: _Row, device: str | None, overrides: list[str] | None) -> None:
    import shlex
    import sys

    from bayesrnn.lab.cli.train import reporter
    from bayesrnn.lab.engine.launch import launch
    from bayesrnn.lab.runs.folder import MARKER

    with reporter(console) as told:
        launch(
            row.name,
            out=row.out,
            reporter=told,
            data=row.data,
            overrides=overrides,
            seed=row.seed,
            device=device,
            resume=(row.out / MARKER).exists(),
            command=shlex.join(["bayesrnn", *sys.argv[1:]]),
        )


def _measure(console: "Console", row: _Row, known: "Metrics", device: str | None) -> dict[str, Any]:
    """What the paper has figures of and these are not; added to the run's own record too."""
    from bayesrnn.errors import UserError
    from bayesrnn.lab import recipes
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.engine.loop import set_precision
    from bayesrnn.lab.runs.opening import WeightsGuard, open_run
    from bayesrnn.lab.runs.record import add_evaluation
    from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE, by_rule
    from bayesrnn.lab.tasks.language.evaluation import evaluate
    from bayesrnn.lab.tasks.language.published import DYNAMIC, number
    from bayesrnn.lab.tasks.language.task import Language

    where = device_of(device)
    measured = WeightsGuard.of(row.out)
    trained = open_run(row.out, where)
    set_precision(trained.recipe.train.precision, where)
    task = trained.task(row.data, where)
    assert isinstance(task, Language)
    if other := trained.other_data(task):
        raise UserError(f"{other} Move the run away, or choose another --runs.")
    missing = row.lacking(known)
    if not missing:
        return {}
    dynamic = bool(set(DYNAMIC) & set(missing))
    settings = row.wanted.evaluate
    chosen = {}
    if settings.dynamic_lr == recipes.load(row.name).evaluate.dynamic_lr:  # no other was asked for
        chosen = by_rule(known).get(PAPERS_RULE, {})  # on validation, when it was measured before
    metrics = evaluate(
        trained,
        task.streams,
        samples=settings.samples if "test_mc" in missing else 0,
        dynamic=dynamic,
        dynamic_lr=number(chosen.get("lr")) or settings.dynamic_lr if dynamic else None,
        dynamic_decay=number(chosen.get("decay")) or 0.0 if dynamic else None,
        reversed_text=bool({"entropy_gap", "entropy_gap_mean"} & set(missing)),
        say=lambda text: console.print(text, style="dim"),
    )
    if dynamic:
        figures = metrics["dynamic_by_rule"][PAPERS_RULE]
        if all(figures[key] == chosen.get(key) for key in ("lr", "decay")):  # chosen then, among those tried then
            tried = {key: chosen[key] for key in ("tried", "diverged") if key in chosen}
            figures |= tried
            metrics |= {f"dynamic_{key}": value for key, value in tried.items()}
    with measured.unchanged():
        add_evaluation(row.out, metrics)
    return metrics
