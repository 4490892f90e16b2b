"""Posterior sharpening: a second, data-dependent level of weights (arXiv 1704.02798, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.checks import is_number
from bayesrnn.draws import HeldNoise, differentiable_in_eval
from bayesrnn.kernels.gaussian import plan, sampling
from bayesrnn.posteriors.base import TwoLevel
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop
from bayesrnn.posteriors.gaussian import ParameterTree
from bayesrnn.priors import check_sigma
from bayesrnn.wrappers import whole


class PosteriorSharpening(nn.Module, TwoLevel):
    r"""theta ~ N(phi - eta * g, sigma0^2) around phi ~ q(phi), with g the gradient of this batch's -log p at phi.

    The KL of the second level is exact, ||eta * g||^2 / (2 sigma0^2) (Eq. 14 with p(theta | phi) = N(phi, sigma0^2)),
    counts per batch, and enters `br.ELBO` by itself. g is treated as a constant; eta, one learnt rate per weight,
    gets its gradient through theta and the KL.

    With g the gradient of the summed -log p of the batch the best constant eta is sigma0^2 (minimise
    -eta g^2 + eta^2 g^2 / (2 sigma0^2)); the start is a tenth of it, since g is huge in the first steps.

    Args:
        q: a `BayesByBackprop`, the posterior of phi.
        sigma0: standard deviation of theta around its mean.
        init_eta: first value of eta; None: sigma0^2 / 10.
        max_gradient_norm: g is scaled down to this global norm where it is longer; None: never.

    Example::

        s = br.PosteriorSharpening(q)
        elbo = br.ELBO(s, br.Categorical(), num_data=929_589)

        def nll():                                  # -log p of this batch, summed
            return elbo.likelihood.nll(s(x, state)[0], y)

        with s.sharpen(nll):                        # draws phi, takes g there, draws theta
            logits, state = s(x, state)             # runs on theta
            elbo(logits, y).loss.backward()

    Outside `sharpen` the module predicts from q(phi) like any other posterior: `br.predict(s, x)`. With the targets
    at hand, `s.bound(nll)` gives the sharpened bound on -log p.
    """

    def __init__(
        self,
        q: BayesByBackprop,
        sigma0: float = 0.02,
        *,
        init_eta: float | None = None,
        max_gradient_norm: float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(q, BayesByBackprop):
            raise TypeError(f"PosteriorSharpening wraps a br.BayesByBackprop, got {type(q).__name__}")
        self.q = q
        self.sigma0 = check_sigma("sigma0", sigma0)
        if max_gradient_norm is not None and (not is_number(max_gradient_norm) or not max_gradient_norm > 0):
            raise ValueError(f"max_gradient_norm must be a number > 0, or None for no limit, got {max_gradient_norm!r}")
        self.max_gradient_norm = max_gradient_norm
        start = self.sigma0**2 / 10 if init_eta is None else float(init_eta)
        self.eta = ParameterTree({n: torch.full_like(m, start, requires_grad=False) for n, m in q.means.items()})
        self._placed: Mapping[str, Tensor] | None = None
        self._sharpening: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_placed": None, "_sharpening": None}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._placed is None:
            self._sharpening = None
            return self.q(*args, **kwargs)
        with self.q.placed(self._placed):
            return self.q.module(*args, **kwargs)

    def mean_module(self) -> nn.Module:
        """A plain deep copy of the module with the means of q(phi) in place."""
        return self.q.mean_module()

    def sharpening_kl(self) -> Tensor:
        """||eta * g||^2 / (2 sigma0^2) of the latest `sharpen` block; 0 for predictions from q(phi)."""
        if self._sharpening is None:
            first = next(self.eta.parameters())
            return torch.zeros((), device=first.device, dtype=first.dtype)
        return whole(self._sharpening)

    @contextmanager
    def sharpen(self, nll: Callable[[], Tensor]) -> Iterator[None]:
        """Draw phi, take the gradient g of `nll()` there, and run every call inside the block on theta.

        In train mode, or inside `br.draw`, both levels are drawn, with one draw held over both passes. In eval mode
        both are at their means: phi = mean, theta = phi - eta * g.

        Args:
            nll: computes the batch's summed -log p by calling this module; it is called once, at phi.
        """
        with ExitStack() as stack:
            source = draws.source(self)
            if source is not None and not _is_held(source):
                stack.enter_context(draws.bind(self, HeldNoise()))
            if not self.training:
                stack.enter_context(differentiable_in_eval(self))
            source, means = draws.source(self), self.q.means
            if source is None:
                phi: Mapping[str, Tensor] = means
                self.q._current = None  # no draw: a KL that is estimated makes its own
            else:
                # the key under which q itself would ask, so that br.predict and sharpen see the same phi
                self.q._current = noise = self.q.noise(draws.source(self.q))
                phi = self.q.posterior.weights(means, noise)
            gradient = self._gradient(phi, nll)
            theta, total = self._theta(phi, gradient, source)
            self._sharpening = total / (2 * self.sigma0**2)
            self._placed = theta
            try:
                yield
            finally:
                self._placed = None

    def _gradient(self, phi: Mapping[str, Tensor], nll: Callable[[], Tensor]) -> dict[str, Tensor]:
        leaves = {n: w.detach().requires_grad_() for n, w in phi.items()}
        self._placed = leaves
        try:
            with torch.enable_grad():
                value = nll()
                if not isinstance(value, Tensor) or value.ndim != 0 or not value.requires_grad:
                    raise ValueError("nll must return the batch's summed -log p, a scalar made by calling this module")
                found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        finally:
            self._placed = None
        gradient = {n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(leaves.items(), found, strict=True)}
        if self.max_gradient_norm is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradient.values()]))
            scale = (self.max_gradient_norm / norm.clamp_min(1e-12)).clamp_max(1.0)
            gradient = {n: g * scale for n, g in gradient.items()}
        return gradient

    def _theta(
        self, phi: Mapping[str, Tensor], gradient: Mapping[str, Tensor], source: draws.Source | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """theta = phi - eta g, with noise where there is a source, and the sum of (eta g)^2."""
        device = next(iter(phi.values())).device
        noise = None if source is None else source.weights("theta", self._noise, device)
        spec = self._spec()
        lists = [[values[n] for n in spec.names] for values in (phi, self.eta, gradient)]
        total, thetas = sampling.sharpen(noise, spec, *lists, sigma0=self.sigma0)
        return dict(zip(spec.names, thetas, strict=True)), total

    def _spec(self) -> plan.DrawSpec:
        return self.q.posterior.spec()._replace(prior=plan.KernelPrior("none"))

    def _noise(self, generator: torch.Generator | None) -> sampling.Noise:
        return sampling.noise(next(self.eta.parameters()), self._spec, generator, pool=self.q.posterior._pool)

    def bound(self, nll: Callable[[], Tensor]) -> Tensor:
        """The sharpened bound on this batch's summed -log p: -log p at theta plus the sharpening KL."""
        with self.sharpen(nll):
            return nll() + self.sharpening_kl()


def _is_held(source: draws.Source) -> bool:
    """Whether a source gives the same noise in both passes."""
    return isinstance(source, draws.Bound) and isinstance(source.source, (draws.Draw, draws.Stacked, HeldNoise))
