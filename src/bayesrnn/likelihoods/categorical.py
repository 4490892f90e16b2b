"""Categorical likelihood."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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
        counted = target.long()[self._counts(target)]
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
        counts = self._counts(target)
        if target.device.type == "cpu" and self.ignore_index < 0 and bool(counts.all()):
            return target.numel()
        return counts.sum()

    def _counts(self, target: Tensor) -> Tensor:
        """In int64: compared as uint8, the value -100 would be 156."""
        return target.long() != self.ignore_index
