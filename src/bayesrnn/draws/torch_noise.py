"""torch's own noise (`nn.Dropout`, `nn.LSTM(dropout=…)`, `F.dropout`, …) inside a draw: switched on, and seeded.

`TorchNoise` intercepts every call of torch's noisy functions and supplies the draw's noise. Modules
stay as they are, so a subclass runs its own `forward`. It cannot see noise that a module switches off by itself in
eval mode (`F.scaled_dot_product_attention(..., dropout_p=0.0)`), nor inside TorchScript.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bayesrnn.compilation import uncompiled
from bayesrnn.draws.noise import Distribution, Noise, Uniform
from bayesrnn.draws.sources import Source, Stacked, Unfoldable
from bayesrnn.kernels.shared.tensors import silence_advice

_UNIT_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def torch_noise_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of `model` whose randomness is torch's, by name."""
    return [(name_before_compiling(n), module) for n, module in model.named_modules() if has_torch_noise(module)]


def has_torch_noise(module: nn.Module) -> bool:
    """Whether this module is a layer of torch's with noise."""
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return module.dropout > 0
    return isinstance(module, nn.RReLU) or (isinstance(module, _UNIT_DROPOUT) and module.p > 0)


def refuse_script(name: str, module: nn.Module) -> None:
    """Refuse dropout inside TorchScript, which no function mode sees."""
    if isinstance(module, torch.jit.ScriptModule) and "Dropout" in module.original_name and module.p > 0:
        raise TypeError(
            f"module {name!r} is dropout in TorchScript, whose noise cannot be controlled: "
            "use the Python module that it came from"
        )


def name_before_compiling(name: str) -> str:
    """The module's name without the part that `torch.compile` adds, so that a seed gives the same draw."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class Owner(NamedTuple):
    """The module that is running: its name in the model, and the source of its noise (None: no noise)."""

    name: str
    source: Source | None

    def noise(self, kind: Distribution, shape: Sequence[int], like: Tensor) -> Tensor:
        """Noise of this shape, new at every call."""
        assert self.source is not None
        key, axis = f"{self.name}.units", None
        if isinstance(self.source, Stacked):
            axis = self.source.batch_axis(self.name, shape)
        return self.source.steps(key, kind, shape, like, batch_dim=axis)


class TorchNoise(TorchFunctionMode):
    """Gives torch's noisy functions the noise of the module that runs them; `owner` finds that module."""

    def __init__(self, owner: Callable[[], Owner | None]) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _HANDLERS:
            return func(*args, **kwargs)
        return self._noisy(func, args, kwargs)

    @uncompiled
    def _noisy(self, func: Any, args: Any, kwargs: Any) -> Any:
        owner = self.owner()
        if owner is None:
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # written in Python: its own dropout comes here again
                return _attention_layer(*args, **{**kwargs, "training": owner.source is not None})
        return _HANDLERS[func](owner, func, *args, **kwargs)


def _undispatched(function: Any) -> Any:
    """A function of `torch.nn.functional` that does not hand itself over to function modes, only what it calls."""
    scope = {**function.__globals__, "has_torch_function": lambda tensors: False}
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_attention_layer = _undispatched(F.multi_head_attention_forward)


def _apply(input: Tensor, factor: Tensor, inplace: bool) -> Tensor:
    return input.mul_(factor) if inplace else input * factor


def _dropout(
    owner: Owner, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **more: Any
) -> Tensor:
    """`F.dropout`, and with one mask per channel `F.dropout1d`, `F.dropout2d`, `F.dropout3d`."""
    inplace = inplace or func in _IN_PLACE
    if owner.source is None or not 0 < p <= 1:
        return F.dropout(input, p, False, inplace)  # torch rejects an invalid p
    shape = list(input.shape)
    if func in _CHANNELS:
        shape = _channel_shape(owner, func, input)
    return _apply(input, owner.noise(Noise(float(p)), shape, input), inplace)


def _channel_shape(owner: Owner, func: Any, input: Tensor) -> list[int]:
    """Of masks over channels: (N, C, 1, …), or (C, 1, …) for one example, which torch takes where it is clear."""
    lead = 1 if input.dim() == _CHANNELS[func] else 2
    if lead == 1 and isinstance(owner.source, Stacked):
        raise Unfoldable(f"{owner.name} sees unbatched input")
    return [*input.shape[:lead], *[1] * (input.dim() - lead)]


_ALPHA = -1.7580993408473766  # the value that SELU saturates at: -alpha * scale (arXiv 1706.02515)


