"""Progress of several models trained in turn: live bars in a terminal, a plain line now and then elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from bayesrnn.lab.tasks.language.loop import Epoch


class Reporter(Protocol):
    """Is told of each step (epoch and step from 1) and of each finished epoch of a model."""

    def step(self, model: str, epoch: int, step: int) -> None: ...
    def epoch(self, model: str, epoch: "Epoch") -> None: ...


@contextmanager
def reporter(console: "Console", models: Mapping[str, str], *, epochs: int, steps: int) -> Iterator[Reporter]:
    """Progress on ``console`` for the models (key to name shown), each trained for ``epochs`` of ``steps``."""
    if not console.is_terminal:
        yield Lines(console, models, epochs=epochs)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        yield Bars(progress, models, epochs=epochs, steps=steps)


class Bars:
    def __init__(self, progress: "Progress", models: Mapping[str, str], *, epochs: int, steps: int) -> None:
        self.progress = progress
        self.epochs, self.steps = epochs, steps
        self.tasks: dict[str, TaskID] = {
            model: progress.add_task(name, total=epochs * steps, start=False, note="waiting")
            for model, name in models.items()
        }

    def step(self, model: str, epoch: int, step: int) -> None:
        task = self.tasks[model]
        if (epoch, step) == (1, 1):
            self.progress.start_task(task)
            self.progress.update(task, note=f"epoch 1/{self.epochs}")
        self.progress.update(task, completed=(epoch - 1) * self.steps + step)

    def epoch(self, model: str, epoch: "Epoch") -> None:
        note = f"epoch {epoch.number}/{self.epochs}  train {epoch.train:.1f}  valid {epoch.valid:.1f}"
        self.progress.update(self.tasks[model], note=note)


class Lines:
    """About five lines per model."""

    def __init__(self, console: "Console", models: Mapping[str, str], *, epochs: int) -> None:
        self.console, self.models, self.epochs = console, models, epochs

    def step(self, model: str, epoch: int, step: int) -> None:
        pass

    def epoch(self, model: str, epoch: "Epoch") -> None:
        every = max(1, self.epochs // 5)
        if epoch.number % every == 0 or epoch.number == self.epochs:
            self.console.print(
                f"{self.models[model]}: epoch {epoch.number}/{self.epochs}, perplexity "
                f"{epoch.train:.1f} train, {epoch.valid:.1f} validation"
            )
            self.console.file.flush()
