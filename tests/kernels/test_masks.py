"""Masks of many draws in one launch, run by Triton's interpreter on the CPU, and on a GPU where there is one.

The interpreter must be chosen before Triton is first imported, so test_interpreter.py runs this file in a
process of its own.
"""

from __future__ import annotations

import math
import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import bayesrnn as br
from bayesrnn.draws import Draw, Noise, Stacked
from bayesrnn.draws import noise as noise_module
from bayesrnn.kernels.gpu.masks import masks

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if INTERPRETED or torch.cuda.is_available():
    if not INTERPRETED:
        pytestmark = [pytest.mark.gpu]

    def made(seeds, shape, p=0.3, gaussian=False):
        return masks(seeds, shape, p, gaussian=gaussian, device=WHERE).cpu()

    @pytest.mark.parametrize("gaussian", [False, True])
    @pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 70), (1025,)])
    def test_a_draw_has_the_same_mask_alone_and_among_others(shape, gaussian):
        seeds = [7, 2**62 + 5, 0]
        together = made(seeds, shape, gaussian=gaussian)
        assert together.shape == (3, *shape)
        for k, seed in enumerate(seeds):
            assert torch.equal(together[k], made([seed], shape, gaussian=gaussian)[0])

    def test_a_longer_mask_begins_as_a_shorter_one():
        assert torch.equal(made([3], (2000,))[0, :100], made([3], (100,))[0])

    def test_no_numbers():
        assert made([1, 2], (0, 5)).shape == (2, 0, 5)

    @pytest.mark.parametrize("p", [0.0, 0.05, 0.3, 0.9])
    def test_bernoulli_rates(p):
        # 8 draws of 8,000: the rate's standard error is at most 0.18%, the limit 5 of it. A rate of 0.32 for 0.3 is
        # caught with power > 0.99. Also per place modulo 4 (the four words of a counter): standard error 0.36%.
        found = made(list(range(8)), (8_000,), p)
        values = set(found.unique().tolist())
        assert values <= {0.0, found.max().item()}
        assert found.max().item() == pytest.approx(1 / (1 - p))
        kept = (found != 0).double()
        for part in (kept, kept[:, 0::4], kept[:, 1::4], kept[:, 2::4], kept[:, 3::4]):
            assert abs(part.mean().item() - (1 - p)) <= 5 * math.sqrt(p * (1 - p) / part.numel())

    def test_gaussian_moments():
        # 64,000 numbers N(1, 3/7): standard errors of mean 0.4% and of variance 0.56% of one, limits 5 of them. A
        # variance of 0.3 / 0.65 in place of 0.3 / 0.7 (7.7% more) is caught with power > 0.99.
        found = made(list(range(8)), (8_000,), 0.3, gaussian=True).double()
        scaled = (found - 1) / (0.3 / 0.7) ** 0.5
        n = scaled.numel()
        assert abs(scaled.mean().item()) < 5 / math.sqrt(n)
        assert abs(scaled.square().mean().item() - 1) < 5 * math.sqrt(2 / n)
        assert abs(scaled.pow(4).mean().item() - 3) < 5 * math.sqrt(96 / n)

    def test_draws_and_neighbours_are_independent():
        # Correlations of 6,000 pairs have a standard error of 1.3%; 28 + 40 of them, limit 5 of it. A pair of draws, or
        # of neighbours, that agree in one place of ten is caught with power > 0.99.
        found = made([*range(4), 2**40, 2**41, 2**61, 2**61 + 1], (6_000,), 0.5).double() - 1
        between = found @ found.t() / found.shape[1]
        assert (between - torch.diag(between.diagonal())).abs().max().item() < 5 / math.sqrt(6_000)
        for lag in range(1, 6):
            along = (found[:, lag:] * found[:, :-lag]).mean(1)
            assert along.abs().max().item() < 5 / math.sqrt(6_000 - lag)


@pytest.fixture
def launches(monkeypatch):
    """The CPU makes masks at once, as a GPU does, by torch's generators; and how often it did."""
    calls = []

    def made(seeds, shape, p, *, gaussian, device):
        calls.append(len(seeds))
        noise = Noise(p, "gaussian" if gaussian else "bernoulli")
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return torch.stack([noise.sample(shape, torch.empty(0), g) for g in generators])

    monkeypatch.setattr(noise_module, "masks_in_one_launch", lambda kind: made)
    return calls


def test_one_launch_serves_all_draws(launches):
    layer = br.LSTM(5, 6, 2, input_dropout=0.3, recurrent_dropout=0.2)
    br.predict(layer, torch.randn(3, 2, 5), samples=9, seed=1)
    assert launches == [1] * 4 + [11] * 4  # one draw alone; then all, the second once more, and one with another input


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_noise_of_single_steps_at_once(launches, batch_dim):
    """torch's dropout: the same numbers alone and side by side, new at every call."""
    noise, like = Noise(0.4), torch.empty(0)
    shape, each = ([6, 3, 5], [2, 3, 5]) if batch_dim == 0 else ([3, 6, 5], [3, 2, 5])
    stacked, singles = Stacked([Draw(seed) for seed in (4, 9, 2)]), [Draw(seed) for seed in (4, 9, 2)]
    first, second = (stacked.steps("a", noise, shape, like, batch_dim=batch_dim) for _ in range(2))
    assert first.shape == tuple(shape)
    assert not torch.equal(first, second)
    assert launches == [3, 3]
    for found in (first, second):
        alone = [draw.steps("a", noise, each, like, batch_dim=batch_dim) for draw in singles]
        assert torch.equal(found, torch.cat(alone, dim=batch_dim))
    assert singles[0].steps("b", noise, (7,), like, batch_dim=None).shape == (7,)


def test_plain_dropout_at_once_does_not_depend_on_the_chunks(launches):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.4), torch.nn.Linear(8, 3))
    x = torch.randn(5, 4)
    whole = br.predict(model, x, samples=8, seed=3).samples
    assert launches == [1, 10]
    torch.testing.assert_close(br.predict(model, x, samples=8, seed=3, memory_limit=1).samples, whole)


@pytest.mark.parametrize("kind", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("shared", [False, True])
def test_stacked_draws_have_the_masks_of_single_ones(kind, shared):
    noise, like, seeds = Noise(0.3, kind), torch.empty(0), [4, 9, 2]
    stacked = Stacked([Draw(seed) for seed in seeds])
    found = stacked.units("a.units", noise, (5,), like, rows=6, shared=shared)
    again = stacked.units("a.units", noise, (5,), like, rows=6, shared=shared)
    assert torch.equal(found, again)
    for k, seed in enumerate(seeds):
        alone = Draw(seed).units("a.units", noise, (5,), like, rows=2, shared=shared)
        assert torch.equal(found[2 * k : 2 * k + 2], alone.expand(2, 5))
    with pytest.raises(ValueError, match=r"this draw was made for a batch of 2|noise for units of shape \(5,\)"):
        stacked.units("a.units", noise, (7,) if shared else (5,), like, rows=12, shared=shared)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_draws_on_a_gpu_hold_their_masks():
    torch.manual_seed(0)
    layer = br.LSTM(9, 13, 2, input_dropout=0.3, recurrent_dropout=0.2, device="cuda").eval()
    x = torch.randn(5, 3, 9, device="cuda")
    with torch.no_grad():
        with br.draw(layer, seed=1):
            first, again = layer(x)[0], layer(x)[0]
        with br.draw(layer, seed=1):
            later = layer(x)[0]
        with br.draw(layer, seed=2):
            other = layer(x)[0]
    assert torch.equal(first, again)
    assert torch.equal(first, later)
    assert not torch.equal(first, other)
