"""The diagonal Gaussian q(w) = N(mean, sigma^2) (Blundell et al. 2015; arXiv 1704.02798, section 2)."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian import plan, sampling
from bayesrnn.kernels.gaussian.marks import Mark
from bayesrnn.kernels.gaussian.sampling import Seeded
from bayesrnn.kernels.shared.precision import lowered
from bayesrnn.posteriors.weights import Weight
from bayesrnn.priors import Prior, check_sigma, kernel_prior, log_prior
from bayesrnn.wrappers import whole

Spread = float | tuple[float, float]
Eps = dict[str, Tensor] | Seeded
"""The noise of a draw: tensors by name, or the seed that a kernel makes it from."""


def inverse_softplus(sigma: float) -> float:
    """rho with softplus(rho) = sigma."""
    return sigma + math.log(-math.expm1(-sigma))


class ParameterTree(nn.Module):
    """Parameters under dotted names, as the wrapped module has them, so that checkpoints read well."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._leaves: dict[str, tuple[nn.Module, str]] = {}
        for name, tensor in tensors.items():
            *path, leaf = name.split(".")
            node: nn.Module = self
            for part in path:
                # add_module refuses names that every nn.Module has, such as "type"
                child = node._modules.setdefault(part, nn.Module())
                assert child is not None
                node = child
            node._parameters[leaf] = nn.Parameter(tensor)
            self._leaves[name] = (node, leaf)

    def by_name(self) -> dict[str, nn.Parameter]:
        """The parameters by name, in the order they were given."""
        return {name: node._parameters[leaf] for name, (node, leaf) in self._leaves.items()}  # type: ignore[misc]

    def items(self) -> ItemsView[str, nn.Parameter]:
        """(name, parameter), in the order they were given."""
        return self.by_name().items()

    def __getitem__(self, name: str) -> nn.Parameter:
        node, leaf = self._leaves[name]
        parameter = node._parameters[leaf]
        assert parameter is not None
        return parameter


