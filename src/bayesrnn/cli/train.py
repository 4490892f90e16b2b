"""``bayesrnn train``: train, evaluate and record one recipe."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.cli.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from bayesrnn.train.engine import Progress


@one_line
def command(
    recipe: Annotated[str, typer.Argument(help="A name from `bayesrnn recipes`, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changed settings, such as train.epochs=2.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder with train, valid and test text. Default: Python's own documentation.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the run to. Default: runs/RECIPE/SEED.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in that folder.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier run in that folder.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all randomness.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    graph: Annotated[bool, typer.Option(help="Record a CUDA step as one graph.")] = True,
) -> None:
    """Train a recipe on any folder of text; writes checkpoints, metrics and the record of the run."""
    from bayesrnn.cli.console import plain_console
    from bayesrnn.train.launch import launch

    console = plain_console()
    where = out or Path("runs") / Path(recipe).stem / str(seed)
    with reporter(console) as told:
        record = launch(
            recipe,
            out=where,
            reporter=told,
            data=data,
            overrides=overrides,
            seed=seed,
            device=device,
            resume=resume,
            force=force,
            graph=graph,
            command=shlex.join(["bayesrnn", *sys.argv[1:]]),
        )
    metrics = record["metrics"]
    console.print(
        f"{record['recipe']}, seed {seed}: best epoch {metrics['best_epoch']}, perplexity "
        f"{metrics['valid_perplexity']:.2f} validation, {metrics['test_perplexity']:.2f} test "
        f"({metrics['words_per_second']:,.0f} words/s). Written to {where}",
        soft_wrap=True,
    )


@contextmanager
def reporter(console: "Console") -> Iterator["Lines"]:
    """One line per epoch; in a terminal also a bar for the epoch under way."""
    if not console.is_terminal:
        yield Lines(console)
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    with Bar(TextColumn("{task.description}"), BarColumn(bar_width=24), console=console, transient=True) as bar:
        yield Lines(console, bar)


class Lines:
    def __init__(self, console: "Console", bar: "Bar | None" = None) -> None:
        self.console, self.bar = console, bar
        self.task = None if bar is None else bar.add_task("starting", total=None)
        self.left = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)
        self.console.file.flush()

    def step(self, progress: "Progress") -> None:
        self.left = progress.seconds_left
        if self.bar is not None and self.task is not None:
            kl = f"  KL {progress.kl:.1f}" if progress.kl else ""
            text = (
                f"epoch {progress.epoch}/{progress.epochs}  perplexity {progress.perplexity:.1f}{kl}  "
                f"{progress.words_per_second:,.0f} words/s  {_duration(progress.seconds_left)} left"
            )
            self.bar.update(self.task, description=text, total=progress.steps, completed=progress.step)

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        kl = f", KL {line['kl_per_sequence']:.1f}" if line["kl_per_sequence"] else ""
        sharp = f" + {line['sharpening_per_sequence']:.2f}" if line["sharpening_per_sequence"] else ""
        self.say(
            f"epoch {line['epoch']}/{epochs}: lr {line['lr']:.3g}, perplexity {line['train_perplexity']:.2f} train, "
            f"{line['valid_perplexity']:.2f} validation ({line['valid_streams']} streams){kl}{sharp}, "
            f"{line['words_per_second']:,.0f} words/s, {_duration(self.left)} left"
        )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
