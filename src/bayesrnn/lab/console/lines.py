"""Progress of one run: a line per epoch, and in a terminal a bar."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from bayesrnn.lab.engine.progress import Progress

SPLITS = {"train": "train", "valid": "validation", "test": "test"}
NAMES = {
    "kl": "KL",
    "kl_per_sequence": "KL per sequence",
    "sharpening_per_sequence": "sharpening per sequence",
    "rmse": "RMSE",
    "nll": "-log p per target",
    "error": "error in percent",
}


@contextmanager
def reporter(console: Console) -> Iterator["Lines"]:
    """A reporter that prints a line per epoch, and in a terminal a bar for the current epoch."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Bar(TextColumn("{task.description}"), BarColumn(bar_width=24), console=console, transient=True) as bar:
        yield Lines(console, bar)


class Lines:
    """Prints progress as lines, and as a bar where there is a terminal."""

    def __init__(self, console: Console, bar: Bar | None = None) -> None:
        self.console, self.bar = console, bar
        self.task = None if bar is None else bar.add_task("starting", total=None)
        self.reported = time.monotonic()  # the last step, before the validation

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)
        self.console.file.flush()

    def step(self, progress: Progress) -> None:
        self.reported = time.monotonic()
        if self.bar is not None and self.task is not None:
            text = (
                f"epoch {progress.epoch}/{progress.epochs}  {in_words(progress.metrics)}  "
                f"{progress.per_second:,.0f} {progress.unit}/s  {_duration(progress.seconds_left)} left"
            )
            self.bar.update(self.task, description=text, total=progress.steps, completed=progress.step)

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        speed = next(key for key in line if key.endswith("_per_second"))
        left = (epochs - line["epoch"]) * (line["seconds"] + time.monotonic() - self.reported)
        told = {k: v for k, v in line.items() if k not in ("epoch", "lr", "loss", "gradient_norm", "seconds", speed)}
        self.say(
            f"epoch {line['epoch']}/{epochs}: lr {line['lr']:.3g}, {in_words(told)}, "
            f"{line[speed]:,.0f} {speed.removesuffix('_per_second')}/s, {_duration(left)} left"
        )


def in_words(named: dict[str, Any], scaled: Sequence[str] = ()) -> str:
    """Results in words, one metric at a time: "perplexity 81.20 train, 90.31 validation". Only floats, no zeros.

    ``scaled`` are keys whose values are not in the unit of the data.
    """
    measures: dict[str, list[str]] = {}
    for key, value in named.items():
        split, _, measure = key.partition("_")
        if split not in SPLITS:
            split, measure = "", key
        if isinstance(value, float) and value:
            measures.setdefault(measure, []).append(
                f"{number(value)} {'scaled ' * (key in scaled)}{SPLITS.get(split, '')}".strip()
            )
    return ", ".join(f"{_name(measure)} {', '.join(values)}" for measure, values in measures.items())


def _name(measure: str) -> str:
    """In words; ``_mc`` marks averages over draws."""
    first, draws, rest = measure.partition("_mc")
    words = [NAMES.get(first, first.replace("_", " ")), "averaged over draws" * bool(draws), rest.replace("_", " ")]
    return " ".join(filter(None, map(str.strip, words)))


def number(value: float) -> str:
    """For reading: two decimals, or four significant digits."""
    return f"{value:,.2f}" if abs(value) >= 10 else f"{value:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
