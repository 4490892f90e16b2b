"""DropConnect (Wan et al. 2013): every weight has a chance of being 0. A posterior over the weights of any module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.checks import check_choice, check_probability
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.posteriors.weights import Patterns, Places, Weight, find_weights
from bayesrnn.priors import Normal


class MultipliedWeights(nn.Module):
    """q(w) = mean times independent noise of mean 1. The `Posterior` behind `DropConnect`."""

    def __init__(self, weights: Sequence[Weight], noise: draws.Noise, prior: Normal) -> None:
        super().__init__()
        self.kind, self.prior = noise, prior
        self._means = [(w.name, w.mean.shape, w.padding) for w in weights]
        # Where the noise is made: a buffer follows the module to its device, and is not saved.
        self.register_buffer("_here", weights[0].mean.detach().new_empty(0), persistent=False)

    def noise(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        own: Tensor = self._here  # type: ignore[assignment]
        here = own.float()  # the same draw in any dtype
        made = {name: self.kind.sample(shape, here, generator) for name, shape, _ in self._means}
        for name, _, padding in self._means:
            if padding is not None:
                made[name][padding] = 1.0
        return made

    def weights(self, means: Mapping[str, Tensor], noise: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: means[name] * noise[name].to(means[name]) for name, _, _ in self._means}

    def kl(self, means: Mapping[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        """(1 - p) ||mean||^2 / (2 sigma^2), the L2 form of arXiv 1506.02142, Eq. 7, with sigma the prior's."""
        wide = {name: m.to(torch.promote_types(m.dtype, torch.float32)) for name, m in means.items()}
        squares = torch.stack([wide[name].square().sum() for name, _, _ in self._means]).sum()
        return squares * ((1 - self.kind.p) / (2 * self.prior.sigma**2))


class DropConnect(Bayesian):
    """Drop single weights of any module: one weight mask per draw, the same for all examples of a batch.

    Called like the module, returns what it returns. In train mode every call makes a new draw, in eval mode the
    weights are as they are; `br.draw`, `br.predict`, `br.kl` and `q.mean_module()` work as with `br.BayesByBackprop`.
    Kept weights are scaled by 1 / (1 - p).

    Args:
        module: any `nn.Module`; it is copied, not changed.
        p: probability of dropping a weight.
        noise: "bernoulli", or "gaussian" for multipliers N(1, p / (1 - p)) of the same variance.
        prior: of the weights; its sigma scales the L2 form of the KL.
        include: name patterns of the noisy parameters. None: all that have at least two axes (weight matrices and
            kernels; biases and norms are left alone).
        exclude: name patterns of parameters without noise.

    Example::

        q = br.DropConnect(nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10)), p=0.5)
        F.cross_entropy(q(x), y).backward()
        br.predict(q.eval(), x, samples=50).mutual_information
    """

    posterior: MultipliedWeights

    def __init__(
        self,
        module: nn.Module,
        p: float = 0.5,
        *,
        noise: str = "bernoulli",
        prior: Normal | None = None,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        kind = draws.Noise(check_probability("p", p), check_choice("noise", noise, ("bernoulli", "gaussian")))
        prior = Normal(1.0) if prior is None else prior
        if not isinstance(prior, Normal):
            raise TypeError(f"the KL of DropConnect is known for br.Normal priors, got {type(prior).__name__}")
        make = partial(MultipliedWeights, noise=kind, prior=prior)
        super().__init__(module, make, include=include, exclude=exclude)

    def _find(self) -> tuple[list[Weight], Places]:
        include, exclude = self._patterns
        if include is None:
            include = [n for n, w in self.module.named_parameters() if w.ndim > 1 and w.requires_grad]
            if not include:
                raise ValueError("no weight with two or more axes to drop: name parameters with include")
        return find_weights(self.module, include, exclude)
