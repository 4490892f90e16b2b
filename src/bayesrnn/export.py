"""Out of the library: a trained model as a plain torch module, as an exported program, as ONNX.

All three hold the posterior mean, as `model.eval()` gives it, and none needs bayesrnn to run.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence

from bayesrnn.compilation import copied
from bayesrnn.draws import release
from bayesrnn.nn import GRU, LSTM, RNN, Dropout, Embedding, SequenceDropout
from bayesrnn.posteriors import Bayesian, PosteriorSharpening, RandomWeights
from bayesrnn.wrappers import unwrapped

# our layer, torch's replacement, and the attributes to drop
_PLAIN: dict[type[nn.Module], tuple[type[nn.Module], tuple[str, ...]]] = {
    LSTM: (nn.LSTM, ("rates",)),
    GRU: (nn.GRU, ("rates",)),
    RNN: (nn.RNN, ("rates",)),
    Embedding: (nn.Embedding, ("word_dropout", "batch_first")),
    SequenceDropout: (nn.Identity, ("p", "noise", "share", "batch_first")),
    Dropout: (nn.Identity, ("p", "noise")),
}


def to_torch(model: nn.Module) -> nn.Module:
    """A copy of the model at its posterior mean, made of torch.nn's layers, in eval mode.

    Posteriors over weights (Bayes by Backprop, sharpened, DropConnect) give way to the module they are around, with the
    means as its weights; after `br.prune` there are zeros where weights went. `br.LSTM`, `br.GRU`, `br.RNN` and
    `br.Embedding` become torch.nn's, `br.SequenceDropout` and `br.Dropout` become `nn.Identity`. Names, tied weights,
    hooks, dtype and device stay. torch's own dropout layers stay too, and are off in eval mode.

    The result does not need bayesrnn: pickles and scripts refer only to torch and the model's own classes.

    Raises:
        TypeError: a part has no plain form, such as a subclass of `br.LSTM` or a parametrised layer.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    made = _unwrapped(copied(unwrapped(model)))
    for part in list(made.modules()):
        for attribute in _wrapped(part):
            setattr(part, attribute, _unwrapped(getattr(part, attribute)))
    release(made)  # a copy made inside br.draw or br.mean is outside of it
    for name, part in made.named_modules():
        _make_plain(name, part)
    return made.eval()


def _unwrapped(model: nn.Module) -> nn.Module:
    while isinstance(model, (Bayesian, PosteriorSharpening)):
        model = model.q if isinstance(model, PosteriorSharpening) else model.module
    return model


def _wrapped(part: nn.Module) -> list[str]:
    return [n for n, m in part._modules.items() if isinstance(m, (Bayesian, PosteriorSharpening))]


def _make_plain(name: str, part: nn.Module) -> None:
    kind = type(part)
    if kind in _PLAIN:
        part.__class__, surplus = _PLAIN[kind]
        for attribute in surplus:
            del part.__dict__[attribute]
    elif isinstance(part, (*_PLAIN, RandomWeights)):
        where = f"{name} ({kind.__name__})" if name else kind.__name__
        way = "remove its parametrisations first" if is_parametrized(part) else "give it one of your own"
        raise TypeError(f"{where} has no plain form in torch.nn: {way}, then call to_torch again")
    if isinstance(part, nn.RNNBase):
        part.flatten_parameters()  # a copy of cuDNN's one piece of memory is many


def _free_axes(leaf: Any) -> Any:
    """Every axis of an input free, where the model lets it be."""
    if not isinstance(leaf, Tensor):
        return None
    for axis, size in enumerate(leaf.shape):
        if size < 2:
            raise ValueError(
                f"axis {axis} of an example input has size {size}, and the exported graph would be for that size "
                "alone: give examples with at least 2 steps and 2 sequences, or say what is free in dynamic_shapes"
            )
    return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO)


def _prepared(model: nn.Module, args: Any, dynamic_shapes: Any) -> tuple[nn.Module, tuple[Any, ...], Any]:
    args = args if isinstance(args, tuple) and not isinstance(args, PackedSequence) else (args,)
    leaves = torch.utils._pytree.tree_leaves(args, is_leaf=lambda part: isinstance(part, PackedSequence))
    if any(isinstance(leaf, PackedSequence) for leaf in leaves):
        raise TypeError(
            "a PackedSequence cannot be exported: a graph has no type for it. Export with padded input (T, B, F), "
            "and read each sequence's outputs up to its length"
        )
    shapes = torch.utils._pytree.tree_map(_free_axes, args) if dynamic_shapes is None else dynamic_shapes
    return to_torch(model).requires_grad_(False), args, shapes


