"""Rows of a published table, trained and measured where records lack them."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.console.lines import reporter
from bayesrnn.lab.console.output import command_line
from bayesrnn.lab.engine.launch import device_of, launch
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.reading import data_name, read_json
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.recipes.tables import rows as rows_of
from bayesrnn.lab.runs.files import make_folder
from bayesrnn.lab.runs.folder import LOCK, MARKER
from bayesrnn.lab.runs.opening import WeightsGuard, open_run
from bayesrnn.lab.runs.record import RECORD, NotARunRecord, Record, add_evaluation, from_json, read, read_folder
from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE, by_rule, merged
from bayesrnn.lab.tasks.language.evaluation import EvaluateOptions, evaluate
from bayesrnn.lab.tasks.language.paper_tables import DYNAMIC, compared, number, published_metrics
from bayesrnn.lab.tasks.language.task import Language

if TYPE_CHECKING:
    from rich.console import Console

Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of ``bayesrnn reproduce``."""

    results: Path
    data: str | None
    seeds: int
    runs: Path
    device: str | None
    overrides: list[str]


def reproduce(table: str, asked: ReproduceOptions, console: "Console") -> list[dict[str, Any]]:
    """The lines of a table; with data, first run every row that has no record, or measure what it lacks."""
    if asked.data is None and asked.results.is_file():
        raise UserError(f"{asked.results} is a file; name the folder of records with --results.")
    lines: list[dict[str, Any]] = []
    for name, recipe in rows_of(table).items():
        if asked.data is not None:
            wanted = recipes.override(recipe, asked.overrides)
            for seed in range(1, asked.seeds + 1):
                row = Row(name, wanted, seed, asked.data, asked.runs / name / str(seed), asked.results / name)
                found = row.record()
                if found is not None and (made := row.otherwise(found[1].metrics)):
                    told = f"{found[0]} has values measured with {', '.join(made)}, and keeps them"
                    console.print(f"{told}; move it to measure others.", soft_wrap=True, markup=False)
                if found is None or row.lacking(found[1].metrics):
                    _run(console, row, found, asked.device, asked.overrides)
        lines += compared(name, recipe, read_folder(asked.results / name))
    return lines


@dataclass(frozen=True)
class Row:
    """One recipe and seed; ``out`` is the folder of its run, ``folder`` that of its records."""

    name: str
    wanted: Recipe
    seed: int
    data: str
    out: Path
    folder: Path

    def fits(self, record: Record) -> bool:
        """Whether a record is of this seed, with these settings of training, on a text of this name."""
        same = record.seed == self.seed and record.data == data_name(self.data)
        return same and bool(record.settings) and not record.changed_settings(self.wanted)

    def lacking(self, metrics: Metrics) -> list[str]:
        """Metrics that the paper reports and these lack."""
        papers = by_rule(metrics).get(PAPERS_RULE, {})
        kind = "_bound" if self.wanted.posterior.kind == "sharpened" else ""
        return [
            published
            for published, key, _ in published_metrics(self.wanted)
            if number(papers.get(key.replace("_dynamic", kind)) if published in DYNAMIC else metrics.get(key)) is None
        ]

    def otherwise(self, metrics: Metrics) -> list[str]:
        """Settings that these metrics were evaluated with, if other ones are asked for now."""
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

    def record(self) -> tuple[Path, Record] | None:
        """The row's record and its file; of several the one that lacks least."""
        read_folder(self.folder)  # refuses what is not a record
        there = [(path, read(path)) for path in sorted(self.folder.glob("*.json"))]
        found = [(path, record) for path, record in there if self.fits(record)]
        return min(found, key=lambda each: len(self.lacking(each[1].metrics)), default=None)

    @contextmanager
    def folder_made(self) -> Iterator[None]:
        """Make the folder of records before the training; remove it again if nothing is written into it."""
        new = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        make_folder(self.folder, "choose another --results")
        try:
            yield
        except BaseException:
            with suppress(OSError):  # one with something in it stays, and so do those above
                for folder in new:
                    folder.rmdir()
            raise

    def free(self) -> Path:
        """Where the record goes: SEED.json, or a name beside it if that has other settings or another text."""
        seed, text = self.seed, data_name(self.data)
        names = itertools.chain((f"{seed}", f"{text}-{seed}"), (f"{text}-{seed}-{k}" for k in itertools.count(2)))
        return next(path for path in (self.folder / f"{name}.json" for name in names) if not path.exists())


