"""Draws of dropout, many in one pass: the batch is repeated, and every part of it has the masks of its own draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from bayesrnn.draws import Draw, Stacked, Unfoldable, bind
from bayesrnn.prediction import memory
from bayesrnn.prediction.calls import Rest, first_of, one_draw, same_state

_CHECKS = 3  # times that the first draw runs in the first folded pass: first, in the middle, last


def folded_draws(
    model: nn.Module, x: Tensor, rest: Rest, seeds: list[int], axis: int, memory_limit: int
) -> Iterator[Tensor]:
    """The outputs of all draws, in order, as chunks (draws, *output.shape).

    A model may mix the rows of its batch, or hold its batch where no rule finds it. So the first draw runs alone, and
    again at the first, a middle and the last place of the first folded pass, among other draws. Only where all three
    outputs equal the one alone does folding go on; otherwise every draw runs alone. All passes have one size, which
    has been checked, so the result does not depend on `memory_limit`.
    """
    with memory.watch(model) as found:
        alone = one_draw(model, x, rest, Draw(seeds[0]))
    yield alone.unsqueeze(0)
    first, left = seeds[0], seeds[1:]
    fit = found.draws_in(memory_limit, before=memory.size((x, *rest)), result=memory.size(alone))
    size = _pass_size(len(left), fit)
    checks = {0, size // 2, size - 1} if size > 3 else {0, size - 1}
    while left and size > 2:
        own = iter(left)
        part = [first if k in checks else next(own, first) for k in range(size)]
        try:
            outputs = _folded(model, x, rest, part, axis, alone=alone.shape)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # alone each draw runs: the model does not take a longer batch
            break
        if not all(_alike(outputs[k], alone) for k in range(size) if part[k] == first):
            break
        left = list(own)
        yield from _between(outputs, [k for k in range(size) if part[k] == first])
        checks = set()
        del outputs
    for seed in left:
        yield one_draw(model, x, rest, Draw(seed)).unsqueeze(0)


def _between(outputs: Tensor, checks: list[int]) -> Iterator[Tensor]:
    """The outputs without those at `checks`, in pieces that are views."""
    for start, end in zip([-1, *checks], [*checks, len(outputs)], strict=True):
        if end > start + 1:
            yield outputs[start + 1 : end]


def _pass_size(draws: int, fit: int) -> int:
    """The size of folded passes for this many draws and the checks of the first; all have the same."""
    checks = min(_CHECKS, fit - 1)
    if draws < 2 or checks < 2:
        return 1
    total = draws + checks
    passes = -(-total // fit)
    return -(-total // passes)


def _folded(model: nn.Module, x: Tensor, rest: Rest, seeds: Sequence[int], axis: int, alone: torch.Size) -> Tensor:
    """The draws of all `seeds` in one pass over a batch that repeats the input; one alone has shape `alone`."""
    count = len(seeds)
    folded = torch.cat([x] * count, dim=axis)
    source = Stacked([Draw(seed) for seed in seeds], rows=folded.shape[axis], batch_dim=axis)
    more = rest.repeated(count)
    with bind(model, source, torchs=source), same_state(model):
        output = first_of(model(folded, *more.args, **more.kwargs))
    for out_axis, size in enumerate(alone):
        if output.shape == (*alone[:out_axis], size * count, *alone[out_axis + 1 :]):
            return output.unflatten(out_axis, (count, size)).movedim(out_axis, 0)
    raise Unfoldable("the output has no batch axis")


def _alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for the order of sums; infinite entries, such as masked logits, must be the same."""
    if not b.is_floating_point() or b.numel() == 0:
        return torch.equal(a, b)
    tolerance = torch.finfo(b.dtype).eps ** 0.5
    if bool((a - b).abs().max() <= tolerance * b.abs().max().clamp_max(torch.finfo(b.dtype).max)):
        return True
    finite = b.isfinite()
    if bool(finite.all()) or not torch.equal(a[~finite], b[~finite]):
        return False
    return _alike(a[finite], b[finite])
