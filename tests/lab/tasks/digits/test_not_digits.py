"""Images that are no digits: of the right kind, the same for a seed."""

import math

import pytest
import torch

from bayesrnn.lab.tasks.digits import not_digits


@pytest.fixture
def images():
    return torch.randint(256, (6, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def made(images, seed):
    return {
        "noise": not_digits.uniform_noise(6, seed=seed),
        "permuted": not_digits.permuted(images, seed=seed),
        "tiles": not_digits.shuffled_tiles(images, seed=seed),
        "letters": not_digits.letters(6, seed=seed),
        "shapes": not_digits.shapes(6, seed=seed),
    }


def test_a_seed_makes_the_same_images(images):
    first, again, other = made(images, 1), made(images, 1), made(images, 2)
    for kind, found in first.items():
        assert found.shape == (6, 28, 28)
        assert found.dtype == torch.uint8
        assert torch.equal(found, again[kind])
        assert not torch.equal(found, other[kind])
        assert len(found.flatten(1).unique(dim=0)) == 6


def test_permuted_pixels_are_the_same_pixels_in_one_other_order(images):
    found = not_digits.permuted(images)
    assert torch.equal(found.flatten(1).sort().values, images.flatten(1).sort().values)
    places = torch.arange(28 * 28).view(1, 28, 28)
    order = not_digits.permuted(places).flatten()
    assert torch.equal(found.flatten(1), images.flatten(1)[:, order])
    assert (order != places.flatten()).double().mean() > 0.95


def test_tiles_stay_whole(images):
    def tiles(batch):
        cut = batch.unfold(1, 7, 7).unfold(2, 7, 7).reshape(len(batch), 16, 49).tolist()
        return [sorted(map(tuple, image)) for image in cut]

    found = not_digits.shuffled_tiles(images)
    assert tiles(found) == tiles(images)
    assert all(not torch.equal(a, b) for a, b in zip(found, images, strict=True))


def test_uniform_noise_is_uniform():
    found = not_digits.uniform_noise(30).double()
    n = found.numel()
    # 23,520 pixels: a mean off by 3 grey levels, or a variance off by 5 %, is found with power > 0.999
    assert abs(found.mean() - 127.5) < 5 * math.sqrt((256**2 - 1) / 12 / n)
    assert abs(found.var() / ((256**2 - 1) / 12) - 1) < 5 * math.sqrt(0.8 / n)


def test_letters_are_drawn_inside_the_image():
    found = not_digits.letters(200).float()
    ink = found.sum((1, 2)) / 255
    assert float(ink.min()) > 10
    assert float(ink.max()) < 400
    border = torch.ones(28, 28)
    border[2:-2, 2:-2] = 0
    assert float((found * border).sum() / found.sum()) < 0.02
    glyphs = not_digits._glyphs()
    assert glyphs.shape == (len(not_digits.FONTS) * len(not_digits.LETTERS), 56, 56)
    assert len(glyphs.flatten(1).unique(dim=0)) == len(glyphs)
    heights = (glyphs.amax(2) > 0).sum(1)
    widths = (glyphs.amax(1) > 0).sum(1)
    assert (torch.maximum(heights, widths) - 40).abs().max() <= 3


def test_shapes_have_an_inside_and_an_outside():
    found = not_digits.shapes(200).double() / 255
    share = found.mean((1, 2))
    assert float(share.min()) > 0.03
    assert float(share.max()) < 0.7
    assert float(((found > 0.05) & (found < 0.95)).double().mean()) < 0.25  # edges only
