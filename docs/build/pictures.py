"""Pictures of the documentation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.lab.report.plots import canvas, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_RECORD = "No run is recorded yet."


def drawn(draw: Callable[["Figure"], None], size: tuple[float, float]) -> bytes:
    """What ``draw`` makes of an empty figure, as PNG bytes."""
    made = canvas(size, dpi=130)
    draw(made)
    return png(made)


def tidy(axes: "Axes", *, x: str = "", y: str = "", grid: Any = "y") -> None:
    """Labels, a pale grid behind the marks, and no frame."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def write(pictures: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write pictures by name into a folder; returns their paths."""
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    return [folder / name for name in pictures]
