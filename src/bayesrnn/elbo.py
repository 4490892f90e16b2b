"""The objective, and the one place where the KL is scaled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

from bayesrnn.checks import entries, first_tensor, is_number, is_whole
from bayesrnn.likelihoods import Categorical, Likelihood
from bayesrnn.nn.base import NoisyLayer
from bayesrnn.posteriors.base import RandomWeights, TwoLevel
from bayesrnn.wrappers import check_module, whole


@dataclass(frozen=True)
class Terms:
    """One evaluation of the objective. `loss` is what to minimise; the other terms are unscaled sums."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    sharpening: Tensor


class ELBO(nn.Module):
    r"""The negative evidence lower bound per target.

    .. math:: \text{loss} = \frac{1}{n} \Big( -\sum_{i=1}^{n} \log p(y_i \mid f_w(x_i)) + S \Big)
              + \frac{\beta}{N} \mathrm{KL}(q(w) \,\|\, p(w)), \quad w \sim q

    with n targets in this batch, N = `num_data` targets in the whole training set, S the sharpening KL of this batch
    (0 but for `br.PosteriorSharpening`), and beta = `kl_weight`. Summed over the batches of an epoch, n * loss is the
    bound on -log p(all targets): the KL counts once per epoch, however the data is cut (Graves 2011; arXiv 1704.02798,
    Eq. 7).

    Args:
        model: the model whose `br.kl` counts.
        likelihood: `br.Categorical()`, `br.Gaussian()`, or any module with `nll(output, target)` and `count(target)`.
        num_data: number of targets in the training set (for a language model: its words).
        kl_weight: beta. 1 is the bound; less gives a "cold" posterior, narrower than the bound would give. 0 is
            maximum likelihood: the KL is not computed, and `terms.kl` is 0.
        warmup: training steps over which beta rises linearly from 0 to `kl_weight`; the loss is the bound from then
            on. Calls in train mode are counted, and the count is in the `state_dict`. In eval mode beta is `kl_weight`.
        warmup_epochs: the same in passes over `num_data` targets, in place of `warmup`; may be a fraction.
        length_scale: prior length scale l of dropout posteriors, see `br.kl`.
        window: 1: the loss is per target. T: it is T times that, the sum over the T steps of a window, averaged over
            sequences, as papers on language models write it.
        check_finite: raise on a NaN or infinite loss, and warn where the KL keeps the data from being fitted. Needs the
            values; off while a CUDA graph is captured.

    Example::

        q = br.BayesByBackprop(model)
        elbo = br.ELBO(q, br.Categorical(), num_data=929_589, warmup=1_000)
        terms = elbo(q(x), y)
        terms.loss.backward()
    """

    calls: Tensor
    """Training steps so far; with `warmup_epochs` targets."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        *,
        num_data: float,
        length_scale: float = 1.0,
        check_finite: bool = True,
        kl_weight: float = 1.0,
        warmup: int = 0,
        warmup_epochs: float = 0.0,
        window: int = 1,
    ) -> None:
        super().__init__()
        if not is_number(num_data) or not num_data > 0:
            raise ValueError(
                f"num_data must be the number of training targets, at least 1, got {num_data!r}: "
                "the KL is divided by it"
            )
        check_module(model)
        if not isinstance(likelihood, nn.Module) or not isinstance(likelihood, Likelihood):
            raise TypeError(
                f"likelihood must be an instance, such as br.Categorical(), br.Gaussian() or br.StudentT(); "
                f"got {likelihood if isinstance(likelihood, type) else type(likelihood).__name__}"
            )
        if not is_number(kl_weight) or not 0 <= kl_weight < math.inf:
            raise ValueError(f"kl_weight must be a number of at least 0, got {kl_weight!r}: 1 is the bound")
        if not is_whole(warmup) or warmup < 0:
            raise ValueError(f"warmup must be a whole number of steps, 0 for none, got {warmup!r}")
        if not is_number(warmup_epochs) or not 0 <= warmup_epochs < math.inf or (warmup and warmup_epochs):
            raise ValueError(
                f"warmup_epochs must be a number of epochs, 0 for none, and is given in place of warmup: "
                f"got {warmup_epochs!r} with warmup={warmup!r}"
            )
        if not is_whole(window) or window < 1:
            raise ValueError(f"window must be a whole number of steps, at least 1, got {window!r}")
        self.model, self.likelihood = model, likelihood
        self.num_data = int(num_data) if is_whole(num_data) else float(num_data)
        self.length_scale, self.check_finite = _check_length_scale(length_scale), check_finite
        self.kl_weight, self.warmup, self.window = float(kl_weight), int(warmup), int(window)
        self.warmup_epochs = float(warmup_epochs)
        if warmup or warmup_epochs:
            first = next(model.parameters(), torch.zeros(()))
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64, device=first.device))
        self._watch = _Watch()

    def forward(
        self,
        output: Any,
        target: Any,
        *,
        mask: Tensor | None = None,
        count: Tensor | float | None = None,
        kl: Tensor | None = None,
        share: Tensor | float = 1.0,
    ) -> Terms:
        """The objective of one batch.

        Args:
            output: the model's output. For a tuple, its first part is used; for a PackedSequence, its `.data`.
            target: what it should have returned; of a PackedSequence the `.data`.
            mask: true for the targets that count, in the target's shape or without its last axes; None: all of them
                (`br.Categorical` has `ignore_index` too).
            count: what to divide -log p by, in place of the number of targets; for a batch that is one part of several.
            kl: a penalty in place of `br.kl(model)`: an unscaled sum, scaled like the KL.
            share: weight of the KL in this batch, relative to 1 / number of batches. With M batches
                and M 2^(M-i) / (2^M - 1) for batch i it is that of arXiv 1505.05424, section 3.4.
        """
        output, target = _counting(output, target, mask)
        look = self.check_finite and not _without_values(output)
        if look and isinstance(self.likelihood, Categorical):
            self.likelihood.check(output, target)
        nll = self.likelihood.nll(output, target)
        divergence, levels = self._divergence(nll, kl), _levels(self.model)
        sharpening = sum((level.sharpening_kl() for level in levels), nll.new_zeros(()))
        number = self.likelihood.count(target) if count is None else count
        loss = (nll + sharpening if levels else nll) / number
        if self.kl_weight:
            loss = loss + self._weighted(divergence, share, target)
        if self.window > 1:
            loss = self.window * loss
        terms = Terms(loss=loss, nll=nll, kl=divergence, sharpening=sharpening)
        if look:
            self._look(terms, number)
        return terms

    def evaluate(self, run: Callable[[], Any], target: Any, **options: Any) -> tuple[Terms, Any]:
        """Run the model and evaluate the objective; for `br.PosteriorSharpening` in its two passes.

        Args:
            run: calls the model on this batch; returns the output, or a tuple that starts with it.
            target: as in a call of the objective.
            **options: `mask`, `count`, `kl` and `share`, as in a call of the objective.

        Returns:
            The terms, and what `run` returned, at theta where the posterior is sharpened.

        Example::

            terms, (logits, state) = elbo.evaluate(lambda: s(x, state), y)
        """

        def nll() -> Tensor:
            return self.likelihood.nll(*_counting(run(), target, options.get("mask")))

        with ExitStack() as stack:
            for level in _levels(self.model):
                stack.enter_context(level.sharpen(nll))
            output = run()
            return self(output, target, **options), output

    def _divergence(self, nll: Tensor, given: Tensor | None) -> Tensor:
        if given is not None:
            return given.to(nll.device)
        if not self.kl_weight:
            return torch.zeros_like(nll)
        return kl(self.model, length_scale=self.length_scale).to(nll.device)

    def _weighted(self, divergence: Tensor, share: Tensor | float, target: Tensor) -> Tensor:
        """beta / N times the KL, with the beta of this step."""
        if isinstance(share, Tensor) or share != 1.0:
            divergence = share * divergence
        if (self.warmup or self.warmup_epochs) and self.training and self.model.training:
            end = self.warmup or self.warmup_epochs * self.num_data
            divergence = (self.calls / end).clamp(max=1.0).to(divergence) * divergence
            targets = self.likelihood.count(target)
            self.calls += 1 if self.warmup else targets.to(self.calls) if isinstance(targets, Tensor) else targets
        return divergence / (self.num_data / self.kl_weight)

    def _look(self, terms: Terms, count: Any) -> None:
        """Raise where the loss is not finite, and watch whether the data is being fitted."""
        if not math.isfinite(terms.loss.item()):
            if not bool(count):
                raise ValueError("no target of this batch counts: it is empty, or all of it is padding; leave it out")
            named = {"the negative log-likelihood": terms.nll, "the KL": terms.kl}
            self._refuse({**named, "the sharpening KL": terms.sharpening})
        if self.kl_weight and self.training and self.model.training and terms.loss.requires_grad:
            self._watch.see(terms.nll.item(), terms.kl.item(), targets=float(count), num_data=self.num_data)

    def _refuse(self, terms: dict[str, Tensor]) -> NoReturn:
        """Name the term that is not finite, and its cause: the KL depends on the weights alone."""
        wrong = {name: term for name, term in terms.items() if not bool(torch.isfinite(term))}
        broken = next((n for n, p in self.model.named_parameters() if not bool(torch.isfinite(p).all())), "")
        blame = "the KL" if "the KL" in wrong and not broken else next(iter(wrong), "the loss")
        part = wrong.get(blame)
        if part is not None and part.dtype == torch.float16 and bool(torch.isinf(part)):
            raise FloatingPointError(
                f"{blame} is a sum, and more than float16 holds (65,504): keep the model in float32 and use "
                "torch.autocast, or use bfloat16"
            )
        if blame == "the KL" and not broken:
            raise FloatingPointError(
                "the KL is not finite, though all weights are: sigma (init_sigma) or the weights are too large for the "
                "prior (its sigma; of dropout, 1 / length_scale); choose a wider prior, or a smaller init_sigma"
            )
        where = f", and weights {broken} are not" if broken else ""
        raise FloatingPointError(
            f"{blame} is not finite{where}: look for NaN in the inputs or targets, or lower the learning rate"
        )


def _counting(output: Any, target: Any, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output and target, without what the mask leaves out."""
    output, target = _tensor(output, "the output"), _tensor(target, "the target")
    return (output, target) if mask is None else (output[mask], target[mask])


