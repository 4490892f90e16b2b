"""Resuming: check that the run in a folder matches the request."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
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


def continues(folder: RunFolder, config: dict[str, Any], task: "Task") -> bool:
    """Check that the run in the folder is this one; False: it was killed before all that describes it was written."""
    there = all((folder.path / name).exists() for name in ("config.json", *task.files()))
    if not there and not checkpoint.any_saved(folder.path):
        return False
    _check_resumed(folder, config, task)
    folder.mark()
    return True


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
        ended = run.epoch > run.recipe.train.epochs
        run.reporter.say("All epochs are done." if ended else f"Resumed in epoch {run.epoch}, after step {run.done}.")
    else:
        run.reporter.say("Nothing was saved yet: started from the beginning.")


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
