"""torch's own noise (`nn.Dropout*`, `nn.LSTM(dropout=…)`, …) under a draw: switched on, and seeded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.draws import Bound, Draw, Noise, Stacked, Unfoldable, bind, name_before_compiling, source
from bayesrnn.nn import recurrence as layered

_UNIT_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_CHANNEL_DIMS = {nn.Dropout1d: 2, nn.Dropout2d: 3, nn.Dropout3d: 4}  # dims of one unbatched input
_OTHER_NOISE = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def torch_noise_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of `model` whose randomness is torch's, by name."""
    found = []
    for name, module in model.named_modules():
        active = isinstance(module, _UNIT_DROPOUT + _OTHER_NOISE[:2]) and module.p > 0
        active |= isinstance(module, nn.RReLU)
        active |= isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout > 0
        if active:
            found.append((name_before_compiling(name), module))
    return found


Change = Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]


class _Forward:
    """A module's forward inside a block. Copies of the module get one of their own; it ends with the block."""

    def __init__(self, module: nn.Module, change: Change, block: list[bool], outer: Callable[..., Any] | None) -> None:
        self.module, self.change, self.block, self.outer = module, change, block, outer
        self.after: Callable[..., Any] = partial(type(module).forward, module) if outer is None else outer
        self.own: Callable[..., Any] = outer.own if isinstance(outer, _Forward) else self.after
        self.changed = change(module, self.own)  # of nested blocks the innermost rules

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.changed if self.block else self.after)(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        module = memo.get(id(self.module), self.module)
        return _Forward(module, self.change, self.block, copy.deepcopy(self.outer, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (type(self.module).forward, self.module)  # a saved module is outside the block


@contextmanager
def _changed(changes: list[tuple[nn.Module, Change]]) -> Iterator[None]:
    """Put the changed forwards in place for the length of the block."""
    block, before = [True], [(m, m.__dict__.get("forward")) for m, _ in changes]
    # torch's fused transformer layers, taken in eval mode, would not ask their dropout layers
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        if changes:
            torch.backends.mha.set_fastpath_enabled(False)
        for (module, change), (_, outer) in zip(changes, before, strict=True):
            module.__dict__["forward"] = _Forward(module, change, block, outer)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        block.clear()
        for module, forward in before:
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward


@contextmanager
def _set(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)


@contextmanager
def no_torch_noise(model: nn.Module) -> Iterator[None]:
    """torch's noise layers off, also in train mode."""

    def off(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        # by the rate where there is one: cuDNN's recurrent kernels have no backward in eval mode
        name, value = ("dropout", 0.0) if hasattr(module, "dropout") else ("training", False)

        def call(*args: Any, **kwargs: Any) -> Any:
            with _set(module, name, value):
                return forward(*args, **kwargs)

        return call

    with _changed([(m, off) for _, m in torch_noise_layers(model) if not hasattr(m, "rates")]):
        yield


@contextmanager
def seeded_torch_noise(model: nn.Module, draw: Draw) -> Iterator[None]:
    """torch's noise layers on, each with random numbers of its own from the draw's seed."""

    def seeded(name: str) -> Change:
        def change(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
                generator = draw.stream(f"{name}.torch", device)
                with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                    _set_state(generator, device)
                    with _set(module, "training", True):
                        out = forward(*args, **kwargs)
                    _keep_state(generator, device)
                return out

            return call

        return change

    theirs = [(n, m) for n, m in torch_noise_layers(model) if not hasattr(m, "rates")]
    with _changed([(m, seeded(n)) for n, m in theirs]):
        yield


def _set_state(generator: torch.Generator, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(generator.get_state(), device)
    else:
        torch.set_rng_state(generator.get_state())


def _keep_state(generator: torch.Generator, device: torch.device) -> None:
    state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
    generator.set_state(state)


def _batch_axis(x: Tensor, rows: int, preferred: int) -> int | None:
    """The axis of `x` that holds the batch: the model input's own, else the first or second, if of the right size."""
    for axis in (preferred, 0, 1):
        if axis < x.dim() and x.shape[axis] == rows:
            return axis
    return None


@contextmanager
def folded_torch_noise(model: nn.Module, folded: Draw | Stacked, *, rows: int, batch_dim: int) -> Iterator[None]:
    """torch's dropout on, with a mask of its own for every draw of a folded batch of `rows` rows.

    Raises `Unfoldable` inside, where a layer's input has no recognisable batch axis, or for noise of other kinds.
    """

    def unit_dropout(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        noise = Noise(float(module.p))  # type: ignore[arg-type]
        channel_dims = next((d for kind, d in _CHANNEL_DIMS.items() if isinstance(module, kind)), None)

        def call(x: Tensor) -> Tensor:
            axis = _batch_axis(x, rows, batch_dim)
            if axis is None:
                raise Unfoldable(f"{name} has no batch axis of {rows} rows")
            shape = list(x.shape)
            if channel_dims is not None:
                if x.dim() <= channel_dims:
                    raise Unfoldable(f"{name} sees unbatched input")
                shape[2:] = [1] * (x.dim() - 2)
            return x * folded.steps(f"{name}.units", noise, shape, x, batch_dim=axis)

        return call

    def between_layers(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        assert isinstance(module, nn.RNNBase)
        bound = Bound(folded, name)
        return lambda input, hx=None: layered.run(module, layered.Rates(), input, hx, bound)

    changes: list[tuple[nn.Module, Change]] = []
    for name, module in torch_noise_layers(model):
        if isinstance(module, _UNIT_DROPOUT):
            changes.append((module, partial(unit_dropout, name)))
        elif isinstance(module, nn.RNNBase):
            if not hasattr(module, "rates"):
                changes.append((module, partial(between_layers, name)))
        else:
            raise Unfoldable(f"{name} ({type(module).__name__}) has noise that cannot be folded")
    with _changed(changes):
        yield


@contextmanager
def differentiable_in_eval(model: nn.Module) -> Iterator[None]:
    """Let gradients be taken in eval mode: cuDNN's recurrent kernels have a backward in train mode only."""
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase) and not m.training]
    quiet = source(model) is None
    with ExitStack() as stack:
        if quiet:
            stack.enter_context(bind(model, None))  # so that train mode brings no noise
        for layer in layers:
            stack.enter_context(_set(layer, "training", True))
            if quiet:
                stack.enter_context(_set(layer, "dropout", 0.0))
        yield
