"""Images that are not digits; a model of digits should be unsure of them. uint8 (N, 28, 28), by seed."""

import math
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ft2font import FT2Font
from torch import Tensor

from bayesrnn.lab.tasks.digits.images import SIDE

LETTERS = "ABCDEFGHIJ"  # those of notMNIST
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Bold",
    "DejaVuSerif-Italic", "STIXGeneral", "cmr10", "cmtt10",
)  # fmt: skip
_TILE = 7


def uniform_noise(count: int, *, seed: int = 0) -> Tensor:
    """Every pixel on its own, uniform in 0..255."""
    return torch.randint(256, (count, SIDE, SIDE), dtype=torch.uint8, generator=_generator(seed))


def permuted(images: Tensor, *, seed: int = 0) -> Tensor:
    """The pixels of each image in another order, the same for all: right brightness, no strokes."""
    order = torch.randperm(SIDE * SIDE, generator=_generator(seed)).to(images.device)
    return images.flatten(1)[:, order].view_as(images)


def shuffled_tiles(images: Tensor, *, seed: int = 0) -> Tensor:
    """Each image cut into 16 tiles of 7 x 7, put together in an order of its own: strokes, no digit."""
    count, tiles = len(images), SIDE // _TILE
    cut = images.view(count, tiles, _TILE, tiles, _TILE).transpose(2, 3).reshape(count, tiles**2, _TILE, _TILE)
    order = torch.rand(count, tiles**2, generator=_generator(seed)).argsort(1).to(images.device)
    mixed = cut.gather(1, order.view(count, -1, 1, 1).expand_as(cut))
    return mixed.view(count, tiles, tiles, _TILE, _TILE).transpose(2, 3).reshape(count, SIDE, SIDE)


def letters(count: int, *, seed: int = 0) -> Tensor:
    """A to J in the fonts that come with matplotlib, as large as MNIST's digits, a little sheared and turned."""
    generator = _generator(seed)
    glyphs = _glyphs()
    chosen = glyphs[torch.randint(len(glyphs), (count,), generator=generator)]
    turn, shear, size = (
        low + (high - low) * torch.rand(count, generator=generator)
        for low, high in ((-0.25, 0.25), (-0.25, 0.25), (0.85, 1.1))
    )
    cos, sin, zero = turn.cos() / size, turn.sin() / size, torch.zeros(count)
    matrix = torch.stack([torch.stack([cos, shear - sin, zero], -1), torch.stack([sin, cos, zero], -1)], 1)
    large = _resampled(chosen.unsqueeze(1), matrix, 2 * SIDE)
    return _bytes(F.avg_pool2d(large, 2).squeeze(1))


def shapes(count: int, *, seed: int = 0) -> Tensor:
    """Filled discs, squares, triangles and crosses, square frames and stripes; anywhere, of any size and direction."""
    generator = _generator(seed)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=generator)

    row, column = torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij")
    across, down = column - SIDE / 2 + between(-3, 3), row - SIDE / 2 + between(-3, 3)
    angle, radius, width = between(0, math.pi), between(6, 10), between(1.5, 2.5)
    x, y = across * angle.cos() + down * angle.sin(), down * angle.cos() - across * angle.sin()
    box = torch.maximum(x.abs(), y.abs())
    corners = torch.stack([x * math.cos(a) + y * math.sin(a) for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)])
    # Distances to the edge, negative inside.
    distances = torch.stack(
        [
            (x.square() + y.square()).sqrt() - radius,
            box - 0.85 * radius,
            corners.amax(0) - radius / 2,
            torch.maximum(torch.minimum(x.abs(), y.abs()) - width, box - radius),
            (box - radius).abs() - width,
            (x.remainder(3 * width) - 1.5 * width).abs() - 0.75 * width,
        ]
    )
    kind = torch.randint(len(distances), (count,), generator=generator)
    return _bytes(255 * (0.5 - distances[kind, torch.arange(count)]).clamp(0, 1))


@cache
def _glyphs() -> Tensor:
    """All letters in all fonts at twice their size, each in the middle of 56 x 56 pixels, in 0..255."""
    side, largest = 2 * SIDE, 40
    made = []
    for name in FONTS:
        font = FT2Font(str(Path(matplotlib.get_data_path(), "fonts/ttf", f"{name}.ttf")))
        for letter in LETTERS:
            size = float(largest)
            for _ in range(2):  # the second time as large as the first one says
                font.set_size(size, 72)
                font.set_text(letter)
                font.draw_glyphs_to_bitmap()
                bitmap = torch.from_numpy(np.array(font.get_image(), dtype=np.float32))
                bitmap = bitmap[bitmap.amax(1) > 0][:, bitmap.amax(0) > 0]
                size *= largest / max(bitmap.shape)
            height, width = bitmap.shape
            top, left = (side - height) // 2, (side - width) // 2
            canvas = torch.zeros(side, side)
            canvas[top : top + height, left : left + width] = bitmap
            made.append(canvas)
    return torch.stack(made)


def _resampled(images: Tensor, matrix: Tensor, side: int) -> Tensor:
    grid = F.affine_grid(matrix, [len(images), 1, side, side], align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def _bytes(images: Tensor) -> Tensor:
    return images.round().clamp(0, 255).to(torch.uint8)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
