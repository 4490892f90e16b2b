"""Run any `torch.nn.RNNBase` layer by layer, so that noise and sampled weights can act where they must."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import kernels
from bayesrnn.compilation import uncompiled
from bayesrnn.draws import Noise, Source, source
from bayesrnn.kernels.shared.precision import lowered

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATE_OF_ANOTHER_BATCH = "a state goes with the batch it came from; pass no state to start a new batch from zero"


@dataclass(frozen=True)
class Rates:
    """Which noise acts where in a recurrent layer; all zero for torch's own layers."""

    input_dropout: float = 0.0
    recurrent_dropout: float = 0.0
    weight_dropout: float = 0.0
    cell_dropout: float = 0.0
    tied: bool = True
    noise: str = "bernoulli"
    share: str = "sequence"

    def noise_of(self, p: float) -> Noise:
        return Noise(p, self.noise)

    @property
    def units(self) -> bool:
        return self.input_dropout > 0 or self.recurrent_dropout > 0

    @property
    def any(self) -> bool:
        return self.units or self.weight_dropout > 0 or self.cell_dropout > 0

    @property
    def folds_into_weights(self) -> bool:
        """Whether one set of weights serves the whole batch, so that torch's fused kernel can run it."""
        return self.cell_dropout == 0 and (self.share == "batch" or not self.units)


def cell_of(module: nn.RNNBase) -> str:
    return "RNN" if module.mode.startswith("RNN") else module.mode


def names(module: nn.RNNBase) -> list[str]:
    """The suffixes of the parameters' names, layer by layer: `_l0`, `_l0_reverse`, `_l1`, …"""
    directions = ("", "_reverse") if module.bidirectional else ("",)
    return [f"_l{layer}{suffix}" for layer in range(module.num_layers) for suffix in directions]


@dataclass
class LayerNoise:
    """The noise of one direction of one layer, and the weights it leaves."""

    w_ih: Tensor
    w_hh: Tensor
    z_x: Tensor | None = None
    z_h: Tensor | None = None
    z_c: Tensor | None = None
    cell_scale: float = 1.0
    """What the outputs of kept cells are multiplied with."""


def _scaled(weight: Tensor, mask: Tensor) -> Tensor:
    """Unit noise (F,) or (G, F), one set for the batch, folded into the weight's columns."""
    if mask.ndim == 1:
        return weight * mask
    return (weight.view(mask.shape[0], -1, weight.shape[1]) * mask.unsqueeze(1)).view_as(weight)


def layer_noise(
    module: nn.RNNBase,
    rates: Rates,
    suffix: str,
    source: Source | None,
    rows: int,
    sorted_indices: Tensor | None = None,
) -> LayerNoise:
    w_ih: Tensor = getattr(module, f"weight_ih{suffix}")
    w_hh: Tensor = getattr(module, f"weight_hh{suffix}")
    out = LayerNoise(w_ih, w_hh)
    if source is None:
        return out
    gates = () if rates.tied else (GATES[cell_of(module)],)
    shared = rates.share == "batch"

    def units(key: str, p: float, shape: tuple[int, ...], like: Tensor, shared: bool) -> Tensor:
        z = source.units(key + suffix, rates.noise_of(p), shape, like, rows=rows, shared=shared)
        per_sequence = z.ndim > len(shape)
        return z.index_select(0, sorted_indices) if per_sequence and sorted_indices is not None else z

    if rates.weight_dropout > 0:
        noise = rates.noise_of(rates.weight_dropout)
        mask = source.weights(f"weight{suffix}", lambda g: noise.sample(w_hh.shape, w_hh, g), w_hh.device)
        out.w_hh = w_hh * mask.to(w_hh)
    if rates.input_dropout > 0:
        z = units("input", rates.input_dropout, (*gates, w_ih.shape[1]), w_ih, shared)
        if z.ndim == 1 + len(gates):
            out.w_ih = _scaled(w_ih, z)
        else:
            out.z_x = z
    if rates.recurrent_dropout > 0:
        z = units("recurrent", rates.recurrent_dropout, (*gates, w_hh.shape[1]), w_hh, shared)
        if z.ndim == 1 + len(gates):
            out.w_hh = _scaled(out.w_hh, z)
        else:
            out.z_h = z
    if rates.cell_dropout > 0:
        z = units("cell", rates.cell_dropout, (module.hidden_size,), w_hh, shared)
        out.z_c = z if z.ndim == 2 else z.expand(rows, -1)
        if rates.noise == "bernoulli":
            # c_t * z / (1 - p) would grow by that factor at every step: kept cells stay as they are, and 1 / (1 - p)
            # goes on what leaves them, h = o * tanh(c) / (1 - p), so that the mean network is the plain one
            out.cell_scale = 1 / (1 - rates.cell_dropout)
            out.z_c = (out.z_c != 0).to(out.z_c.dtype)
    return out


