"""The LSTM recurrence in plain torch operations: slow, obvious, differentiable any number of times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesrnn.kernels.dispatch import reference_path
from bayesrnn.kernels.shared.recurrent import Cell
from bayesrnn.kernels.shared.rows import order


def recurrent_product(h: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """h (n, P) times weight (G*H, P) transposed; mask None, (n, P), or one per gate (n, G, P)."""
    if mask is None:
        return F.linear(h, weight)
    if mask.ndim == 2:
        return F.linear(h * mask, weight)
    gates = mask.shape[1]
    return torch.cat([F.linear(h * mask[:, k], w) for k, w in enumerate(weight.chunk(gates))], dim=-1)


def join(blocks: dict[int, Tensor], new: Tensor, old: Tensor, start: int) -> Tensor:
    """Store this step's rows and return the state of the whole batch: finished sequences keep theirs."""
    blocks[start] = new
    return new if new.shape[0] == old.shape[0] else torch.cat([new, old[new.shape[0] :]])


def lstm(
    gx: Tensor,
    h: Tensor,
    c: Tensor,
    w_hh: Tensor,
    w_hr: Tensor | None = None,
    z_h: Tensor | None = None,
    z_c: Tensor | None = None,
    *,
    batch_sizes: Sequence[int],
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """One direction of one LSTM layer.

    Args:
        gx: (N, 4H) input part of the gates i, f, g, o with all biases, time-major rows.
        h, c: (B, P) and (B, H) initial states; P is H, or the projection's size.
        w_hh: (4H, P). w_hr: (P, H) or None.
        z_h: None, (B, P), or (B, 4, P): multiplies h_{t-1} in the recurrent product only.
        z_c: None or (B, H): multiplies c_t (Moon et al. 2015).

    Returns:
        out (N, P), h_n (B, P), c_n (B, H).
    """
    blocks: dict[int, Tensor] = {}
    gx = gx.to(h.dtype)  # it may have autocast's
    for start, n in order(batch_sizes, reverse=reverse):
        mask = None if z_h is None else z_h[:n]
        gates = gx[start : start + n] + recurrent_product(h[:n], w_hh, mask)
        i, f, g, o = gates.chunk(4, dim=-1)
        new_c = f.sigmoid() * c[:n] + i.sigmoid() * g.tanh()
        if z_c is not None:
            new_c = new_c * z_c[:n]
        new_h = o.sigmoid() * new_c.tanh()
        if w_hr is not None:
            new_h = F.linear(new_h, w_hr)
        h = join(blocks, new_h, h, start)
        c = new_c if n == c.shape[0] else torch.cat([new_c, c[n:]])
    return torch.cat([blocks[k] for k in sorted(blocks)]), h, c


LSTM = Cell("LSTM", lambda gx, h, c, w, w_hr=None, z_h=None, z_c=None: (gx, h, c, w, w_hr, None, z_h, z_c), lstm)
PATHS = (reference_path("LSTM", lstm),)