class _Watch:
    """Notices a num_data that is too small, and a posterior that goes to its prior without having learnt anything."""

    _first = 20  # steps whose mean is the start
    _least = 100  # steps before anything is said

    def __init__(self) -> None:
        self.steps, self.warned = 0, False
        self.seen_all = False
        self.start = self.now = (0.0, 0.0)  # -log p and KL, in nats per target

    def see(self, nll: float, kl: float, *, targets: float, num_data: float) -> None:
        """Record the unscaled -log p and KL of a training step."""
        if targets > num_data and kl > 0 and not self.seen_all:
            self.seen_all = True
            warnings.warn(
                f"this batch has {targets:,.0f} targets, more than num_data={num_data:,}, so the KL weighs too much: "
                "num_data counts the targets of the whole training set, not batches or sequences; if in doubt, sum "
                "likelihood.count(y) over one epoch",
                stacklevel=5,
            )
        if self.warned:
            return
        self.steps += 1
        weight, values = max(1 / self.steps, 1 / self._first), (nll / targets, kl / num_data)
        self.now = tuple(old + weight * (new - old) for old, new in zip(self.now, values, strict=True))  # type: ignore[assignment]
        if self.steps == self._first:
            self.start = self.now
        if self.steps >= self._least and self._lost():
            self.warned = True
            warnings.warn(
                f"the KL outweighs the data: in {self.steps} steps it went from {self.start[1]:.2g} to "
                f"{self.now[1]:.2g} nats per target, and the fit did not improve ({self.start[0]:.3g} to "
                f"{self.now[0]:.3g}). Check that num_data counts the targets of the whole training set; then use a "
                "wider prior such as br.Normal(1.0), br.ELBO(warmup=...), fewer random weights (include, exclude), "
                "or a smaller model",
                stacklevel=5,
            )

    def _lost(self) -> bool:
        (nll, kl), (nll_now, kl_now) = self.start, self.now
        ruled = kl > 0.5 * abs(nll)
        return ruled and kl_now < 0.5 * kl and nll - nll_now < 0.03 * abs(nll)  # at 0.7 some learn later


