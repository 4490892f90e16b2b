"""The GRU recurrence in plain torch operations: slow, obvious, differentiable any number of times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrnn.kernels.dispatch import reference_path
from bayesrnn.kernels.lstm.reference import join, recurrent_product
from bayesrnn.kernels.shared.recurrent import Cell
from bayesrnn.kernels.shared.rows import order


def gru(
    gx: Tensor,
    h: Tensor,
    w_hh: Tensor,
    b_hn: Tensor | None = None,
    z_h: Tensor | None = None,
    *,
    batch_sizes: Sequence[int],
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """One direction of one GRU layer, in torch.nn's form: the reset gate acts after the recurrent product.

    Args:
        gx: (N, 3H) input part of the gates r, z, n; all biases but b_hn are in it, time-major rows.
        h: (B, H) initial state. w_hh: (3H, H). b_hn: (H,) or None, inside the reset gate.
        z_h: None, (B, H), or (B, 3, H): multiplies h_{t-1} in the recurrent product only.

    Returns:
        out (N, H), h_n (B, H).
    """
    blocks: dict[int, Tensor] = {}
    gx = gx.to(h.dtype)  # it may have autocast's
    for start, n in order(batch_sizes, reverse=reverse):
        mask = None if z_h is None else z_h[:n]
        x_r, x_z, x_n = gx[start : start + n].chunk(3, dim=-1)
        h_r, h_z, h_n = recurrent_product(h[:n], w_hh, mask).chunk(3, dim=-1)
        if b_hn is not None:
            h_n = h_n + b_hn
        reset, update = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        new = (x_n + reset * h_n).tanh()
        h = join(blocks, new + update * (h[:n] - new), h, start)
    return torch.cat([blocks[k] for k in sorted(blocks)]), h


GRU = Cell("GRU", lambda gx, h, w_hh, b_hn=None, z_h=None: (gx, h, None, w_hh, None, b_hn, z_h), gru)
PATHS = (reference_path("GRU", gru),)
