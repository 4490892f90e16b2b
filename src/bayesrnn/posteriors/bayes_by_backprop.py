"""Bayes by Backprop: an independent Gaussian for every weight (Blundell et al. 2015; arXiv 1704.02798)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian import plan, sampling
from bayesrnn.kernels.gaussian.sampling import Seeded
from bayesrnn.kernels.shared.precision import lowered
from bayesrnn.posteriors.base import Bayesian, Weight
from bayesrnn.priors import Normal, Prior, ScaleMixture, _check_sigma

Spread = float | tuple[float, float]
Eps = dict[str, Tensor] | Seeded
"""The noise of a draw: tensors by name, or the seed that a GPU's kernels make it from."""


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
                if part not in node._modules:
                    node._modules[part] = nn.Module()  # add_module refuses names of nn.Module's own, such as "type"
                child = node._modules[part]
                assert child is not None
                node = child
            node._parameters[leaf] = nn.Parameter(tensor)
            self._leaves[name] = (node, leaf)

    def _items(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, (node, leaf) in self._leaves.items():
            parameter = node._parameters[leaf]
            assert parameter is not None
            yield name, parameter

    def __getitem__(self, name: str) -> nn.Parameter:
        node, leaf = self._leaves[name]
        parameter = node._parameters[leaf]
        assert parameter is not None
        return parameter


class DiagonalGaussian(nn.Module):
    """q(w) = N(mean, sigma^2) for every weight, sigma = softplus(rho). The `Posterior` behind `BayesByBackprop`."""

    def __init__(
        self,
        weights: Sequence[Weight],
        prior: Prior,
        init_sigma: Spread | Mapping[str, Spread],
    ) -> None:
        super().__init__()
        kinds = {(w.mean.dtype, w.mean.device) for w in weights}
        if len(kinds) > 1:
            raise ValueError(
                f"Bayesian parameters must share one dtype and device, got {sorted(map(str, kinds))}: "
                "move the module first, or leave some out with exclude"
            )
        self.prior = prior
        self._group_dims = {w.name: w.group_dim for w in weights}
        self._padding = {w.name: w.padding for w in weights if w.padding is not None}
        self._recurrent = tuple(dict.fromkeys(w.recurrent for w in weights if w.recurrent is not None))
        self._lowered = frozenset(w.name for w in weights if w.lowered)
        self._takes_group_dim = "group_dim" in inspect.signature(prior.log_prob).parameters
        if isinstance(init_sigma, Mapping):
            unused = [p for p in init_sigma if p != "*" and not any(fnmatchcase(w.name, p) for w in weights)]
            if unused:
                raise ValueError(f"init_sigma has a pattern that no Bayesian parameter matches: {unused[0]!r}")
        self.rho = ParameterTree({w.name: _initial_rho(w, init_sigma) for w in weights})
        self._pool = Pool()
        self._latest: tuple[Any, list[int], plan.Drawn] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_latest": None}

    def sigma(self, name: str) -> Tensor:
        return F.softplus(self.rho[name])

    def noise(self, generator: torch.Generator | None) -> Eps:
        made = sampling.noise(next(self.rho.parameters()), self._spec(), generator, pool=self._pool)
        return made if isinstance(made, Seeded) else dict(zip(self._group_dims, made, strict=True))

    def weights(self, means: Mapping[str, Tensor], noise: Eps, *, autocast: bool = False) -> dict[str, Tensor]:
        """`autocast`: weights that autocast would lower anyway are drawn in its dtype, where a kernel can."""
        self._latest = None  # its buffers are free for this draw
        recorded = torch.is_grad_enabled()
        drawn = self._draw(means, noise, sums=recorded, autocast=autocast)
        if recorded:
            known = self._kernel_prior().kind != "none"  # then the KL needs no weights: let them go
            self._latest = (noise, self._versions(means), drawn._replace(weights=()) if known else drawn)
        return dict(zip(self._group_dims, drawn.weights, strict=True))

    def weights_many(self, means: Mapping[str, Tensor], noises: Sequence[Eps]) -> dict[str, Tensor]:
        """The weights of several draws, (draws, *shape) each, without gradients."""
        rhos = dict(self.rho._items())
        several = [_as_noise(noise) for noise in noises]
        drawn = sampling.draw_many(
            several, self._spec(), [means[n] for n in rhos], list(rhos.values()), pool=self._pool
        )
        return dict(zip(rhos, drawn, strict=True))

    def _draw(self, means: Mapping[str, Tensor], noise: Eps, *, sums: bool, autocast: bool = False) -> plan.Drawn:
        rhos = dict(self.rho._items())
        parameters = [means[n] for n in rhos], list(rhos.values())
        return sampling.draw(_as_noise(noise), self._spec(autocast), *parameters, pool=self._pool, sums=sums)

    def _spec(self, autocast: bool = False) -> plan.DrawSpec:
        rhos = dict(self.rho._items())
        first = next(iter(rhos.values()))
        prior, kind = self._kernel_prior(), first.device.type
        lower = autocast and prior.kind != "none" and first.dtype == torch.float32 and lowered(kind)
        return plan.DrawSpec(
            names=tuple(rhos),
            shapes=tuple(tuple(r.shape) for r in rhos.values()),
            group_dims=tuple(self._group_dims[n] for n in rhos),
            padding=tuple(self._padding.get(n) for n in rhos),
            dtype=first.dtype,
            device=first.device,
            prior=prior,
            recurrent=self._recurrent,
            low=self._lowered if lower else frozenset(),
            low_dtype=torch.get_autocast_dtype(kind) if lower else torch.bfloat16,
        )

    def _kernel_prior(self) -> plan.KernelPrior:
        """The prior as the kernels know it; "none": they leave it to `log_prob`."""
        prior = self.prior
        if type(prior) is Normal:
            return plan.KernelPrior("normal", sigma1=prior.sigma)
        if type(prior) is ScaleMixture:  # a subclass may have another log_prob
            kind = "groups" if prior.group == "input" else "weights"
            return plan.KernelPrior(kind, prior.pi, prior.sigma1, prior.sigma2)
        return plan.KernelPrior("none")

    def _versions(self, means: Mapping[str, Tensor]) -> list[int]:
        return [p._version for _, p in self.rho._items()] + [means[n]._version for n, _ in self.rho._items()]

    def kl(self, means: Mapping[str, Tensor], noise: Eps) -> Tensor:
        latest = self._latest
        if latest is not None and latest[0] is noise and latest[1] == self._versions(means):
            found = latest[2]
        else:
            found = self._draw(means, noise, sums=True)
        assert found.kl is not None
        if self._kernel_prior().kind != "none":
            return found.kl
        log_q, prior = found.kl, self.prior
        options = [{"group_dim": g} if self._takes_group_dim else {} for g in self._group_dims.values()]
        terms = [prior.log_prob(w, **o).sum() for w, o in zip(found.weights, options, strict=True)]
        return log_q - torch.stack(terms).sum()


def _as_noise(noise: Eps) -> sampling.Noise:
    return noise if isinstance(noise, Seeded) else list(noise.values())


def _initial_rho(weight: Weight, init_sigma: Spread | Mapping[str, Spread]) -> Tensor:
    spread: Any = init_sigma
    if isinstance(init_sigma, Mapping):
        spread = next((s for pattern, s in init_sigma.items() if fnmatchcase(weight.name, pattern)), None)
        if spread is None:
            raise ValueError(f"init_sigma has no pattern for {weight.name!r}: add a last one '*'")
    ends = tuple(spread) if isinstance(spread, (tuple, list)) else (spread, spread)
    if len(ends) != 2:
        raise ValueError(f"init_sigma must be a number or a pair (low, high), got {spread!r}")
    low, high = (inverse_softplus(_check_sigma("init_sigma", sigma)) for sigma in ends)
    if low > high:
        raise ValueError(f"init_sigma is a pair (low, high), got {spread!r}: write the smaller one first")
    return torch.empty_like(weight.mean, requires_grad=False).uniform_(low, high)


class BayesByBackprop(Bayesian):
    """Make any module Bayesian: an independent Gaussian posterior for every weight.

    One draw per call in train mode, the posterior mean in eval mode; see `br.draw` to hold a draw.

    Args:
        module: any `nn.Module`; its present weights are the first means. It is copied, not changed.
        prior: `br.Normal`, `br.ScaleMixture`, or anything with `log_prob(w)`.
        init_sigma: first standard deviation of the weights: a number, a pair (low, high) for a random start in
            between (uniform in rho), or a dict of name patterns to either.
        include, exclude: which parameters become random, by name pattern; the others stay ordinary.

    Example::

        q = br.BayesByBackprop(model, prior=br.ScaleMixture(0.25, math.exp(-1), math.exp(-7)), exclude="head.bias")
        elbo = br.ELBO(q, br.Categorical(), num_data=929_589)
        logits, state = q(x, state)
        elbo(logits, y).loss.backward()
    """

    posterior: DiagonalGaussian
    weights_kernel = "gaussian"

    def __init__(
        self,
        module: nn.Module,
        prior: Prior | None = None,
        init_sigma: Spread | Mapping[str, Spread] = 0.02,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> None:
        chosen = Normal(1.0) if prior is None else prior
        if not callable(getattr(chosen, "log_prob", None)):
            raise TypeError(f"prior must have a log_prob(w) method, got {type(chosen).__name__}")
        make: Callable[[list[Weight]], DiagonalGaussian] = lambda weights: DiagonalGaussian(  # noqa: E731
            weights, chosen, init_sigma
        )
        super().__init__(module, make, include=include, exclude=exclude)

    def _draw(self, noise: Any) -> Mapping[str, Tensor]:
        return self.posterior.weights(self.means, noise, autocast=True)

    def named_posteriors(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(name, mean, sigma) of every Bayesian parameter, under the wrapped module's own names."""
        for name, mean in self.means.items():
            yield name, mean, self.posterior.sigma(name)