def _run(
    console: "Console", row: Row, found: tuple[Path, Record] | None, device: str | None, overrides: list[str] | None
) -> None:
    """Train the row if its run is missing, measure what the paper reports, and write the record."""
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
        theirs = found[1].metrics if found and same else {}
        known = merged(before.metrics, {key: value for key, value in theirs.items() if value is not None})
        if set(DYNAMIC) & (set(row.lacking(known)) - set(row.lacking(before.metrics))):  # measured anew since
            known = merged(known, {"dynamic_by_rule": by_rule(before.metrics)})
        new = _measure(console, row, known, device)
    file = row.free() if found is None else found[0]
    if file.exists() and not same:
        kept = _before(file)
        file.replace(kept)
        console.print(f"{file} belonged to another run, and is now {kept}.", soft_wrap=True, markup=False)
    before.model_copy(update={"metrics": merged(known, new)}).write(file)


def _before(file: Path) -> Path:
    """A free name beside a record, for one that is replaced; no table reads it."""
    names = (f"{file.name}.before{'' if k == 1 else f'-{k}'}" for k in itertools.count(1))
    return next(path for path in map(file.with_name, names) if not path.exists())


def _check_folder(row: Row) -> None:
    """Refuse a run folder that holds something else."""
    away = "move it, or choose another --runs."
    if (row.out / RECORD).exists():
        fits = False
        with suppress(NotARunRecord):
            fits = row.fits(read(row.out / RECORD))
        if not fits:
            raise UserError(f"{row.out} holds a run with other settings or on another text; {away}")
    elif (row.out / MARKER).exists():
        begun = read_json(row.out / "config.json") if (row.out / "config.json").exists() else None
        config = begun if isinstance(begun, dict) else {}
        about: dict[str, Any] = {"seed": config.get("seed"), "settings": config.get("settings"), "metrics": {}}
        about["data"] = data_name(str(config.get("data", "")))
        if config and not row.fits(from_json(about, where=row.out)):
            raise UserError(
                f"{row.out} holds an unfinished run with other settings or another text; continue with the same, {away}"
            )
    elif row.out.is_dir() and {path.name for path in row.out.iterdir()} - {LOCK}:
        raise UserError(f"{row.out} holds files and no run; {away}")


@contextmanager
def _advice(console: "Console", row: Row) -> Iterator[None]:
    """Errors of training and evaluating name options of those commands; add what to use here."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("Stopped; the same command continues.")
        raise
    except UserError as error:
        text = str(error)
        if "--dynamic-lr" in text:
            text += " (Here the rate is --set evaluate.dynamic_lr=RATE.)"
        elif any(option in text for option in ("--force", "--out", "--resume")):
            text += f" (Those are options of bayesrnn train; here move {row.out}, or choose another --runs.)"
        raise UserError(text) from None


def _train(console: "Console", row: Row, device: str | None, overrides: list[str] | None) -> None:
    with reporter(console) as told:
        launch(
            row.name, out=row.out, reporter=told, data=row.data, overrides=overrides, seed=row.seed, device=device,
            resume=(row.out / MARKER).exists(), command=command_line(),
        )  # fmt: skip


@kernels.float32_precision()  # as it was, after the evaluation
def _measure(console: "Console", row: Row, known: Metrics, device: str | None) -> dict[str, Any]:
    """Measure what the paper reports and the record lacks; the run's own record gets it too."""
    where = device_of(device)
    guard = WeightsGuard.of(row.out)
    trained = open_run(row.out, where)
    set_precision(trained.recipe.train.precision, where)
    task = trained.task(row.data, where)
    assert isinstance(task, Language)
    if other := trained.other_data(task):
        raise UserError(f"{other} Move the run, or choose another --runs.")
    missing = row.lacking(known)
    if not missing:
        return {}
    dynamic = bool(set(DYNAMIC) & set(missing))
    settings = row.wanted.evaluate
    chosen = {}
    if settings.dynamic_lr == recipes.load(row.name).evaluate.dynamic_lr:  # no other was asked for
        chosen = by_rule(known).get(PAPERS_RULE, {})  # on validation, when it was measured before
    options = EvaluateOptions(
        samples=settings.samples if "test_mc" in missing else 0,
        dynamic=dynamic,
        dynamic_lr=number(chosen.get("lr")) or settings.dynamic_lr if dynamic else None,
        dynamic_decay=number(chosen.get("decay")) or 0.0 if dynamic else None,
        reversed_text=bool({"entropy_gap", "entropy_gap_mean"} & set(missing)),
    )
    metrics = evaluate(trained, task.streams, options, say=lambda text: console.print(text, style="dim"))
    if dynamic:
        own = metrics["dynamic_by_rule"][PAPERS_RULE]
        if all(own[key] == chosen.get(key) for key in ("lr", "decay")):  # chosen then, among those tried then
            tried = {key: chosen[key] for key in ("tried", "diverged") if key in chosen}
            own |= tried
            metrics |= {f"dynamic_{key}": value for key, value in tried.items()}
    with guard.unchanged():
        add_evaluation(row.out, metrics)
    return metrics
