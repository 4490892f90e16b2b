"""Many runs of one recipe with different settings, distributed by optuna: a grid, or a search by TPE.

The trials are in an SQL database. All processes, on any machine, that name the same study take trials from it until
none is left. A killed trial returns to the queue and continues from its checkpoint if there is one. Runs are compared
by their validation result at the best epoch (a mixture by its own, not its components'); test data is never used.
"""

import dataclasses
import gc
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.engine.launch import device_of, launch
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.engine.space import Range, Space, assigned, check_doubles, read_grid, read_search, read_value
from bayesrnn.lab.engine.study import FILE, check_folder, dead, load_optuna, open_study, quiet, worker
from bayesrnn.lab.reading import as_given, data_name, read_json
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.files import make_folder, write_file
from bayesrnn.lab.runs.folder import MARKER, Busy
from bayesrnn.lab.runs.record import RECORD, Record, read

DATABASE = "sweep.db"
_TRIES = 3  # of a trial that is killed repeatedly
_SURPLUS = "another process has this one"


def sweep(
    name: str, *, out: Path, say: Callable[[str], None], grid: list[str] | None = None,
    search: list[str] | None = None, trials: int | None = None, data: str | None = None,
    overrides: list[str] | None = None, seed: int = 1, device: str | None = None, storage: str | None = None,
    study: str | None = None, prune: bool = False, graph: bool = True, command: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Run trials until none is left; returns and writes (``sweep.json``) the table of the study's trials.

    Args:
        grid, search: settings for :func:`read_grid` or :func:`read_search`; one of the two.
        trials: number of runs of a search, over all processes.
        seed: seed of every run, so that only the settings differ, and of the search.
        storage: SQL URL; None: a file in ``out``.
        study: its name in the storage; None: the recipe's. A folder ``out`` is for one study.
        prune: stop trials that are worse than the median of the others.
    """
    optuna = load_optuna()
    recipe = recipes.override(recipes.load(name), overrides or [])
    if bool(grid) == bool(search):
        raise UserError("Give settings to try with either --grid or --search.")
    space: Space = read_grid(recipe, grid) if grid else read_search(recipe, search or [])
    if search and trials is None:
        raise UserError("A search needs --trials, the number of runs.")
    if trials is not None and not search:
        raise UserError("--trials is for a search; a grid runs all its points, so omit it.")
    where = device_of(device)
    values = {
        key: dataclasses.asdict(v) if isinstance(v, Range) else [read_value(recipe, key, text) for text in v]
        for key, v in space.items()
    }
    check_doubles(space, values)
    first = {key: v.low if isinstance(v, Range) else v[0] for key, v in space.items()}
    about = {
        "recipe": Path(name).stem,
        "task": recipe.task,
        "metric": task_class(recipe.task).compared(recipe),
        "data": data_name(data or task_class(recipe.task).default_data),
        "seed": seed,
        "settings": recipe.model_dump(mode="json"),
        "kind": "grid" if grid else "search",
        "space": values,
        # For one point: settings such as the batch size change what is read.
        "data_digest": _digest(recipes.override(recipe, assigned(first)), data),
    }
    called = study or str(about["recipe"])
    make_folder(out, "choose another --out")
    check_folder(out, called, about)
    with quiet(optuna):
        advice = "choose another --study, with an --out of its own" if storage else "choose another --out"
        found = open_study(optuna, storage or f"sqlite:///{out / DATABASE}", called, about, advice)
        if prune:
            found.pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=recipe.train.epochs // 5)
        work = _Work(
            found, about, space, recipe=recipe, name=name, out=out, say=say, trials=trials, data=data, seed=seed,
            overrides=overrides or [], device=str(where), prune=prune, graph=graph, command=command,
        )  # fmt: skip
        try:
            return work.run()
        except UserError:
            work.forget()
            raise


class _Work:
    """The trials that one process runs."""

    def __init__(self, study: Any, about: dict[str, Any], space: Space, **options: Any) -> None:
        self.study, self.about, self.space, self.options = study, about, space, options
        self.out, self.say, self.seed = options["out"], options["say"], options["seed"]
        self.optuna = load_optuna()
        self.states = self.optuna.trial.TrialState
        if about["kind"] == "grid":
            study.sampler = self.optuna.samplers.GridSampler(space, seed=self.seed)

    def run(self) -> dict[str, Any]:
        if not (self.out / FILE).exists():
            self.write()  # the folder now belongs to this sweep
        while self._left():
            self.study.optimize(self._trial, n_trials=1, catch=(engine.Diverged, torch.OutOfMemoryError, _Surplus))
            self.write()
            gc.collect()  # free a run's model and graph before the next one needs the memory
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return self.write()

    def forget(self) -> None:
        """Delete a study that has no results, so that a corrected sweep can start."""
        if all(t.state == self.states.FAIL and not t.user_attrs.get("error") for t in self.study.get_trials()):
            self.optuna.delete_study(study_name=self.study.study_name, storage=self.study._storage)
            with suppress(UserError, OSError):
                check_folder(self.out, self.study.study_name, self.about)
                if read_json(self.out / FILE).get("best") is None:
                    (self.out / FILE).unlink()

    def _left(self) -> bool:
        """Whether a trial is left to run; trials of dead processes are queued again first."""
        self._revive()
        found = self.study.get_trials(deepcopy=False)
        if any(t.state == self.states.WAITING for t in found):
            return True
        if self.about["kind"] == "search":
            return len(self._counted(found)) < self.options["trials"]
        points = math.prod(len(values) for values in self.space.values())  # type: ignore[misc, arg-type]
        return len({t.system_attrs["grid_id"] for t in self._counted(found) if "grid_id" in t.system_attrs}) < points

    def _counted(self, found: list[Any]) -> list[Any]:
        """Trials that are finished or running, without surplus ones and those that were queued again."""
        retried = self._retried(found)
        return [t for t in found if t.number not in retried and t.user_attrs.get("error") != _SURPLUS]

    def _shown(self, found: list[Any]) -> list[Any]:
        """Without trials that a killed process had taken but not begun, if their grid point is finished or unknown."""
        if self.about["kind"] == "search":
            return found
        point = {t.number: t.system_attrs.get("grid_id") for t in found}
        done = {None, *(point[t.number] for t in found if t.state == self.states.COMPLETE)}
        begun = (t.state != self.states.RUNNING or "worker" in t.user_attrs for t in found)
        return [t for t, own in zip(found, begun, strict=True) if own or point[t.number] not in done]

    def _retried(self, found: list[Any]) -> set[int]:
        return {t.user_attrs["retry_of"] for t in found if "retry_of" in t.user_attrs}

    def _revive(self) -> None:
        """Fail the trials of dead processes, and queue every trial again that failed for no fault of its own."""
        self.optuna.storages.fail_stale_trials(self.study)
        for t in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            if dead(t.user_attrs.get("worker")):
                with suppress(Exception):  # another process was faster
                    self.study.tell(t.number, state=self.states.FAIL)
        found = self.study.get_trials(deepcopy=False)
        retried = self._retried(found)
        for t in found:
            failed = t.state == self.states.FAIL and "error" not in t.user_attrs and t.number not in retried
            tries = t.user_attrs.get("tries", 1)
            if failed and tries < _TRIES:
                kept = {key: value for key, value in t.user_attrs.items() if key != "worker"}
                self.study.add_trial(
                    self.optuna.create_trial(
                        state=self.states.WAITING,
                        params=t.params,
                        distributions=t.distributions,
                        user_attrs={**kept, "retry_of": t.number, "tries": tries + 1},
                        system_attrs=t.system_attrs,  # where a grid's sampler keeps its point
                    )
                )

    def _trial(self, trial: Any) -> float:
        trial.set_user_attr("worker", worker())
        self._check_surplus(trial)
        values = self._suggest(trial)
        folder = trial.user_attrs.get("folder") or f"trials/{trial.number:04d}"
        trial.set_user_attr("folder", folder)
        changes = assigned(values)
        self.say(f"trial {trial.number}: {', '.join(changes)}")
        metric = self._metric(changes)
        try:
            record = self._record(trial, self.out / folder, changes, metric)
        except Busy:  # its process was taken for dead but lives, as after a jump of the clock
            trial.set_user_attr("error", _SURPLUS)
            raise _Surplus from None
        except (engine.Diverged, torch.OutOfMemoryError) as error:
            trial.set_user_attr("error", str(error).splitlines()[0])
            self.say(f"trial {trial.number}: {str(error).splitlines()[0]}")
            raise
        except KeyboardInterrupt:
            trial.set_user_attr("tries", trial.user_attrs.get("tries", 1) - 1)  # stopped by hand: not a failure
            raise
        epoch, curve = record.metric("best_epoch"), record.curve(metric)
        best = curve[epoch - 1]
        trial.set_user_attr("best_epoch", epoch)
        trial.set_user_attr("epochs", len(curve))
        trial.set_user_attr("train_seconds", record.metric("train_seconds"))
        self.say(f"trial {trial.number}: {metric} {best:.6g}")
        return best

    def _metric(self, changes: list[str]) -> str:
        """The metric that compares the run; a trial's settings may make it a mixture."""
        recipe = recipes.override(self.options["recipe"], changes)
        return task_class(recipe.task).compared(recipe)

    def _check_surplus(self, trial: Any) -> None:
        """Two processes may take the last trial at the same moment: the later one gives it up."""
        found = self.study.get_trials(deepcopy=False)
        earlier = [t for t in self._counted(found) if t.number < trial.number]
        if self.about["kind"] == "search":
            surplus = "retry_of" not in trial.user_attrs and len(earlier) >= self.options["trials"]
        else:
            points = {t.number: t.system_attrs.get("grid_id") for t in found}
            surplus = points[trial.number] in [points[t.number] for t in earlier]
        if surplus:
            trial.set_user_attr("error", _SURPLUS)
            raise _Surplus

    def _suggest(self, trial: Any) -> dict[str, Any]:
        if self.about["kind"] == "grid":
            return {key: trial.suggest_categorical(key, values) for key, values in self.space.items()}
        # One seed per trial, not per process, so that a trial's values do not depend on who runs it.
        self.study.sampler = self.optuna.samplers.TPESampler(seed=self.seed * 1_000_003 + trial.number)
        values = {}
        for key, r in self.space.items():
            assert isinstance(r, Range)
            whole = isinstance(r.low, int)
            values[key] = (trial.suggest_int if whole else trial.suggest_float)(key, r.low, r.high, log=r.log)
        return values

    def _record(self, trial: Any, folder: Path, changes: list[str], metric: str) -> Record:
        record, unfinished = None, (folder / MARKER).exists()
        with suppress(UserError):  # killed after the run ended, before it was reported
            record = None if unfinished else read(folder / RECORD)
        resume = unfinished and checkpoint.any_saved(folder)
        if record is not None or resume:
            self._check_run(folder, changes)
        if record is not None:
            return record
        told = _Told(trial, metric, self.options["prune"], self.optuna)
        if resume:
            with suppress(OSError):
                for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines():
                    told.report(json.loads(line))
        try:
            own = {key: self.options[key] for key in ("data", "device", "graph", "command")}
            overrides = [*self.options["overrides"], *changes]
            force = folder.exists() and not resume
            return launch(
                self.options["name"], out=folder, reporter=told, overrides=overrides, seed=self.seed, resume=resume,
                force=force, measure=False, **own,
            )  # fmt: skip
        except UserError as error:
            if "--force" not in str(error):
                raise
            raise UserError(f"{error} A sweep has no --force: remove {folder}, and start the sweep again.") from None

    def _check_run(self, folder: Path, changes: list[str]) -> None:
        """Refuse a run in the trial's folder that belongs to another sweep."""
        before = read_json(folder / "config.json")
        if not isinstance(before, dict):
            raise UserError(f"{folder}/config.json holds no settings; remove {folder}, or choose another --out.")
        recipe = recipes.override(self.options["recipe"], changes)
        settings = recipes.from_dict(before.get("settings"), where=f"{folder}/config.json")
        old = {"recipe": before.get("recipe"), "seed": before.get("seed"), **recipes.flatten(settings)}
        new = {"recipe": self.about["recipe"], "seed": self.seed, **recipes.flatten(recipe)}
        differs = [key for key in new if not key.startswith("paper.") and old.get(key) != new[key]]
        if differs:
            key = differs[0]
            wrong = f"with {key}={as_given(old.get(key))}, not {as_given(new[key])}"
        else:  # earlier versions recorded only the name of the data
            known, digest = data_name(str(before.get("data", ""))), before.get("data_digest")
            if known == self.about["data"] if digest is None else digest == _digest(recipe, self.options["data"]):
                return
            wrong = "on other data"
        raise UserError(f"{folder} holds a run of another sweep ({wrong}); choose another --out.")

    def write(self) -> dict[str, Any]:
        """Write the current table of the study."""
        check_folder(self.out, self.study.study_name, self.about)
        rows = [self._row(t) for t in self._shown(self._counted(self.study.get_trials(deepcopy=False)))]
        done = [row for row in rows if row["state"] == "complete"]
        record = {
            "program": "bayesrnn",
            "study": self.study.study_name,
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

    def _row(self, trial: Any) -> dict[str, Any]:
        recipe, params = self.options["recipe"], trial.params
        values = {k: read_value(recipe, k, v) if isinstance(v, str) else v for k, v in params.items()}
        complete = trial.state == self.states.COMPLETE
        value = trial.value if complete else min(trial.intermediate_values.values(), default=None)
        more = {key: trial.user_attrs.get(key) for key in ("best_epoch", "epochs", "train_seconds", "error", "folder")}
        more["epochs"] = more["epochs"] or len(trial.intermediate_values)
        return {"trial": trial.number, "settings": values, "value": value, "state": trial.state.name.lower(), **more}


class _Surplus(Exception):
    pass


class _Told(Silent):
    """Reports every epoch to optuna, and stops where its pruner says so."""

    def __init__(self, trial: Any, metric: str, prune: bool, optuna: Any) -> None:
        self.trial, self.metric, self.prune, self.optuna = trial, metric, prune, optuna

    def report(self, line: dict[str, Any]) -> None:
        self.trial.report(line[self.metric], step=line["epoch"])

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self.report(line)
        if self.prune and line["epoch"] < epochs and self.trial.should_prune():
            raise self.optuna.TrialPruned


def _digest(recipe: recipes.Recipe, data: str | None) -> str:
    """The digest of the data as a run of the recipe reads it: the same on every machine."""
    return task_class(recipe.task)(recipe, data, torch.device("cpu")).digest()
