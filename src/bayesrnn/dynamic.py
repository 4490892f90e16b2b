"""Dynamic evaluation: keep learning during testing (Mikolov et al. 2010; Krause et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import kernels
from bayesrnn.checks import check_choice, is_number, is_whole
from bayesrnn.compilation import copied
from bayesrnn.draws import differentiable_in_eval
from bayesrnn.likelihoods import Categorical, Likelihood
from bayesrnn.nn.recurrence import clear_about_states
from bayesrnn.posteriors.base import RandomWeights
from bayesrnn.posteriors.sharpening import PosteriorSharpening
from bayesrnn.wrappers import unwrapped

_WORTH_RECORDING = 20  # windows, more than a recording costs


@dataclass(frozen=True)
class DynamicResult:
    """`nll` is the summed -log p of all targets, each predicted before it was learnt from; or the bound on it."""

    nll: float
    count: int
    model: nn.Module
    """The model as it was after the last window."""

    @property
    def mean_nll(self) -> float:
        return self.nll / self.count

    @property
    def perplexity(self) -> float:
        """Infinite where it is too large for a float: the steps led nowhere."""
        return exp_or_inf(self.mean_nll)


def exp_or_inf(x: float) -> float:
    """exp(x); infinite where that is too large for a float, or x is NaN."""
    return math.exp(x) if x < 700 else math.inf


def detach(state: Any) -> Any:
    """The state without its history: a tensor, or tuples, lists and dicts of them."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, dict):
        return {key: detach(value) for key, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*map(detach, state))
    if isinstance(state, tuple | list):
        return type(state)(map(detach, state))
    return state


def mean_copy(model: nn.Module) -> nn.Module:
    """A plain copy of the model's posterior mean, in eval mode."""
    inner = unwrapped(model)
    posterior = inner.q if isinstance(inner, PosteriorSharpening) else inner
    made = (posterior.mean_module() if isinstance(posterior, RandomWeights) else copied(inner)).eval()
    for module in made.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return made


def dynamic_evaluation(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    lr: float = 0.1,
    window: int = 35,
    likelihood: Likelihood | None = None,
    rule: str = "sgd",
    decay: float = 0.0,
    gradient_scale: dict[str, Tensor] | None = None,
    epsilon: float = 1e-3,
    clip: float | None = None,
    state: Any = None,
    carry_state: bool = True,
    bound: bool = False,
    graph: bool = False,
) -> DynamicResult:
    """Score a stream window by window, taking a gradient step on the posterior mean after each.

    The model itself is not changed: a copy of its mean is, and is returned.

    Args:
        model: maps (window (T, B), state) to (output, state).
        inputs: the stream, time first: (N,) for one stream, or (N, B, …).
        targets: the stream of expected outputs, time first.
        lr: step size on the loss summed over the window's steps, averaged over streams. Choose it on validation data.
        window: steps per update.
        rule: "sgd" (Mikolov), or "rms" (Krause): steps divided by `sqrt(gradient_scale) + epsilon`.
        decay: for both rules, the pull back to the trained weights after each step (Krause's lambda), in [0, 1).
        gradient_scale: for "rms", the mean squared gradients on training data by parameter name, from
            `br.dynamic.mean_squared_gradients`.
        clip: largest global norm of a window's gradient; None: no limit.
        state: the first window's.
        carry_state: False: the state starts from zero in every window.
        bound: for a `br.PosteriorSharpening`: score every window by the sharpened bound on its -log p, as
            `model.bound` does, around the mean as it has been learnt so far. Steps are as without it, by the window's
            gradient at the mean; the state is carried from the sharpened weights.
        graph: on CUDA, record a window with its step as one CUDA graph and replay it, several times as fast. For
            models whose forward is the same tensor operations for every window; one that cannot be recorded runs
            eagerly.

    Returns:
        `DynamicResult` with `.nll`, `.count`, `.perplexity` and the adapted `.model`.
    """
    _check_learning()
    check_choice("rule", rule, ("sgd", "rms"))
    if rule == "rms" and gradient_scale is None:
        raise ValueError("rule='rms' needs gradient_scale: make it with bayesrnn.dynamic.mean_squared_gradients")
    if not is_number(lr) or not 0 <= lr < math.inf:
        raise ValueError(f"lr must be a finite number >= 0, got {lr!r}")
    if not is_number(decay) or not 0 <= decay < 1:
        raise ValueError(f"decay must be a number in [0, 1), got {decay!r}: 0 is no pull back")
    if clip is not None and (not is_number(clip) or not clip > 0):
        raise ValueError(f"clip must be a number > 0, the largest norm of a gradient, or None, got {clip!r}")
    if state is not None and not carry_state:
        raise ValueError("a state was given with carry_state=False, which starts every window from zero")
    lr, decay, clip = float(lr), float(decay), None if clip is None else float(clip)
    scored = Categorical() if likelihood is None else likelihood
    _check_stream(inputs, targets, window, scored)
    adapted = mean_copy(model)
    weights = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    scale = dict(gradient_scale or {}) if rule == "rms" else {}
    if rule == "rms" and (missing := weights.keys() - scale.keys()):
        raise ValueError(f"gradient_scale has nothing for {sorted(missing)[0]!r}: make it from this same model")
    if inputs.dim() == 1:
        inputs, targets = inputs.unsqueeze(1), targets.unsqueeze(1)
    sharpening = _Sharpening(model, adapted) if bound else None
    frozen = sharpening.frozen if sharpening else []
    moving = [*weights.values(), *(p.requires_grad_() for p in frozen)]
    found, learning = _Score(model, lr), _Rule(weights, lr, decay, scale, epsilon)

    def score_and_learn(x: Tensor, y: Tensor, before: Any) -> tuple[Tensor, Tensor, Any]:
        output, after = call(adapted, x, before)
        nll = scored.nll(output, y)
        gradients = _gradients(nll / x.shape[1], moving)
        value = nll.detach()
        if sharpening is not None:
            (output, after), kl = sharpening(x, before, dict(zip(map(id, moving), gradients, strict=True)))
            value = scored.nll(output, y) + kl
        learning.step(gradients[: len(weights)], clip)
        return value, output.detach(), detach(after)

    windows = list(zip(inputs.split(int(window)), targets.split(int(window)), strict=True))
    changed = [*adapted.parameters(), *adapted.buffers()]
    work = kernels.Windows(score_and_learn, changed, record=graph and len(windows) > _WORTH_RECORDING)
    with differentiable_in_eval(adapted), torch.enable_grad(), clear_about_states(), _no_autocast_cache():
        for x, y in windows:
            value, output, state = work(x, y, state if carry_state else None)
            found.add(value, scored.count(y), output)
    for p in frozen:
        p.requires_grad_(False)
    total, count = found.sums()
    return DynamicResult(total, count, adapted)


