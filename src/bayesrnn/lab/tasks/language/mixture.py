"""A mixture of softmaxes over the words (arXiv 1711.03953)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn import kernels
from bayesrnn.lab.modules import sequence_dropout

_AT_ONCE = 1 << 24  # logits of all softmaxes


class MixtureOfSoftmaxes(nn.Module):
    """log sum_k pi_k softmax(W tanh(V_k h + v_k) + b), with the weights pi = softmax(P h) of K softmaxes.

    Args:
        inputs: size of h.
        latent: size of each tanh(V_k h + v_k), which the decoder takes.
        count: K.
        dropout: rate of the latent vectors, one mask per sequence.

    Shape:
        h (T, B, inputs) and the decoder (W, b) of V words, to log-probabilities (T, B, V); with targets (T, B), to
        theirs alone (T, B).
    """

    def __init__(self, inputs: int, latent: int, count: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.latent, self.prior = nn.Linear(inputs, count * latent), nn.Linear(inputs, count, bias=False)
        self.drop, self.count = sequence_dropout(dropout), count

    def forward(self, hidden: Tensor, decoder: nn.Linear, targets: Tensor | None = None) -> Tensor:
        latent = self.drop(self.latent(hidden).tanh()).unflatten(-1, (self.count, -1))
        logs = self.prior(hidden).log_softmax(-1)
        if targets is None:
            return mixture(latent, decoder.weight, decoder.bias, logs)
        return (logs + target_logs(latent, decoder, targets.unsqueeze(-1).expand_as(logs))).logsumexp(-1)


class TargetLogs(nn.Module):
    """The likelihood of a model that returns the log-probabilities of its targets.

    Shapes: output (...), target (...) of words; those at ``ignore_index`` do not count.
    """

    ignore_index = -100

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        return -output.masked_fill(target == self.ignore_index, 0).sum()

    def count(self, target: Tensor) -> Tensor:
        return (target != self.ignore_index).sum()


def mixture(latent: Tensor, weight: Tensor, bias: Tensor, logs: Tensor) -> Tensor:
    """log sum_k exp(logs_k) softmax(latent_k W' + b): latent (..., K, E), W (V, E), b (V,), logs (..., K) to (..., V).

    One softmax after the other where there are many rows: without gradients, K times fewer numbers are in memory.
    """
    if logs.numel() * len(weight) <= _AT_ONCE:
        return (_logits(latent, weight, bias).log_softmax(-1) + logs.unsqueeze(-1)).logsumexp(-2)
    found = None
    for own, log in zip(latent.unbind(-2), logs.unbind(-1), strict=True):
        term = _logits(own, weight, bias).log_softmax(-1) + log.unsqueeze(-1)
        found = term if found is None else torch.logaddexp(found, term)
    assert found is not None
    return found


def _logits(latent: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In float32 at least, whatever the product is computed in."""
    found = F.linear(latent, weight, bias)
    return found.to(torch.promote_types(found.dtype, torch.float32))


def target_logs(x: Tensor, decoder: nn.Linear, target: Tensor) -> Tensor:
    """log softmax(decoder(x)) at the targets, of whatever word where that is below 0: x (..., E), target (...)."""
    score = kernels.kernel("decoder", x.device.type)
    counted = target.clamp_min(0).flatten()  # below 0: words that do not count
    found: Tensor = score(x.flatten(0, -2), decoder.weight, decoder.bias, counted)
    return found.view_as(target)
