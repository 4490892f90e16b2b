"""Progress of several models that train at the same time: live bars in a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console

EpochReport = Callable[[str, int, int, float], None]
"""Called after each epoch with the model's key, the epoch (from 1), the number of epochs, and validation perplexity."""
_LINES = 4  # per model, where there is no terminal


@contextmanager
def reporter(console: Console, models: Mapping[str, str]) -> Iterator[EpochReport]:
    """Show progress on ``console`` for the models, by key the name shown."""

    def line(model: str, epoch: int, epochs: int, perplexity: float) -> None:
        if epoch in (1, epochs) or epoch % max(1, epochs // _LINES) == 0:
            console.print(f"{models[model]}: epoch {epoch}/{epochs}, validation perplexity {perplexity:.1f}")
            console.file.flush()

    if not console.is_terminal:
        console.file.flush()
        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bars = {model: progress.add_task(name, total=None, note="starting") for model, name in models.items()}

        def bar(model: str, epoch: int, epochs: int, perplexity: float) -> None:
            note = f"epoch {epoch}/{epochs}  validation perplexity {perplexity:.1f}"
            if epoch == epochs:
                note = "predicting unseen text"
            progress.update(bars[model], total=epochs + 1, completed=epoch, note=note)

        yield bar
