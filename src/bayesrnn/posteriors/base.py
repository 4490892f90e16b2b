"""A posterior over the weights of a module: its interfaces, and `Bayesian`, which draws the weights.

Code asks for these classes with `isinstance`. A wrapper that forwards attributes is never mistaken for a posterior, and
a class of your own takes part by deriving from them:

- `Posterior`: q(w) as a map from noise to weights. `Bayesian(module, MyPosterior)` does the rest.
- `RandomWeights`: a module with a KL and a mean. `br.kl`, `br.ELBO` and `br.mean` need no more, so a posterior that is
  not such a map (an ensemble, samples of an MCMC chain) derives from this.
- `HasSigma`: a mean and a standard deviation for every weight, for `br.signal_to_noise`.
- `TwoLevel`: a second level of weights that depends on the batch, for `br.ELBO`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.compilation import copied, forget_history, not_compiled, uncompiled
from bayesrnn.kernels.explanation import ExplainedWeights
from bayesrnn.kernels.shared.tensors import unwatched
from bayesrnn.posteriors import placement
from bayesrnn.posteriors.weights import Patterns, Places, Weight, find_weights, refuse_unconvertible
from bayesrnn.wrappers import whole

__all__ = ["Bayesian", "HasSigma", "Posterior", "RandomWeights", "TwoLevel", "Weight"]


@runtime_checkable
class Posterior(Protocol):
    """q(w) as a reparameterised draw: noise without parameters, and a differentiable map from noise to weights.

    A posterior is usually an `nn.Module` that holds its own parameters (the means stay in the wrapped module) and is
    made from the `Weight`s it is to cover; `Bayesian(module, MyPosterior)` does the rest.
    """

    def noise(self, generator: torch.Generator | None) -> Any:
        """The randomness of one draw, independent of all parameters. None: torch's global generator."""
        ...

    def weights(self, means: Mapping[str, Tensor], noise: Any) -> dict[str, Tensor]:
        """The weights of this draw by name, differentiable in `means` and in the posterior's own parameters."""
        ...

    def kl(self, means: Mapping[str, Tensor], noise: Any) -> Tensor:
        """KL(q || p): exact, or its estimate at this draw; a sum over all weights, unscaled."""
        ...


@runtime_checkable
class ManyDraws(Protocol):
    """A `Posterior` that makes the weights of several draws at once, faster than one by one."""

    def weights_many(self, means: Mapping[str, Tensor], noises: Sequence[Any]) -> dict[str, Tensor]:
        """The weights of several draws, (draws, *shape) each, without gradients."""
        ...


class RandomWeights(nn.Module, ABC):
    """A module with random weights: called like a plain module, with a KL and a mean."""

    @property
    @abstractmethod
    def means(self) -> dict[str, Tensor]:
        """The means of the random weights by name: the parameters whose KL `posterior_kl` has."""

    @abstractmethod
    def posterior_kl(self) -> Tensor:
        """KL(q || p) of these weights: a scalar sum, unscaled."""

    @abstractmethod
    def mean_module(self) -> nn.Module:
        """A plain module at the posterior mean, that shares nothing with this one."""