def parts(model: nn.Module, kind: type) -> list[Any]:
    """The modules of this class, each once, however deep. A wrapper that poses as its module is not one of them."""
    found, seen, left = [], set[int](), [model]
    while left:  # what model.modules() gives, at a fraction of its time
        part = left.pop()
        if id(part) not in seen:
            seen.add(id(part))
            left += [inner for inner in reversed(part._modules.values()) if inner is not None]
            if kind in type(part).__mro__:
                found.append(part)
    return found


def _levels(model: nn.Module) -> list[TwoLevel]:
    return parts(model, TwoLevel)


def _tensor(value: Any, what: str) -> Any:
    """The tensor in what a model returned."""
    value = first_tensor(value)
    if isinstance(value, Tensor):
        return value
    kind, names = type(value).__name__, [f"output{entry}" for entry in entries(value)]
    way = f": pass one of its tensors ({', '.join(names[:5])})" if names else ""
    raise TypeError(f"{what} must be a tensor, or a tuple that starts with one, got {kind}{way}")


def _check_length_scale(value: float) -> float:
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"length_scale must be a positive number, got {value!r}: the prior is N(0, 1 / l^2)")
    return float(value)


def _without_values(x: Tensor) -> bool:
    """Whether the numbers are not there to be looked at: on "meta", among fake tensors, in a graph being captured."""
    return x.is_meta or isinstance(x, FakeTensor) or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _recompute_weights(layer: nn.Module) -> None:
    """Let torch's pruning and weight normalisation compute the layer's weights, as they do before each call."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, (BasePruningMethod, WeightNorm)):
            hook(layer, None)


def kl(model: nn.Module, *, length_scale: float = 1.0) -> Tensor:
    """KL(q(w) || p(w)) of all of the model's weights: an unscaled sum, every weight once.

    Closed form for Gaussian posteriors with a `Normal` prior; for other priors the single-sample estimate at the
    current draw. Dropout layers add their L2 form, (1 - p) l^2 / 2 * ||W||^2 for each matrix W that their noise acts
    on (arXiv 1506.02142, Eq. 7). Sums are taken in float32 or better.

    Args:
        model: any module; posteriors and noisy layers are found however deep they sit, behind any wrapper.
        length_scale: l, the prior length scale of dropout posteriors: the prior is N(0, 1 / l^2).
    """
    length_scale = _check_length_scale(length_scale)
    check_module(model)
    posteriors: list[RandomWeights] = parts(model, RandomWeights)
    terms = [posterior.posterior_kl() for posterior in posteriors]
    # a weight with a posterior has its KL there, also inside a layer with dropout
    random = {id(mean) for posterior in posteriors for mean in posterior.means.values()}
    seen: list[Tensor] = []
    layer: Any
    for layer in parts(model, NoisyLayer):
        _recompute_weights(layer)
        for weight, keep in layer.dropped_weights():
            # a weight that is computed from parameters (weight_norm, pruning) is random where those are
            made_of = [weight] if isinstance(weight, nn.Parameter) else list(layer.parameters())
            if random.isdisjoint(map(id, made_of)) and not any(weight is other for other in seen):
                seen.append(weight)
                wide = whole(weight).to(torch.promote_types(weight.dtype, torch.float32))
                terms.append((0.5 * keep * length_scale**2) * wide.square().sum())
    if not terms:
        first = next(model.parameters(), None)
        like = torch.empty(0, device="cpu") if first is None else first
        return torch.zeros((), device=like.device, dtype=like.dtype)
    kind = torch.float32
    for term in terms:
        kind = torch.promote_types(kind, term.dtype)
    return torch.stack([term.to(terms[0].device, kind) for term in terms]).sum()
