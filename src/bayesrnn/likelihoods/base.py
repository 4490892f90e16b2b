"""The interface of a likelihood."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Likelihood(Protocol):
    """p(y | output), an `nn.Module` too: a likelihood of your own is one class with these two methods."""

    def nll(self, output: Any, target: Any) -> Tensor:
        """Sum of -log p(target) over all targets."""
        ...

    def count(self, target: Any) -> int | Tensor:
        """Number of targets that count."""
        ...