@uncompiled
def flat_weights(module: nn.RNNBase, rates: Rates, source: Source, rows: int) -> list[Tensor]:
    """The module's weights with noise that the whole batch shares folded in, in torch's order."""
    replaced: dict[str, Tensor] = {}
    for suffix in names(module):
        noise = layer_noise(module, rates, suffix, source, rows)
        replaced[f"weight_ih{suffix}"], replaced[f"weight_hh{suffix}"] = noise.w_ih, noise.w_hh
    flat: list[Any] = [
        replaced.get(n, w) for n, w in zip(module._flat_weights_names, module._flat_weights, strict=True)
    ]
    return flat


def _direction(
    module: nn.RNNBase,
    x: Tensor,
    state: Sequence[Tensor],
    noise: LayerNoise,
    suffix: str,
    sizes: list[int],
    plain: bool,
) -> tuple[Tensor, ...]:
    cell = cell_of(module)
    b_ih = getattr(module, f"bias_ih{suffix}") if module.bias else None
    b_hh = getattr(module, f"bias_hh{suffix}") if module.bias else None
    reverse = suffix.endswith("reverse")
    b_hn = None
    if cell == "GRU" and b_hh is not None:
        size = module.hidden_size
        b_hn = b_hh[2 * size :]
        b_hh = torch.cat([b_hh[: 2 * size], torch.zeros_like(b_hn)])
    bias = None if b_ih is None else b_ih + b_hh
    gx = kernels.kernel("input", x.device.type)(x, noise.w_ih, bias, noise.z_x, sizes)
    run = kernels.kernel(cell, x.device.type, plain=plain, **_facts(module, state, noise, sizes))
    with _in_full(x.device.type):
        kind = state[0].dtype
        gx, w_hh = gx.to(kind), noise.w_hh.to(kind)
        z_h, z_c = (None if z is None else z.to(kind) for z in (noise.z_h, noise.z_c))
        if cell == "LSTM":
            w_hr = getattr(module, f"weight_hr{suffix}").to(kind) if module.proj_size else None
            scale = noise.cell_scale
            h, c = (state[0] / scale, state[1]) if scale != 1 else state
            w_hh = w_hh * scale if scale != 1 else w_hh  # the recurrence runs on h / scale
            rows, h, c = run(gx, h, c, w_hh, w_hr, z_h, z_c, batch_sizes=sizes, reverse=reverse)
            out = (rows * scale, h * scale, c) if scale != 1 else (rows, h, c)
        elif cell == "GRU":
            b_hn = None if b_hn is None else b_hn.to(kind)
            out = run(gx, *state, w_hh, b_hn, z_h, batch_sizes=sizes, reverse=reverse)
        else:
            function = "tanh" if module.mode == "RNN_TANH" else "relu"
            out = run(gx, *state, w_hh, z_h, nonlinearity=function, batch_sizes=sizes, reverse=reverse)
    return tuple(out)


def _facts(module: nn.RNNBase, state: Sequence[Tensor], noise: LayerNoise, sizes: list[int]) -> dict[str, Any]:
    """What the choice of a kernel depends on, the device aside."""
    device, z_h = state[0].device.type, noise.z_h
    return {
        "dtype": state[0].dtype,
        "autocast": _autocast(device),
        "batch": sizes[0],
        "hidden": module.hidden_size,
        "steps": len(sizes),
        "ragged": sizes[0] != sizes[-1],
        "projection": bool(module.proj_size),
        "recurrent_mask": None if z_h is None else "tied" if z_h.ndim == 2 else "untied",
        "cell_mask": noise.z_c is not None,
        "graph": kernels.is_recording(),
    }


def _autocast(device: str) -> torch.dtype | None:
    """The lower precision that is allowed now, if any."""
    return torch.get_autocast_dtype(device) if lowered(device) else None