def _alpha_dropout(
    owner: Owner, func: Any, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, **more: Any
) -> Tensor:
    """x -> a (x m + alpha' (1 - m)) + b, with a and b that keep mean and variance (arXiv 1706.02515, section 3)."""
    inplace = inplace or func in _IN_PLACE
    if owner.source is None or not 0 < p < 1:
        return F.alpha_dropout(input, p, owner.source is not None and p == 1, inplace)
    shape = _channel_shape(owner, func, input) if func in _CHANNELS else input.shape
    kept = (owner.noise(Noise(float(p)), shape, input) != 0).to(input.dtype)
    a = ((1 - p) * (1 + p * _ALPHA**2)) ** -0.5
    made = _apply(input, a * kept, inplace)
    shift = a * _ALPHA * (1 - kept) - a * _ALPHA * p
    return made.add_(shift) if inplace else made + shift


def _rrelu(
    owner: Owner,
    func: Any,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
    **more: Any,
) -> Tensor:
    inplace = inplace or func in _IN_PLACE
    if owner.source is None:
        return F.rrelu(input, lower, upper, False, inplace)
    slope = owner.noise(Uniform(lower, upper), input.shape, input)
    return _apply(input, torch.where(input >= 0, torch.ones_like(slope), slope), inplace)


def _attention(
    owner: Owner,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(Q K^T * scale + mask), dropped out, times V: torch's kernels take no mask for the dropout."""
    if owner.source is None or dropout_p == 0:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, **options)  # type: ignore[arg-type]
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = scores.softmax(-1)
    return (weights * owner.noise(Noise(dropout_p), weights.shape, weights)) @ value


def _recurrent(owner: Owner, func: Any, *args: Any) -> Any:
    """`dropout` between the layers of torch's fused recurrent functions: one call per layer, noise in between."""
    packed = isinstance(args[2], (tuple, Tensor)) and not isinstance(args[2], list)
    if packed:
        x, sizes, hx, weights, bias, layers, dropout, train, bidirectional = args
    else:
        x, hx, weights, bias, layers, dropout, train, bidirectional, batch_first = args
    if dropout == 0 or layers == 1:
        return func(*args)
    if owner.source is None:  # by the rate: cuDNN has no backward unless `train` is set
        return func(*args[: 6 if packed else 5], 0.0, *args[7 if packed else 6 :])
    directions, each = 2 if bidirectional else 1, len(weights) // layers
    states = hx if func is torch.lstm else (hx,)
    last = []
    if x.is_cuda:
        silence_advice()
    for layer in range(layers):
        own = [s[layer * directions : (layer + 1) * directions].contiguous() for s in states]
        own_hx = own if func is torch.lstm else own[0]
        own_weights = weights[layer * each : (layer + 1) * each]
        if packed:
            out, *state = func(x, sizes, own_hx, own_weights, bias, 1, 0.0, train, bidirectional)
        else:
            out, *state = func(x, own_hx, own_weights, bias, 1, 0.0, train, bidirectional, batch_first)
        last.append(state)
        x = out
        if layer < layers - 1:
            by_time = out.transpose(0, 1) if not packed and batch_first else out
            key, noise = f"{owner.name}.between_l{layer}", Noise(float(dropout))
            mask = owner.source.steps(key, noise, by_time.shape, out, batch_dim=None if packed else 1)
            x = out * (mask.transpose(0, 1) if by_time is not out else mask)
    return (x, *(torch.cat(parts) for parts in zip(*last, strict=True)))


_CHANNELS = {  # dims of one example without a batch axis; torch takes 3-D input of dropout2d for a batch
    F.dropout1d: 2,
    F.dropout2d: -1,
    F.dropout3d: 4,
    F.feature_alpha_dropout: -1,
    torch.feature_dropout: -1,
    torch.feature_dropout_: -1,
    torch.feature_alpha_dropout: -1,
    torch.feature_alpha_dropout_: -1,
}
_IN_PLACE = frozenset(
    [torch.dropout_, torch.feature_dropout_, torch.alpha_dropout_, torch.feature_alpha_dropout_, torch.rrelu_, F.rrelu_]
)
_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    F.dropout1d: _dropout,
    F.dropout2d: _dropout,
    F.dropout3d: _dropout,
    torch.dropout: _dropout,
    torch.dropout_: _dropout,
    torch.feature_dropout: _dropout,
    torch.feature_dropout_: _dropout,
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _alpha_dropout,
    torch.alpha_dropout: _alpha_dropout,
    torch.alpha_dropout_: _alpha_dropout,
    torch.feature_alpha_dropout: _alpha_dropout,
    torch.feature_alpha_dropout_: _alpha_dropout,
    F.rrelu: _rrelu,
    F.rrelu_: _rrelu,
    torch.rrelu: _rrelu,
    torch.rrelu_: _rrelu,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _attention,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
}
