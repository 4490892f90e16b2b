"""``bayesrnn train``: train, evaluate and record one recipe."""

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesrnn.lab.cli.options import SEEDS, Device, Graph, Overrides, Set
from bayesrnn.lab.console.errors import one_line

if TYPE_CHECKING:
    from bayesrnn.lab.runs.record import Record

_TOLD = 3  # metrics in the line at the end


@one_line
def command(
    recipe: Annotated[
        str, typer.Argument(help="A name from `bayesrnn recipes`, or a YAML file; with --resume also a run's folder.")
    ],
    overrides: Overrides = None,
    settings: Set = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder or file of the data: for language models a folder with train, valid and test text (default: "
            "Python's docs), for forecasts a CSV file (default: carbon dioxide at Mauna Loa)."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the run to. Default: runs/RECIPE/SEED.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in that folder with its own settings.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier run in that folder, and the files made from it.")
    ] = False,
    seed: Annotated[int | None, typer.Option(**SEEDS, help="Seed of all randomness. Default: 1.")] = None,
    device: Device = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Processes that train together, one per device; or start with torchrun.")
    ] = None,
    graph: Graph = True,
    log: Annotated[list[str] | None, typer.Option(help="Also log to tensorboard or wandb; may be given twice.")] = None,
) -> None:
    """Train a recipe on data of its task. Writes checkpoints, metrics and the record of the run."""
    from bayesrnn.lab.console.lines import Lines, reporter
    from bayesrnn.lab.console.output import command_line, plain_console
    from bayesrnn.lab.engine.launch import launch, run_folder
    from bayesrnn.lab.engine.ranks import join
    from bayesrnn.lab.runs.folder import MARKER

    console = plain_console()
    name, where = run_folder(recipe, out, seed, resume=resume)
    ranks = join(device, devices)
    with reporter(console) if ranks.first else nullcontext(Lines(console)) as told:
        try:
            record = launch(
                name, out=where, reporter=told, data=data, overrides=[*(overrides or []), *(settings or [])], seed=seed,
                device=device, resume=resume, force=force, graph=graph, ranks=ranks,
                command=command_line(), log=log or [],
            )  # fmt: skip
        except KeyboardInterrupt:
            if ranks.first and (where / MARKER).exists():
                told.say(f"Stopped. Continue with: bayesrnn train {shlex.quote(str(where))} --resume")
            raise
    ranks.leave()
    if ranks.first:
        console.print(_summary(record, where), soft_wrap=True)


def _summary(record: "Record", where: Path) -> str:
    """The line at the end."""
    from bayesrnn.lab.console.lines import in_words
    from bayesrnn.lab.registry import task_class

    task = task_class(record.task)
    metrics = dict(record.metrics)
    epoch = metrics.pop("best_epoch")
    speed = next(key for key in metrics if key.endswith("_per_second"))
    last = {k: v for k, v in metrics.items() if k.startswith(("valid_", "test_"))}
    first = list(dict.fromkeys(k.partition("_")[2] for k in last))[:_TOLD]  # the others are in record.json
    last = {k: v for k, v in last.items() if k.partition("_")[2] in first}
    remark = f"{said} " if (said := task.remark(metrics)) else ""
    return (
        f"{record.recipe}, seed {record.seed}: best epoch {epoch}, {in_words(last, task.scaled)} "
        f"({metrics[speed]:,.0f} {speed.removesuffix('_per_second')}/s). {remark}Written to {where}"
    )
