"""Kernels: for each a plain `reference` and fast versions, and the one place that chooses between them.

`_TABLE` has the paths from fastest to plainest. A kernel runs on the first path that has it and does not refuse the
case. `BAYESRNN_KERNEL=persistent`, `=cells`, `=triton`, `=compiled`, `=loop` or `=reference` starts the search at that
path instead of at the top; `force` does the same inside a block. `explain` says in words what was chosen and why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from bayesrnn.errors import UserError
from bayesrnn.kernels.shared.vmap import transformed

KERNELS = ("LSTM", "GRU", "RNN", "input", "gaussian", "update")


@dataclass(frozen=True)
class Case:
    """What a choice depends on. None: not known, which is no reason against a path."""

    kernel: str
    """"LSTM", "GRU", "RNN": one direction of one layer; "input": the products before it; "gaussian": drawn weights;
    "update": clipping and a step of SGD."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    """Of the state, or of the posterior's parameters."""
    autocast: torch.dtype | None = None
    """The lower precision that is allowed here, if any."""
    batch: int | None = None
    hidden: int | None = None
    steps: int | None = None
    ragged: bool = False
    """Sequences of different lengths."""
    projection: bool = False
    recurrent_mask: str | None = None
    """Noise on h in the recurrent product: None, "tied" or "untied"."""
    cell_mask: bool = False
    plain: bool = False
    """A layer without noise, which torch's own kernel, on a GPU cuDNN's, can run whole."""
    graph: bool = False
    """Launched from a CUDA graph, where many small launches cost no time of the CPU."""


@dataclass(frozen=True)
class Path:
    """One way to compute: which kernels it has, and the reason it cannot run a case."""

    name: str
    what: str
    kernels: dict[str, str]
    """Where each function is, as "module:function" below this package; imported at first use."""
    refuses: Callable[[Case], str | None]
    mapped: tuple[str, ...] = ()
    """Kernels that also run inside a transform of `torch.func`, such as vmap, where tensors have no memory."""


@cache
def _missing(module: str) -> str | None:
    """Why a module of this package cannot be imported, or None."""
    try:
        import_module(f"{__name__}.{module}")
    except ImportError as error:
        if error.name is not None and error.name.startswith(__name__):
            return f"there is no module {error.name}"
        return f"{error.name or 'a part of it'} cannot be imported"
    return None


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, on a CPU: for tests, and only where such a path is forced."""
    return forced() and os.environ.get("TRITON_INTERPRET") == "1"


def _needs_triton(case: Case, module: str) -> str | None:
    if case.device != "cuda" and not interpreted():
        return f"it needs a CUDA device, and this is {case.device}"
    if case.device == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device here"
    return _missing(module)


def _persistent_refuses(case: Case) -> str | None:
    missing = _needs_triton(case, "shared.persistent")
    if missing is not None:
        return missing
    persistent: Any = import_module(f"{__name__}.shared.persistent")
    facts: dict[str, Any] = {
        "gates": {"LSTM": 4, "GRU": 3}[case.kernel],
        "device": torch.device(case.device),
        "batch": case.batch or 1,
        "hidden": case.hidden or 1,
        "untied": case.recurrent_mask == "untied",
    }
    rows = (case.steps or 1) * (case.batch or 1)
    cannot: str | None = persistent.supported(dtype=case.dtype, rows=rows, projection=case.projection, **facts)
    request = asked()
    if cannot is not None or (request is not None and request[0] == "persistent"):
        return cannot  # who asks for this path gets it wherever it runs
    slower: str | None = persistent.slower(cudnn=case.plain and not _cells_beat_cudnn(case), **facts)
    return slower


def _cells_refuse(case: Case) -> str | None:
    if case.device != "cuda":
        return f"it needs a CUDA device, and this is {case.device}"
    if case.projection:
        return "torch's fused cell has no projection"
    if case.cell_mask:
        return "torch's fused cell has no mask on the cell state"
    request = asked()
    if not case.plain or (request is not None and request[0] == "cells") or _cells_beat_cudnn(case):
        return None  # who asks for this path gets it wherever it runs
    return "cuDNN's kernel for whole layers, which this layer can take, is faster or was not measured against it"


def _cells_beat_cudnn(case: Case) -> bool:
    """For layers without noise, by results/gpu-layers.json: in TF32 and in a CUDA graph, LSTMs of 650 and 1500 units.

    Those of 200 units lost above 256 sequences, where one launch has lost too.
    """
    if not case.graph or case.kernel != "LSTM" or case.projection or (case.hidden or 0) < 512:
        return False
    return case.dtype == torch.float32 and case.autocast is None and tf32(products=True) and tf32(products=False)


def tf32(*, products: bool) -> bool:
    """Whether float32 may be rounded to TF32 on a GPU: in matrix products, or in cuDNN's recurrent layers.

    Asked by operation: torch's older switches raise an error once one of the newer was used.
    """
    backends: Any = torch.backends
    setting = backends.cuda.matmul if products else backends.cudnn.rnn
    return setting.fp32_precision not in ("ieee", "none")


def _triton_refuses(case: Case) -> str | None:
    missing = _needs_triton(case, "gaussian.triton")
    if missing is None and not case.dtype.is_floating_point:
        return f"it has no kernel for {case.dtype}"
    return missing


def _compiled_refuses(case: Case) -> str | None:
    if case.device != "cpu":
        return f"it runs on a CPU, and this is {case.device}"
    if case.dtype != torch.float32:
        return f"it has no kernel for {case.dtype}"
    if case.projection:
        return "it has no projection"
    why_not: Callable[[], str | None] = import_module(f"{__name__}.cpu").why_not
    return why_not()


_TABLE = (
    Path(
        "persistent",
        "one launch for all steps of a layer",
        {"LSTM": "lstm.triton:lstm", "GRU": "gru.triton:gru"},
        _persistent_refuses,
        mapped=("LSTM", "GRU"),
    ),
    Path(
        "cells",
        "one product and one fused cell per step",
        {"LSTM": "lstm.cells:lstm"},
        _cells_refuse,
    ),
    Path(
        "triton",
        "a few launches over all weights at once, noise made inside them",
        {"gaussian": "gaussian.triton:draw", "update": "update.triton:clipped_step"},
        _triton_refuses,
    ),
    Path(
        "compiled",
        "C, compiled at first use: all steps of a layer in one call, all weights in one pass each way",
        {
            "LSTM": "lstm.compiled:lstm",
            "GRU": "gru.compiled:gru",
            "RNN": "rnn.compiled:rnn",
            "gaussian": "gaussian.compiled:draw",
        },
        _compiled_refuses,
        mapped=("LSTM", "GRU", "RNN"),
    ),
    Path(
        "loop",
        "torch operations with a hand-written backward",
        {
            "LSTM": "lstm.loop:lstm",
            "GRU": "gru.loop:gru",
            "RNN": "rnn.loop:rnn",
            "input": "shared.projection:fast",
            "gaussian": "gaussian.fused:sample",
        },
        lambda case: None,
        mapped=("input",),
    ),
    Path(
        "reference",
        "plain torch operations: slow, differentiable any number of times, known to vmap",
        {
            "LSTM": "lstm.reference:lstm",
            "GRU": "gru.reference:gru",
            "RNN": "rnn.reference:rnn",
            "input": "shared.projection:reference",
            "gaussian": "gaussian.reference:sample",
            "update": "update.reference:clipped_step",
        },
        lambda case: None,
        mapped=KERNELS,
    ),
)
_NAMES = tuple(row.name for row in _TABLE)
_forced: ContextVar[str | None] = ContextVar("bayesrnn_kernel", default=None)
_recording: ContextVar[bool] = ContextVar("bayesrnn_recording", default=False)


@contextmanager
def force(path: str) -> Iterator[None]:
    """Run every recurrent layer, noisy or not, on the named path inside the block, or on the next that can.

    Those of torch's own too, inside a posterior of ours or one of our language models; elsewhere they are torch's.

    "reference" can be differentiated twice and runs under `torch.func.vmap`; torch's fused kernels cannot.
    """
    token = _forced.set(_check(path))
    try:
        yield
    finally:
        _forced.reset(token)


@contextmanager
def recording() -> Iterator[None]:
    """What runs inside the block is recorded into a CUDA graph, or warms up for that."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


