"""The description of a run in its folder: written at the start, checked when the run is resumed."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.reading import read_json
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import RunFolder, check_format
from bayesrnn.lab.runs.opening import check_digests, check_files

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task


def check_same(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Refuse to resume with another recipe or seed."""
    for key in ("recipe", "seed"):
        if before.get(key) != now[key]:
            raise UserError(f"{folder} was started with {key} {before.get(key)}, not {now[key]}.")


def describe(folder: RunFolder, config: dict[str, Any], task: "Task", *, resume: bool) -> None:
    """Write the files that describe the run; with ``resume``, check that they are the same."""
    provenance.commit()  # now: the checkout may have changed when the run ends
    files = task.files()
    if resume and not _was_killed_at_birth(folder, files):
        _check_resumed(folder, config, task)
        folder.mark()
        return
    folder.write("config.json", json.dumps(config, indent=2) + "\n")
    for file, content in files.items():
        folder.write(file, content)


def go_on(run: engine.Run) -> None:
    """Continue from the folder's last checkpoint, or from the start where the run had written none."""

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


def _check_resumed(folder: RunFolder, config: dict[str, Any], task: "Task") -> None:
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
    check_same(before, config, folder.path)
    if before.get("pruned") != config.get("pruned"):
        raise UserError(
            f"{folder.path} was started with other weights, or removes them in other steps. Pruned weights are trained "
            "by bayesrnn prune --retrain with the same run, fraction and epochs; continue with that command, or start "
            "over with --force."
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
            f"The data in {config['data']} are not those that the run in {folder.path} was started on; "
            "name those with --data, or start over with --force."
        )
