"""Numbers that the recurrence in one launch gets wrong together if it cuts off digits instead of rounding them."""

from __future__ import annotations

import torch

from bayesrnn import kernels


def shrink(device: str, scale: float) -> tuple[float, float]:
    """The mean relative error of the first cells, and of the initial state's gradient.

    All weights, states and gradients are positive, the weights between scale / 2 and scale. With the last 13 bits cut
    off, each product would be too small by 7e-4 in the mean.
    """
    rows, size = 16, 96
    generator = torch.Generator().manual_seed(0)
    h, d = (0.5 + 0.5 * torch.rand(rows, size, generator=generator, dtype=torch.float64) for _ in range(2))
    w = scale * (0.5 + 0.5 * torch.rand(4 * size, size, generator=generator, dtype=torch.float64))
    c, gx = torch.zeros(rows, size, dtype=torch.float64), torch.zeros(rows, 4 * size, dtype=torch.float64)
    found = []
    for path, where, dtype in (("persistent", device, torch.float32), ("reference", "cpu", torch.float64)):
        given = [t.to(where, dtype) for t in (gx, h.float(), c, w.float())]
        given[1].requires_grad_()
        _, _, cells = kernels.implementation("LSTM", path)(*given, batch_sizes=[rows])
        (gradient,) = torch.autograd.grad(cells, given[1], d.to(where, dtype))
        found.append((cells.detach().cpu().double(), gradient.cpu().double()))
    (cells, gradient), (exact_cells, exact_gradient) = found
    return float((cells / exact_cells).mean() - 1), float((gradient / exact_gradient).mean() - 1)
