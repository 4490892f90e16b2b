"""From a recipe's name and its data to a finished run folder with its record."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import contract, provenance
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine.callbacks import Callback, Calls, logs
from bayesrnn.lab.engine.progress import Reporter, Silent
from bayesrnn.lab.engine.ranks import Ranks
from bayesrnn.lab.engine.resume import check_same, continues, go_on
from bayesrnn.lab.reading import as_given, counted, lack_of_memory, read_json
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import checkpoint, sizes
from bayesrnn.lab.runs.folder import CONFIG, MARKER, RunFolder, check_format, config_of
from bayesrnn.lab.runs.record import RECORD, Record, from_json, read

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task

_STARTERS = "started_by"  # key of the record: which launch of several processes wrote it


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
    name: "str | Request | None",
    *,
    out: Path,
    reporter: Reporter,
    data: str | None = None,
    overrides: list[str] | None = None,
    seed: int | None = None,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    graph: bool = True,
    measure: bool = True,
    command: str = "",
    ranks: Ranks | None = None,
    callbacks: Sequence[Callback] = (),
    log: Sequence[str] = (),
) -> Record:
    """Train a recipe on its data into a run folder; returns the record.

    All ranks of a distributed run call this with the same arguments. Rank 0 alone touches ``out``, reports, and returns
    the record. Ranks that torchrun has restarted continue the run that they had begun.

    Args:
        name: a recipe's name or YAML file; None, with ``resume``: that of the run. Or a request, which has its own
            overrides, data and seed.
        out: the run folder.
        data, seed: None: the task's own data and seed 1; with ``resume`` those of the run.
        overrides: ``key=value`` settings. With ``resume`` none are needed; one that contradicts the run is refused.
        resume: continue the unfinished run in ``out``.
        force: replace the run in ``out``.
        measure: False: do not evaluate on the test data.
        callbacks: receive the run's values while it trains.
        log: names of further callbacks, those of ``bayesrnn train --log``; with ``resume`` those of the run.
    """
    ranks = ranks or Ranks()
    before = None
    if isinstance(name, Request):
        wanted = name
    else:
        before = ranks.from_first(lambda: _before(out, resume=resume, force=force))
        wanted = _request(name, overrides or [], data, seed, before, out)
    where = device_of(ranks.device or device)
    now = {"command": command, "overrides": wanted.overrides, "log": list(log), "began": time.time()}
    start = ranks.from_first(lambda: _start(before, now))
    callbacks = (*callbacks, *logs(log or start["log"]))
    reporter = calls = Calls(reporter, callbacks) if ranks.first else Calls(Silent(), ())
    task, digest = ranks.together(lambda: _task(wanted, where, ranks))
    source = wanted.data or task.default_data
    ranks.check_data(digest, source)
    files = task.files()
    config = config_of(task.recipe, name=wanted.name, data=source, seed=wanted.seed, files=files, digest=digest)
    config |= {"start": start, **wanted.about}
    starters = sorted(set(ranks.everyone(ranks.launch)) - {""})
    again = any(ranks.everyone(ranks.restarted))
    done: dict[str, Any] | None = ranks.from_first(lambda: _finished(out, starters) if again else None)
    if done is not None:
        return from_json(done, where=out / RECORD)
    provenance.commit()  # now: the checkout may have changed when the run ends
    with ExitStack() as stack:
        folder: RunFolder | None = None

        def claim() -> bool:
            nonlocal folder
            going_on = resume or _is_ours(out, starters)
            names = (*engine.FILES, *files)
            folder = RunFolder(
                out, files=names, force=force, resume=going_on, by=" ".join(starters), elsewhere=wanted.elsewhere
            )
            stack.enter_context(folder)
            if not (going_on and continues(folder, config, task)):
                folder.describe(config, files)
            for note in filter(None, (folder.note, wanted.note)):
                reporter.say(note)
            return going_on

        going_on = ranks.from_first(claim)
        reporter.say(task.describe())
        run = ranks.together(
            lambda: engine.Run(task, seed=wanted.seed, folder=folder, reporter=reporter, graph=graph, ranks=ranks)
        )
        _say_how(run)
        if going_on:
            go_on(run)
        ranks.from_first(lambda: stack.enter_context(calls.around(run, out, config)))
        run.train()
        if folder is None:
            return Record()
        record = provenance.record_of(
            run, config, overrides=start["overrides"], command=start["command"], started=start["began"],
            measure=measure, **wanted.about,
        )  # fmt: skip
        if starters:
            record = record.model_copy(update={_STARTERS: " ".join(starters)})
        folder.finish(record, spare=checkpoint.SPARE)
        calls.record = record
    return record


def _say_how(run: engine.Run) -> None:
    """Report how the steps run, and settings without effect."""
    ranks, train, say = run.ranks, run.recipe.train, run.reporter.say
    if ranks.several:
        each = "one draw for all" if train.shared_draw else "a separate draw each"
        say(f"{ranks.count} processes, {counted(run.task.batch_size // ranks.count, 'row')} and {each}.")
    say("One step is one CUDA graph." if run.step.graph else f"Steps run eagerly: {run.step.reason}.")
    if train.average_from is not None and train.average_from > train.epochs:
        last = counted(train.epochs, "epoch")
        say(f"No weights are averaged: train.average_from is {train.average_from}, and there are {last}.")


@dataclass(frozen=True)
class Request:
    """What to train.

    Args:
        name: that of the recipe.
        note: a line for the user.
        moved_data: ``data`` is the path that the run was started with, not one given now.
        task: makes the task; None: the class that the recipe names.
        about: further keys of config.json and of the record.
        elsewhere: what messages advise if the folder cannot be used.
    """

    name: str
    recipe: Recipe
    data: str | None
    seed: int
    overrides: list[str]
    note: str = ""
    moved_data: bool = False
    task: "Callable[[Recipe, str | None, torch.device], Task] | None" = None
    about: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: str = "choose another --out"


def run_folder(recipe: str, out: Path | None, seed: int | None, *, resume: bool) -> tuple[str | None, Path]:
    """The recipe's name and the folder of its run; the name is None where a run's folder was given instead of one."""
    if recipe not in recipes.names() and Path(recipe).is_dir():
        if out is not None:
            raise UserError(f"{recipe} is a folder, and --out names another; omit --out, or name the recipe.")
        if not resume:
            raise UserError(f"{recipe} is a folder; to continue the run in it: bayesrnn train {recipe} --resume")
        return None, Path(recipe)
    return recipe, out or Path("runs") / Path(recipe).stem / str(1 if seed is None else seed)


def _before(out: Path, *, resume: bool, force: bool) -> dict[str, Any] | None:
    """The config.json of the run to resume; None: there is none, or none that can be read."""
    if not resume:
        return None
    if force:
        raise UserError("--resume continues a run and --force starts it over; omit one of them.")
    with suppress(UserError):
        config = read_json(out / "config.json")
        kinds = {"recipe": str, "seed": int, "data": str, "settings": dict}
        if isinstance(config, dict) and all(isinstance(config.get(key), kind) for key, kind in kinds.items()):
            return config
    return None


def _request(
    name: str | None, overrides: list[str], data: str | None, seed: int | None, before: dict[str, Any] | None, out: Path
) -> Request:
    """What to train; ``before`` is the config.json of a run to resume, which keeps its settings."""
    if before is None:
        if name is None:
            raise UserError(_why_nothing_to_resume(out))
        recipe = recipes.override(recipes.load(name), overrides)
        return Request(Path(name).stem, recipe, data, 1 if seed is None else seed, overrides)
    check_format(before, out)
    recipe = recipes.from_dict(before["settings"], where=str(out / "config.json"))
    recipe_name, first_seed = before["recipe"], before["seed"]
    given = {"recipe": Path(name).stem if name else recipe_name, "seed": first_seed if seed is None else seed}
    check_same(before, given, out)
    moved = data is None and before["data"] != task_class(recipe.task).default_data
    theirs = _settings_of(name or recipe_name)
    changed = {key: value for key, value in recipes.flatten(recipe).items() if value != theirs.get(key, value)}
    told = [f"{key}={value} (recipe: {theirs[key]})" for key, value in changed.items()]
    more = f" and {len(told) - 5} more" if len(told) > 5 else ""
    return Request(
        recipe_name,
        recipes.override(recipe, overrides),
        before["data"] if moved else data,
        first_seed,
        [f"{key}={as_given(value)}" for key, value in changed.items()],
        note=f"Continued with the run's own settings: {', '.join(told[:5])}{more}." if name and told else "",
        moved_data=moved,
    )


def _why_nothing_to_resume(out: Path) -> str:
    if not (out / CONFIG).exists():
        return f"{out} holds no run to resume; start one with `bayesrnn train RECIPE`."
    with suppress(UserError):
        about = read_json(out / CONFIG)
        if isinstance(about, dict) and about.get("program") == "bayesrnn" and "settings" not in about:
            return f"{out} holds no run of `bayesrnn train`, so there is nothing to resume; name another folder."
    return f"{out / CONFIG} is damaged; restore it from a backup, or train the recipe again with --force."


def _settings_of(name: str) -> dict[str, Any]:
    """The settings of a recipe that can be changed; none if its file is gone, as the run has all that it needs."""
    with suppress(UserError):
        known = recipes.flatten(recipes.load(name))
        return {key: value for key, value in known.items() if "." in key and not key.startswith("paper.")}
    return {}


def _start(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """How the run was first started: what its config.json says, and ``now`` for the rest."""
    kept = (before or {}).get("start")
    found = {**now, **kept} if isinstance(kept, dict) else now
    lists = {key: found[key] if isinstance(found[key], list) else [] for key in ("overrides", "log")}
    began = found["began"] if isinstance(found["began"], int | float) else now["began"]
    kept_lists = {key: [*map(str, value)] for key, value in lists.items()}
    return {"command": str(found["command"]), **kept_lists, "began": float(began)}


def _task(wanted: Request, device: torch.device, ranks: Ranks) -> "tuple[Task, str]":
    """The recipe's task on this rank's part of the data, and the digest of all data."""
    recipe, name = wanted.recipe, wanted.name
    try:
        task = (wanted.task or task_class(recipe.task))(recipe, wanted.data, device)
        contract.check_made(task)
    except (MemoryError, RuntimeError) as error:
        asked = lack_of_memory(error)
        if asked is None:
            raise
        raise UserError(
            f"{name} with these settings needs more memory than there is ({asked}), before any model is made; "
            "choose smaller settings of model and data, such as model.hidden or data.batch_size."
        ) from None
    except UserError as error:
        if not wanted.moved_data:
            raise
        raise UserError(f"The run was started on {wanted.data}: {error} Name the data with --data.") from None
    outlined = sizes.outline(type(task), recipe, task.files(), where=f"{name}, on this {task.source},")
    if outlined is not None:
        sizes.check_memory(outlined)
    digest = task.digest()
    if ranks.several:
        task.split(ranks.rows(task.batch_size))
    return task, digest


def _finished(out: Path, starters: list[str]) -> dict[str, Any] | None:
    """The record of a run that had finished when its processes were restarted."""
    if (out / MARKER).exists() or not (out / RECORD).exists():
        return None
    record = read(out / RECORD)
    ours = set(str(record.extra.get(_STARTERS, "")).split()) & set(starters)
    return record.to_dict() if ours else None


def _is_ours(out: Path, starters: list[str]) -> bool:
    """Whether this launch of several processes began the unfinished run in the folder.

    A machine may have been replaced since: one that was there from the start is enough.
    """
    try:
        words = (out / MARKER).read_text("utf-8", "replace").split()
    except OSError:
        return False
    return bool(set(words[1:]) & set(starters))
