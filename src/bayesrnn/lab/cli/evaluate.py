"""``bayesrnn evaluate``: what a trained run comes to, measured as its task does."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task

_LANGUAGE = "Of language models"


@one_line
def command(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A run folder; it comes before options of other tasks.")],
    samples: Annotated[
        int | None,
        typer.Option(
            min=0, help="Draws to average over; 0: the posterior mean (not of forecasts). Default: the recipe's."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="The data, where it has moved since.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Also learn on while being tested.", rich_help_panel=_LANGUAGE)
    ] = False,
    reversed_text: Annotated[
        bool, typer.Option("--reversed", help="Also the entropy on reversed text.", rich_help_panel=_LANGUAGE)
    ] = False,
    temperature: Annotated[
        bool,
        typer.Option("--temperature", help="Also at a temperature chosen on validation.", rich_help_panel=_LANGUAGE),
    ] = False,
    dynamic_lr: Annotated[
        str | None,
        typer.Option(
            help="Step size of --dynamic, or several with commas: the best on validation. Default: the recipe's; "
            "2e-4 for rms.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = None,
    dynamic_rule: Annotated[
        str | None, typer.Option(help="sgd (the default), or rms (Krause et al.).", rich_help_panel=_LANGUAGE)
    ] = None,
    dynamic_decay: Annotated[
        str | None,
        typer.Option(
            help="Pull back to the trained weights, or several with commas: the best on validation. Default: 0.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = None,
    drop_words: Annotated[
        bool,
        typer.Option(
            "--drop-words",
            help="Keep word dropout on in draws; their figures end in _words.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = False,
    test_only: Annotated[
        bool,
        typer.Option(
            "--test-only", help="Draws on the test text, not on the validation text.", rich_help_panel=_LANGUAGE
        ),
    ] = False,
    entropy_samples: Annotated[
        int, typer.Option(min=0, help="Draws for the entropy gap.", rich_help_panel=_LANGUAGE)
    ] = 10,
) -> None:
    """Measure a run's best weights; writes evaluation.json and adds the figures to record.json.

    Figures of other data than the run's own go to a file of their own, evaluation-DATA-DIGEST.json.
    Runs of other tasks may have further options; one that a task does not know is refused with a list of those it does.
    """
    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.engine.loop import set_precision
    from bayesrnn.lab.report.tables import Column, rich_table
    from bayesrnn.lab.runs.folder import MARKER
    from bayesrnn.lab.runs.opening import WeightsGuard, open_run
    from bayesrnn.lab.runs.record import RECORD, add_evaluation
    from bayesrnn.lab.tasks.base import task_class

    console = plain_console()
    where = device_of(device)
    unfinished = (run / MARKER).exists()
    measured = WeightsGuard.of(run)
    trained = open_run(run, where)
    options = options_of(task_class(trained.recipe.task), trained.recipe.task, context)
    set_precision(trained.recipe.train.precision, where)
    task = trained.task(data, where)
    _check_draws(task, options)
    other = None
    if said := trained.other_data(task):
        other = _Other.of(data or trained.config["data"], task)
        task.folder = None  # what is kept there beside the figures is of the run's own data
        kept = "" if unfinished else f" The figures go to {run / other.file}, not to the record."
        console.print(f"{said}{kept}", soft_wrap=True, markup=False)
    metrics = task.evaluate(**options, say=lambda text: console.print(text, style="dim"))
    if unfinished:
        console.print("The run is not finished: these are figures of its best epoch so far, and are not kept.")
    elif other is not None:
        with measured.unchanged():
            other.write(run, metrics)
    else:
        with measured.unchanged():
            recorded = add_evaluation(run, metrics)
        if recorded is None:
            told = f"{run / RECORD} is not there or is no record: the figures are in evaluation.json alone."
            console.print(told, soft_wrap=True, markup=False)
        metrics = recorded or metrics
    rows = [
        {"key": key, "value": _shown(value)}
        for key, value in {**metrics, **_other_rules(metrics)}.items()
        if not isinstance(value, list | dict)
    ]
    console.print(rich_table(rows, (Column("key", "measure"), Column("value", trained.config["recipe"]))))
    for key, what in (("", "draws"), ("_words", "draws that drop words")):
        if by_draws := metrics.get(f"test_perplexity_by_draws{key}"):
            each = ", ".join(f"{_shown(row['perplexity'])} with {row['draws']}" for row in by_draws)
            console.print(f"Test perplexity by the number of {what}: {each}.", soft_wrap=True)


def options_of(cls: "type[Task]", name: str, context: typer.Context) -> dict[str, Any]:
    """The options that were given, by parameter of the task's ``evaluate``; those it does not have are refused."""
    import inspect

    from bayesrnn.errors import UserError
    from bayesrnn.lab.recipes.keys import too_many_draws

    parameters = inspect.signature(cls.evaluate, eval_str=True).parameters
    known = {key: p for key, p in parameters.items() if key not in ("self", "say")}
    spelled = {p.name: p.opts[0] for p in context.command.params if p.name}

    def spelling(key: str) -> str:
        return spelled.get(key) or f"--{key.replace('_', '-')}"

    def checked(key: str) -> str:
        if key not in known:
            options = ", ".join(map(spelling, known))
            raise UserError(f"{spelling(key)} is no option of {name} runs; they have {options}.")
        return key

    own = {key: value for key, value in context.params.items() if key not in ("run", "data", "device")}
    given = {checked(key): value for key, value in own.items() if _explicit(context, key)}
    words = list(context.args)
    while words:
        word, equals, value = words.pop(0).partition("=")
        if not word.startswith("--"):
            raise UserError(f"{word} is too much; one run folder, then options.")
        key = checked(word.removeprefix("--").replace("-", "_"))
        kind = _kind(known[key])
        if kind is bool and not equals:
            given[key] = True
        else:
            given[key] = _parsed(value if equals else words.pop(0) if words else "", kind, word)
    for key, value in given.items():
        if wrong := too_many_draws(key, value):
            raise UserError(f"{spelling(key)} is {value}; {wrong}.")
    return given


