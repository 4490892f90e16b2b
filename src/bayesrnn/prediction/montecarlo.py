"""Monte Carlo prediction: many draws, and what they say about the uncertainty."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws
from bayesrnn.checks import check_whole, is_number, is_whole
from bayesrnn.draws import Draw
from bayesrnn.errors import needed_by
from bayesrnn.likelihoods import Categorical, Distribution, Gaussian, Likelihood
from bayesrnn.nn import NoisyLayer
from bayesrnn.nn.recurrence import clear_about_states
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.prediction import memory
from bayesrnn.prediction.calls import Passes, Rest, alone, in_eval
from bayesrnn.prediction.distributions import DistributionSummary
from bayesrnn.prediction.folding import folded_draws
from bayesrnn.prediction.result import Prediction, Summary
from bayesrnn.prediction.weights import batched_weight_draws, gains_from_batches, has_unit_noise, posterior_of
from bayesrnn.wrappers import check_module

_FIRST = 4  # draws of whole weights in the first batch, which shows how much memory one takes;
_ROOMY = 64  # 1 where the memory limit is not this many times the weights
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_AT_ONCE = 1 << 25  # bytes of one batch of draws on a CPU, which stay reserved: more is not faster


def predict(
    model: nn.Module,
    x: Any,
    *args: Any,
    samples: int = 32,
    seed: int | None = None,
    likelihood: Likelihood | None = None,
    batch_dim: int | None = None,
    memory_limit: int | None = None,
    keep_samples: bool = True,
    progress: bool | Callable[[int, int], None] = False,
    kwargs: Mapping[str, Any] | None = None,
) -> Prediction:
    """Predict with `samples` draws of the weights, averaging probabilities (not logits).

    Draws of dropout layers, ours and torch's, are folded into the batch; draws of whole weights are batched where
    the device gains from it. The result depends on the seed, not on how the work is cut. The model runs in eval mode
    (batch norm and the like change nothing and mix nothing) and comes back in the mode it was in. State that it keeps
    in attributes is restored: every draw starts from it.

    Averages are made in float32 or better, whatever the model's dtype: averaging adds a relative error of at most
    `samples` * 2**-24 to that of one draw's output (2**-53 in place of 2**-24 for a model in float64).

    Args:
        model: any module that returns a tensor or a tuple whose first part is one, such as `(output, state)`.
        x: its first argument.
        *args: its further arguments. Tensors among them (a state), alone or in tuples, are repeated for every draw
            along axis 1, as torch.nn's states lie. With a tensor whose batch is elsewhere, such as lengths (B,) or a
            mask (B, T), every draw runs alone: the same result in more time.
        samples: number of draws.
        seed: makes the draws repeatable; None: taken from torch's global generator.
        likelihood: what the output means: `br.Categorical()` (logits over the last axis), or the `br.Gaussian`,
            `br.StudentT` or other distribution the model was trained with. None: Categorical if the output
            has at least two axes and more than one entry on the last, else a Gaussian without observation noise.
        batch_dim: the axis of `x` that holds the batch; None: 1 where the model's first recurrent layer or embedding
            takes (T, B, …), else 0.
        memory_limit: bytes that the draws of one chunk may take, by an estimate. At least one draw runs. Memory for
            `keep_samples` is extra. None: 1 GiB, on a GPU a quarter of what is free if that is more.
        keep_samples: False: keep the running averages only, for outputs too large to hold for every draw; then
            `.samples` and `.interval` are not available.
        progress: True: a progress bar; or a function called with (draws done, draws in all).
        kwargs: keyword arguments of the model, such as `{"hx": state}`; tensors among them as in `args`.

    Returns:
        A `Prediction`; its tensors have the shape of the model's output, or, where the likelihood reads parameters from
        the last axis, that shape without it; then there are also `.quantile(q)` and `.crps(y)`.
    """
    samples = check_whole("samples", samples, least=1, what="draws")
    if memory_limit is not None and not (is_number(memory_limit) and memory_limit > 0):
        raise ValueError(f"memory_limit must be a positive number of bytes, got {memory_limit!r}")
    check_module(model)
    rest, parts = Rest(args, dict(kwargs or {})), list(model.modules())
    _check_values(parts, x, rest)
    _check_finite(x, rest)
    base = draws.seed_or_new(seed)
    seeds = [draws.mix(base, k) for k in range(samples)]
    axis = _batch_dim(parts) if batch_dim is None else _check_batch_dim(batch_dim, x)
    random = samples == 1 or any(isinstance(m, Bayesian) for m in parts) or has_unit_noise(parts)
    with (
        _tensors_for(x), alone(model), _reports(progress, samples) as report, torch.no_grad(), in_eval(parts),
        clear_about_states(),
    ):  # fmt: skip
        summary: Summary | None = None
        first: Tensor | None = None
        limit = memory.default_limit(model) if memory_limit is None else int(memory_limit)
        for outputs in _outputs(Passes(model, parts, x, rest), seeds, axis, limit):
            if summary is None:
                if isinstance(likelihood, Distribution):
                    summary = DistributionSummary(likelihood, keep_samples, draws=samples)
                else:
                    summary = Summary(_likelihood_for(outputs, likelihood), keep_samples, draws=samples)
            summary.add(outputs)
            if not random:  # functions of torch show their noise when they run
                first = outputs[0].clone() if first is None else first
                random = bool((outputs != first).any())
            del outputs  # before the next chunk is made
            report(summary.count)
    assert summary is not None
    if not random:
        advice = "add dropout, or wrap the model in br.BayesByBackprop"
        warnings.warn(f"the model has no noise, so all {samples} draws are equal; {advice}", stacklevel=2)
    return summary.prediction()


@contextmanager
def _tensors_for(x: Any) -> Iterator[None]:
    """Explains errors of a model that is given an array of numpy, or a list."""
    try:
        yield
    except (AttributeError, TypeError) as error:
        if not isinstance(x, (np.ndarray, list)):
            raise
        kind = "a numpy array" if isinstance(x, np.ndarray) else "a list"
        raise TypeError(f"x is {kind}, and the model takes tensors: pass torch.as_tensor(x)") from error


def _check_values(parts: Sequence[nn.Module], x: Any, rest: Rest) -> None:
    """There are numbers to predict from."""
    weights = (p for part in parts for p in part._parameters.values() if p is not None)
    found = (*weights, *memory.tensors((x, rest.args, dict(rest.kwargs))))
    fake = found and torch._C._get_dispatch_mode(_FAKE) is not None
    if fake or any(p.is_meta or isinstance(p, FakeTensor) for p in found):
        raise TypeError("br.predict needs real tensors: the model or its input is on the meta device, or fake")


def _check_finite(x: Any, rest: Rest) -> None:
    """Refuse NaN and infinity. Later arguments and parts of a dict or tuple may be -inf, for masks."""
    alone = isinstance(x, (Tensor, PackedSequence))
    bad = [p for p in memory.tensors(x) if alone and p.is_floating_point() and not bool(torch.isfinite(p).all())]
    for part in memory.tensors((() if alone else x, rest.args, dict(rest.kwargs))):
        if part.is_floating_point() and bool((part.isnan() | part.isposinf()).any()):
            bad.append(part)
    if bad:
        raise ValueError("the input has NaN or infinite values: clean or mask them before predicting")


def _check_batch_dim(batch_dim: Any, x: Any) -> int:
    dims = x.dim() if isinstance(x, Tensor) else None
    if not is_whole(batch_dim) or batch_dim < 0 or (dims is not None and batch_dim >= dims):
        known = "" if dims is None else f" below {dims}, as the input has {dims} axes"
        raise ValueError(f"batch_dim must be an axis of the input, a whole number from 0{known}, got {batch_dim!r}")
    return int(batch_dim)


def _likelihood_for(outputs: Tensor, given: Likelihood | None) -> Likelihood | None:
    if given is not None:
        if not isinstance(given, (Categorical, Gaussian)):
            raise TypeError(
                "likelihood must be br.Categorical() or br.Gaussian(), or a distribution such as br.StudentT(), "
                f"got {type(given).__name__}"
            )
        if isinstance(given, Categorical) and (outputs.ndim < 2 or outputs.shape[-1] < 2):
            raise ValueError("br.Categorical needs logits of at least two classes on the output's last axis")
        return given
    return Categorical() if outputs.ndim > 2 and outputs.shape[-1] > 1 else None  # the first axis holds draws


def _batch_dim(parts: Sequence[nn.Module]) -> int:
    for module in parts:
        if isinstance(module, NoisyLayer) and module.input_batch_dim is not None:
            return module.input_batch_dim
        if isinstance(module, nn.RNNBase):
            return 0 if module.batch_first else 1
    return 0


def _outputs(passes: Passes, seeds: list[int], axis: int, memory_limit: int) -> Iterator[Tensor]:
    """The outputs of all draws, in order, as chunks (draws, *output.shape)."""
    if any(isinstance(m, Bayesian) or (isinstance(m, NoisyLayer) and m.draws_weights) for m in passes.parts):
        yield from _weight_draws(passes, seeds, memory_limit)
    elif isinstance(passes.x, Tensor) and passes.x.dim() > axis:
        yield from folded_draws(passes, seeds, axis, memory_limit)
    else:
        yield from (passes.one(Draw(seed)).unsqueeze(0) for seed in seeds)


def _weight_draws(passes: Passes, seeds: list[int], memory_limit: int) -> Iterator[Tensor]:
    """Draws of whole weights: batched by vmap on an accelerator and for small models on a CPU, else one by one."""
    q, _ = posterior_of(passes.model)
    vectorised = q is not None and not has_unit_noise(passes.parts) and gains_from_batches(q)
    weights = 0 if q is None else memory.size(list(q.means.values()))
    roomy = vectorised and memory_limit > _ROOMY * weights
    done, chunk, known = 0, _FIRST if roomy else 1, False
    while done < len(seeds):
        part = [Draw(seed) for seed in seeds[done : done + chunk]]
        with memory.watch(passes.parts if vectorised and not known else ()) as found:
            if vectorised and q is not None and len(part) > 1:
                try:
                    outputs = batched_weight_draws(passes.model, passes.x, passes.rest, part)
                except torch.OutOfMemoryError:
                    raise
                except Exception:  # alone each draw may run: the model has something that vmap does not know
                    vectorised, chunk = False, 1
                    continue
            else:
                outputs = torch.stack([passes.one(draw) for draw in part])
        result = memory.size(outputs[0])
        yield outputs
        del outputs
        done += len(part)
        left = len(seeds) - done
        if vectorised and left and not known:
            on_cpu = q is not None and next(iter(q.means.values())).device.type == "cpu"
            limit = min(memory_limit, _AT_ONCE) if on_cpu else memory_limit
            most = found.draws_in(limit, before=weights, result=result)
            chunk, known = -(-left // -(-left // most)), True  # chunks of one size


@contextmanager
def _reports(progress: bool | Callable[[int, int], None], total: int) -> Iterator[Callable[[int], None]]:
    """Calls the user's function, or moves a bar, as draws are done."""
    if progress is True:
        with needed_by("predict(progress=True)", "rich"):
            from rich.progress import Progress

        with Progress(transient=True) as bar:
            task = bar.add_task("draws", total=total)
            yield lambda done: bar.update(task, completed=done)
    elif callable(progress):
        call = progress
        yield lambda done: call(done, total)
    else:
        yield lambda done: None
