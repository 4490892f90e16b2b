"""Run recurrent layers: layer by layer with masks of their own, or in torch's fused kernel on noisy weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn import kernels
from bayesrnn.compilation import uncompiled
from bayesrnn.draws import Noise, Source
from bayesrnn.kernels.shared import beside
from bayesrnn.kernels.shared.precision import lowered
from bayesrnn.kernels.shared.tensors import forward_mode, mapped, unwatched
from bayesrnn.nn.masks import LayerNoise, cell_of, names, weights_of

STATE_OF_ANOTHER_BATCH = "a state goes with the batch it came from; pass no state to start a new batch from zero"
MODES = {torch.lstm: "LSTM", torch.gru: "GRU", torch.rnn_tanh: "RNN_TANH", torch.rnn_relu: "RNN_RELU"}
_FUNCTIONS = {mode: function for function, mode in MODES.items()}


class Stack(NamedTuple):
    """A stack of recurrent layers: its sizes, and its weights by the names that torch gives them."""

    mode: str
    weights: Mapping[str, Tensor]
    num_layers: int
    bidirectional: bool
    hidden_size: int
    proj_size: int
    dropout: float

    @property
    def cell(self) -> str:
        return "RNN" if self.mode.startswith("RNN") else self.mode

    @property
    def suffixes(self) -> tuple[str, ...]:
        return names(self.num_layers, self.bidirectional)

    @staticmethod
    def of(module: nn.RNNBase) -> Stack:
        return Stack(
            module.mode, weights_of(module), module.num_layers, bool(module.bidirectional), module.hidden_size,
            module.proj_size, float(module.dropout),
        )  # fmt: skip


class Prepared(NamedTuple):
    """A layer's input as torch's functions take it."""

    x: Tensor
    """(T, B, F), or the rows of a packed batch."""
    states: tuple[Tensor, ...]
    """Each (layers * directions, B, size), in the order of the rows."""
    sizes: list[int]
    """Sequences at every step."""
    packed: PackedSequence | None
    unbatched: bool


def rows_of(module: nn.RNNBase, input: Any) -> int:
    """The number of sequences in an input."""
    if isinstance(input, PackedSequence):
        return int(input.batch_sizes[0])
    return 1 if input.dim() < 3 else int(input.shape[0 if module.batch_first else 1])


def check_state(module: nn.RNNBase, input: Any, hx: Any) -> None:
    """Check the kind and the batch of a state."""
    if hx is None:
        return
    if module.mode == "LSTM":
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise TypeError("an LSTM's state is a pair of tensors (h, c): pass what the layer returned, or nothing")
    elif not isinstance(hx, Tensor):
        raise TypeError(f"the state of a {cell_of(module)} is one tensor h: pass what the layer returned, or nothing")
    if isinstance(input, PackedSequence):  # torch would sort the state's rows before it counts them
        module.check_forward_args(input.data, hx, input.batch_sizes)


@contextmanager
def clear_about_states() -> Iterator[None]:
    """Say what to do where a layer of torch's own is given the state of another batch, as our layers do."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("Expected hidden") and STATE_OF_ANOTHER_BATCH not in str(error):
            raise RuntimeError(f"{error}: {STATE_OF_ANOTHER_BATCH}") from error
        raise


def prepare(module: nn.RNNBase, input: Any, hx: Any, *, dtype: torch.dtype | None = None) -> Prepared:
    """Check what a layer was called with; `dtype` is that of a state of zeros (None: the input's)."""
    if isinstance(input, PackedSequence):
        sizes = input.batch_sizes.tolist()
        states = _states(module, hx, input.data, sizes[0], False, dtype)
        module.check_forward_args(input.data, _as_torchs(module, states), input.batch_sizes)
        if input.sorted_indices is not None:
            states = tuple(s.index_select(1, input.sorted_indices) for s in states)
        return Prepared(input.data, states, sizes, input, False)
    if input.dim() not in (2, 3):
        raise ValueError(
            f"{cell_of(module)}: expected 2-D (unbatched) or 3-D input, got {input.dim()}-D: "
            "shapes are (T, B, F), or (B, T, F) with batch_first=True"
        )
    if unbatched := input.dim() == 2:
        input = input.unsqueeze(0 if module.batch_first else 1)
    rows = input.shape[0 if module.batch_first else 1]
    states = _states(module, hx, input, rows, unbatched, dtype)
    module.check_forward_args(input, _as_torchs(module, states), None)  # type: ignore[arg-type]
    x = input.transpose(0, 1) if module.batch_first else input
    if x.shape[0] == 0:
        raise RuntimeError("expected a sequence of at least one step, got T=0")
    return Prepared(x, states, [rows] * x.shape[0], None, unbatched)


