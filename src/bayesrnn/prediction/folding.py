"""Draws of dropout, many in one pass: the batch is repeated, and every part of it has the masks of its own draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bayesrnn.draws import Draw, Stacked
from bayesrnn.prediction import memory
from bayesrnn.prediction.calls import Passes

_CHECKS = 2  # extra slots in the first folded pass: one with a different input, one that repeats the second draw
_LEAST = 4  # draws of a folded pass; fewer run alone


def folded_draws(passes: Passes, seeds: list[int], axis: int, memory_limit: int) -> Iterator[Tensor]:
    """The outputs of all draws, in order, as chunks (draws, *output.shape).

    A model may mix the rows of its batch, or hold its batch where no rule finds it. So the first draw runs alone, and
    again in the first folded pass. The second draw runs twice there, at the two ends. That pass begins with a part of
    another input. A row that depends on rows before or behind it, on the first or the last, on a sum or a maximum, then
    changes the output of one of the two draws. Folding continues only if neither changes; otherwise every draw runs
    alone. All passes have one size, which has been checked, so the result does not depend on `memory_limit`.
    """
    with memory.watch(passes.parts) as found:
        alone = passes.one(Draw(seeds[0]))
    fit = found.draws_in(memory_limit, before=memory.size((passes.x, *passes.rest)), result=memory.size(alone))
    size, done = _pass_size(len(seeds), fit), 0
    while size and done < len(seeds):
        own = seeds[done:][: size if done else size - _CHECKS]
        part = own + seeds[:1] * (size - len(own) - (0 if done else _CHECKS))
        outputs = _folded(passes, part, axis, alone.shape) if done else _checked(passes, part, axis, alone)
        if outputs is None:
            break
        yield outputs[: len(own)]
        done += len(own)
        del outputs
    if not done:
        yield alone.unsqueeze(0)
    for seed in seeds[max(done, 1) :]:
        yield passes.one(Draw(seed)).unsqueeze(0)


def _pass_size(draws: int, fit: int) -> int:
    """The size of folded passes for this many draws and the checks of the first; 0: every draw runs alone."""
    total = draws + _CHECKS
    size = -(-total // -(-total // fit))
    return size if draws > 1 and size >= _LEAST else 0


def _checked(passes: Passes, seeds: list[int], axis: int, alone: Tensor) -> Tensor | None:
    """The first folded pass, of these draws; None: the first gives another output than alone, or the second two."""
    part = [seeds[0] ^ 1, *seeds, seeds[1]]
    for factor in (2, 1):  # a model may refuse numbers that are not in its data
        outputs = _folded(passes, part, axis, alone.shape, factor)
        if outputs is not None:
            break
    else:
        return None
    if not (_alike(outputs[1], alone) and _alike(outputs[2], outputs[-1])):
        return None
    half = alone.is_floating_point() and alone.element_size() < 4
    if half and not (torch.equal(outputs[1], alone) and torch.equal(outputs[2], outputs[-1])):
        # rounding by 3 or 9 percent, the root of eps, could hide it: then other draws beside must change nothing
        others = [seed if seed in seeds[:2] else seed ^ 2 for seed in part]
        again = _folded(passes, others, axis, alone.shape, factor)
        if again is None or not all(torch.equal(again[k], outputs[k]) for k in (1, 2, -1)):
            return None
    return outputs[1:-1]


def _folded(
    passes: Passes, seeds: Sequence[int], axis: int, alone: torch.Size, factor: int | None = None
) -> Tensor | None:
    """The draws of all `seeds` in one pass over a batch that repeats the input; None: the model does not take it.

    Args:
        alone: the shape of the output of one draw.
        factor: the first draw has the rows of the input in reverse order, times this factor.
    """
    count, parts = len(seeds), [passes.x] * len(seeds)
    if factor is not None:
        parts[0] = _disturbed(passes.x, axis, factor)
    x = torch.cat(parts, dim=axis)
    source = Stacked([Draw(seed) for seed in seeds], rows=x.shape[axis], batch_dim=axis)
    try:
        output = passes.run(source, x, passes.rest.repeated(count))
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return None
    for out_axis, size in enumerate(alone):
        if output.shape == (*alone[:out_axis], size * count, *alone[out_axis + 1 :]):
            return output.unflatten(out_axis, (count, size)).movedim(out_axis, 0)
    return None


def _disturbed(x: Tensor, axis: int, factor: int) -> Tensor:
    """Another input of the same kind: tokens stay tokens."""
    return x.flip(axis) * factor if x.is_floating_point() else x.flip(*range(x.ndim))


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