def _outputs(result: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]


def _check_same(expected: Sequence[Tensor], got: Sequence[Tensor], what: str) -> None:
    for one, other in zip(expected, got, strict=True):
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True):
            gap = float((one - other).abs().max())
            raise RuntimeError(f"{what} does not give the model's numbers (off by {gap:.2g}); nothing was written")


@torch.no_grad()
def to_exported(model: nn.Module, args: Any, *, dynamic_shapes: Any = None) -> torch.export.ExportedProgram:
    """The posterior mean as a `torch.export` program, for sequences of any length and batches of any size.

    A recurrent layer stays one operator of torch (`aten.lstm`), not a loop unrolled over the example's steps. Save it
    with `torch.export.save(program, "model.pt2")`: an archive with the graph as JSON. Its numbers are checked against
    the model's before it is returned.

    Args:
        model: any module; `to_torch` is applied first.
        args: example inputs, a tuple, with at least 2 steps and 2 sequences; states included where they are to be
            inputs of the program.
        dynamic_shapes: which axes are free, as in `torch.export.export`. None: all that the model leaves free.
    """
    plain, args, shapes = _prepared(model, args, dynamic_shapes)
    with _recurrences_of_any_length(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The tensor attributes.*_flat_weights")  # torch's own layers
        program = torch.export.export(plain, args, dynamic_shapes=shapes)
    _check_same(_outputs(plain(*args)), _outputs(program.module()(*args)), "the exported program")
    return program


def _recurrent_shapes(
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Shapes and dtypes of what torch's recurrent operators return."""
    states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    size = states[0].shape[-1] * (2 if bidirectional else 1)
    a, b = input.shape[:2]
    out = input.new_empty(b, a, size).transpose(0, 1) if batch_first else input.new_empty(a, b, size)
    return (out, *(torch.empty_like(s) for s in states))


@contextmanager
def _recurrences_of_any_length() -> Iterator[None]:
    """Let the exporter see only the shapes of recurrent operators.

    It finds them otherwise by running torch's decomposition step by step, which fixes the number of steps.
    """
    key = torch._C.DispatchKey
    aten: Any = torch.ops.aten
    ops = [aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input]
    kept = [dict(op.py_kernels) for op in ops]
    try:
        for op in ops:
            for one in (key.CompositeImplicitAutograd, key.Autograd):
                op.py_kernels[one] = _recurrent_shapes
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in zip(ops, kept, strict=True):
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


@torch.no_grad()
def to_onnx(
    model: nn.Module,
    path: str | Path,
    args: Any,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
) -> bool:
    """Write the posterior mean as an ONNX file, in float32, for sequences of any length and batches of any size.

    Recurrent layers become ONNX's own LSTM, GRU and RNN operators. Needs `onnx` and `onnxscript`. With `onnxruntime`
    the file's numbers are checked against the model's, and a file that gives others is not kept.

    Args:
        model: any module; `to_torch` is applied first.
        path: the file to write.
        args: example inputs, as in `to_exported`.
        input_names: names of the graph's inputs, states included, one for each tensor.
        output_names: names of the graph's outputs, likewise.
        dynamic_shapes: which axes are free, as in `to_exported`.

    Returns:
        Whether the numbers were checked: False where onnxruntime is not installed.
    """
    plain, args, shapes = _prepared(model, args, dynamic_shapes)
    plain = plain.float().cpu()
    args = torch.utils._pytree.tree_map_only(Tensor, _to_float_on_cpu, args)
    graph = _with_onnx_layers(copied(plain))
    try:
        with _quiet_exporter():
            program: Any = torch.onnx.export(
                graph, args, dynamic_shapes=shapes, input_names=input_names, output_names=output_names, dynamo=True,
                verbose=False, optimize=True,
            )  # fmt: skip
    except ImportError as error:
        raise ImportError(f"ONNX export needs onnx and onnxscript: pip install 'bayesrnn[export]' ({error})") from None
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        program.save(temporary)
        checked = _check_onnx(temporary, plain, args)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return checked


def _to_float_on_cpu(x: Tensor) -> Tensor:
    return x.detach().cpu().float() if x.is_floating_point() else x.detach().cpu()


def _check_onnx(path: Path, plain: nn.Module, args: tuple[Any, ...]) -> bool:
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        return False
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = dict(zip([i.name for i in session.get_inputs()], _outputs(args), strict=True))
    got = session.run(None, {name: x.numpy() for name, x in inputs.items()})
    _check_same(_outputs(plain(*args)), [torch.from_numpy(x) for x in got], "the ONNX file")
    return True


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the exporter's notes to its own developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# the order of the gates in ONNX's operators, as places in torch's
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}


def _with_onnx_layers(model: nn.Module) -> nn.Module:
    for name, part in list(model.named_modules()):
        if not isinstance(part, nn.RNNBase):
            continue
        if part.proj_size:
            raise TypeError(
                f"{name or 'the model'} is an LSTM with proj_size, which ONNX's LSTM operator lacks: "
                "use to_exported, or train without proj_size"
            )
        if not name:
            return _OnnxRecurrence(part)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, _OnnxRecurrence(part))
    return model


