"""From a recipe's name and its data to a finished run folder with its record."""

import json
import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from bayesrnn import recipes
from bayesrnn.errors import UserError
from bayesrnn.reading import read_json
from bayesrnn.tasks import sizes
from bayesrnn.tasks.base import Task, task_class
from bayesrnn.tasks.trained import check_files
from bayesrnn.train import checkpoint, engine
from bayesrnn.train.run_folder import MARKER, RunFolder, check_format


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
) -> dict[str, Any]:
    """Train, measure and record; returns the record. ``measure=False``: the test data is not looked at."""
    recipe = recipes.override(recipes.load(name), overrides or [])
    where = device_of(device)
    task = task_class(recipe.task)(recipe, data, where)
    files = task.files()
    outlined = sizes.outline(type(task), recipe, files, where=f"{name}, on this {task.source},")
    if outlined is not None:
        sizes.check_memory(outlined)
    config = engine.config(recipe, name=Path(name).stem, data=data or task.default_data, seed=seed, files=files)
    with RunFolder(out, files=(*engine.FILES, *files), force=force, resume=resume) as folder:
        if folder.note:
            reporter.say(folder.note)
        if resume and not _was_killed_at_birth(folder, files):
            _check_resumed(folder, config, task)
            folder.write(MARKER, f"{os.getpid()}\n")
        else:
            folder.write("config.json", json.dumps(config, indent=2) + "\n")
            for file, content in files.items():
                folder.write(file, content)
        reporter.say(task.describe())
        started = time.time()
        run = engine.Run(task, seed=seed, folder=folder, reporter=reporter, graph=graph)
        reporter.say("One step is one CUDA graph." if run.step.graph else f"Steps run eagerly: {run.step.reason}.")
        if resume:
            _go_on(run)
        run.train()
        metrics = engine.final_metrics(run, measure=measure)
        record = {
            "recipe": config["recipe"],
            "seed": seed,
            "commit": commit(),
            **engine.environment(where),
            "command": command,
            "data": Path(config["data"]).name,
            "overrides": overrides or [],
            "cuda_graph": run.step.graph is not None,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "settings": config["settings"],
            **task.about(),
            "curves": engine.curves(run),
            "metrics": metrics,
        }
        folder.finish(record, spare=checkpoint.SPARE)
    return record


def _go_on(run: engine.Run) -> None:
    """From the folder's last checkpoint, or from the beginning where the run was stopped before it wrote one."""
    path = run.folder.path
    if checkpoint.any_saved(path):
        run.resume()
        run.reporter.say(f"Resumed in epoch {run.epoch}, after step {run.done}.")
        return
    with suppress(OSError):
        if (path / "metrics.jsonl").stat().st_size:
            raise UserError(f"{path} has lost its checkpoints; start over with --force.")
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
    old = recipes.flatten(recipes.from_dict(before.get("settings"), where="config.json"))
    new = recipes.flatten(recipes.from_dict(config["settings"], where="recipe"))
    for key, value in new.items():
        if old.get(key) != value:
            raise UserError(f"{folder.path} was started with {key}={old.get(key)}, not {value}; resume with the same.")
    check_files(task, written, advice=f"resume with the {task.source} it was started on")


def commit() -> str | None:
    """The commit of the source that runs, where it is a checkout."""
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
