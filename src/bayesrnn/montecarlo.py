"""Monte Carlo prediction: many draws at once, and what they say about the uncertainty."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import draws, footprint, kernels
from bayesrnn.draws import Draw, Stacked, Unfoldable
from bayesrnn.likelihoods import Categorical, Gaussian, Likelihood
from bayesrnn.nn import Dropout, Embedding, SequenceDropout, layered
from bayesrnn.nn.plain import folded_torch_noise, seeded_torch_noise
from bayesrnn.posteriors.base import Bayesian
from bayesrnn.posteriors.sharpening import PosteriorSharpening
from bayesrnn.prediction import Prediction, Summary

_SMALL = 1 << 20  # weights up to which draws are batched on a CPU
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
    seeds = [_mix(base, k) for k in range(samples)]
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


class Rest(NamedTuple):
    """The model's arguments after the first."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = MappingProxyType({})

    def repeated(self, count: int) -> Rest:
        """For a batch of `count` draws."""
        repeated = {name: _repeat_states(value, count) for name, value in self.kwargs.items()}
        return Rest(_repeat_states(self.args, count), repeated)


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


def _mix(seed: int, k: int) -> int:
    """Seeds of the single draws: distinct for distinct (seed, k)."""
    return (seed * 0x9E3779B97F4A7C15 + k * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % (1 << 62)


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


def _first(output: Any) -> Tensor:
    if isinstance(output, (tuple, list)):
        output = output[0]
    if isinstance(output, PackedSequence):
        output = output.data
    if not isinstance(output, Tensor):
        raise TypeError(f"the model must return a tensor or a tuple that starts with one, got {type(output).__name__}")
    return output


def _one(model: nn.Module, x: Any, rest: Rest, draw: Draw) -> Tensor:
    """One draw, one pass."""
    with draws.bind(model, draw), seeded_torch_noise(model, draw):
        return _first(model(x, *rest.args, **rest.kwargs))


def _folded(
    model: nn.Module, x: Tensor, rest: Rest, seeds: Sequence[int], axis: int, alone: torch.Size | None = None
) -> Tensor:
    """The draws of all `seeds` in one pass over a batch that repeats the input; one alone has shape `alone`."""
    count, rows = len(seeds), x.shape[axis]
    folded = torch.cat([x] * count, dim=axis) if count > 1 else x
    source = Stacked([Draw(seed) for seed in seeds])
    with draws.bind(model, source), folded_torch_noise(model, source, rows=rows * count, batch_dim=axis):
        more = rest.repeated(count)
        output = _first(model(folded, *more.args, **more.kwargs))
    if count == 1:
        return output.unsqueeze(0)
    for out_axis, size in enumerate(alone or ()):
        if output.shape == (*alone[:out_axis], size * count, *alone[out_axis + 1 :]):  # type: ignore[index]
            return output.unflatten(out_axis, (count, size)).movedim(out_axis, 0)
    raise Unfoldable("the output has no batch axis")


def _repeat_states(args: Any, count: int) -> Any:
    if count == 1:
        return args
    if isinstance(args, Tensor):
        if args.dim() < 2:
            raise Unfoldable("an argument has no batch axis")
        return torch.cat([args] * count, dim=1)
    if isinstance(args, (tuple, list)):
        return tuple(_repeat_states(a, count) for a in args)
    return args


def _weight_draws(model: nn.Module, x: Any, rest: Rest, seeds: list[int], memory_limit: int) -> Iterator[Tensor]:
    """Draws of whole weights: batched by vmap on an accelerator and for small models on a CPU, else one by one."""
    q, name = _bayesian(model)
    vectorised = q is not None and not _has_unit_noise(model) and _gains_from_batches(q)
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


def _gains_from_batches(q: Bayesian) -> bool:
    """On a CPU with compiled kernels, models up to a size: see "Predictions" in kernels/cpu/README.md."""
    first = next(q.parameters())
    if first.device.type != "cpu":
        return True
    small = sum(m.numel() for m in q.means.values()) <= _SMALL
    return small and kernels.path("cpu", name="gaussian", dtype=first.dtype) == "compiled"


def _bayesian(model: nn.Module) -> tuple[Bayesian | None, str]:
    """The posterior over the weights of all of `model`, and its name there."""
    if isinstance(model, PosteriorSharpening):
        return model.q, "q"
    return (model, "") if isinstance(model, Bayesian) else (None, "")


def batched_weight_draws(q: Bayesian, x: Any, rest: Rest, part: Sequence[Draw], name: str = "") -> Tensor:
    """All draws of `part` at once: the module mapped over a stack of weights."""

    def run(weights: dict[str, Tensor]) -> Tensor:
        with q.placed(weights):
            return _first(q.module(x, *rest.args, **rest.kwargs))

    with _mapped(q, x):
        return torch.vmap(run)(_stacked_weights(q, part, name))


class HeldDraws:
    """Several draws of the weights, made once and held over many calls, that are run at once.

    Example::

        held = HeldDraws(model, [Draw(1), Draw(2)])
        logits, state = held(x)                 # (2, T, B, V), and states with the draws as their first axis
        logits, state = held(more, state)
    """

    def __init__(self, model: nn.Module, part: Sequence[Draw]) -> None:
        q, name = _bayesian(model)
        assert q is not None
        self._q, self._weights = q, _stacked_weights(q, part, name)

    @staticmethod
    def serve(model: nn.Module) -> bool:
        """Whether draws of this model can be run at once, and faster than one by one."""
        q, _ = _bayesian(model)
        return q is not None and not _has_unit_noise(model) and _gains_from_batches(q)

    def __call__(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        def run(weights: dict[str, Tensor], own: Any = None) -> Any:
            with self._q.placed(weights):
                return self._q.module(x) if own is None else self._q.module(x, own)

        with _mapped(self._q, x):
            arguments = (self._weights,) if state is None else (self._weights, state)
            output, after = torch.vmap(run)(*arguments)
            return output, after


def _stacked_weights(q: Bayesian, part: Sequence[Draw], name: str) -> dict[str, Tensor]:
    """The weights of all draws, (draws, *shape) each."""
    device = q.means[q._names[0]].device
    noises = [draws.Bound(draw, name).weights("weights", q.posterior.noise, device) for draw in part]  # as q has them
    many = getattr(q.posterior, "weights_many", None)
    if many is not None:
        stacked: dict[str, Tensor] = many(q.means, noises)
        return stacked
    sampled = [q.posterior.weights(q.means, noise) for noise in noises]
    return {name: torch.stack([weights[name] for weights in sampled]) for name in sampled[0]}


@contextmanager
def _mapped(q: Bayesian, x: Any) -> Iterator[None]:
    """All that `q.module` does here is known to vmap."""
    with draws.bind(q, None), kernels.force(_path_for_vmap(q, x)), _known_to_vmap(q), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")  # of operations that vmap loops over
        yield


def _path_for_vmap(q: Bayesian, x: Any) -> str:
    """Of the paths that know vmap: one of the two fast ones, if it has all of the layers, or the plain one."""
    first = next(q.parameters())
    layers: list[Any] = [m for m in q.modules() if isinstance(m, nn.RNNBase)]
    cases = [
        kernels.Case(
            layered.cell_of(m),
            first.device.type,
            first.dtype,
            batch=_rows(x, m),
            hidden=m.hidden_size,
            projection=m.proj_size > 0,
        )
        for m in layers
    ]
    paths = ("persistent", "compiled")
    return next((path for path in paths if all(kernels.able(path, case) for case in cases)), "reference")


def _rows(x: Any, layer: nn.RNNBase) -> int | None:
    """The sequences in an input; None where it does not say."""
    if isinstance(x, PackedSequence):
        return int(x.batch_sizes[0])
    axis = 0 if layer.batch_first else 1
    return int(x.shape[axis]) if isinstance(x, Tensor) and x.dim() > axis else None


@contextmanager
def _known_to_vmap(model: nn.Module) -> Iterator[None]:
    """torch's recurrent layers run layer by layer, and embeddings pick their rows, in operations that vmap knows.

    It knows `F.embedding` too, but copies all of a stack of weights for it.
    """
    with ExitStack() as stack:
        for module in model.modules():
            forward: Any = None
            if isinstance(module, nn.RNNBase) and not hasattr(module, "rates"):
                forward = partial(_layer_by_layer, module)
            elif type(module) in (nn.Embedding, Embedding) and module.max_norm is None:
                forward = partial(_picked, module)
            if forward is not None and "forward" not in module.__dict__:
                module.__dict__["forward"] = forward
                stack.callback(module.__dict__.pop, "forward", None)
        yield


def _layer_by_layer(module: nn.RNNBase, input: Any, hx: Any = None) -> tuple[Any, Any]:
    return layered.run(module, layered.Rates(), input, hx, None)


def _picked(module: nn.Embedding, input: Tensor) -> Tensor:
    return module.weight.index_select(0, input.flatten()).view(*input.shape, module.embedding_dim)


def _has_unit_noise(model: nn.Module) -> bool:
    from bayesrnn.nn.plain import torch_noise_layers

    ours = any(hasattr(m, "dropped_weights") and next(iter(_rates(m)), 0) for m in model.modules())
    masks = any(isinstance(m, (Dropout, SequenceDropout)) and m.p > 0 for m in model.modules())
    return ours or masks or bool(torch_noise_layers(model))


def _rates(module: nn.Module) -> list[float]:
    rates = getattr(module, "rates", None)
    if rates is not None:
        return [float(rates.any)]
    return [float(getattr(module, "word_dropout", 0.0))]


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
