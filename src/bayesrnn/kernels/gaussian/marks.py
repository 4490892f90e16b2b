"""Whether parameters have changed since a draw, by whatever means: a write through `.data` leaves no other trace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrnn.kernels.cpu import build
from bayesrnn.kernels.gaussian import compiled
from bayesrnn.kernels.gaussian.plan import DrawSpec
from bayesrnn.kernels.shared.tensors import ordinary, traced, transformed

_COLUMNS = 1 << 12


class Mark(NamedTuple):
    """The parameters of a posterior, all means and then all rhos, as they were at one time."""

    spec: DrawSpec
    value: int | Tensor | None
    parameters: list[Tensor]
    places: list[int]
    """Where their numbers lie, of contiguous tensors on a CPU; else empty."""

    @classmethod
    def of(cls, spec: DrawSpec, means: Sequence[Tensor], rhos: Sequence[Tensor], known: int | None = None) -> Mark:
        """The mark of these parameters; `known`: the hash that a kernel has made along with a draw."""
        parameters = [*means, *rhos]
        value = _value(spec, parameters) if known is None else known
        return cls(spec, value, parameters, _places(spec, parameters) if isinstance(value, int) else [])

    def fits(self, means: Sequence[Tensor], rhos: Sequence[Tensor]) -> bool:
        """Whether the parameters still have the same values. On a GPU one bit is read back."""
        parameters = [*means, *rhos]
        # the same tensors in the same memory have passed all checks before
        known = self.places and all(map(is_, parameters, self.parameters))
        if known and self.places == _places(self.spec, parameters):
            return compiled.mark(self.spec, self.places, parameters[0].dtype) == self.value
        now = _value(self.spec, parameters)
        if isinstance(self.value, Tensor) and isinstance(now, Tensor):
            like = self.value.dtype == now.dtype and self.value.device == now.device
            return like and torch.equal(self.value, now)
        return type(self.value) is type(now) and self.value == now


def _places(spec: DrawSpec, parameters: Sequence[Tensor]) -> list[int]:
    shapes = (*spec.shapes, *spec.shapes)
    fit = all(p.is_contiguous() and p.shape == shape for p, shape in zip(parameters, shapes, strict=True))
    return [p.data_ptr() for p in parameters] if fit else []


def _value(spec: DrawSpec, parameters: Sequence[Tensor]) -> int | Tensor | None:
    """A value that changes with the parameters: a hash of their bytes in C, else a tensor made of them.

    None where tensors have no values of their own: under vmap, traced, on the meta device; and while a CUDA graph is
    recorded, since nothing changes unrecorded there.
    """
    if transformed() or traced() or not ordinary(*parameters):
        return None
    first = parameters[0]
    if first.is_cpu and build.library() is not None and len({p.dtype for p in parameters}) == 1:
        flat = [p.contiguous() for p in parameters]
        return compiled.mark(spec, compiled.places(spec, flat), first.dtype)
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    with torch.no_grad():
        return torch.cat([part for p in parameters for part in _parts(p.reshape(-1))])


def _parts(flat: Tensor) -> list[Tensor]:
    """A copy of up to 4096 entries. In larger tensors every 4096 entries give their product with a fixed vector."""
    wide = flat.to(torch.promote_types(flat.dtype, torch.float32))
    end = wide.numel() - wide.numel() % _COLUMNS if wide.numel() > _COLUMNS else 0
    products = [torch.mv(wide[:end].view(-1, _COLUMNS), _probe(wide.device, wide.dtype))] if end else []
    return [*products, wide[end:]]


@lru_cache(maxsize=16)
def _probe(device: torch.device, dtype: torch.dtype) -> Tensor:
    """A fixed vector without structure."""
    return torch.arange(1, _COLUMNS + 1, device=device, dtype=torch.float32).square().sin().to(dtype)
