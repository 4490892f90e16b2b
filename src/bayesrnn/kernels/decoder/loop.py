"""Targets' log-probabilities some rows at a time: of many logits few are in memory at once.

With s = softmax(x W' + b) and the one-hot target e, the gradient of log s_target by the logits is e - s. The backward
pass computes the logits again where they would take too much memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.kernels.decoder import reference
from bayesrnn.kernels.dispatch import loop_path
from bayesrnn.kernels.shared import alignment
from bayesrnn.kernels.shared.beside import aside, owed
from bayesrnn.kernels.shared.derivatives import OnceFunction, once_differentiable
from bayesrnn.kernels.shared.precision import lowered
from bayesrnn.kernels.shared.tensors import ordinary, transformed

_ROWS = 4096  # whose logits are in memory at a time
_FEW = 1 << 24  # logits that torch's own operations may take several times in memory
_KEPT = 1 << 29  # bytes of logits that are kept for the backward pass


class Rows(NamedTuple):
    """What is done with the logits (N, V') of some rows; of the V' columns the first V count."""

    score: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
    """`score(logits, target, V)`: log s_target and log sum exp, each (N,)."""
    error: Callable[[Tensor, Tensor, Tensor, Tensor, int, bool], Tensor]
    """`error(logits, target, norms, gradient, V, kept)`: gradient * (e - s) (N, V'), in the memory of the logits
    unless those are `kept`; 0 in the columns beyond V."""


def by_rows(rows: Rows, x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """As `reference.target_logs`, differentiable once."""
    if transformed() or not ordinary(x, weight, bias, target):
        return reference.target_logs(x, weight, bias, target)
    dtype = torch.get_autocast_dtype(x.device.type) if lowered(x.device.type) else x.dtype
    keep = len(x) * len(weight) * dtype.itemsize <= _KEPT
    parameters, work = aside(weight, bias) if keep else ((weight, bias), None)
    found: Tensor = _TargetLogs.apply(rows, x, *parameters, target, dtype, keep, work)
    return found


class _TargetLogs(OnceFunction):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        rows, x, weight, bias, target, dtype, keep, ctx.work = given
        classes, columns = weight.shape
        inputs = alignment.masked_inputs(x, None, [len(x)], dtype)[0]
        weights = alignment.filled_weights(weight, 1, dtype, bias)[0]
        # columns beyond x are ones, and the bias their weights
        shift = None if inputs.shape[1] > columns else F.pad(bias.to(dtype), (0, len(weights) - classes))
        kept, found, norms = [], [], []
        for part, own in _parts(inputs, target):
            logits = _logits(part, weights, shift)
            logs, norm = rows.score(logits, own, classes)
            found.append(logs)
            norms.append(norm)
            if keep:
                kept.append(logits)
        ctx.save_for_backward(inputs, weights, shift, target, torch.cat(norms), *kept)
        ctx.params, ctx.rows = (x, weight, bias), rows
        return torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        inputs, weights, shift, target, norms, *kept = ctx.saved_tensors
        x, weight, bias = ctx.params
        d_x = []

        def errors() -> Iterator[tuple[Tensor, Tensor]]:
            before = 0
            for k, (part, own) in enumerate(_parts(inputs, target)):
                here = slice(before, before + len(part))
                before += len(part)
                logits = kept[k] if kept else _logits(part, weights, shift)
                error = ctx.rows.error(logits, own, norms[here], gradient[here], len(weight), bool(kept))
                d_x.append((error @ weights)[:, : x.shape[1]].to(x.dtype))
                yield error, part

        if ctx.work is None:
            of_parameters = _parameter_gradients(errors(), weight, bias)
        else:
            every = list(errors())
            ctx.work.put(lambda: _parameter_gradients(every, weight, bias), inputs, *(error for error, _ in every))
            of_parameters = [owed(weight), owed(bias)]
        return None, torch.cat(d_x), *of_parameters, None, None, None, None


def _parameter_gradients(parts: Iterable[tuple[Tensor, Tensor]], weight: Tensor, bias: Tensor) -> list[Tensor | None]:
    """Of weights and bias, from the errors of some rows' logits and their inputs; added up in float32 at least."""
    classes, columns = weight.shape
    d_weight, d_bias = None, None
    for error, inputs in parts:
        kind = torch.promote_types(error.dtype, torch.float32)
        more = alignment.product(error.t().unsqueeze(0), inputs.unsqueeze(0), kind)[0]
        d_weight = more if d_weight is None else d_weight.add_(more)
        if inputs.shape[1] == columns:  # no ones beyond x, whose weights' gradient is the bias's
            shift = error.sum(0, dtype=kind)
            d_bias = shift if d_bias is None else d_bias.add_(shift)
    assert d_weight is not None
    both = (d_weight[:, :columns], weight), (d_weight[:, columns] if d_bias is None else d_bias, bias)
    return [g[:classes].to(p.dtype).contiguous() for g, p in both]


def _parts(x: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(x.split(_ROWS), target.split(_ROWS), strict=True)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def _score(logits: Tensor, target: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    own = logits[:, :classes].to(torch.promote_types(logits.dtype, torch.float32))
    norms = own.logsumexp(1)
    return own.gather(1, target.unsqueeze(1)).squeeze(1) - norms, norms


def _error(logits: Tensor, target: Tensor, norms: Tensor, gradient: Tensor, classes: int, kept: bool) -> Tensor:
    found = (logits - norms.unsqueeze(1)).exp_()
    found.scatter_add_(1, target.unsqueeze(1), found.new_full((len(found), 1), -1.0))
    found.mul_(-gradient.unsqueeze(1))[:, classes:] = 0
    return found.to(logits.dtype)


def target_logs(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """As `reference.target_logs`; where there are few logits, the very same."""
    if len(x) * len(weight) <= _FEW:
        return reference.target_logs(x, weight, bias, target)
    return by_rows(Rows(_score, _error), x, weight, bias, target)


PATHS = (loop_path("decoder", target_logs),)
