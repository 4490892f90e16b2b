"""``bayesrnn train``: train, evaluate and record one recipe."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line
from bayesrnn.lab.cli.options import SEEDS, Device, Graph, Overrides, Set

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from bayesrnn.lab.engine.progress import Progress
    from bayesrnn.lab.runs.record import Record


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
) -> None:
    """Train a recipe on data of its task. Writes checkpoints, metrics and the record of the run."""
    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.engine.launch import launch
    from bayesrnn.lab.engine.ranks import join
    from bayesrnn.lab.engine.resume import run_folder
    from bayesrnn.lab.runs.folder import MARKER

    console = plain_console()
    name, where = run_folder(recipe, out, seed, resume=resume)
    ranks = join(device, devices)
    with reporter(console) if ranks.first else nullcontext(Lines(console)) as told:
        try:
            record = launch(
                name,
                out=where,
                reporter=told,
                data=data,
                overrides=[*(overrides or []), *(settings or [])],
                seed=seed,
                device=device,
                resume=resume,
                force=force,
                graph=graph,
                command=shlex.join(["bayesrnn", *sys.argv[1:]]),
                ranks=ranks,
            )
        except KeyboardInterrupt:
            if ranks.first and (where / MARKER).exists():
                told.say(f"Stopped. Continue with: bayesrnn train {shlex.quote(str(where))} --resume")
            raise
    ranks.leave()
    if ranks.first:
        console.print(_summary(record, where), soft_wrap=True)


def _summary(record: "Record", where: Path) -> str:
    metrics = dict(record.metrics)
    epoch = metrics.pop("best_epoch")
    speed = next(key for key in metrics if key.endswith("_per_second"))
    last = {k: v for k, v in metrics.items() if k.startswith(("valid_", "test_"))}
    first = list(dict.fromkeys(k.partition("_")[2] for k in last))[:_TOLD]  # the others are in record.json
    last = {k: v for k, v in last.items() if k.partition("_")[2] in first}
    return (
        f"{record.recipe}, seed {record.seed}: best epoch {epoch}, {figures(last)} "
        f"({metrics[speed]:,.0f} {speed.removesuffix('_per_second')}/s). Written to {where}"
    )


@contextmanager
def reporter(console: "Console") -> Iterator["Lines"]:
    """A reporter that prints a line per epoch, and in a terminal a bar for the current epoch."""
    if not console.is_terminal:
        yield Lines(console)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(TextColumn("{task.description}"), BarColumn(bar_width=24), console=console, transient=True) as bar:
        yield Lines(console, bar)


class Lines:
    """Prints progress as lines, and as a bar where there is a terminal."""

    def __init__(self, console: "Console", bar: "Bar | None" = None) -> None:
        self.console, self.bar = console, bar
        self.task = None if bar is None else bar.add_task("starting", total=None)
        self.left = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)
        self.console.file.flush()

    def step(self, progress: "Progress") -> None:
        self.left = progress.seconds_left
        if self.bar is not None and self.task is not None:
            text = (
                f"epoch {progress.epoch}/{progress.epochs}  {figures(progress.figures)}  "
                f"{progress.per_second:,.0f} {progress.unit}/s  {_duration(progress.seconds_left)} left"
            )
            self.bar.update(self.task, description=text, total=progress.steps, completed=progress.step)

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        speed = next(key for key in line if key.endswith("_per_second"))
        told = {k: v for k, v in line.items() if k not in ("epoch", "lr", "loss", "gradient_norm", "seconds", speed)}
        self.say(
            f"epoch {line['epoch']}/{epochs}: lr {line['lr']:.3g}, {figures(told)}, "
            f"{line[speed]:,.0f} {speed.removesuffix('_per_second')}/s, {_duration(self.left)} left"
        )


_TOLD = 3  # metrics in the line at the end
SPLITS = {"train": "train", "valid": "validation", "test": "test"}
NAMES = {
    "kl": "KL",
    "kl_per_sequence": "KL per sequence",
    "sharpening_per_sequence": "sharpening per sequence",
    "rmse": "RMSE",
    "nll": "-log p per target",
    "error": "error in percent",
}


def figures(named: dict[str, Any]) -> str:
    """Results in words, one metric at a time: "perplexity 81.20 train, 90.31 validation". Zeros are omitted."""
    measures: dict[str, list[str]] = {}
    counts = []
    for key, value in named.items():
        split, _, measure = key.partition("_")
        if split not in SPLITS:
            split, measure = "", key
        if isinstance(value, int) and value:
            counts.append(f"{value:,} {measure.replace('_', ' ')}")
        elif isinstance(value, float) and value:
            measures.setdefault(measure, []).append(f"{number(value)} {SPLITS.get(split, '')}".strip())
    texts = [f"{NAMES.get(m, m.replace('_', ' '))} {', '.join(values)}" for m, values in measures.items()]
    return ", ".join([*texts, *counts])


def number(value: float) -> str:
    """For reading: two decimals, or four significant digits."""
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
