"""``bayesrnn evaluate``: measure a trained run as its task does."""

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab import registry
from bayesrnn.lab.cli.options import Device
from bayesrnn.lab.console.errors import one_line

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task


def _with_options_of_tasks(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that tasks declare, for ``--help``; the command reads them from its context."""
    own = _parameters(command)
    others = [p for declared in registry.evaluate_options() for p in _parameters(declared).values()]
    parameters = [*own.values(), *(p for p in others if p.name not in own)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Its parameters by name, without ``**options``."""
    found = inspect.signature(function, eval_str=True).parameters
    return {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD}


@_with_options_of_tasks
@one_line
def command(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A run folder; it comes before options of other tasks.")],
    samples: Annotated[
        int | None,
        typer.Option(
            min=0, help="Draws to average over; 0: the posterior mean (not for forecasts). Default: the recipe's."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="The data, if it has moved since, or other data.")] = None,
    device: Device = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    **of_tasks: Any,
) -> None:
    """Measure a run's best weights; writes evaluation.json and adds the metrics to record.json.

    Metrics on other data than the run's own go to a file of their own, evaluation-DATA-DIGEST.json.
    Tasks may have further options; an option that the run's task lacks is refused with a list of those it has.
    """
    from bayesrnn import kernels
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.engine.loop import set_precision
    from bayesrnn.lab.engine.progress import heartbeat
    from bayesrnn.lab.reading import data_name
    from bayesrnn.lab.report.tables import Column, rich_table
    from bayesrnn.lab.runs.files import as_json, write_file
    from bayesrnn.lab.runs.folder import MARKER
    from bayesrnn.lab.runs.opening import WeightsGuard, open_run
    from bayesrnn.lab.runs.record import RECORD, add_evaluation
    from bayesrnn.lab.tasks.base import NO_DRAWS

    console = plain_console()
    where = device_of(device)
    unfinished = (run / MARKER).exists()
    guard = WeightsGuard.of(run)
    trained = open_run(run, where)
    options = options_of(registry.task_class(trained.recipe.task), trained.recipe.task, context)
    task = trained.task(data, where)
    for key in task.draw_options:
        if options.get(key) and not task.random:  # 0 draws are none
            raise UserError(NO_DRAWS.format(f"--{key.replace('_', '-')}"))
    other = ""
    if said := trained.other_data(task):
        other = data_name(data or trained.config["data"])
        task.folder = None  # its files belong to the run's own data
        kept = "" if unfinished else f" The metrics go to {_other_file(run, other, task)}, not to the record."
        console.print(f"{said}{kept}", soft_wrap=True, markup=False)
    with kernels.float32_precision(), heartbeat(console.say, "Evaluation"):  # precision as it was, after the evaluation
        set_precision(trained.recipe.train.precision, where)
        metrics = task.evaluate(**options, say=console.say)
    if unfinished:
        console.print("The run is not finished: these are metrics of its best epoch so far, and they are not kept.")
    elif other:
        about = {"program": "bayesrnn", "data": other, "data_digest": task.digest(), "metrics": metrics}
        with guard.unchanged():
            write_file(_other_file(run, other, task), as_json(about))
    else:
        with guard.unchanged():
            recorded = add_evaluation(run, metrics)
        if recorded is None:
            told = f"{run / RECORD} is missing or damaged: the metrics are only in evaluation.json. "
            told += f"To make it again: bayesrnn train {run} --resume"
            console.print(told, soft_wrap=True, markup=False)
        metrics = recorded or metrics
    rows = [{"key": key, "value": _shown(value)} for key, value in task.table(metrics).items()]
    console.print(rich_table(rows, (Column("key", "metric"), Column("value", trained.config["recipe"]))))
    for remark in task.remarks(metrics):
        console.print(remark, soft_wrap=True)


def options_of(cls: "type[Task]", name: str, context: typer.Context) -> dict[str, Any]:
    """The options that were given, by parameter of the task's ``evaluate``; those it does not have are refused."""
    from bayesrnn.lab.recipes.keys import too_many_draws

    declared = [cls.evaluate, *registry.evaluate_options(name)]
    known = {key: p for f in declared for key, p in _parameters(f).items() if key not in ("self", "say")}
    spelled = {p.name: p.opts[0] for p in context.command.params if p.name}

    def spelling(key: str) -> str:
        return spelled.get(key) or f"--{key.replace('_', '-')}"

    def checked(key: str) -> str:
        if key not in known:
            options = ", ".join(map(spelling, known))
            raise UserError(f"{spelling(key)} is not an option of {name} runs; they have {options}.")
        return key

    sources = {key: context.get_parameter_source(key) for key in context.params.keys() - {"run", "data", "device"}}
    explicit = {key for key, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    given = {checked(key): value for key, value in context.params.items() if key in explicit}
    words = list(context.args)
    while words:
        word, equals, value = words.pop(0).partition("=")
        if not word.startswith("--"):
            raise UserError(f"{word} is one word too many; name one run folder, then options.")
        key = checked(word.removeprefix("--").replace("-", "_"))
        kinds = typing.get_args(known[key].annotation) or [known[key].annotation]
        kind = next(each for each in kinds if each is not type(None))  # int, float, bool or str
        if kind is bool and not equals:
            given[key] = True
        else:
            given[key] = _parsed(value if equals else words.pop(0) if words else "", kind, word)
    for key, value in given.items():
        if wrong := too_many_draws(key, value):
            raise UserError(f"{spelling(key)} is {value}; {wrong}.")
    return given


def _parsed(text: str, kind: Any, option: str) -> Any:
    try:
        return {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError):
        names = {int: "a whole number", float: "a number", bool: "true or false"}
        raise UserError(f"{option} must be {names[kind]}, got {text!r}.") from None


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if 10 <= abs(value) < 1e6 else f"{value:.4g}"


def _other_file(run: Path, data: str, task: "Task") -> Path:
    """The file for metrics on other data than the run's own; two data sets of one name have two files."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in data)[:40]
    return run / f"evaluation-{name}-{task.digest()[:8]}.json"
