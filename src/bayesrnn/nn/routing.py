"""Send layers of torch's own to faster kernels where there are any: on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayesrnn import draws, kernels
from bayesrnn.kernels.shared import alignment
from bayesrnn.kernels.shared.precision import lowered
from bayesrnn.kernels.shared.tensors import in_one_piece, silence_advice
from bayesrnn.nn import recurrence


class FastRecurrence(TorchFunctionMode):
    """Inside the block, `torch.lstm` and its like run in our kernels where those are faster, forced, or the only ones.

    torch's layers call these functions, so their `forward`, and that of their subclasses, stays as it is.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in recurrence.MODES and _taken(func, args):
            return recurrence.run_function(func, args, _source(args), plain=not recurrence.forced())
        return func(*args, **(kwargs or {}))


def fast_recurrence(layers: Sequence[nn.RNNBase]) -> AbstractContextManager[Any]:
    """`FastRecurrence`, where it can make a difference to these layers."""
    known = not torch.compiler.is_compiling() and layers
    return FastRecurrence() if known and (recurrence.forced() or _on_gpu(layers[0])) else nullcontext()


def _on_gpu(layer: nn.RNNBase) -> bool:
    weight: Any = layer.weight_hh_l0
    return bool(weight.is_cuda)


def _taken(function: Any, args: Sequence[Any]) -> bool:
    if torch.compiler.is_dynamo_compiling():
        return False
    if recurrence.forced():
        return True
    x, packed = args[0], isinstance(args[3], (list, tuple))
    if not x.is_cuda:
        return False
    weights, bias, layers, dropout, _, bidirectional = args[3:9] if packed else args[2:8]
    stack = recurrence.stack_of_call(function, weights, bias, layers, dropout, bidirectional)
    time = int(bool(not packed and args[8]))
    rows, steps = (int(args[1][0]), len(args[1])) if packed else (x.shape[1 - time], x.shape[time])
    if not in_one_piece(weights):
        silence_advice()
    sizes = {"rows": rows, "steps": steps, "hidden": stack.hidden_size, "proj": stack.proj_size}
    return recurrence.call_beats_torch(stack.mode, stack.weights["weight_hh_l0"], x, **sizes)


def _source(args: Sequence[Any]) -> Any:
    """The source of the noise between layers."""
    packed = isinstance(args[3], (list, tuple))
    dropout, train = args[6:8] if packed else args[5:7]
    return draws.torch_source(train=train) if dropout > 0 else None


def run_recurrent(module: nn.Module, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """`module(input, hx)`; a layer of torch's own takes a path of ours where that is faster."""
    with fast_recurrence([module] if isinstance(module, nn.RNNBase) else []):
        result: tuple[Any, Any] = module(input, hx)
    return result


def run_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)`; where cuBLAS would be slow, on copies of x and the weights that suit it better.

    For large products on a GPU, such as a decoder to all words.
    """
    if not _faster(layer, x):
        out: Tensor = layer(x)
        return out
    rows = x.reshape(-1, x.shape[-1])
    product = kernels.kernel("input", x.device.type)
    made: Tensor = product(rows, layer.weight, layer.bias, None, [rows.shape[0]])
    return made.view(*x.shape[:-1], made.shape[-1])


def _faster(layer: nn.Linear, x: Tensor) -> bool:
    # a layer that someone has changed, or listens to, is called as it is
    own = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or "forward" in layer.__dict__
    if type(layer) is not nn.Linear or own or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    device = x.device.type
    kinds = (x.dtype, torch.get_autocast_dtype(device) if lowered(device) else x.dtype)  # drawn weights may be lowered
    alike = layer.weight.dtype in kinds and x.shape[-1] == layer.in_features and x.dim() > 1
    return alike and alignment.serves(x.reshape(-1, x.shape[-1]), layer.out_features)