def _check_learning() -> None:
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "dynamic evaluation takes gradients, which torch.inference_mode() forbids: leave that block, or use "
            "torch.no_grad() in its place"
        )


@contextmanager
def _no_autocast_cache() -> Iterator[None]:
    """`torch.autocast` caches low-precision weights for its whole block, but here the weights change inside it."""
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


def _gradients(loss: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """None for a weight that the loss does not depend on."""
    if not weights or not loss.requires_grad:
        return (None,) * len(weights)
    return torch.autograd.grad(loss, weights, allow_unused=True)


class _Sharpening:
    """Weights moved by a window's own gradient, and what that costs: the second level of a `PosteriorSharpening`."""

    def __init__(self, model: nn.Module, adapted: nn.Module) -> None:
        inner = unwrapped(model)
        if not isinstance(inner, PosteriorSharpening):
            raise TypeError(f"bound=True is for a br.PosteriorSharpening, got {type(inner).__name__}")
        self._adapted, self._variance, self._longest = adapted, inner.sigma0**2, inner.max_gradient_norm
        # by the parameter, not by its name: tied weights have several
        self._moves = [(adapted.get_parameter(name), eta.detach()) for name, eta in inner.eta.by_name().items()]
        self.frozen = [p for p, _ in self._moves if not p.requires_grad]
        """Sharpened, but not learnt on."""

    @torch.no_grad()
    def __call__(self, x: Tensor, state: Any, gradients: dict[int, Tensor | None]) -> tuple[tuple[Tensor, Any], Tensor]:
        """Output and state, and the KL. Eta is a rate for the sum over streams; the gradients are of their mean."""
        found = [(p, eta, g * x.shape[1]) for p, eta in self._moves if (g := gradients[id(p)]) is not None]
        if not found:
            return call(self._adapted, x, state), torch.zeros((), device=x.device)
        scale: Any = 1.0
        if self._longest is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([g for _, _, g in found])))
            scale = (self._longest / norm.clamp_min(1e-12)).clamp_max(1.0)
        steps = [eta * (g * scale) for _, eta, g in found]
        total = torch.stack([step.square().sum() for step in steps]).sum()
        moved: list[Tensor] = [p for p, _, _ in found]
        kept = [p.clone() for p in moved]
        torch._foreach_sub_(moved, steps)
        try:
            return call(self._adapted, x, state), total / (2 * self._variance)
        finally:
            torch._foreach_copy_(moved, kept)


