"""Draws of dropout, many in one pass: the batch is repeated, and every part of it has the masks of its own draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from bayesrnn.draws import Draw, Stacked, Unfoldable, bind
from bayesrnn.prediction import memory
from bayesrnn.prediction.calls import Rest, first_of, one_draw, same_state

_CHECKED = 2  # draws that run alone, and again in the first folded pass: one at its start, one at its end


def folded_draws(
    model: nn.Module, x: Tensor, rest: Rest, seeds: list[int], axis: int, memory_limit: int
) -> Iterator[Tensor]:
    """The outputs of all draws, in order, as chunks (draws, *output.shape).

    A model may mix the rows of its batch, or hold its batch where no rule finds it. So two draws run alone, and again
    as the first and the last of the first folded pass. Rows that depend on any others then see another draw: also
    where all depend on the first row alone, or on the last. Only where both outputs equal those alone does folding go
    on; otherwise every draw runs alone. All passes have one size, which has been checked, so the result does not
    depend on `memory_limit`.
    """
    with memory.watch(model) as found:
        alone = [one_draw(model, x, rest, Draw(seeds[0]))]
    yield alone[0].unsqueeze(0)
    fit = found.draws_in(memory_limit, before=memory.size((x, *rest)), result=memory.size(alone[0]))
    size, left = _pass_size(len(seeds) - _CHECKED, fit), seeds[1:]
    if size > _CHECKED:
        alone.append(one_draw(model, x, rest, Draw(left.pop(0))))
        yield alone[1].unsqueeze(0)
    ends = 1  # 0 once the two draws have been checked
    while left and size > _CHECKED:
        own = left[: size - 2 * ends]
        fill = [seeds[0]] * (size - 2 * ends - len(own))
        part = [*seeds[:ends], *own, *fill, *seeds[1 : 1 + ends]]
        try:
            outputs = _folded(model, x, rest, part, axis, alone=alone[0].shape)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # alone each draw runs: the model does not take a longer batch
            break
        if ends and not (_alike(outputs[0], alone[0]) and _alike(outputs[-1], alone[1])):
            break
        yield outputs[ends : ends + len(own)]
        left, ends = left[len(own) :], 0
        del outputs
    for seed in left:
        yield one_draw(model, x, rest, Draw(seed)).unsqueeze(0)


def _pass_size(draws: int, fit: int) -> int:
    """The size of folded passes for this many draws and the checks of the first; all have the same."""
    if draws < 1 or fit <= _CHECKED:
        return 1
    total = draws + _CHECKED
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
