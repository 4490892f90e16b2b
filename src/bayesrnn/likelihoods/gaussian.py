"""Gaussian likelihood."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bayesrnn.priors import check_sigma


class Gaussian(nn.Module):
    """N(y; output, sigma^2), the same noise everywhere.

    Args:
        sigma: standard deviation of the noise, or its starting value.
        learn: learn log sigma by gradient; it is a parameter of this module (`elbo.parameters()` has it).

    Shapes: output and target alike.
    """

    log_sigma: Tensor

    def __init__(self, sigma: float = 1.0, learn: bool = True) -> None:
        super().__init__()
        value = torch.tensor(math.log(check_sigma("sigma", sigma)))
        if learn:
            self.log_sigma = nn.Parameter(value)
        else:
            self.register_buffer("log_sigma", value)

    @property
    def sigma(self) -> Tensor:
        return self.log_sigma.exp()

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum of -log N(target; output, sigma^2) over all targets."""
        if output.shape != target.shape:
            raise ValueError(
                f"target must have the output's shape {tuple(output.shape)}, got {tuple(target.shape)}: "
                "unsqueeze or squeeze one of them, they are not broadcast"
            )
        scaled = (target - output) / self.sigma
        return 0.5 * scaled.square().sum() + target.numel() * (self.log_sigma + 0.5 * math.log(2 * math.pi))

    def count(self, target: Tensor) -> int:
        return target.numel()
