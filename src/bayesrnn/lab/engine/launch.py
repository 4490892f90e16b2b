"""From a recipe's name and its data to a finished run folder with its record."""

import functools
import json
import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine.ranks import Ranks
from bayesrnn.lab.reading import counted, data_name, lack_of_memory, read_json
from bayesrnn.lab.runs import checkpoint, sizes
from bayesrnn.lab.runs.folder import MARKER, RECORD, RunFolder, check_format
from bayesrnn.lab.runs.trained import check_digests, check_files
from bayesrnn.lab.tasks.base import Task, task_class

_STARTERS = "started_by"  # of the record: which start of several processes has made it


def device_of(name: str | None) -> torch.device:
    """The device asked for; None: CUDA where there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UserError(f"There is no device {name}; choose cpu or cuda.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no CUDA device here; choose --device cpu.")
    return torch.device(name)


@kernels.float32_precision()  # as it was, after the run
def launch(
    name: str,
    *,
    out: Path,
    reporter: engine.Reporter,
    data: str | None = None,
    overrides: list[str] | None = None,
    seed: int = 1,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    graph: bool = True,
    measure: bool = True,
    command: str = "",
    ranks: Ranks | None = None,
) -> dict[str, Any]:
    """Train, measure and record; returns the record. ``measure=False``: the test data is not looked at.

    Of several ``ranks`` all call this, with the same arguments; rank 0 alone touches ``out``, reports and returns the
    record. Where torchrun has started them again, they go on with the run that they had begun, and with no other.
    """
    ranks = ranks or Ranks()
    reporter = reporter if ranks.first else _Silent()
    where = device_of(ranks.device or device)
    ranks.from_first(lambda: _check_options(resume=resume, force=force))
    task, digest = ranks.together(lambda: _task(name, overrides or [], data, where, ranks))
    source = data or task.default_data
    ranks.check_data(digest, source)
    files = task.files()
    config = engine.config(task.recipe, name=Path(name).stem, data=source, seed=seed, files=files, digest=digest)
    starters = sorted(set(ranks.everyone(ranks.launch)) - {""})
    again = any(ranks.everyone(ranks.restarted))
    done: dict[str, Any] | None = ranks.from_first(lambda: _finished(out, starters) if again else None)
    if done is not None:
        return done
    with ExitStack() as stack:
        folder: RunFolder | None = None

        def claim() -> bool:
            nonlocal folder
            going_on = resume or _is_ours(out, starters)
            names = (*engine.FILES, *files)
            folder = RunFolder(out, files=names, force=force, resume=going_on, by=" ".join(starters))
            stack.enter_context(folder)
            describe(folder, config, task, resume=going_on)
            if folder.note:
                reporter.say(folder.note)
            return going_on

        going_on = ranks.from_first(claim)
        reporter.say(task.describe())
        started = time.time()
        run = ranks.together(
            lambda: engine.Run(task, seed=seed, folder=folder, reporter=reporter, graph=graph, ranks=ranks)
        )
        if ranks.several:
            each = "one draw for all" if task.recipe.train.shared_draw else "a draw of its own each"
            reporter.say(f"{ranks.count} processes, {counted(task.batch_size // ranks.count, 'row')} and {each}.")
        reporter.say("One step is one CUDA graph." if run.step.graph else f"Steps run eagerly: {run.step.reason}.")
        train = task.recipe.train
        if train.average_from is not None and train.average_from > train.epochs:
            last = counted(train.epochs, "epoch")
            reporter.say(f"No weights are averaged: train.average_from is {train.average_from}, and there are {last}.")
        if going_on:
            go_on(run)
        run.train()
        if folder is None:
            return {}
        record = recorded(run, config, overrides=overrides or [], command=command, started=started, measure=measure)
        if starters:
            record[_STARTERS] = " ".join(starters)
        folder.finish(record, spare=checkpoint.SPARE)
    return record


def recorded(
    run: engine.Run,
    config: dict[str, Any],
    *,
    overrides: list[str],
    command: str,
    started: float,
    measure: bool = True,
) -> dict[str, Any]:
    """The record of a run that has ended; ``started``: when, in seconds since 1970."""
    metrics = engine.final_metrics(run, measure=measure)
    wanted = kernels.asked()  # the first path to try, where one was named
    return {
        "recipe": config["recipe"],
        "seed": config["seed"],
        "commit": commit(),
        **engine.environment(run.step.device),
        "command": command,
        "data": data_name(config["data"]),
        "overrides": overrides,
        "ranks": run.ranks.count,
        "cuda_graph": run.step.graph is not None,
        **({"kernel": wanted[0]} if wanted else {}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "settings": config["settings"],
        **run.task.about(),
        "curves": engine.curves(run),
        "metrics": metrics,
    }


class _Silent:
    """The reporter of all ranks but the first."""

    def say(self, text: str) -> None:
        pass

    def step(self, progress: engine.Progress) -> None:
        pass

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        pass


def _check_options(*, resume: bool, force: bool) -> None:
    if resume and force:
        raise UserError("--resume goes on with a run and --force starts it over; leave one of them away.")


def _task(name: str, overrides: list[str], data: str | None, device: torch.device, ranks: Ranks) -> tuple[Task, str]:
    """The recipe's task on its data, of which this rank has its part; and the digest of the whole data."""
    recipe = recipes.override(recipes.load(name), overrides)
    try:
        task = task_class(recipe.task)(recipe, data, device)
    except (MemoryError, RuntimeError) as error:
        asked = lack_of_memory(error)
        if asked is None:
            raise
        raise UserError(
            f"{name} with these settings needs more memory than there is ({asked}), before any model is made; "
            "choose smaller settings of model and data, such as model.hidden or data.batch_size."
        ) from None
    outlined = sizes.outline(type(task), recipe, task.files(), where=f"{name}, on this {task.source},")
    if outlined is not None:
        sizes.check_memory(outlined)
    digest = task.digest()
    if ranks.several:
        task.split(ranks.rows(task.batch_size))
    return task, digest


