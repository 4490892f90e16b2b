"""Models that mix the rows of their batch: predictions equal a loop over draws, however much memory there is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import draws

MIXTURES = {
    "the first row": lambda h: h - h[:1],
    "the second row": lambda h: h * h[1:2],
    "the last row": lambda h: h - h[-1:],
    "a little of the first row": lambda h: h + 0.01 * h[:1],
    "the middle row": lambda h: h - h[len(h) // 2],
    "the mean": lambda h: h - h.mean(0),
    "the rows before": lambda h: h.cumsum(0),
    "the rows after": lambda h: h.flip(0).cumsum(0).flip(0),
    "the neighbour": lambda h: h + h.roll(1, 0),
    "the row at the other end": lambda h: h + h.flip(0),
    "rows far before": lambda h: h + F.pad(h, (0, 0, 20, 0))[: len(h)],
    "rows far after": lambda h: h + F.pad(h, (0, 0, 0, 20))[-len(h) :],
    "pairs": lambda h: h + h.view(-1, 2, h.shape[-1]).flip(1).view_as(h),
    "attention": lambda h: (h @ h.T).softmax(-1) @ h,
    "the largest entry": lambda h: h / h.abs().max(),
    "batch norm": lambda h: F.batch_norm(h, None, None, training=True),
    "nothing": lambda h: h,
}


class Mixing(nn.Module):
    def __init__(self, noise, mix):
        super().__init__()
        self.first, self.noise, self.mix, self.last = nn.Linear(5, 6), noise, mix, nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.mix(self.noise(self.first(x))))


@pytest.mark.parametrize("noise", [nn.Dropout, br.Dropout])
@pytest.mark.parametrize("mix", MIXTURES)
def test_predictions_are_those_of_single_draws(mix, noise):
    torch.manual_seed(0)
    model, x = Mixing(noise(0.5), MIXTURES[mix]).eval(), torch.randn(4, 5)
    expected = []
    for k in range(12):
        with br.draw(model, seed=draws.mix(3, k)), torch.no_grad():
            expected.append(model(x))
    for limit in (1, 3_000, 10**9):
        found = br.predict(model, x, samples=12, seed=3, memory_limit=limit, likelihood=br.Gaussian(1.0))
        assert_close(found.samples, torch.stack(expected), msg=lambda m, limit=limit: f"memory_limit={limit}: {m}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_hides_no_mixing(dtype):
    """A few percent of other rows: more than rounding, less than the roots of eps."""
    torch.manual_seed(0)
    model = Mixing(nn.Dropout(0.5), lambda h: h + 0.02 * h.mean(0)).eval().to(dtype)
    x = torch.randn(4, 5, dtype=dtype)
    alone = [br.predict(model, x, samples=k, seed=3, memory_limit=1).samples[-1] for k in (1, 6, 12)]
    found = br.predict(model, x, samples=12, seed=3).samples
    assert [torch.equal(found[k - 1], one) for k, one in zip((1, 6, 12), alone, strict=True)] == [True] * 3


@pytest.mark.parametrize("samples", range(1, 9))
def test_any_number_of_draws(samples):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), torch.randn(5, 3)
    all_of_them = br.predict(model, x, samples=9, seed=1, memory_limit=1).samples
    assert_close(br.predict(model, x, samples=samples, seed=1).samples, all_of_them[:samples])


def test_a_model_that_refuses_other_numbers_is_folded_all_the_same():
    """Folding is checked on parts with another input. Numbers that are not in the data must not stop it."""
    rows = []

    class Picky(nn.Module):
        def forward(self, x):
            rows.append(len(x))
            return F.dropout(torch.eye(4)[x[:, 0].long()], 0.5, self.training)

    br.predict(Picky(), torch.tensor([[0.0], [3.0]]), samples=8, likelihood=br.Gaussian(1.0))
    assert rows == [2, 20, 20]  # alone, refused, folded