_OF_DRAWS = ("samples", "decode_samples", "entropy_samples", "drop_words", "test_only")


def _check_draws(task: "Task", options: dict[str, Any]) -> None:
    """Refuse what would have no effect, as there is nothing to draw; numbers of draws that are 0 ask for none."""
    from bayesrnn.errors import UserError

    for key in _OF_DRAWS:
        if options.get(key) and not task.random:
            option = f"--{key.replace('_', '-')}"
            raise UserError(f"{option} is for draws, and this run has none: its model has no noise; leave it away.")


def _explicit(context: typer.Context, key: str) -> bool:
    source = context.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def _kind(parameter: Any) -> Any:
    import types
    import typing

    kind = parameter.annotation
    if isinstance(kind, types.UnionType):
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    return kind


def _parsed(text: str, kind: Any, option: str) -> Any:
    from bayesrnn.errors import UserError

    try:
        if kind is bool:
            return {"true": True, "false": False}[text]
        return kind(text)
    except (ValueError, KeyError):
        names = {int: "a whole number", float: "a number", bool: "true or false"}
        raise UserError(f"{option} must be {names[kind]}, got {text!r}.") from None


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if 10 <= abs(value) < 1e6 else f"{value:.4g}"


def _other_rules(metrics: dict[str, Any]) -> dict[str, Any]:
    """Figures of dynamic evaluation by the rule that was not the best on validation, to be read beside the best's."""
    from bayesrnn.lab.tasks.language.dynamic_metrics import OF_A_RULE

    rules = metrics.get("dynamic_by_rule", {})
    kept = ("dynamic_lr", "dynamic_decay", *(key for key in OF_A_RULE if "perplexity" in key))
    shown = {OF_A_RULE[key]: key for key in kept}
    return {
        f"{key} ({rule})": figures[name]
        for rule, figures in rules.items() if rule != metrics.get("dynamic_rule")
        for name, key in shown.items() if name in figures
    }  # fmt: skip


@dataclass(frozen=True)
class _Other:
    """Data that are not the run's own; their figures have a file of their own, which no report takes for the run's."""

    name: str
    digest: str

    @classmethod
    def of(cls, data: str, task: "Task") -> "_Other":
        from bayesrnn.lab.reading import data_name

        return cls(data_name(data), task.digest())

    @property
    def file(self) -> str:
        """With the digest in it: two data sets of one name have two files."""
        name = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)[:40]
        return f"evaluation-{name}-{self.digest[:8]}.json"

    def write(self, run: Path, metrics: dict[str, Any]) -> None:
        from bayesrnn.lab.runs.files import as_json, write_file

        about = {"program": "bayesrnn", "data": self.name, "data_digest": self.digest}
        write_file(run / self.file, as_json({**about, "metrics": metrics}))
