"""`torch.nn.Linear` layers with large products, such as a decoder to all words, on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesrnn import kernels
from bayesrnn.kernels.shared import alignment as aligned
from bayesrnn.kernels.shared.precision import lowered


def run_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)`; where cuBLAS would be slow, from copies of x and the weights that it likes better."""
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
    if torch._C._functorch.peek_interpreter_stack() is not None or lowered(x.device.type):
        return False
    alike = x.dtype == layer.weight.dtype and x.shape[-1] == layer.in_features and x.dim() > 1
    return alike and aligned.serves(x.reshape(-1, x.shape[-1]), layer.out_features)
