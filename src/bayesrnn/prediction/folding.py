"""Draws of dropout, many in one pass: the batch is repeated, and every part of it has the masks of its own draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bayesrnn.draws import Draw, Stacked, Unfoldable
from bayesrnn.prediction import memory
from bayesrnn.prediction.calls import Passes

_CHECKED = 2  # draws that run in the first folded pass beside its own: one that has run alone, and the first once more
_LEAST = 4  # draws of a folded pass; fewer run alone


def folded_draws(passes: Passes, seeds: list[int], axis: int, memory_limit: int) -> Iterator[Tensor]:
    """The outputs of all draws, in order, as chunks (draws, *output.shape).

    A model may mix the rows of its batch, or hold its batch where no rule finds it. So one draw runs alone, and again
    in the first folded pass, last but one. The pass ends with its first draw once more. A row that depends on rows
    before or behind it, on the first or the last, then sees other draws than alone, or at the other end. Only where
    neither output changes does folding go on; otherwise every draw runs alone. All passes have one size, which has
    been checked, so the result does not depend on `memory_limit`.
    """
    with memory.watch(passes.parts) as found:
        alone = passes.one(Draw(seeds[0]))
    yield alone.unsqueeze(0)
    left = seeds[1:]
    fit = found.draws_in(memory_limit, before=memory.size((passes.x, *passes.rest)), result=memory.size(alone))
    size, checks = _pass_size(len(left), fit), _CHECKED
    while left and size >= _LEAST:
        own = left[: size - checks]
        part = [*own, *[seeds[0]] * (size - checks - len(own)), *[seeds[0], own[0]][:checks]]
        try:
            outputs = _folded(passes, part, axis, alone=alone.shape)
            if checks and not (_alike(outputs[-2], alone) and _alike(outputs[0], outputs[-1])):
                break
            if checks and _rounded(outputs, alone):
                # rounding could hide it: then other draws beside these must change nothing
                others = [seed if seed in part[-2:] else seed ^ 1 for seed in part]
                again = _folded(passes, others, axis, alone=alone.shape)
                if not all(torch.equal(again[k], outputs[k]) for k in (0, -2, -1)):
                    break
                del again
        except torch.OutOfMemoryError:
            raise
        except Exception:  # alone each draw runs: the model does not take a longer batch
            break
        yield outputs[: len(own)]
        left, checks = left[len(own) :], 0
        del outputs
    for seed in left:
        yield passes.one(Draw(seed)).unsqueeze(0)


def _pass_size(draws: int, fit: int) -> int:
    """The size of folded passes for this many draws and the checks of the first; all have the same."""
    total = draws + _CHECKED
    passes = -(-total // max(fit, 1))
    return -(-total // passes) if fit >= _LEAST else 1


def _folded(passes: Passes, seeds: Sequence[int], axis: int, *, alone: torch.Size) -> Tensor:
    """The draws of all `seeds` in one pass over a batch that repeats the input; one alone has shape `alone`."""
    count = len(seeds)
    x = torch.cat([passes.x] * count, dim=axis)
    source = Stacked([Draw(seed) for seed in seeds], rows=x.shape[axis], batch_dim=axis)
    output = passes.run(source, x, passes.rest.repeated(count))
    for out_axis, size in enumerate(alone):
        if output.shape == (*alone[:out_axis], size * count, *alone[out_axis + 1 :]):
            return output.unflatten(out_axis, (count, size)).movedim(out_axis, 0)
    raise Unfoldable("the output has no batch axis")


def _rounded(outputs: Tensor, alone: Tensor) -> bool:
    """Whether outputs in half precision, where the root of eps is 3 or 9 percent, are alike but not equal."""
    half = alone.is_floating_point() and alone.element_size() < 4
    return half and not (torch.equal(outputs[-2], alone) and torch.equal(outputs[0], outputs[-1]))


def _alike(a: Tensor, b: Tensor) -> bool:
    """Equal up to the root of eps, relative to the largest entry: but for the order of sums.

    Infinite entries, such as masked logits, must be the same.
    """
    if torch.equal(a, b):
        return True
    if not b.is_floating_point():
        return False
    tolerance = torch.finfo(b.dtype).eps ** 0.5
    if bool((a - b).abs().max() <= tolerance * b.abs().max().clamp_max(torch.finfo(b.dtype).max)):
        return True
    finite = b.isfinite()
    if bool(finite.all()) or not torch.equal(a[~finite], b[~finite]):
        return False
    return _alike(a[finite], b[finite])
