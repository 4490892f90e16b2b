"""What the tests of the three recurrences share: random problems, and the comparison of outputs and gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime.interpreter import interpreter_builder as _builder

    if "sanitize_overflow" in vars(_builder.options):
        # The interpreter computes a check of every sum and product of integers, a third of its time, and drops the
        # result unless TRITON_DEBUG is set. Compiled kernels have no such checks.
        _builder.options = replace(_builder.options, sanitize_overflow=False)
    from tests.kernels import bounds

    bounds.install()

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass
class Problem:
    """Arguments of one recurrence, in the order of its signature; None where it goes without."""

    tensors: list[Tensor | None]
    masks: list[Tensor | None]
    options: dict[str, Any]

    def run(self, recurrence: Callable[..., Any]) -> tuple[Tensor, ...]:
        first, *rest = self.tensors
        assert first is not None
        return recurrence(first.clone(), *rest, *self.masks, **self.options)  # gx may be used as scratch

    def to(self, *where: Any) -> Problem:
        """The same numbers in another dtype, or on another device."""
        tensors = [None if t is None else t.detach().to(*where).requires_grad_() for t in self.tensors]
        return Problem(tensors, [None if z is None else z.to(*where) for z in self.masks], self.options)

    def outcome(
        self, recurrence: Callable[..., Any], used: Sequence[int] | None = None, scale: float = 1.0
    ) -> list[Tensor]:
        """Outputs, then the gradients of a random combination of the `used` ones (all by default) times `scale`."""
        outputs = self.run(recurrence)
        generator = torch.Generator().manual_seed(7)
        loss = outputs[0].new_zeros(())
        for k, out in enumerate(outputs):
            weights = torch.randn(out.shape, generator=generator, dtype=torch.float64)
            if used is None or k in used:
                loss = loss + scale * (out * weights.to(out)).sum()
        leaves = [t for t in self.tensors if t is not None]
        return [*outputs, *torch.autograd.grad(loss, leaves)]


def make_problem(
    cell: str,
    batch_sizes: Sequence[int],
    hidden: int,
    *,
    masks: str = "none",
    cell_mask: bool = False,
    projection: int = 0,
    bias: bool = True,
    nonlinearity: str = "tanh",
    reverse: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    gates, batch, out = GATES[cell], batch_sizes[0], projection or hidden

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, dtype=dtype)).requires_grad_()

    def mask(*shape: int) -> Tensor:
        return torch.bernoulli(torch.full(shape, 0.6, dtype=dtype), generator=generator) / 0.6

    z_h = {"none": None, "tied": mask(batch, out), "untied": mask(batch, gates, out)}[masks]
    gx, h = normal(sum(batch_sizes), gates * hidden), normal(batch, out)
    w_hh = normal(gates * hidden, out, scale=out**-0.5)
    options: dict[str, Any] = {"batch_sizes": list(batch_sizes), "reverse": reverse}
    if cell == "LSTM":
        w_hr = normal(projection, hidden, scale=hidden**-0.5) if projection else None
        return Problem(
            [gx, h, normal(batch, hidden), w_hh, w_hr], [z_h, mask(batch, hidden) if cell_mask else None], options
        )
    if cell == "GRU":
        return Problem([gx, h, w_hh, normal(hidden) if bias else None], [z_h], options)
    return Problem([gx, h, w_hh], [z_h], {**options, "nonlinearity": nonlinearity})


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    return make_problem


@pytest.fixture
def nan_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every uninitialised allocation is full of NaN, so that a read before a write shows."""
    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch.Tensor, "new_empty"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty_strided"),
    ):
        real = getattr(owner, name)

        def poisoned(*args: Any, _real: Callable[..., Tensor] = real, **kwargs: Any) -> Tensor:
            made = _real(*args, **kwargs)
            return made.fill_(float("nan")) if made.is_floating_point() else made

        monkeypatch.setattr(owner, name, poisoned)
