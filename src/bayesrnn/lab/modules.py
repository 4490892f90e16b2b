"""Helpers for torch modules."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import bayesrnn as br
from bayesrnn import draws
from bayesrnn.draws import Draw
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.posteriors.sharpening import PosteriorSharpening


def weights_digest(model: nn.Module) -> str:
    """A digest of all weights, the same on every machine."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def has_posterior(model: nn.Module) -> bool:
    """Whether weights of the model have a posterior; dropout is none."""
    return any(isinstance(part, Bayesian) for part in model.modules())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside the block, and the former mode afterwards."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def word_layers(
    words: int, size: int, m: Any, *, cell: str = "LSTM", layers: int = 1, tied: bool = True, **rates: float
) -> tuple[nn.Embedding, nn.RNNBase]:
    """Embedding and recurrent layers of a recipe's section ``model``; torch's own where all their dropouts are 0.

    Args:
        words, size: rows and columns of the embedding.
        m: the section, which has ``hidden`` and the dropout rates; ``rates`` are further ones of the layers.
        tied: the gates share their masks.
    """
    rates = {"input_dropout": m.input_dropout, "recurrent_dropout": m.recurrent_dropout, **rates}
    own: dict[str, Any] = {"dropout": m.step_dropout if layers > 1 else 0.0}
    if not (m.word_dropout or any(rates.values())):
        return nn.Embedding(words, size), getattr(nn, cell)(size, m.hidden, layers, **own)
    embed = br.Embedding(words, size, word_dropout=m.word_dropout)
    return embed, getattr(br, cell)(size, m.hidden, layers, tied=tied, **own, **rates)


def sequence_dropout(rate: float) -> nn.Module:
    """One mask per sequence; nothing at rate 0."""
    return br.SequenceDropout(rate) if rate else nn.Identity()


def module_of_draw(model: nn.Module, draw: Draw | None) -> nn.Module:
    """A plain copy with the weights of this draw; the model itself for the mean (None), or without a posterior."""
    q = model.q if isinstance(model, PosteriorSharpening) else model
    if draw is None or not isinstance(q, Bayesian):
        return model
    made = q.mean_module()
    with draws.bind(q, draw), torch.no_grad():
        source = draws.source(q)
        assert source is not None
        noise = source.weights("weights", q.posterior.noise, next(q.parameters()).device)
        for name, weight in q.posterior.weights(q.means, noise).items():
            made.get_parameter(name).copy_(weight)
    return made.eval()