def _in_full(device: str) -> AbstractContextManager[Any]:
    """Without autocast, on devices that have it: "meta" has not."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def _dtype(given: torch.dtype, device: str) -> torch.dtype:
    """What a recurrence computes in: under autocast float32, since only products outside of it are lowered."""
    return torch.float32 if given == _autocast(device) else given


def beats_torch(module: nn.RNNBase, input: Any) -> bool:
    """Whether a path of ours is faster on this input than torch's own kernel, for a layer that could take either."""
    packed = isinstance(input, PackedSequence)
    x = input.data if packed else input
    if module.mode not in ("LSTM", "GRU") or torch.compiler.is_compiling():
        return False
    if not isinstance(x, Tensor) or not x.is_cuda:
        return False
    weight: Any = module.weight_hh_l0
    dtype = _dtype(x.dtype, "cuda")
    if dtype != _dtype(weight.dtype, "cuda") or (not packed and (x.dim() not in (2, 3) or x.numel() == 0)):
        return False
    rows = int(input.batch_sizes[0]) if packed else 1 if x.dim() == 2 else x.shape[0 if module.batch_first else 1]
    steps = len(input.batch_sizes) if packed else x.shape[:-1].numel() // rows
    case = kernels.Case(
        module.mode,
        "cuda",
        dtype,
        batch=rows,
        hidden=module.hidden_size,
        steps=steps,
        autocast=_autocast("cuda"),
        projection=module.proj_size > 0,
        plain=True,
        graph=kernels.is_recording(),
    )
    return kernels.choose(case)[0].name in ("persistent", "cells")


