"""What the library asks of its own layers, by `isinstance`: attributes of a user's module mean nothing to it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


class NoisyLayer:
    """A layer whose noise a draw holds: the base of `br.LSTM`, `br.Embedding`, `br.SequenceDropout`, `br.Dropout`, …

    A mixin beside `nn.Module`. Subclass it to make a layer of your own known to `br.predict` and `br.kl`; take the
    noise from `draws.source(self)`.
    """

    @property
    def noisy(self) -> bool:
        """Whether any noise is set: False for a layer with all rates at zero."""
        return True

    @property
    def draws_weights(self) -> bool:
        """Whether a draw changes whole weights, so that draws cannot share a batch."""
        return False

    @property
    def input_batch_dim(self) -> int | None:
        """The batch axis of the layer's input; None: the layer does not say."""
        return None

    def dropped_weights(self) -> Iterator[tuple[Tensor, float]]:
        """The weights that noise acts on, each with its probability of being kept (for `br.kl`)."""
        return iter(())
