"""Many runs of one recipe with different settings: a grid, or a search by optuna's TPE.

A trial is a run folder, ``trials/NUMBER``, with a file ``trial.json``: what is tried, and how it ended. There is no
other database. A sweep that is started again, or in several processes on one file system, takes the trials that are not
finished and that no other process has locked. Runs are compared by their validation result at the best epoch (a mixture
by its own, not its components'); test data is never used.
"""

import dataclasses
import gc
import itertools
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.engine.launch import device_of, launch
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.engine.space import Range, Space, as_overrides, read_grid, read_search, read_value
from bayesrnn.lab.reading import as_given, data_name, read_json
from bayesrnn.lab.recipes.keys import full_key
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.collection import flat, metrics_lines
from bayesrnn.lab.runs.files import as_json, is_own, make_folder, read_own, write_file
from bayesrnn.lab.runs.folder import CONFIG, MARKER, Busy, briefly_locked
from bayesrnn.lab.runs.record import RECORD, Record, read

FILE, TRIAL = "sweep.json", "trial.json"
_OTHER = {"space": "with other values to try", "data": "with other data"}
_OTHER["data_digest"] = "with data of the same name and other content"


class _Pruned(Exception):
    """The trial is worse than the median of the others."""


@dataclass
class _Trial:
    """One point; ``state`` is running, complete, pruned or fail."""

    number: int
    folder: Path
    settings: dict[str, Any]
    state: str = "running"
    error: str | None = None

    @property
    def changes(self) -> list[str]:
        """As overrides of the recipe."""
        return [f"{key}={as_given(value)}" for key, value in self.settings.items()]

    def write(self) -> None:
        about = {"settings": self.settings, "state": self.state, "error": self.error}
        write_file(self.folder / TRIAL, as_json({"program": "bayesrnn", **about}))