def run_recurrent(module: nn.Module, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """`module(input, hx)`; a plain layer of torch's own takes a path of ours where that is faster."""
    plain = type(module) in (nn.LSTM, nn.GRU, nn.RNN) and "forward" not in module.__dict__
    result: tuple[Any, Any] = torch_forward(module, input, hx) if plain else module(input, hx)  # type: ignore[arg-type]
    return result


def torch_forward(module: nn.RNNBase, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """The forward of a layer of torch's own; on a path of ours where that is faster, or forced."""
    forced = not torch.compiler.is_dynamo_compiling() and kernels.forced()
    if forced or beats_torch(module, input):
        held = source(module) if module.dropout > 0 else None
        return run(module, Rates(), input, hx, held, plain=not forced)
    if not torch.compiler.is_compiling():
        _leave_advice_out(module)
    result: tuple[Any, Any] = type(module).forward(module, input, hx)
    return result


def in_one_piece(weights: Sequence[Tensor | None]) -> bool:
    """Whether CUDA tensors share their memory; those of a transform such as vmap have none."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if not all(w is not None and w.is_cuda for w in weights):
        return False
    return len({w.untyped_storage().data_ptr() for w in weights if w is not None}) == 1


_ADVICE = "RNN module weights are not part of single contiguous chunk of memory"


def _leave_advice_out(module: nn.RNNBase) -> None:
    """Without torch's advice to call `flatten_parameters`, where weights of a posterior cannot be in one block.

    The filter is set once: `warnings.catch_warnings` at every call would show all other warnings at every call too.
    """
    weights: Any = module._flat_weights
    if not any(isinstance(w, Tensor) and w.is_cuda for w in weights) or in_one_piece(weights):
        return
    if all(getattr(known, "pattern", "") != _ADVICE for _, known, *_ in warnings.filters):
        warnings.filterwarnings("ignore", message=_ADVICE)


def check_kind_of_state(module: nn.RNNBase, hx: Any) -> None:
    if module.mode == "LSTM":
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise TypeError("an LSTM's state is a pair of tensors (h, c): pass what the layer returned, or nothing")
    elif not isinstance(hx, Tensor):
        raise TypeError(f"the state of a {cell_of(module)} is one tensor h: pass what the layer returned, or nothing")


@contextmanager
def clear_about_states() -> Iterator[None]:
    """Say what to do where a layer of torch's own is given the state of another batch, as our layers do."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("Expected hidden") and STATE_OF_ANOTHER_BATCH not in str(error):
            raise RuntimeError(f"{error}: {STATE_OF_ANOTHER_BATCH}") from error
        raise


def _states(module: nn.RNNBase, hx: Any, x: Tensor, rows: int, unbatched: bool) -> tuple[Tensor, ...]:
    """The initial state as a tuple of (layers * directions, rows, size), zeros where none was given."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    if hx is None:
        out_size, dtype = module.proj_size or module.hidden_size, _dtype(x.dtype, x.device.type)
        h = torch.zeros(count, rows, out_size, dtype=dtype, device=x.device)
        if module.mode != "LSTM":
            return (h,)
        return h, torch.zeros(count, rows, module.hidden_size, dtype=dtype, device=x.device)
    check_kind_of_state(module, hx)
    states = tuple(s.to(_dtype(s.dtype, x.device.type)) for s in (hx if module.mode == "LSTM" else (hx,)))
    weight: Any = module.weight_hh_l0
    expected = _dtype(weight.dtype, x.device.type)
    for s in states:
        if s.dtype != expected:
            raise RuntimeError(
                f"the state has dtype {s.dtype} but the layer {expected}: convert the state with .to({expected})"
            )
    if unbatched:
        if any(s.dim() != 2 for s in states):
            raise RuntimeError("for unbatched 2-D input the state must be 2-D too: (layers * directions, size)")
        states = tuple(s.unsqueeze(1) for s in states)
    return states


@uncompiled
def run(
    module: nn.RNNBase, rates: Rates, input: Any, hx: Any, source: Source | None, *, plain: bool = False
) -> tuple[Any, Any]:
    """`module(input, hx)` layer by layer, with noise from `source` (None: without noise).

    Takes and returns exactly what the torch module does: (T, B, F), batch_first, unbatched or PackedSequence.
    `plain`: torch's own kernel could run it too, and `beats_torch` was asked.
    """
    packed = input if isinstance(input, PackedSequence) else None
    unbatched = False
    if packed is not None:
        x, sizes = packed.data, packed.batch_sizes.tolist()
        states = _states(module, hx, x, sizes[0], False)
        given: Any = states if module.mode == "LSTM" else states[0]
        module.check_forward_args(x, given, packed.batch_sizes)
        if packed.sorted_indices is not None:
            states = tuple(s.index_select(1, packed.sorted_indices) for s in states)
    else:
        if input.dim() not in (2, 3):
            raise ValueError(
                f"{cell_of(module)}: expected 2-D (unbatched) or 3-D input, got {input.dim()}-D: "
                "shapes are (T, B, F), or (B, T, F) with batch_first=True"
            )
        if unbatched := input.dim() == 2:
            input = input.unsqueeze(0 if module.batch_first else 1)
        rows = input.shape[0 if module.batch_first else 1]
        states = _states(module, hx, input, rows, unbatched)
        given = states if module.mode == "LSTM" else states[0]
        module.check_forward_args(input, given, None)
        x = input.transpose(0, 1) if module.batch_first else input
        if x.shape[0] == 0:
            raise RuntimeError("expected a sequence of at least one step, got T=0")
        sizes = [rows] * x.shape[0]
        x = x.reshape(-1, x.shape[-1])
    rows = sizes[0]
    order = packed.sorted_indices if packed is not None else None
    last: list[tuple[Tensor, ...]] = []
    directions = 2 if module.bidirectional else 1
    for layer in range(module.num_layers):
        outs = []
        for suffix in names(module)[layer * directions : (layer + 1) * directions]:
            noise = layer_noise(module, rates, suffix, source, rows, order)
            out, *state = _direction(module, x, [s[len(last)] for s in states], noise, suffix, sizes, plain)
            outs.append(out)
            last.append(tuple(state))
        x = outs[0] if directions == 1 else torch.cat(outs, dim=-1)
        if module.dropout > 0 and layer < module.num_layers - 1 and source is not None:
            x = _between_layers(module, x, sizes, packed is not None, source, layer)
    final = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    if packed is not None:
        if packed.unsorted_indices is not None:
            final = tuple(s.index_select(1, packed.unsorted_indices) for s in final)
        result: Any = PackedSequence(x, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    else:
        result = x.view(len(sizes), rows, x.shape[-1])
        if module.batch_first:
            result = result.transpose(0, 1)
        if unbatched:
            result = result.squeeze(0 if module.batch_first else 1)
            final = tuple(s.squeeze(1) for s in final)
    return result, final if module.mode == "LSTM" else final[0]


def _between_layers(
    module: nn.RNNBase, x: Tensor, sizes: list[int], packed: bool, source: Source, layer: int
) -> Tensor:
    """torch's `dropout` argument: new noise at every step, on the output of every layer but the last."""
    noise, key = Noise(float(module.dropout)), f"between_l{layer}"
    if packed:
        return x * source.steps(key, noise, x.shape, x, batch_dim=None)
    shape = (len(sizes), sizes[0], x.shape[-1])
    return x * source.steps(key, noise, shape, x, batch_dim=1).reshape(x.shape)
