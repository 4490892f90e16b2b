"""Helpers for torch modules."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def weights_digest(model: nn.Module) -> str:
    """A digest of all weights, the same on every machine."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside the block, and the former mode afterwards."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