def is_recording() -> bool:
    return _recording.get()


def _check(path: str) -> str:
    if path not in _NAMES:
        raise ValueError(f"path must be one of {', '.join(map(repr, _NAMES))}, got {path!r}")
    return path


def forced() -> bool:
    """Whether a `force` block is active: then no layer may take torch's fused kernel."""
    return _forced.get() is not None


def asked() -> tuple[str, str] | None:
    """The path that was asked for and by what: a `force` block, or the environment."""
    if (chosen := _forced.get()) is not None:
        return chosen, "kernels.force"
    if chosen := os.environ.get("BAYESRNN_KERNEL"):
        if chosen not in _NAMES:
            raise UserError(f"BAYESRNN_KERNEL must be one of {', '.join(_NAMES)}, not {chosen!r}.")
        return chosen, "BAYESRNN_KERNEL"
    return None


def choose(case: Case) -> tuple[Path, list[tuple[Path, str]]]:
    """The path that this case takes, and those before it that have such a kernel, each with its reason against."""
    request = asked()
    start = 0 if request is None else _NAMES.index(request[0])
    against: list[tuple[Path, str]] = []
    for k, row in enumerate(_TABLE):
        if case.kernel not in row.kernels:
            continue
        reason = "another path was asked for" if k < start else row.refuses(case)
        if reason is None and case.kernel not in row.mapped and transformed():
            reason = "it does not know the transforms of torch.func, and one is at work"
        if reason is None:
            return row, against
        against.append((row, reason))
    raise ValueError(f"there is no kernel {case.kernel!r}: the names are {', '.join(KERNELS)}")


def able(path: str, case: Case) -> bool:
    """Whether a path can run a case, whatever was asked for."""
    row = _TABLE[_NAMES.index(_check(path))]
    return case.kernel in row.kernels and row.refuses(case) is None


def path(device: str = "cpu", *, name: str = "LSTM", **facts: Any) -> str:
    """The path that layers with noise per sequence take now; `facts` are those of `Case`."""
    return choose(Case(name, device, **facts))[0].name


@cache
def _load(place: str) -> Callable[..., Any]:
    module, function = place.split(":")
    loaded: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), function)
    return loaded


def kernel(name: str, device: str = "cpu", **facts: Any) -> Callable[..., Any]:
    """The function of `name` for a case with these facts; on every path a layer's are called alike."""
    return _load(choose(Case(name, device, **facts))[0].kernels[name])


from bayesrnn.kernels.explanation import explain

__all__ = [
    "Case",
    "Path",
    "able",
    "asked",
    "choose",
    "explain",
    "force",
    "forced",
    "interpreted",
    "is_recording",
    "kernel",
    "path",
    "recording",
    "tf32",
]
