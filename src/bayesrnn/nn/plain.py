"""torch's own noise (`nn.Dropout*`, `nn.LSTM(dropout=…)`, …) under a draw: switched on, and seeded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.draws import Bound, Draw, Noise, Stacked, Unfoldable, bind, source
from bayesrnn.nn import layered

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
            found.append((name, module))
    return found


@contextmanager
def _replaced(changes: list[tuple[nn.Module, Callable[..., Any] | None]]) -> Iterator[None]:
    """Put each module in training mode, and its forward (where given) in place, for the length of the block."""
    before = [(m, m.training, m.__dict__.get("forward")) for m, _ in changes]
    try:
        for module, forward in changes:
            module.training = True
            if forward is not None:
                module.__dict__["forward"] = forward
        yield
    finally:
        for module, training, forward in before:
            module.training = training
            module.__dict__.pop("forward", None)
            if forward is not None:
                module.__dict__["forward"] = forward


@contextmanager
def seeded_torch_noise(model: nn.Module, draw: Draw) -> Iterator[None]:
    """torch's noise layers on, each with random numbers of its own from the draw's seed."""

    def seeded(name: str, module: nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
            generator = draw.stream(f"{name}.torch", device)
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                _set_state(generator, device)
                out = forward(*args, **kwargs)
                _keep_state(generator, device)
            return out

        return call

    ours = [(n, m) for n, m in torch_noise_layers(model) if not hasattr(m, "rates")]
    with _replaced([(m, seeded(n, m)) for n, m in ours]):
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
    """The axis of `x` that holds the batch: the model input's own, else the first, if it has the right size."""
    for axis in (preferred, 0):
        if axis < x.dim() and x.shape[axis] == rows:
            return axis
    return None


@contextmanager
def folded_torch_noise(model: nn.Module, folded: Draw | Stacked, *, rows: int, batch_dim: int) -> Iterator[None]:
    """torch's dropout on, with a mask of its own for every draw of a folded batch of `rows` rows.

    Raises `Unfoldable` inside, where a layer's input has no recognisable batch axis, or for noise of other kinds.
    """

    def unit_dropout(name: str, module: nn.Module) -> Callable[..., Any]:
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

    def between_layers(name: str, module: nn.RNNBase) -> Callable[..., Any]:
        bound = Bound(folded, name)
        return lambda input, hx=None: layered.run(module, layered.Rates(), input, hx, bound)

    changes: list[tuple[nn.Module, Callable[..., Any] | None]] = []
    for name, module in torch_noise_layers(model):
        if isinstance(module, _UNIT_DROPOUT):
            changes.append((module, unit_dropout(name, module)))
        elif isinstance(module, nn.RNNBase):
            if not hasattr(module, "rates"):
                changes.append((module, between_layers(name, module)))
        else:
            raise Unfoldable(f"{name} ({type(module).__name__}) has noise that cannot be folded")
    with _replaced(changes):
        yield


@contextmanager
def differentiable_in_eval(model: nn.Module) -> Iterator[None]:
    """Let gradients be taken in eval mode: cuDNN's recurrent kernels have a backward in train mode only."""
    layers = [m for m in model.modules() if isinstance(m, nn.RNNBase) and not m.training]
    rates = [m.dropout for m in layers]
    with ExitStack() as stack:
        if source(model) is None:
            stack.enter_context(bind(model, None))  # so that train mode brings no noise
        try:
            for layer in layers:
                layer.training, layer.dropout = True, 0.0
            yield
        finally:
            for layer, rate in zip(layers, rates, strict=True):
                layer.training, layer.dropout = False, rate