def _check_stream(inputs: Tensor, targets: Tensor, window: int, scored: Likelihood) -> None:
    if not is_whole(window) or window < 1:
        raise ValueError(f"window must be at least 1, a whole number of steps, got {window!r}")
    if not inputs.dim() or not targets.dim() or not 0 < inputs.shape[0] == targets.shape[0]:
        raise ValueError(
            "inputs and targets must be equally long streams of at least one step, "
            f"got shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    for name, part in (("inputs", inputs), ("targets", targets)):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise ValueError(f"the {name} have NaN or infinite values: clean or mask them first")
    if not int(scored.count(targets)):
        raise ValueError("no target of this stream counts: it is empty, or all of it is padding; leave it out")


_LOOK_EVERY = 100  # windows between looks at a GPU's losses: each look waits for all that is under way


class _Score:
    """The summed loss and the number of targets; raises where a loss is not finite."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self._model, self._lr = model, lr
        self._total, self._count = 0.0, 0
        self._pending: list[tuple[Tensor, int | Tensor]] = []
        self._every = 1  # the first at once

    def add(self, nll: Tensor, count: int | Tensor, output: Tensor) -> None:
        self._pending.append((nll, count))
        if len(self._pending) >= self._every:
            self._look(output)
            self._every = _LOOK_EVERY if nll.is_cuda else 1

    def sums(self) -> tuple[float, int]:
        self._look(None)
        return self._total, self._count

    def _look(self, output: Tensor | None) -> None:
        if not self._pending:
            return
        losses, numbers = zip(*self._pending, strict=True)
        values, counts = (torch.stack([torch.as_tensor(v) for v in part]).tolist() for part in (losses, numbers))
        for value, count in zip(values, counts, strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(_why_not_finite(self._model, output, self._count, self._lr))
            self._total, self._count = self._total + value, self._count + int(count)
        self._pending = []


def _why_not_finite(model: nn.Module, output: Tensor | None, count: int, lr: float) -> str:
    """`model` is the model before learning. Blame the step size only if its weights were finite."""
    sound = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    if sound and lr > 0 and count > 0:
        return f"dynamic evaluation diverged after {count} target{'s' * (count != 1)}: lower lr (now {lr:g})"
    if output is not None and not bool(torch.isfinite(output).all()):
        return "the model's output has NaN or infinite values, not by dynamic evaluation: check its weights"
    return "the negative log-likelihood is not finite, not by dynamic evaluation: the model's output is too far off"


def call(model: Callable[..., Any], x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Output and next state (None where the model returns the output alone)."""
    result = model(x) if state is None else model(x, state)
    if isinstance(result, tuple):
        return result[0], result[1]
    return result, None


class _Rule:
    """The step after a window. What the RMS rule divides by and the pull back are the same in every window."""

    def __init__(
        self, weights: dict[str, nn.Parameter], lr: float, decay: float, scale: dict[str, Tensor], epsilon: float
    ) -> None:
        self._lr = lr
        self._weights: list[Tensor] = list(weights.values())
        rms = [scale[name].sqrt() for name in weights] if scale else []
        self._inverse = [1 / (r + epsilon) for r in rms]
        self._start = [w.detach().clone() for w in self._weights] if decay else []
        self._pull: Any = decay
        if rms and decay:
            # Krause et al., Eq. 6: the pull is stronger where gradients were large
            mean = torch.stack([r.sum() for r in rms]).sum() / sum(r.numel() for r in rms)
            self._pull = [decay * torch.clamp(r / mean, max=1 / decay) for r in rms]

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor | None, ...], clip: float | None) -> None:
        moving = [k for k, g in enumerate(gradients) if g is not None]
        known = [g for g in gradients if g is not None]
        changed = [self._weights[k] for k in moving]
        factor: Any = 1.0
        if clip is not None and known:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(known)))
            factor = (clip / (norm + 1e-12)).clamp(max=1.0)
        before = list(torch._foreach_sub(self._start, self._weights)) if self._start else []
        if known:
            steps = list(torch._foreach_mul(known, -self._lr * factor))
            if self._inverse:
                torch._foreach_mul_(steps, [self._inverse[k] for k in moving])
            torch._foreach_add_(changed, steps)
        if before:
            torch._foreach_mul_(before, self._pull)
            torch._foreach_add_(self._weights, before)


def mean_squared_gradients(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    window: int = 35,
    likelihood: Likelihood | None = None,
    carry_state: bool = True,
    graph: bool = False,
) -> dict[str, Tensor]:
    """Mean over windows of the squared gradients of the posterior mean, for `rule="rms"`; run it on training data."""
    _check_learning()
    scored = Categorical() if likelihood is None else likelihood
    _check_stream(inputs, targets, window, scored)
    mean = mean_copy(model)
    weights = {n: p for n, p in mean.named_parameters() if p.requires_grad}
    sums = {n: torch.zeros_like(p, requires_grad=False) for n, p in weights.items()}
    if inputs.dim() == 1:
        inputs, targets = inputs.unsqueeze(1), targets.unsqueeze(1)

    def add(x: Tensor, y: Tensor, before: Any) -> tuple[Tensor, Tensor, Any]:
        output, after = call(mean, x, before)
        loss = scored.nll(output, y) / x.shape[1]
        gradients = _gradients(loss, list(weights.values()))
        known = [(total, g) for total, g in zip(sums.values(), gradients, strict=True) if g is not None]
        if known:
            totals, found = map(list, zip(*known, strict=True))
            torch._foreach_addcmul_(totals, found, found)
        return loss.detach(), output.detach(), detach(after)

    windows = list(zip(inputs.split(int(window)), targets.split(int(window)), strict=True))
    changed = [*mean.buffers(), *sums.values()]
    work = kernels.Windows(add, changed, record=graph and len(windows) > _WORTH_RECORDING)
    state: Any = None
    with differentiable_in_eval(mean), torch.enable_grad():
        for x, y in windows:
            _, _, state = work(x, y, state if carry_state else None)
    return {name: s / len(windows) for name, s in sums.items()}