def sweep(
    name: str, *, out: Path, say: Callable[[str], None], grid: list[str] | None = None,
    search: list[str] | None = None, trials: int | None = None, data: str | None = None,
    overrides: list[str] | None = None, seed: int = 1, device: str | None = None, prune: bool = False,
    graph: bool = True, command: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Run trials until none is left; returns and writes (``sweep.json``) the table of the trials.

    Args:
        grid, search: settings for :func:`read_grid` or :func:`read_search`; one of the two.
        trials: number of runs of a search, over all processes.
        seed: seed of every run, so that only the settings differ, and of the search.
        prune: stop trials that are worse than the median of the others.
    """
    recipe = recipes.override(recipes.load(name), overrides or [])
    if bool(grid) == bool(search):
        raise UserError("Give settings to try with either --grid or --search.")
    space: Space = read_grid(recipe, grid) if grid else read_search(recipe, search or [])
    if search and trials is None:
        raise UserError("A search needs --trials, the number of runs.")
    if trials is not None and not search:
        raise UserError("--trials is for a search; a grid runs all its points, so omit it.")
    if search or prune:
        _optuna()
    values = {
        key: dataclasses.asdict(v) if isinstance(v, Range) else [read_value(recipe, key, text) for text in v]
        for key, v in space.items()
    }
    first = {key: v.low if isinstance(v, Range) else v[0] for key, v in space.items()}
    about = {
        "recipe": Path(name).stem,
        "task": recipe.task,
        "metric": task_class(recipe.task).compared(recipe),
        "data": data_name(data or task_class(recipe.task).default_data),
        "seed": seed,
        "settings": recipe.model_dump(mode="json"),
        "kind": "grid" if grid else "search",
        "space": json.loads(json.dumps(values)),
        # For one point: settings such as the batch size change what is read.
        "data_digest": _digest(recipes.override(recipe, as_overrides(first)), data),
    }
    fixed = {full_key(recipe, text.partition("=")[0]) for text in overrides or []}
    if double := sorted(fixed & space.keys()):
        raise UserError(f"{double[0]} is tried by the sweep and set to one value as well; omit one of the two.")
    if (out / CONFIG).exists() or (out / RECORD).exists():
        raise UserError(f"{out} holds a run, not a sweep; choose another --out.")
    make_folder(out / "trials", "choose another --out")
    options = {"data": data, "device": str(device_of(device)), "graph": graph, "command": command}
    return _Sweep(name, recipe, about, space, out, say, trials or 0, overrides or [], prune, options).run()


@dataclass
class _Sweep:
    name: str
    recipe: recipes.Recipe
    about: dict[str, Any]
    space: Space
    out: Path
    say: Callable[[str], None]
    count: int
    overrides: list[str]
    prune: bool
    options: dict[str, Any]
    elsewhere: set[int] = dataclasses.field(default_factory=set)
    """Trials that another process has locked."""

    def run(self) -> dict[str, Any]:
        self._check_table()
        self._trials()  # refuses runs of another sweep before anything is written
        self.write()  # the folder now belongs to this sweep
        while (trial := self._next()) is not None:
            try:
                self._run(trial)
            except UserError:
                self._forget(trial)
                raise
            self.write()
            gc.collect()  # free a run's model and graph before the next one needs the memory
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return self.write()

    def _check_table(self) -> None:
        """Refuse a folder with the table of another sweep."""
        path = self.out / FILE
        if not path.exists():
            return
        if not is_own(path):
            raise UserError(f"{path} is not a table of bayesrnn sweep and will not be replaced; choose another --out.")
        before, now = read_json(path), self.about
        key = next((key for key in now if before.get(key, now[key]) != now[key]), None)
        if key is None:
            return
        how = _OTHER.get(key, f"with another {key}")
        if key == "kind":
            how = f"as a {before[key]}, not as a {now[key]}"
        elif key == "settings":
            old, new = (flat(each if isinstance(each, dict) else {}) for each in (before[key], now[key]))
            differing = next((k for k in {**old, **new} if old.get(k) != new.get(k)), "")
            shown = f"{differing}={as_given(old.get(differing))}, not {as_given(new.get(differing))}"
            how = f"with other settings ({shown})"
        raise UserError(f"{self.out} holds a sweep that was started {how}; choose another --out.")

    def _trials(self) -> list[_Trial]:
        """All trials so far."""
        trials = []
        for folder in sorted(path for path in (self.out / "trials").iterdir() if path.name.isdecimal()):
            about = read_own(folder / TRIAL)
            if about:
                known = {key: about[key] for key in ("settings", "state", "error") if key in about}
                trials.append(_Trial(int(folder.name), folder, **known))
            elif (folder / CONFIG).exists():
                raise UserError(f"{folder} holds a run of no sweep; choose another --out.")
        return trials

    def _next(self) -> _Trial | None:
        """A trial to run: one that was begun, or a new one; None: there is none left for this process."""
        with briefly_locked(self.out):
            found = self._trials()
            for trial in found:
                if trial.state == "running" and trial.number not in self.elsewhere:
                    return trial
            number = max((trial.number for trial in found), default=-1) + 1
            values = self._values(found, number)
            if values is None:
                return None
            made = _Trial(number, self.out / "trials" / f"{number:04d}", values)
            make_folder(made.folder, "choose another --out")
            made.write()
            return made

    def _values(self, found: list[_Trial], number: int) -> dict[str, Any] | None:
        """The next point of the grid or the search; None: all are taken."""
        if self.about["kind"] == "grid":
            taken = [trial.settings for trial in found]
            points = itertools.product(*self.about["space"].values())
            each = (dict(zip(self.space, point, strict=True)) for point in points)
            return next((point for point in each if point not in taken), None)
        if len(found) >= self.count:
            return None
        # One seed per trial, not per process, so that a trial's values do not depend on who runs it.
        sampler = _optuna().samplers.TPESampler(seed=self.about["seed"] * 1_000_003 + number)
        tried: dict[str, Any] = self._study(found, sampler).ask(self._distributions()).params
        return tried

    def _distributions(self) -> dict[str, Any]:
        kinds = _optuna().distributions
        return {
            key: (kinds.IntDistribution if isinstance(r.low, int) else kinds.FloatDistribution)(
                r.low, r.high, log=r.log
            )
            for key, r in self.space.items()
            if isinstance(r, Range)
        }

    def _study(self, found: list[_Trial], sampler: Any = None) -> Any:
        """An optuna study in memory with the trials that have ended."""
        optuna, distributions = _optuna(), self._distributions()
        warm = self.recipe.train.epochs // 5
        states = {"complete": optuna.trial.TrialState.COMPLETE, "pruned": optuna.trial.TrialState.PRUNED}
        study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.MedianPruner(4, n_warmup_steps=warm))
        for trial in found:
            if trial.state in states:
                params, value = {key: trial.settings[key] for key in distributions}, self._row(trial)["value"]
                about = {"params": params, "distributions": distributions, "value": value, "state": states[trial.state]}
                study.add_trial(optuna.create_trial(**about, intermediate_values=self._curve(trial)))
        return study

    def _run(self, trial: _Trial) -> None:
        self.say(f"trial {trial.number}: {', '.join(trial.changes)}")
        try:
            self._record(trial)
            trial.state = "complete"
            self.say(f"trial {trial.number}: {self._metric(trial)} {self._row(trial)['value']:.6g}")
        except Busy:
            self.elsewhere.add(trial.number)
            return
        except _Pruned:
            trial.state = "pruned"
        except (engine.Diverged, torch.OutOfMemoryError) as error:
            trial.state, trial.error = "fail", str(error).splitlines()[0]
            self.say(f"trial {trial.number}: {trial.error}")
        trial.write()

    def _record(self, trial: _Trial) -> Record:
        folder, unfinished = trial.folder, (trial.folder / MARKER).exists()
        with suppress(UserError):  # killed after the run ended, before it was reported
            if not unfinished:
                return read(folder / RECORD)
        resume = unfinished and checkpoint.any_saved(folder)
        reporter = _TrialReporter(self._metric(trial), self._study(self._trials()).ask() if self.prune else None)
        for epoch, value in self._curve(trial).items() if resume else ():
            reporter.report(epoch, value)
        try:
            options = {**self.options, "seed": self.about["seed"], "overrides": [*self.overrides, *trial.changes]}
            return launch(
                self.name, out=folder, reporter=reporter, resume=resume, force=not resume, measure=False, **options
            )
        except UserError as error:
            if "--force" not in str(error):
                raise
            raise UserError(f"{error} A sweep has no --force: remove {folder}, and start the sweep again.") from None

    def _forget(self, trial: _Trial) -> None:
        """Leave no sweep behind that has no results, so that a corrected one can start."""
        if not (trial.folder / MARKER).exists():
            (trial.folder / TRIAL).unlink(missing_ok=True)
            with suppress(OSError):
                trial.folder.rmdir()
        if not any((self.out / "trials").glob(f"*/{TRIAL}")):
            (self.out / FILE).unlink(missing_ok=True)

    def _metric(self, trial: _Trial) -> str:
        """The metric that compares the run; a trial's settings may make it a mixture."""
        recipe = recipes.override(self.recipe, trial.changes)
        return task_class(recipe.task).compared(recipe)

    def _curve(self, trial: _Trial) -> dict[int, float]:
        """Validation results by epoch."""
        path, metric = trial.folder / "metrics.jsonl", self._metric(trial)
        return {line["epoch"]: line[metric] for line in metrics_lines(path)} if path.exists() else {}

    def write(self) -> dict[str, Any]:
        """Write the current table."""
        rows = [self._row(trial) for trial in self._trials()]
        done = [row for row in rows if row["state"] == "complete"]
        record = {
            "program": "bayesrnn",
            **self.about,
            "commit": provenance.commit(),
            **provenance.environment(torch.device(self.options["device"])),
            "command": self.options["command"],
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "trials": sorted(rows, key=lambda row: (row["value"] is None, row["value"], row["trial"])),
            "best": min(done, key=lambda row: (row["value"], row["trial"]), default=None),
        }
        write_file(self.out / FILE, json.dumps(record, indent=2) + "\n")
        return record

    def _row(self, trial: _Trial) -> dict[str, Any]:
        curve = self._curve(trial)
        record = read(trial.folder / RECORD) if trial.state == "complete" else Record()
        epoch = record.metric("best_epoch")
        return {
            "trial": trial.number,
            "settings": trial.settings,
            "value": curve[epoch] if epoch else min(curve.values(), default=None),
            "state": trial.state,
            "best_epoch": epoch,
            "epochs": len(curve),
            "train_seconds": record.metric("train_seconds"),
            "error": trial.error,
            "folder": f"trials/{trial.folder.name}",
        }


class _TrialReporter(Silent):
    """Reports every epoch to an optuna trial, if there is one, and stops where its pruner says so."""

    def __init__(self, metric: str, trial: Any) -> None:
        self.metric, self.trial = metric, trial

    def report(self, epoch: int, value: float) -> None:
        if self.trial is not None:
            self.trial.report(value, step=epoch)

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self.report(line["epoch"], line[self.metric])
        if self.trial is not None and line["epoch"] < epochs and self.trial.should_prune():
            raise _Pruned


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError("--search and --prune need optuna; pip install 'bayesrnn[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _digest(recipe: recipes.Recipe, data: str | None) -> str:
    """The digest of the data as a run of the recipe reads it: the same on every machine."""
    return task_class(recipe.task)(recipe, data, torch.device("cpu")).digest()
