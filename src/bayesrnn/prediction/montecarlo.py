"""Monte Carlo prediction: many draws at once, and what they say about the uncertainty."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.draws import Draw, Stacked, Unfoldable
from bayesrnn.draws.torch_noise import folded_torch_noise, seeded_torch_noise
from bayesrnn.likelihoods import Categorical, Gaussian, Likelihood
from bayesrnn.nn import recurrence as layered
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.prediction import memory as footprint
from bayesrnn.prediction.result import Prediction, Summary
from bayesrnn.prediction.weights import (
    Rest,
    batched_weight_draws,
    first_of,
    gains_from_batches,
    has_unit_noise,
    posterior_of,
)

_FIRST = 4  # draws of whole weights in the first batch, which shows how much memory one takes;
_ROOMY = 64  # 1 where the memory limit is not this many times the weights
_AT_ONCE = 1 << 25  # bytes of one batch of draws there, which stay reserved: more is not faster


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
    (batch norm and the like change nothing and mix nothing) and comes back in the mode it was in.

    Args:
        model: any module that returns a tensor or a tuple whose first part is one, such as `(output, state)`.
        x, *args: its arguments. Tensors among `args` (a state) are repeated for every draw along axis 1, as
            torch.nn's states lie; tuples of tensors likewise.
        samples: number of draws.
        seed: makes the draws repeatable; None: taken from torch's global generator.
        likelihood: what the output means: `br.Categorical()` (logits over the last axis) or the `br.Gaussian` the
            model was trained with. None: Categorical if the output's last axis has more than one entry, else a
            Gaussian without observation noise.
        batch_dim: the axis of `x` that holds the batch; None: 1 where the model's first recurrent layer or embedding
            takes (T, B, …), else 0.
        memory_limit: bytes that the draws of one chunk may take, by an estimate; one draw always runs, and what
            `keep_samples` keeps comes on top. None: 1 GiB, on a GPU a quarter of what is free if that is more.
        keep_samples: False: keep the running averages only, for outputs too large to hold for every draw; then
            `.samples` and `.interval` are not available.
        progress: True: a progress bar; or a function called with (draws done, draws in all).
        kwargs: keyword arguments of the model, such as `{"hx": state}`; tensors among them as in `args`.

    Returns:
        A `Prediction`; its tensors have the shape of the model's output.
    """
    if not draws.is_whole(samples) or samples < 1:
        raise ValueError(f"samples must be a whole number of draws, at least 1, got {samples!r}")
    samples = int(samples)
    if seed is not None and not isinstance(seed, Integral):
        raise ValueError(f"seed must be a whole number, or None for new draws, got {seed!r}")
    if memory_limit is not None and not (draws.is_number(memory_limit) and memory_limit > 0):
        raise ValueError(f"memory_limit must be a positive number of bytes, got {memory_limit!r}")
    rest = Rest(args, dict(kwargs or {}))
    for part in footprint.tensors((x, *rest)):
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            raise ValueError("the input has NaN or infinite values: clean or mask them before predicting")
    base = int(torch.randint(2**62, ()).item()) if seed is None else int(seed)
    seeds = [draws.mix(base, k) for k in range(samples)]
    axis = _batch_dim(model) if batch_dim is None else _check_batch_dim(batch_dim, x)
    with (
        _alone(model),
        _Progress(progress, samples) as report,
        torch.no_grad(),
        _in_eval(model),
        layered.clear_about_states(),
    ):
        summary: Summary | None = None
        limit = footprint.default_limit(model) if memory_limit is None else int(memory_limit)
        for outputs in _outputs(model, x, rest, seeds, axis, limit):
            if summary is None:
                summary = Summary(_likelihood_for(outputs, likelihood), keep_samples, draws=samples)
            summary.add(outputs)
            del outputs  # before the next chunk is made
            report(summary.count)
    assert summary is not None
    return summary.prediction()


def _check_batch_dim(batch_dim: Any, x: Any) -> int:
    dims = x.dim() if isinstance(x, Tensor) else None
    if not draws.is_whole(batch_dim) or batch_dim < 0 or (dims is not None and batch_dim >= dims):
        known = "" if dims is None else f" below {dims}, as the input has {dims} axes"
        raise ValueError(f"batch_dim must be an axis of the input, a whole number from 0{known}, got {batch_dim!r}")
    return int(batch_dim)


_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


def _alone(model: nn.Module) -> threading.RLock:
    """Held while a model is predicted with: draws and drawn weights are in the model itself, so threads take turns."""
    return _LOCKS.setdefault(model, threading.RLock())


def _likelihood_for(outputs: Tensor, given: Likelihood | None) -> Likelihood | None:
    if given is not None:
        if not isinstance(given, (Categorical, Gaussian)):
            raise TypeError(f"likelihood must be br.Categorical() or br.Gaussian(), got {type(given).__name__}")
        if isinstance(given, Categorical) and (outputs.ndim < 2 or outputs.shape[-1] < 2):
            raise ValueError("br.Categorical needs logits of at least two classes on the output's last axis")
        return given
    return Categorical() if outputs.ndim > 1 and outputs.shape[-1] > 1 else None


def _batch_dim(model: nn.Module) -> int:
    for module in model.modules():
        if isinstance(module, nn.RNNBase) or hasattr(module, "word_dropout") or hasattr(module, "share"):
            return 0 if module.batch_first else 1
    return 0


@contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    modes = [(m, m.training) for m in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _outputs(model: nn.Module, x: Any, rest: Rest, seeds: list[int], axis: int, memory_limit: int) -> Iterator[Tensor]:
    """The outputs of all draws, in order, as chunks (draws, *output.shape)."""
    if _has_weight_draws(model):
        yield from _weight_draws(model, x, rest, seeds, memory_limit)
        return
    if not isinstance(x, Tensor) or x.dim() <= axis:
        yield from (_one(model, x, rest, Draw(seed)).unsqueeze(0) for seed in seeds)
        return
    try:
        with footprint.watch(model) as found:
            first = _folded(model, x, rest, seeds[:1], axis)
    except Unfoldable:
        yield from (_one(model, x, rest, Draw(seed)).unsqueeze(0) for seed in seeds)
        return
    yield first
    fit = found.draws_in(memory_limit, before=footprint.size((x, *rest)), result=footprint.size(first))
    chunk = min(fit, len(seeds))
    checked, done = {1}, 1
    while done < len(seeds):
        count = min(chunk, len(seeds) - done)
        # A model may put its batch where no rule finds it. So the first draw runs again as the last of the first
        # chunk of each size, and folding goes on only where it gives the same output as alone.
        again = count not in checked
        if again and count < chunk:
            count += 1
        part = seeds[done : done + count - again] + seeds[:1] * again
        try:
            outputs = _folded(model, x, rest, part, axis, alone=first.shape[1:])
        except Exception:
            if len(part) == 1:
                raise
            chunk = 1  # alone each draw ran: the model does not take a longer batch
            continue
        if again and not _alike(outputs[-1], first[0]):
            chunk = 1
            continue
        checked.add(count)
        done += count - again
        outputs = outputs[: count - again]
        yield outputs
        del outputs


def _alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for the order of sums."""
    tolerance = torch.finfo(b.dtype).eps ** 0.5 if b.is_floating_point() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()) if b.numel() else 0.0)


def _has_weight_draws(model: nn.Module) -> bool:
    rates: list[Any] = [getattr(m, "rates", None) for m in model.modules()]
    return any(isinstance(m, Bayesian) for m in model.modules()) or any(r and r.weight_dropout > 0 for r in rates)


def _one(model: nn.Module, x: Any, rest: Rest, draw: Draw) -> Tensor:
    """One draw, one pass."""
    with draws.bind(model, draw), seeded_torch_noise(model, draw):
        return first_of(model(x, *rest.args, **rest.kwargs))


def _folded(
    model: nn.Module, x: Tensor, rest: Rest, seeds: Sequence[int], axis: int, alone: torch.Size | None = None
) -> Tensor:
    """The draws of all `seeds` in one pass over a batch that repeats the input; one alone has shape `alone`."""
    count, rows = len(seeds), x.shape[axis]
    folded = torch.cat([x] * count, dim=axis) if count > 1 else x
    source = Stacked([Draw(seed) for seed in seeds])
    with draws.bind(model, source), folded_torch_noise(model, source, rows=rows * count, batch_dim=axis):
        more = rest.repeated(count)
        output = first_of(model(folded, *more.args, **more.kwargs))
    if count == 1:
        return output.unsqueeze(0)
    for out_axis, size in enumerate(alone or ()):
        if output.shape == (*alone[:out_axis], size * count, *alone[out_axis + 1 :]):  # type: ignore[index]
            return output.unflatten(out_axis, (count, size)).movedim(out_axis, 0)
    raise Unfoldable("the output has no batch axis")


def _weight_draws(model: nn.Module, x: Any, rest: Rest, seeds: list[int], memory_limit: int) -> Iterator[Tensor]:
    """Draws of whole weights: batched by vmap on an accelerator and for small models on a CPU, else one by one."""
    q, name = posterior_of(model)
    vectorised = q is not None and not has_unit_noise(model) and gains_from_batches(q)
    weights = 0 if q is None else footprint.size(list(q.means.values()))
    roomy = vectorised and memory_limit > _ROOMY * weights
    done, chunk, known = 0, _FIRST if roomy else 1, False
    while done < len(seeds):
        part = [Draw(seed) for seed in seeds[done : done + chunk]]
        with footprint.watch(model) as found:
            if vectorised and q is not None and len(part) > 1:
                try:
                    outputs = batched_weight_draws(q, x, rest, part, name)
                except torch.OutOfMemoryError:
                    raise
                except Exception:  # alone each draw may run: the model has something that vmap does not know
                    vectorised, chunk = False, 1
                    continue
            else:
                outputs = torch.stack([_one(model, x, rest, draw) for draw in part])
        result = footprint.size(outputs[0])
        yield outputs
        del outputs
        done += len(part)
        left = len(seeds) - done
        if vectorised and left and not known:
            on_cpu = next(model.parameters()).device.type == "cpu"
            limit = min(memory_limit, _AT_ONCE) if on_cpu else memory_limit
            most = found.draws_in(limit, before=weights, result=result)
            chunk, known = -(-left // -(-left // most)), True  # chunks of one size


class _Progress:
    """Calls the user's function, or moves a bar, as draws are done."""

    def __init__(self, progress: bool | Callable[[int, int], None], total: int) -> None:
        self.total, self.bar, self.task = total, None, None
        self.call = progress if callable(progress) else None
        if progress is True:
            from rich.progress import Progress

            self.bar = Progress(transient=True)
            self.task = self.bar.add_task("draws", total=total)

    def __enter__(self) -> Callable[[int], None]:
        if self.bar is not None:
            self.bar.start()
        return self.report

    def report(self, done: int) -> None:
        if self.call is not None:
            self.call(done, self.total)
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done)

    def __exit__(self, *exc: object) -> None:
        if self.bar is not None:
            self.bar.stop()