def _finished(out: Path, starters: list[str]) -> dict[str, Any] | None:
    """The record of a run that had ended when its processes were started again."""
    if (out / MARKER).exists() or not (out / RECORD).exists():
        return None
    record = read_json(out / RECORD)
    ours = isinstance(record, dict) and set(str(record.get(_STARTERS, "")).split()) & set(starters)
    return record if ours else None


def _is_ours(out: Path, starters: list[str]) -> bool:
    """Whether the unfinished run in the folder was begun by this same start of several processes.

    Of several machines one may have been exchanged since: one that was there from the beginning is enough.
    """
    try:
        words = (out / MARKER).read_text("utf-8", "replace").split()
    except OSError:
        return False
    return bool(set(words[1:]) & set(starters))


def describe(folder: RunFolder, config: dict[str, Any], task: Task, *, resume: bool) -> None:
    """Write what the run is, or see that what is written is the same."""
    commit()  # for the record, now: a checkout may have moved on when the run ends
    files = task.files()
    if resume and not _was_killed_at_birth(folder, files):
        _check_resumed(folder, config, task)
        folder.mark()
        return
    folder.write("config.json", json.dumps(config, indent=2) + "\n")
    for file, content in files.items():
        folder.write(file, content)


def go_on(run: engine.Run) -> None:
    """From the folder's last checkpoint, or from the beginning where the run was stopped before it wrote one."""

    def saved() -> bool:
        path = run.folder.path
        found = checkpoint.any_saved(path)
        with suppress(OSError):
            if not found and (path / "metrics.jsonl").stat().st_size:
                raise UserError(f"{path} has lost its checkpoints; start over with --force.")
        return found

    if run.ranks.from_first(saved):
        run.resume()
        run.reporter.say(f"Resumed in epoch {run.epoch}, after step {run.done}.")
    else:
        run.reporter.say("Nothing was saved yet: started from the beginning.")


def _was_killed_at_birth(folder: RunFolder, files: Iterable[str]) -> bool:
    """Whether the run was stopped before all that describes it was written."""
    there = all((folder.path / name).exists() for name in ("config.json", *files))
    return not there and not checkpoint.any_saved(folder.path)


def _check_resumed(folder: RunFolder, config: dict[str, Any], task: Task) -> None:
    files = task.files()
    try:
        before = read_json(folder.path / "config.json")
        written = {name: (folder.path / name).read_bytes() for name in files}
        if not isinstance(before, dict):
            raise UserError("config.json holds no settings")
    except (OSError, UserError):
        names = " and ".join(["config.json", *files])
        raise UserError(f"{folder.path} has no readable {names}; start over.") from None
    check_format(before, folder.path)
    for key in ("recipe", "seed"):
        if before.get(key) != config[key]:
            raise UserError(f"{folder.path} was started with {key} {before.get(key)}, not {config[key]}.")
    if before.get("pruned") != config.get("pruned"):
        raise UserError(
            f"{folder.path} was begun with other weights, or removes them in other steps: pruned ones are trained on "
            "by bayesrnn prune --retrain, with the fraction, the epochs and the run that they were made of; go on with "
            "that command, or start over with --force."
        )
    old = recipes.flatten(recipes.from_dict(before.get("settings"), where="config.json"))
    new = recipes.flatten(recipes.from_dict(config["settings"], where="recipe"))
    for key, value in new.items():
        if old.get(key) != value:
            raise UserError(
                f"{folder.path} was started with {key}={old.get(key)}, not {value}; resume with the same, or start "
                "over with --force."
            )
    check_digests(before, written, folder.path)
    check_files(task, written, advice=f"resume with the {task.source} it was started on")
    if before.get("data_digest", config["data_digest"]) != config["data_digest"]:  # earlier versions wrote none
        raise UserError(
            f"The data in {config['data']} are not those that the run in {folder.path} began with; "
            "name those with --data, or start over with --force."
        )


@functools.cache
def commit() -> str | None:
    """The commit of the source that runs, where it is a checkout: as it was when this was first asked."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("BAYESRNN_COMMIT")
    return found.stdout.strip()
