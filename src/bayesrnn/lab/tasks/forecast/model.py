"""The network of a forecast: an LSTM with two heads, mixtures of several, their likelihood and their prior."""

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.lab.tasks.forecast.settings import Model
from bayesrnn.likelihoods import GaussianHeads as LibraryHeads

_ANY = draws.Noise(0.5, "gaussian")


class ForecastModel(nn.Module):
    """From a window to a Gaussian for each of H steps ahead.

    Args:
        inputs: columns F. window: steps T. horizon: steps ahead H.
        settings: sizes, noise and dropout rates: of the input, of the recurrent product, and of what the heads see.

    Shape:
        x (T, B, F) to (B, H, 2): the mean, and the log of the standard deviation.
    """

    def __init__(self, inputs: int, window: int, horizon: int, settings: Model) -> None:
        super().__init__()
        import bayesrnn as br

        self.rnn = br.LSTM(
            inputs,
            settings.hidden,
            settings.layers,
            input_dropout=settings.input_dropout,
            recurrent_dropout=settings.recurrent_dropout,
        )
        self.drop = br.SequenceDropout(settings.output_dropout)
        self.mean = nn.Linear(settings.hidden, horizon)
        self.log_sigma = nn.Parameter(torch.zeros(horizon))
        self.spread = nn.Linear(settings.hidden, horizon) if settings.noise == "varying" else None
        self.linear = nn.Linear(window * inputs, horizon) if settings.linear else None
        self.drop_window = br.SequenceDropout(settings.linear_dropout)
        for head in (self.spread, self.linear):  # both start as nothing
            if head is not None:
                nn.init.zeros_(head.weight)
                nn.init.zeros_(head.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(x)
        last = self.drop(hidden[-1:])[0]
        mean = self.mean(last)
        if self.linear is not None:
            mean = mean + self.linear(self.drop_window(x.transpose(0, 1).flatten(1).unsqueeze(0))[0])
        log_sigma = self.log_sigma.expand_as(mean)
        if self.spread is not None:
            log_sigma = log_sigma + 3 * torch.tanh(self.spread(last) / 3)  # at most e^3 times more or less noise
        return torch.stack([mean, log_sigma], -1)


class Components(nn.Module):
    """An even mixture of posteriors, q(w) = (q_1(w) + ... + q_K(w)) / K: of one network and its masks each.

    A draw picks one of the networks, for each row of the batch or, with ``share="batch"``, for all of it, and draws
    that network's masks. The CRPS of a mixture is no higher than the mean of its parts' scores, as CRPS is convex.

    Every network is stopped by itself, as if it were trained alone: ``networks`` are trained, and in eval mode ``kept``
    are used, which :meth:`keep` sets. At the posterior mean (no draw) the output is the Gaussian with the mixture's
    mean and variance.

    Shape:
        x (T, B, F) to (B, H, 2), as of :class:`ForecastModel`.
    """

    batch_first = False
    best: Tensor
    since: Tensor

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks, self.share = nn.ModuleList(networks), "sequence"
        self.kept = deepcopy(self.networks).requires_grad_(False)
        self.register_buffer("best", torch.full((len(networks),), math.inf))
        self.register_buffer("since", torch.zeros(len(networks)))  # epochs since the best one

    @torch.no_grad()
    def keep(self, scores: Sequence[float], patience: float = math.inf) -> None:
        """Keep the weights of each network whose score, of one epoch, is lower than all before.

        A network that was no better for ``patience`` epochs has stopped: nothing more of it is kept.
        """
        for k, score in enumerate(scores):
            if float(self.since[k]) < patience and score < float(self.best[k]):
                self.kept[k].load_state_dict(self.networks[k].state_dict())
                self.best[k], self.since[k] = score, 0.0
            else:
                self.since[k] += 1

    def each(self, x: Tensor) -> Tensor:
        """What all networks say, (K, B, H, 2), each with masks of its own."""
        return torch.stack([network(x) for network in (self.networks if self.training else self.kept)])

    def at_mean(self) -> "Merged":
        """Those that are used, as they are used without a draw; they are shared, not copied."""
        return Merged(self.kept).train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        found, source, rows = self.each(x), draws.source(self), x.shape[1]
        if source is None:
            return _merged(found)
        # Which of K equally distributed numbers is largest: each as likely, and held as all noise of a draw is.
        noise = source.units("component", _ANY, (len(found),), found, rows=rows, shared=self.share == "batch")
        return found[noise.argmax(-1).expand(rows), torch.arange(rows, device=x.device)]


class Merged(nn.Module):
    """An even mixture at its posterior mean, as one Gaussian: nothing but the networks it is of. Shapes as there."""

    def __init__(self, networks: nn.ModuleList) -> None:
        super().__init__()
        self.networks = networks

    def forward(self, x: Tensor) -> Tensor:
        return _merged(torch.stack([network(x) for network in self.networks]))


def _merged(found: Tensor) -> Tensor:
    """Of Gaussians (K, B, H, 2), equally likely, the one (B, H, 2) with the mean and the variance of all."""
    mean, sigma = found[..., 0], found[..., 1].exp()
    spread = (sigma.square().mean(0) + mean.var(0, correction=0)).sqrt()
    return torch.stack([mean.mean(0), spread.log()], -1)


class GaussianHeads(LibraryHeads):
    """N(y; mean, sigma^2) with both from the model; targets that are NaN (missing) do not count."""

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        known = ~target.isnan()
        return -(self.log_prob(output, torch.where(known, target, output[..., 0])) * known).sum()

    def count(self, target: Tensor) -> Tensor:  # type: ignore[override]
        return (~target.isnan()).sum()


def network(inputs: int, window: int, horizon: int, settings: Model) -> nn.Module:
    """What a recipe's section asks for: one :class:`ForecastModel`, or several as :class:`Components`."""
    made = [ForecastModel(inputs, window, horizon, settings) for _ in range(settings.components)]
    return made[0] if len(made) == 1 else Components(made)


def prior_cost(model: nn.Module, sigma: float) -> Tensor:
    """-log N(w; 0, sigma^2), up to a constant, of all weights that are trained; the noise level is no weight."""
    weights = [w for name, w in model.named_parameters() if w.requires_grad and not name.endswith("log_sigma")]
    return torch.stack([weight.square().sum() for weight in weights]).sum() / (2 * sigma**2)
