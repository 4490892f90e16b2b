"""The LSTM recurrence on a GPU: one GEMM and one of torch's fused cell kernels per step, forward and backward.

A third of the launches of `loop`, whose cell is made of single operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import Case, Path, asked_for
from bayesrnn.kernels.lstm import loop
from bayesrnn.kernels.lstm.reference import LSTM
from bayesrnn.kernels.paths import cells_beat_cudnn
from bayesrnn.kernels.shared.recurrent import Layer, Recurrence
from bayesrnn.kernels.shared.rows import previous_rows
from bayesrnn.kernels.shared.tensors import ordinary

_cell = torch.ops.aten._thnn_fused_lstm_cell.default
_cell_backward = torch.ops.aten._thnn_fused_lstm_cell_backward_impl.default


def _forward(layer: Layer) -> tuple[Any, ...]:
    parts, product = layer.gx.split(layer.sizes), layer.product()
    found: list[Any] = [None] * len(parts)

    def step(t: int, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        found[t] = _cell(parts[t], product(h), c.contiguous())
        return found[t][:2]  # type: ignore[no-any-return]

    last = layer.run(step)
    outs, cells, gates = zip(*found, strict=True)
    out = torch.cat(outs)
    return out, last, out, (*cells, *gates)


def _backward(layer: Layer, kept: Any, h_prev: Any, d_out: Any, d_states: Any) -> tuple[Any, ...]:
    cells, gates = kept[: len(layer.sizes)], kept[len(layer.sizes) :]
    before = previous_rows(torch.cat(cells), layer.c, layer.sizes, reverse=layer.reverse).split(layer.sizes)
    product, d_gates = layer.product_back(), [layer.h] * len(cells)

    def step(t: int, dh: Tensor, dc: Tensor) -> tuple[Tensor, Tensor]:
        d_gates[t], new, _ = _cell_backward(dh, dc.contiguous(), before[t], cells[t], gates[t], False)
        return product(d_gates[t]), new

    first = layer.run_back(step, d_out, d_states)
    d_gx = torch.cat(d_gates)
    return d_gx, d_gx, first, None


def _serves(layer: Layer) -> bool:
    """Projections and cell masks, which the fused cell does not know, run in `loop`."""
    known = layer.w_hr is None and layer.z_c is None and layer.gx.is_cuda and layer.gx.shape[0] > 0
    return known and ordinary(*layer[3:])


lstm = Recurrence(LSTM, _forward, _backward, serves=_serves, otherwise=loop.lstm)


def _refuses(case: Case) -> str | None:
    if case.device != "cuda":
        return f"it needs a CUDA device, and this is {case.device}"
    if case.projection:
        return "torch's fused cell has no projection"
    if case.cell_mask:
        return "torch's fused cell has no mask on the cell state"
    if not case.plain or asked_for("cells") or cells_beat_cudnn(case):
        return None
    return "cuDNN's kernel for whole layers, which this layer can take, is faster or was not measured against it"


PATHS = (Path("cells", "LSTM", lstm, "one product and one fused cell per step", rank=20, refuses=_refuses),)