class HasSigma(ABC):
    """Gaussian weights: every weight has a mean and a standard deviation."""

    @abstractmethod
    def named_posteriors(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(name, mean, sigma) of every random parameter, each in the parameter's shape."""


class TwoLevel(ABC):
    """Weights in two levels: phi ~ q(phi), and theta around it, which depends on the batch."""

    @abstractmethod
    def sharpen(self, nll: Callable[[], Tensor]) -> AbstractContextManager[None]:
        """Run every call inside the block on theta, drawn with the help of `nll()`, the batch's summed -log p."""

    @abstractmethod
    def sharpening_kl(self) -> Tensor:
        """KL of the second level in the latest block, for its batch alone; 0 outside."""


class Bayesian(RandomWeights, ExplainedWeights):
    """A module with random weights: called like the module, returns what the module returns.

    The means stay in the module, under their own names (`q.module.state_dict()` is a plain checkpoint of them);
    everything else that the posterior needs is in `q.posterior`. The module is copied, and the original left alone.

    Args:
        module: any `nn.Module`. Its own `forward` runs, on drawn weights. RNN layers inside, ours or torch's, use
            their fused kernels.
        posterior: makes a `Posterior` from the list of `Weight`s.
        include: name patterns (`"rnn.*"`, `"*.bias"`), one or several, of the parameters that become random; None: all
            trainable ones.
        exclude: patterns of those that do not; they are left alone.
    """

    def __init__(
        self,
        module: nn.Module,
        posterior: Callable[[list[Weight]], Any],
        *,
        include: Patterns = None,
        exclude: Patterns = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected a torch.nn.Module, got {type(module).__name__}")
        refuse_unconvertible(module, (RandomWeights, TwoLevel))
        self.module = copied(module)
        self._patterns = include, exclude
        weights, self._places = self._find()
        self._tree = self._parts()
        self.posterior = posterior(weights)
        self._current: Any = None  # the noise of the latest draw, for a KL that is estimated at it

    # No __deepcopy__: a wrapper that forwards attributes would hand it out as its own, and be copied as this module.
    def __getstate__(self) -> dict[str, Any]:
        forget_history(self)
        return {**super().__getstate__(), "_current": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        not_compiled(self)

    @property
    def means(self) -> dict[str, Tensor]:
        """The posterior means by parameter name: the module's own parameters."""
        return {name: placement.parameters(self._places, name) for name in self._places}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._current = None
        if draws.source(self) is None:
            return self.module(*args, **kwargs)
        with self.placed(self._drawn()):
            return self.module(*args, **kwargs)

    @uncompiled
    def _drawn(self) -> Mapping[str, Tensor]:
        self._check_module()
        means = self.means
        if any(whole(mean) is not mean for mean in means.values()):
            raise RuntimeError(
                "fully_shard was applied to a part of the Bayesian module, whose weights would not be drawn: "
                "apply it to all of it, fully_shard(q), and to no part"
            )
        with unwatched(next(iter(means.values()))):
            noise = self._sample(draws.source(self))
            weights = self._draw(noise)
        self._current = noise
        return weights

    def noise(self, source: draws.Source | None) -> Any:
        """The noise of one draw from this source; None: new noise."""
        self._check_module()
        return self._sample(source)

    def _sample(self, source: draws.Source | None) -> Any:
        device = placement.parameters(self._places, next(iter(self._places))).device
        return (source or draws.FRESH).weights("weights", self.posterior.noise, device)

    def _draw(self, noise: Any) -> Mapping[str, Tensor]:
        drawn: Mapping[str, Tensor] = self.posterior.weights(self.means, noise)
        return drawn

    def draw_many(self, sources: Sequence[draws.Source]) -> dict[str, Tensor]:
        """The weights of one draw from each source, (draws, *shape) each, without gradients."""
        self._check_module()
        noises = [self._sample(source) for source in sources]
        if isinstance(self.posterior, ManyDraws):
            return self.posterior.weights_many(self.means, noises)
        drawn = [self.posterior.weights(self.means, noise) for noise in noises]
        return {name: torch.stack([weights[name] for weights in drawn]) for name in drawn[0]}

    def placed(self, weights: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Run the module on these weights inside the block, in place of its parameters."""
        layers = [part for part, _, _ in self._tree if isinstance(part, nn.RNNBase)]
        return placement.placed(layers, self._places, weights)

    @uncompiled
    def posterior_kl(self) -> Tensor:
        """KL(q || p), unscaled; estimates are taken at the current draw (a new one where none is current)."""
        self._check_module()
        noise = self._sample(draws.source(self)) if self._current is None else self._current
        value: Tensor = self.posterior.kl({name: whole(mean) for name, mean in self.means.items()}, noise)
        return value

    def mean_module(self) -> nn.Module:
        """A plain deep copy of the module with the posterior means in place."""
        made = copied(self.module)
        for part in made.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # cuDNN's one piece of memory becomes many in a copy
        return made

    def _find(self) -> tuple[list[Weight], Places]:
        """The parameters of the module that are to be random."""
        return find_weights(self.module, *self._patterns)

    def _parts(self) -> list[tuple[nn.Module, tuple[nn.Module | None, ...], bool]]:
        """Every part of the module with its own parts, and whether it has parameters."""
        return [(part, tuple(part._modules.values()), bool(part._parameters)) for part in self.module.modules()]

    def _check_module(self) -> None:
        """Refuse a module whose parts were replaced after wrapping: their weights would silently not be random."""
        kind = type(self).__name__
        if self.__dict__.get("_is_replica"):
            raise RuntimeError(
                f"replicas of nn.DataParallel have no parameters, so {kind} cannot draw in them: "
                "use DistributedDataParallel"
            )
        if self._tree[0][0] is self.module and all(
            tuple(part._modules.values()) == parts and bool(part._parameters) == parametrised
            for part, parts, parametrised in self._tree
        ):
            return
        try:
            _, found = self._find()
        except (TypeError, ValueError):
            found = {}
        changed = next((n for n in {**found, **self._places} if not _alike(found.get(n), self._places.get(n))), None)
        if changed is not None:
            raise RuntimeError(
                f"{changed!r} was added, replaced or re-parametrised after {kind} wrapped the module, and would not "
                f"be random: change the module first, then wrap it (q = br.{kind}(q.mean_module(), ...))"
            )
        self._tree = self._parts()


def _alike(a: list[tuple[nn.Module, str]] | None, b: list[tuple[nn.Module, str]] | None) -> bool:
    if a is None or b is None:
        return False
    return {(id(owner), attribute) for owner, attribute in a} == {(id(owner), attribute) for owner, attribute in b}
