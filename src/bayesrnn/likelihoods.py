"""Likelihoods p(y | output): negative log-likelihood for training, moments for prediction."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn.priors import _check_sigma


class Categorical(nn.Module):
    """softmax over the last axis of the output.

    Args:
        ignore_index: targets of this value do not count (padding).

    Shapes: output (..., classes) logits, target (...) of class indices, whole numbers of any type.
    """

    def __init__(self, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum of -log p(target) over all targets."""
        if output.shape[:-1] != target.shape:
            raise ValueError(
                f"target must have the output's shape without its last axis, {tuple(output.shape[:-1])}, "
                f"got {tuple(target.shape)}: targets are class indices, not one-hot rows"
            )
        if target.is_floating_point():
            raise ValueError(
                "targets of br.Categorical are class indices (torch.long); for real values use br.Gaussian"
            )
        try:
            return F.cross_entropy(
                output.flatten(0, -2) if output.ndim > 1 else output.unsqueeze(0),
                target.flatten().long(),
                ignore_index=self.ignore_index,
                reduction="sum",
            )
        except IndexError:
            self._check_range(output, target)
            raise

    def check(self, output: Tensor, target: Tensor) -> None:
        """Raise where a target is no class of the output. On a CPU `nll` does; on a GPU torch would stop the process,
        and looking waits for the device: `br.ELBO` does it unless `check_finite` is False."""
        if output.is_cuda and target.numel() and not target.is_floating_point():
            self._check_range(output, target)

    def _check_range(self, output: Tensor, target: Tensor) -> None:
        counted = target[target != self.ignore_index]
        if not counted.numel():
            return
        lowest, highest, classes = int(counted.min()), int(counted.max()), output.shape[-1]
        if lowest < 0 or highest >= classes:
            raise ValueError(
                f"targets must be classes from 0 to {classes - 1}, as the output has {classes}, "
                f"got {lowest} to {highest}: check the labels, or set ignore_index for padding"
            )

    def count(self, target: Tensor) -> int | Tensor:
        """Number of targets that count."""
        if target.device.type == "cpu" and self.ignore_index < 0 and bool((target != self.ignore_index).all()):
            return target.numel()
        return (target != self.ignore_index).sum()


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
        value = torch.tensor(math.log(_check_sigma("sigma", sigma)))
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


Likelihood = Categorical | Gaussian
