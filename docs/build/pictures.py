"""Pictures of the documentation."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.lab.report.plots import canvas, png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(draw: Callable[["Figure"], None], size: tuple[float, float]) -> bytes:
    """What ``draw`` makes of an empty figure, as PNG bytes."""
    made = canvas(size, dpi=130)
    draw(made)
    return png(made)


def write(pictures: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write pictures by name into a folder; returns their paths."""
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (folder / name).write_bytes(picture)
    return [folder / name for name in pictures]