class DiagonalGaussian(nn.Module):
    r"""An independent Gaussian for every weight, and the `Posterior` behind `BayesByBackprop`.

    .. math:: w = \mu + \sigma \epsilon, \quad \sigma = \log(1 + e^\rho), \quad \epsilon \sim N(0, 1)

    The means are the parameters of the wrapped module; rho, one for each weight, is a parameter here.

    Args:
        weights: the weights it covers, all of one dtype and on one device.
        prior: p(w).
        init_sigma: first sigma: a number, a pair (low, high), or a dict of name patterns to either.
    """

    def __init__(self, weights: Sequence[Weight], prior: Prior, init_sigma: Spread | Mapping[str, Spread]) -> None:
        super().__init__()
        kinds = {(w.mean.dtype, w.mean.device) for w in weights}
        if len(kinds) > 1:
            raise ValueError(
                f"Bayesian parameters must share one dtype and device, got {sorted(map(str, kinds))}: "
                "move the module first, or leave some out with exclude"
            )
        self.prior = prior
        self.padding = {w.name: w.padding for w in weights if w.padding is not None}
        self._group_dims = {w.name: w.group_dim for w in weights}
        self._recurrent = tuple(dict.fromkeys(w.recurrent for w in weights if w.recurrent is not None))
        self._lowered = frozenset(w.name for w in weights if w.lowered)
        if isinstance(init_sigma, Mapping):
            unused = [p for p in init_sigma if p != "*" and not any(fnmatchcase(w.name, p) for w in weights)]
            if unused:
                raise ValueError(f"init_sigma has a pattern that no Bayesian parameter matches: {unused[0]!r}")
        self.rho = ParameterTree({w.name: _initial_rho(w, init_sigma) for w in weights})
        self._pool = Pool()
        self._latest: tuple[Any, Mark, plan.Drawn] | None = None
        self._spec: tuple[Any, plan.DrawSpec] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_latest": None}

    def sigma(self, name: str) -> Tensor:
        """sigma = softplus(rho) of one parameter."""
        return F.softplus(self.rho[name])

    def noise(self, generator: torch.Generator | None) -> Eps:
        """epsilon ~ N(0, 1)."""
        made = sampling.noise(self.rho[next(iter(self._group_dims))], self.spec, generator, pool=self._pool)
        return made if isinstance(made, Seeded) else dict(zip(self._group_dims, made, strict=True))

    def weights(self, means: Mapping[str, Tensor], noise: Eps, *, autocast: bool = False) -> dict[str, Tensor]:
        """w = mean + sigma * epsilon.

        While gradients are recorded the KL of this draw is computed along, in the same pass over the weights.
        `autocast`: draw weights that autocast would lower anyway in its dtype, where a kernel can.
        """
        self._latest = None  # frees its buffers for this draw
        rhos, spec, sums = self.rho.by_name(), self.spec(autocast), torch.is_grad_enabled()
        lists = [means[n] for n in rhos], list(rhos.values())
        drawn = sampling.draw(_listed(noise, rhos), spec, *lists, pool=self._pool, sums=sums)
        if sums:
            known = spec.prior.kind != "none"  # then the KL is complete without the weights
            kept = drawn._replace(weights=()) if known else drawn
            self._latest = noise, Mark.of(spec, *lists, drawn.mark), kept
        return dict(zip(rhos, drawn.weights, strict=True))

    def weights_many(self, means: Mapping[str, Tensor], noises: Sequence[Eps]) -> dict[str, Tensor]:
        """The weights of several draws, (draws, *shape) each, without gradients."""
        rhos = self.rho.by_name()
        given = [_listed(noise, rhos) for noise in noises]
        lists = [means[n] for n in rhos], list(rhos.values())
        return dict(zip(rhos, sampling.draw_many(given, self.spec(), *lists, pool=self._pool), strict=True))

    def kl(self, means: Mapping[str, Tensor], noise: Eps) -> Tensor:
        r"""KL(q || p), a sum over all weights.

        For a prior N(0, s^2) it is exact,

        .. math:: \sum_i \log \frac{s}{\sigma_i} + \frac{\sigma_i^2 + \mu_i^2}{2 s^2} - \frac{1}{2}

        and for any other prior it is the estimate log q(w) - log p(w) at this draw (arXiv 1704.02798, Eq. 8).
        """
        rhos = {name: whole(rho) for name, rho in self.rho.items()}
        lists = [means[n] for n in rhos], list(rhos.values())
        latest, prior = self._latest, kernel_prior(self.prior)
        if latest is not None and latest[0] is noise and latest[1].spec.prior == prior and latest[1].fits(*lists):
            found = latest[2]
        else:
            found = sampling.draw(_listed(noise, rhos), self.spec(), *lists, pool=self._pool, sums=True)
        assert found.kl is not None
        if prior.kind != "none":
            return found.kl
        wide = [w.to(torch.promote_types(w.dtype, torch.float32)) for w in found.weights]
        return found.kl - log_prior(self.prior, dict(zip(rhos, wide, strict=True)), self._group_dims)

    def spec(self, autocast: bool = False) -> plan.DrawSpec:
        """The weights as the kernels are told about them."""
        rhos = self.rho.by_name()
        first = next(iter(rhos.values()))
        prior, device = kernel_prior(self.prior), first.device
        lower = autocast and prior.kind != "none" and first.dtype == torch.float32 and lowered(device.type)
        low_dtype = torch.get_autocast_dtype(device.type) if lower else torch.bfloat16
        key = prior, first.dtype, device, lower, low_dtype, [rho.shape for rho in rhos.values()]
        if self._spec is None or self._spec[0] != key:
            made = plan.DrawSpec(
                names=tuple(rhos),
                shapes=tuple(tuple(rho.shape) for rho in rhos.values()),
                group_dims=tuple(self._group_dims[n] for n in rhos),
                padding=tuple(self.padding.get(n) for n in rhos),
                dtype=first.dtype,
                device=device,
                prior=prior,
                recurrent=self._recurrent,
                low=self._lowered if lower else frozenset(),
                low_dtype=low_dtype,
            )
            self._spec = key, made
        return self._spec[1]


def _listed(noise: Eps, names: Iterable[str]) -> sampling.Noise:
    return noise if isinstance(noise, Seeded) else [noise[name] for name in names]


def _initial_rho(weight: Weight, init_sigma: Spread | Mapping[str, Spread]) -> Tensor:
    spread: Any = init_sigma
    if isinstance(init_sigma, Mapping):
        spread = next((s for pattern, s in init_sigma.items() if fnmatchcase(weight.name, pattern)), None)
        if spread is None:
            raise ValueError(f"init_sigma has no pattern for {weight.name!r}: add a last one '*'")
    ends = tuple(spread) if isinstance(spread, (tuple, list)) else (spread, spread)
    if len(ends) != 2:
        raise ValueError(f"init_sigma must be a number or a pair (low, high), got {spread!r}")
    low, high = (inverse_softplus(check_sigma("init_sigma", sigma)) for sigma in ends)
    if low > high:
        raise ValueError(f"init_sigma is a pair (low, high), got {spread!r}: write the smaller one first")
    return torch.empty_like(weight.mean, requires_grad=False).uniform_(low, high)
