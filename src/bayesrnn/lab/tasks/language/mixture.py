"""A mixture of softmaxes over the words (arXiv 1711.03953)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn.kernels.shared.derivatives import once_differentiable
from bayesrnn.lab.modules import sequence_dropout

_ROWS = 2048  # whose logits are in memory at a time
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
        words = targets.clamp_min(0).unsqueeze(-1).expand_as(logs)  # below 0: words that do not count
        found = target_logs(latent.flatten(0, -2), decoder.weight, decoder.bias, words.flatten())
        return (logs + found.view_as(logs)).logsumexp(-1)


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


def target_logs(latent: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """log softmax(latent W' + b) at the targets: latent (N, E), W (V, E), b (V,), target (N,) to (N,).

    Both passes take some rows at a time, and the backward pass computes their logits again: N * V numbers are never
    in memory.
    """
    found: Tensor = _TargetLogs.apply(latent, weight, bias, target)
    return found


class _TargetLogs(torch.autograd.Function):
    """With s = softmax(W x + b) and the one-hot target e, the gradient of log s_target by the logits is e - s."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, latent: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(latent, weight, bias, target)
        pairs = zip(latent.split(_ROWS), target.split(_ROWS), strict=True)
        return torch.cat([-F.cross_entropy(_logits(x, weight, bias), y, reduction="none") for x, y in pairs])

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        latent, weight, bias, target = ctx.saved_tensors
        d_latent, d_weight, d_bias = torch.empty_like(latent), torch.zeros_like(weight), torch.zeros_like(bias)
        parts = (each.split(_ROWS) for each in (latent, target.unsqueeze(1), gradient, d_latent))
        for x, y, own, d_x in zip(*parts, strict=True):
            error = _logits(x, weight, bias).softmax(-1)
            error.scatter_(1, y, error.gather(1, y) - 1)  # s - e
            d_x.copy_(error @ weight.to(error)).mul_(-own.unsqueeze(1))
            d_weight -= error.t() @ (x.to(error) * own.unsqueeze(1))
            d_bias -= error.t() @ own.to(error)
        return d_latent, d_weight, d_bias, None
