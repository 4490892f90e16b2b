"""A mixture of softmaxes over the words (arXiv 1711.03953)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn.lab.modules import sequence_dropout


class MixtureOfSoftmaxes(nn.Module):
    """log sum_k pi_k softmax(W tanh(V_k h + v_k) + b), with the weights pi = softmax(P h) of K softmaxes.

    Args:
        inputs: size of h.
        latent: size of each tanh(V_k h + v_k), which the decoder takes.
        count: K.
        dropout: rate of the latent vectors, one mask per sequence.

    Shape:
        h (T, B, inputs) and the decoder (W, b) of V words, to log-probabilities (T, B, V).
    """

    def __init__(self, inputs: int, latent: int, count: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.latent, self.prior = nn.Linear(inputs, count * latent), nn.Linear(inputs, count, bias=False)
        self.drop, self.count = sequence_dropout(dropout), count

    def forward(self, hidden: Tensor, decoder: nn.Linear) -> Tensor:
        latent = self.drop(self.latent(hidden).tanh()).unflatten(-1, (self.count, -1))
        logs = self.prior(hidden).log_softmax(-1)
        return mixture(latent.flatten(0, -3), decoder.weight, decoder.bias, logs.flatten(0, -2)).view(
            *hidden.shape[:-1], -1
        )


def mixture(latent: Tensor, weight: Tensor, bias: Tensor, logs: Tensor) -> Tensor:
    """log sum_k exp(logs_k) softmax(latent_k W' + b): latent (N, K, E), W (V, E), b (V,), logs (N, K) to (N, V).

    The backward pass computes the softmaxes again, one after the other, so that N * V numbers are in memory at a time
    in place of N * K * V.
    """
    mapped = torch._C._functorch.peek_interpreter_stack() is not None
    if mapped or not torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return _forward(latent, weight, bias, logs)[0]
    found: Tensor = _Mixture.apply(latent, weight, bias, logs)
    return found


def _logits(latent: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In float32 at least, whatever the product is computed in."""
    found = F.linear(latent, weight, bias)
    return found.to(torch.promote_types(found.dtype, torch.float32))


def _forward(latent: Tensor, weight: Tensor, bias: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """The mixture, and the logarithms of the softmaxes' denominators (N, K)."""
    out, norms = None, []
    for k in range(latent.shape[1]):
        logits = _logits(latent[:, k], weight, bias)
        norms.append(logits.logsumexp(-1))
        term = logits + (logs[:, k] - norms[k]).unsqueeze(-1)
        out = term if out is None else torch.logaddexp(out, term)
    assert out is not None
    return out, torch.stack(norms, 1)


class _Mixture(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, latent: Tensor, weight: Tensor, bias: Tensor, logs: Tensor) -> Tensor:
        out, norms = _forward(latent, weight, bias, logs)
        ctx.save_for_backward(latent, weight, bias, logs, out, norms)
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, norms = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is on exactly with create_graph=True
            wanted = [each for each in inputs if each.requires_grad]
            found = iter(torch.autograd.grad(_forward(*inputs)[0], wanted, gradient, create_graph=True))
            return tuple(next(found) if each.requires_grad else None for each in inputs)
        latent, weight, bias, logs = inputs
        d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        d_latent, d_logs = torch.empty_like(latent), torch.empty_like(logs)
        for k in range(latent.shape[1]):
            softmax = _logits(latent[:, k], weight, bias).sub_(norms[:, k : k + 1])
            # the part of this softmax in the mixture, times the gradient of the mixture's logarithm
            part = (softmax + logs[:, k : k + 1]).sub_(out).exp_().mul_(gradient)
            total = part.sum(-1, keepdim=True)
            d_logs[:, k] = total[:, 0]
            part.sub_(softmax.exp_().mul_(total))
            d_latent[:, k] = part @ weight.to(part)
            d_weight += part.t() @ latent[:, k].to(part)
            d_bias += part.sum(0)
        return d_latent, d_weight, d_bias, d_logs
