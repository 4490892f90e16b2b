"""The simple recurrence in plain torch operations: slow, obvious, differentiable any number of times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import reference_path
from bayesrnn.kernels.lstm.reference import join, recurrent_product
from bayesrnn.kernels.shared.recurrent import Cell
from bayesrnn.kernels.shared.rows import order


def rnn(
    gx: Tensor,
    h: Tensor,
    w_hh: Tensor,
    z_h: Tensor | None = None,
    *,
    nonlinearity: str = "tanh",
    batch_sizes: Sequence[int],
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """One direction of one layer: h_t = act(gx_t + (h_{t-1} * z_h) w_hh^T).

    Args:
        gx: (N, H) input part with both biases, time-major rows. h: (B, H). w_hh: (H, H).
        z_h: None, (B, H) or (B, 1, H). nonlinearity: "tanh" or "relu".

    Returns:
        out (N, H), h_n (B, H).
    """
    blocks: dict[int, Tensor] = {}
    gx = gx.to(h.dtype)  # it may have autocast's
    for start, n in order(batch_sizes, reverse=reverse):
        mask = None if z_h is None else z_h[:n]
        total = gx[start : start + n] + recurrent_product(h[:n], w_hh, mask)
        h = join(blocks, total.tanh() if nonlinearity == "tanh" else total.relu(), h, start)
    return torch.cat([blocks[k] for k in sorted(blocks)]), h


RNN = Cell("RNN", lambda gx, h, w_hh, z_h=None: (gx, h, None, w_hh, None, None, z_h), rnn)
PATHS = (reference_path("RNN", rnn),)