class _OnnxRecurrence(nn.Module):
    """Stands in for a recurrent layer of torch while a graph is made: emits ONNX's operator, one for each layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.mode, self.layers, self.size = layer.mode, layer.num_layers, layer.hidden_size
        self.batch_first, self.directions = layer.batch_first, 2 if layer.bidirectional else 1
        self.bias = layer.bias
        suffixes = ("", "_reverse")[: self.directions]
        for k in range(self.layers):
            for kind in ("weight_ih", "weight_hh"):
                each = [_onnx_order(layer, f"{kind}_l{k}{suffix}") for suffix in suffixes]
                self.register_buffer(f"{kind}_{k}", torch.stack(each))
            if self.bias:
                pairs = [[_onnx_order(layer, f"bias_{b}_l{k}{suffix}") for b in ("ih", "hh")] for suffix in suffixes]
                self.register_buffer(f"bias_{k}", torch.stack([torch.cat(pair) for pair in pairs]))

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if input.dim() != 3:
            raise ValueError("ONNX's recurrent operators take batches: export with (T, B, F) input")
        x = input.transpose(0, 1) if self.batch_first else input
        shape = (self.layers * self.directions, x.shape[1], self.size)
        states = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        if hx is None:
            states = (x.new_zeros(shape),) * (2 if self.mode == "LSTM" else 1)
        if any(tuple(s.shape) != shape for s in states):
            raise RuntimeError(f"expected states of shape {shape}, got {[tuple(s.shape) for s in states]}")
        last: list[list[Tensor]] = [[] for _ in states]
        for k in range(self.layers):
            first = k * self.directions
            x, *after = self._layer(k, x, [s[first : first + self.directions] for s in states])
            for parts, state in zip(last, after, strict=True):
                parts.append(state)
        final = [torch.cat(parts) for parts in last]
        return x.transpose(0, 1) if self.batch_first else x, tuple(final) if self.mode == "LSTM" else final[0]

    def _layer(self, k: int, x: Tensor, states: list[Tensor]) -> list[Tensor]:
        steps, rows = x.shape[0], x.shape[1]
        attributes: dict[str, Any] = {
            "hidden_size": self.size,
            "direction": "bidirectional" if self.directions == 2 else "forward",
        }
        if self.mode == "GRU":
            attributes["linear_before_reset"] = 1
        elif self.mode == "RNN_RELU":
            attributes["activations"] = ["Relu"] * self.directions
        bias = self.get_buffer(f"bias_{k}") if self.bias else None
        shapes = [(steps, self.directions, rows, self.size)] + [(self.directions, rows, self.size)] * len(states)
        y, *after = torch.onnx.ops.symbolic_multi_out(
            self.mode.split("_")[0],
            (x, self.get_buffer(f"weight_ih_{k}"), self.get_buffer(f"weight_hh_{k}"), bias, None, *states),
            attributes,
            dtypes=[x.dtype] * len(shapes),
            shapes=shapes,
            version=14,
        )
        return [y.permute(0, 2, 1, 3).reshape(steps, rows, self.directions * self.size), *after]


def _onnx_order(layer: nn.RNNBase, name: str) -> Tensor:
    order = _GATES[layer.mode]
    parts = getattr(layer, name).detach().chunk(len(order))
    return torch.cat([parts[k] for k in order])
