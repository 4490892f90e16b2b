"""Batches of independent examples, by position."""

import math

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted


class Minibatches:
    """Batches of independent examples, in a new order in every epoch, for :meth:`Task.batch`.

    Args:
        tensors: the training data on the device, one example per entry of the first dimension.
        batch_size: examples per batch.
        last: "drop" an epoch's last, partial batch, or "wrap": fill it with the first examples of the order.

    Example::

        self.minibatches = Minibatches(images, labels, batch_size=64)
        self.steps = self.minibatches.steps
        batch: return self.minibatches(position)       -> (images (64, …), labels (64,))
    """

    def __init__(self, *tensors: Tensor, batch_size: int, last: str = "drop") -> None:
        self.data, self.count, self.batch_size = tensors, len(tensors[0]), batch_size
        if any(len(t) != self.count for t in tensors):
            raise ValueError(f"tensors have different numbers of examples: {[len(t) for t in tensors]}")
        if last not in ("drop", "wrap"):
            raise ValueError(f"last must be drop or wrap, got {last!r}")
        self.steps = self.count // batch_size if last == "drop" else math.ceil(self.count / batch_size)
        if self.steps == 0:
            raise UserError(
                f"The training data have {counted(self.count, 'example')}, fewer than one batch of {batch_size}; "
                "use more data or a smaller data.batch_size."
            )
        self.rows = slice(None)
        """Which rows of every batch are handed out, see :meth:`Task.split`."""
        self.order = torch.zeros(self.steps, batch_size, dtype=torch.long, device=tensors[0].device)
        self._fill(torch.arange(self.count))

    def _fill(self, order: Tensor) -> None:
        size = self.steps * self.batch_size
        self.order.copy_(order.repeat(math.ceil(size / self.count))[:size].view(self.order.shape))

    def shuffle(self) -> None:
        """A new order, from torch's global CPU generator: a seed gives the same on every device."""
        self._fill(torch.randperm(self.count))

    def __call__(self, position: Tensor) -> tuple[Tensor, ...]:
        rows = self.order.index_select(0, position.reshape(1))[0][self.rows]
        return tuple(t.index_select(0, rows) for t in self.data)

    def whole(self, position: Tensor, tensor: Tensor) -> Tensor:
        """The entries of ``tensor``, one per example, for all rows of the batch, those of other processes included.

        If examples have different numbers of targets, divide by this process's part of the whole batch's targets.
        """
        return tensor.index_select(0, self.order.index_select(0, position.reshape(1))[0])

    def tensors(self) -> dict[str, Tensor]:
        """What :meth:`Task.tensors` must return for a run to be resumed exactly."""
        return {"order": self.order}