def _as_torchs(module: nn.RNNBase, states: tuple[Tensor, ...]) -> Any:
    return states if module.mode == "LSTM" else states[0]


def _states(
    module: nn.RNNBase, hx: Any, x: Tensor, rows: int, unbatched: bool, dtype: torch.dtype | None
) -> tuple[Tensor, ...]:
    """The initial state as a tuple of (layers * directions, rows, size), zeros where none was given."""
    count = module.num_layers * (2 if module.bidirectional else 1)
    if hx is None:
        sizes = [module.proj_size or module.hidden_size, module.hidden_size][: 2 if module.mode == "LSTM" else 1]
        return tuple(torch.zeros(count, rows, n, dtype=dtype or x.dtype, device=x.device) for n in sizes)
    check_state(module, None, hx)
    states: tuple[Tensor, ...] = tuple(hx) if module.mode == "LSTM" else (hx,)
    if dtype is not None:
        states = tuple(s.to(_dtype(s.dtype, x.device.type)) for s in states)
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


def finish(module: nn.RNNBase, given: Prepared, x: Tensor, final: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """Rows or (T, B, F) of outputs and the last states, in the form that the layer was called with."""
    packed = given.packed
    if packed is not None:
        if packed.unsorted_indices is not None:
            final = tuple(s.index_select(1, packed.unsorted_indices) for s in final)
        result: Any = PackedSequence(x, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
    else:
        result = x.transpose(0, 1) if module.batch_first else x
        if given.unbatched:
            result = result.squeeze(0 if module.batch_first else 1)
            final = tuple(s.squeeze(1) for s in final)
    return result, _as_torchs(module, final)


def fused(module: nn.RNNBase, input: Any, hx: Any, weights: list[Tensor]) -> tuple[Any, Any]:
    """The layer in torch's fused kernel, on these weights in place of its parameters."""
    given = prepare(module, input, hx)
    weights = _in_one_buffer(module, weights)
    rest = (weights, module.bias, module.num_layers, module.dropout, module.training, module.bidirectional)
    function: Any = _FUNCTIONS[module.mode]
    if given.packed is not None:
        x, *final = function(given.x, given.packed.batch_sizes, _as_torchs(module, given.states), *rest)
    else:
        x, *final = function(given.x, _as_torchs(module, given.states), *rest, False)
    if module.mode == "LSTM" and x.requires_grad and x.is_cpu:
        x = x.clone()  # oneDNN keeps its output for the backward pass; the caller may change this one in place
    return finish(module, given, x, tuple(final))


def _in_one_buffer(module: nn.RNNBase, weights: list[Tensor]) -> list[Tensor]:
    """On a GPU, copies of the weights in the one buffer that cuDNN wants; parameters stay where they are."""
    plain = torch._C._functorch.peek_interpreter_stack() is None
    if not plain or not all(w.is_cuda and torch.backends.cudnn.is_acceptable(w) for w in weights):
        return weights
    if not torch._use_cudnn_rnn_flatten_weight() or len({w.dtype for w in weights}) > 1:
        return weights
    import torch.backends.cudnn.rnn as cudnn

    made = [w.clone() if isinstance(w, nn.Parameter) else w for w in weights]
    per_direction = len(made) // (module.num_layers * (2 if module.bidirectional else 1))
    with torch.cuda.device_of(made[0]), torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            made, per_direction, module.input_size, cudnn.get_cudnn_mode(module.mode), module.hidden_size,
            module.proj_size, module.num_layers, module.batch_first, bool(module.bidirectional),
        )  # fmt: skip
    return made


@uncompiled
def run(
    module: nn.RNNBase,
    input: Any,
    hx: Any,
    source: Source | None,
    noise: Mapping[str, LayerNoise] | None = None,
    *,
    plain: bool = False,
) -> tuple[Any, Any]:
    """`module(input, hx)` layer by layer, in our kernels.

    Takes and returns exactly what the torch module does: (T, B, F), batch_first, unbatched or PackedSequence.

    Args:
        source: of the noise between layers (torch's `dropout`); None: no noise.
        noise: by the suffix of the weights' names; None: no noise.
        plain: torch's own kernel could run it too, and `beats_torch` was asked.
    """
    x = input.data if isinstance(input, PackedSequence) else input
    with unwatched(x):
        given = prepare(module, input, hx, dtype=_dtype(x.dtype, x.device.type))
        rows = given.x.reshape(-1, given.x.shape[-1])
        packed = given.packed is not None
        out, final = _layers(Stack.of(module), rows, given.sizes, given.states, source, noise, packed, plain)
        if not packed:
            out = out.view(len(given.sizes), given.sizes[0], out.shape[-1])
        return finish(module, given, out, final)


def run_function(
    function: Any, args: Sequence[Any], source: Source | None = None, *, plain: bool = False
) -> tuple[Tensor, ...]:
    """A call of `torch.lstm`, `torch.gru`, `torch.rnn_tanh` or `torch.rnn_relu`, in our kernels; see `run`."""
    batch_first = False
    if packed := isinstance(args[3], (list, tuple)):
        x, sizes, hx, weights, bias, layers, dropout, _, bidirectional = args
        steps = sizes.tolist()
    else:
        x, hx, weights, bias, layers, dropout, _, bidirectional, batch_first = args
        x = x.transpose(0, 1) if batch_first else x
        steps = [x.shape[1]] * x.shape[0]
    stack = stack_of_call(function, weights, bias, layers, dropout, bidirectional)
    with unwatched(x):
        states = tuple(s.to(_dtype(s.dtype, x.device.type)) for s in (hx if stack.mode == "LSTM" else (hx,)))
        out, final = _layers(stack, x.reshape(-1, x.shape[-1]), steps, states, source, None, packed, plain)
        if not packed:
            out = out.view(*x.shape[:2], out.shape[-1])
            out = out.transpose(0, 1) if batch_first else out
        return out, *final


def stack_of_call(
    function: Any, weights: Sequence[Tensor], bias: bool, layers: int, dropout: float, bidirectional: bool
) -> Stack:
    """The layers that one of torch's recurrent functions is called for."""
    kinds = ["weight_ih", "weight_hh", *["bias_ih", "bias_hh"][: 2 * bias]]
    suffixes = names(layers, bidirectional)
    if len(weights) > len(kinds) * len(suffixes):
        kinds.append("weight_hr")
    by_name = dict(zip((k + s for s in suffixes for k in kinds), weights, strict=True))
    hidden = by_name["weight_hr_l0"].shape[1] if "weight_hr_l0" in by_name else by_name["weight_hh_l0"].shape[1]
    proj = by_name["weight_hr_l0"].shape[0] if "weight_hr_l0" in by_name else 0
    return Stack(MODES[function], by_name, layers, bool(bidirectional), hidden, proj, float(dropout))


def _layers(
    stack: Stack, x: Tensor, sizes: list[int], states: Sequence[Tensor], source: Source | None,
    noise: Mapping[str, LayerNoise] | None, packed: bool, plain: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Rows (sum of sizes, F) through all layers: rows of outputs, and the last states."""
    last: list[tuple[Tensor, ...]] = []
    directions = 2 if stack.bidirectional else 1
    plainly = torch._C._len_torch_dispatch_stack() > 0 or forward_mode()  # a tracer would miss calls into C
    with kernels.force("reference") if plainly else nullcontext():
        for layer in range(stack.num_layers):
            outs = []
            for suffix in stack.suffixes[layer * directions : (layer + 1) * directions]:
                own = noise[suffix] if noise else LayerNoise(
                    stack.weights[f"weight_ih{suffix}"], stack.weights[f"weight_hh{suffix}"]
                )  # fmt: skip
                out, *state = _direction(stack, x, [s[len(last)] for s in states], own, suffix, sizes, plain)
                outs.append(out)
                last.append(tuple(state))
            x = outs[0] if directions == 1 else torch.cat(outs, dim=-1)
            if stack.dropout > 0 and layer < stack.num_layers - 1 and source is not None:
                # torch's `dropout` argument: new noise at every step
                noise_shape = x.shape if packed else (len(sizes), sizes[0], x.shape[-1])
                batch_dim, dropout = None if packed else 1, Noise(stack.dropout)
                made = source.steps(f"between_l{layer}", dropout, noise_shape, x, batch_dim=batch_dim)
                x = x * made.reshape(x.shape)
    return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))


def _direction(
    stack: Stack,
    x: Tensor,
    state: Sequence[Tensor],
    noise: LayerNoise,
    suffix: str,
    sizes: list[int],
    plain: bool,
) -> tuple[Tensor, ...]:
    """One direction of one layer: the products with the input for all steps, then the recurrence."""
    cell, weights, reverse, b_hn = stack.cell, stack.weights, suffix.endswith("reverse"), None
    b_ih, b_hh = weights.get(f"bias_ih{suffix}"), weights.get(f"bias_hh{suffix}")
    if cell == "GRU" and b_hh is not None:
        size = stack.hidden_size
        b_hn = b_hh[2 * size :]
        b_hh = torch.cat([b_hh[: 2 * size], torch.zeros_like(b_hn)])
    bias = None if b_ih is None or b_hh is None else beside.run(torch.add, b_ih, b_hh, like=[noise.w_ih])
    gx = kernels.kernel("input", x.device.type)(x, noise.w_ih, bias, noise.z_x, sizes)
    run = kernels.kernel(cell, x.device.type, plain=plain, **_facts(stack, state, noise, sizes))
    with _in_full(x.device.type):
        kind = state[0].dtype
        w_hh = noise.w_hh.to(kind)
        z_h, z_c = (None if z is None else z.to(kind) for z in (noise.z_h, noise.z_c))
        if cell == "LSTM":
            w_hr = weights[f"weight_hr{suffix}"].to(kind) if stack.proj_size else None
            scale = noise.cell_scale
            h, c = (state[0] / scale, state[1]) if scale != 1 else state
            w_hh = w_hh * scale if scale != 1 else w_hh  # the recurrence runs on h / scale
            rows, h, c = run(gx, h, c, w_hh, w_hr, z_h, z_c, batch_sizes=sizes, reverse=reverse)
            out = (rows * scale, h * scale, c) if scale != 1 else (rows, h, c)
        elif cell == "GRU":
            b_hn = None if b_hn is None else b_hn.to(kind)
            out = run(gx, *state, w_hh, b_hn, z_h, batch_sizes=sizes, reverse=reverse)
        else:
            function = "tanh" if stack.mode == "RNN_TANH" else "relu"
            out = run(gx, *state, w_hh, z_h, nonlinearity=function, batch_sizes=sizes, reverse=reverse)
    return tuple(out)


def _facts(stack: Stack, state: Sequence[Tensor], noise: LayerNoise, sizes: list[int]) -> dict[str, Any]:
    """What the choice of a kernel depends on, the device aside."""
    device, z_h = state[0].device.type, noise.z_h
    return {
        "dtype": state[0].dtype,
        "autocast": _autocast(device),
        "batch": sizes[0],
        "hidden": stack.hidden_size,
        "steps": len(sizes),
        "ragged": sizes[0] != sizes[-1],
        "projection": bool(stack.proj_size),
        "recurrent_mask": None if z_h is None else "tied" if z_h.ndim == 2 else "untied",
        "cell_mask": noise.z_c is not None,
        "graph": kernels.is_recording(),
    }


def _autocast(device: str) -> torch.dtype | None:
    """The lower precision that is allowed now, if any."""
    return torch.get_autocast_dtype(device) if lowered(device) else None


def _in_full(device: str) -> AbstractContextManager[Any]:
    """Without autocast."""
    return torch.autocast(device, enabled=False) if lowered(device) else nullcontext()


def _dtype(given: torch.dtype, device: str) -> torch.dtype:
    """What a recurrence computes in: under autocast float32, since only products outside of it are lowered."""
    return torch.float32 if given == _autocast(device) else given


def forced() -> bool:
    """Whether torch's fused kernels cannot run: another path was asked for, or vmap or forward mode is at work."""
    return not torch.compiler.is_dynamo_compiling() and (kernels.forced() or mapped() or forward_mode())


def call_beats_torch(mode: str, weight: Tensor, x: Any, *, rows: int, steps: int, hidden: int, proj: int) -> bool:
    """Whether a path of ours is faster than torch's own kernel, for layers that could take either: on GPUs alone."""
    if mode not in ("LSTM", "GRU") or torch.compiler.is_compiling():
        return False
    if not x.is_cuda or x.numel() == 0:
        return False
    dtype = _dtype(x.dtype, "cuda")
    if dtype != _dtype(weight.dtype, "cuda"):
        return False
    case = kernels.Case(
        mode, "cuda", dtype, batch=rows, hidden=hidden, steps=steps, autocast=_autocast("cuda"), projection=proj > 0,
        plain=True, graph=kernels.is_recording(),
    )  # fmt: skip
    return kernels.choose(case)[0].name in ("persistent", "cells")


def beats_torch(module: nn.RNNBase, input: Any) -> bool:
    """`call_beats_torch` for a layer and its input."""
    packed = isinstance(input, PackedSequence)
    x = input.data if packed else input
    if not isinstance(x, Tensor) or not x.is_cuda or (not packed and (x.dim() not in (2, 3) or x.numel() == 0)):
        return False
    rows = rows_of(module, input)
    steps = len(input.batch_sizes) if packed else x.shape[:-1].numel() // rows
    weight: Any = module.weight_hh_l0
    hidden, proj = module.hidden_size, module.proj_size
    return call_beats_torch(module.mode, weight, x, rows=rows, steps=steps, hidden=hidden, proj=proj)
