"""How many bytes one draw of a prediction takes, estimated from the modules it runs through."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn.nn import Dropout, Embedding, SequenceDropout
from bayesrnn.nn.masks import GATES, Rates, cell_of
from bayesrnn.nn.rnn import NoisyRNN

_GIB = 1 << 30
_WITH_MASK = (Dropout, SequenceDropout, nn.modules.dropout._DropoutNd)
_SUMMED_UP = 3  # copies of a draw's output at most, while its chunk is added to the averages
_AVERAGES = 6  # tensors of the size of an output that the averages are, or need while a chunk is added


def default_limit(model: nn.Module) -> int:
    """1 GiB, on a GPU a quarter of what is free if that is more."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cuda":
        return _GIB
    free: int = torch.cuda.mem_get_info(first.device)[0]
    idle = torch.cuda.memory_reserved(first.device) - torch.cuda.memory_allocated(first.device)
    return max(_GIB, (free + idle) // 4)


def tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists, dicts and packed sequences."""
    if isinstance(value, PackedSequence):
        yield value.data
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors(part)


def size(value: Any) -> int:
    """Bytes."""
    return sum(t.numel() * t.element_size() for t in tensors(value))


class Footprint:
    """The memory that the modules of one draw took.

    `outputs`: bytes of all modules' outputs. `inside`: the most that one module uses besides its output.
    """

    def __init__(self) -> None:
        self.outputs = self.inside = 0
        self._seen: deque[weakref.ref[Tensor]] = deque(maxlen=16)  # the latest

    def see(self, module: nn.Module, inputs: Any, output: Any) -> None:
        for tensor in tensors(output):
            if not any(seen() is tensor for seen in self._seen):  # a module often hands on what a part of it returned
                self._seen.append(weakref.ref(tensor))
                self.outputs += size(tensor)
        self.inside = max(self.inside, _inside(module, inputs, output))

    def draws_in(self, limit: int, *, before: int, result: int) -> int:
        """How many such draws fit in `limit`: each has `before` bytes throughout and returns `result` bytes."""
        one = max(before + max(self.outputs + self.inside, _SUMMED_UP * result), 1)
        return max(1, (limit - _AVERAGES * result) // one)


@contextmanager
def watch(parts: Iterable[nn.Module]) -> Iterator[Footprint]:
    """The footprint of one draw that runs through these modules inside the block."""
    found = Footprint()
    hooked = [m for m in parts if not isinstance(m, torch.jit.ScriptModule)]  # which takes no hooks
    handles = [m.register_forward_hook(found.see) for m in hooked]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _inside(module: nn.Module, inputs: Any, output: Any) -> int:
    """Bytes that a layer takes beside its output: gates of all steps, masks and masked copies."""
    first = next(tensors(inputs), None)
    if first is None:
        return 0
    if isinstance(module, nn.RNNBase):
        gates, tied = GATES[cell_of(module)], (module.rates if isinstance(module, NoisyRNN) else Rates()).tied
        hidden, directions = module.hidden_size, 2 if module.bidirectional else 1
        widest = max(first.shape[-1], directions * hidden if module.num_layers > 1 else 0)
        each = 2 * gates * hidden + 4 * hidden + (1 if tied else gates) * widest + directions * hidden
        return first.numel() // first.shape[-1] * each * first.element_size()
    if isinstance(module, Embedding) and module.noisy:
        rows = first.shape[module.input_batch_dim] if first.dim() > 1 else 1
        return size(output) + 4 * rows * module.num_embeddings
    if isinstance(module, _WITH_MASK) or module._parameters:  # a mask, or a product before its bias is added
        return size(output)
    return 0
