"""When the kernels in C and in Triton can run, without an import of Triton."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from bayesrnn.kernels.cpu.build import why_not
from bayesrnn.kernels.dispatch import Case, Path, asked_for, forced
from bayesrnn.kernels.shared.precision import tf32
from bayesrnn.kernels.shared.recurrent import GATES

_FOLDER = f"{__package__}.gpu"
_absent: dict[str, str] = {}  # modules that are not installed; other failures are tried again


def _compiled_refuses(case: Case) -> str | None:
    if case.device != "cpu":
        return f"it runs on a CPU, and this is {case.device}"
    if case.dtype != torch.float32:
        return f"it has no kernel for {case.dtype}"
    if case.projection:
        return "it has no projection"
    if case.noise not in (None, "compiled"):
        return "this draw's noise was made elsewhere"
    return why_not()


def compiled_path(kernel: str, function: Callable[..., Any], *, mapped: bool = False) -> Path:
    """A path in C."""
    what = "C, compiled at first use: all steps of a layer in one call, all weights in one pass each way"
    return Path("compiled", kernel, function, what, rank=40, refuses=_compiled_refuses, mapped=mapped)


def missing(module: str) -> str | None:
    """Why a module of kernels/gpu cannot be imported, or None."""
    if module not in _absent:
        try:
            import_module(f"{_FOLDER}.{module}")
        except ImportError as error:
            if error.name is not None and error.name.startswith(_FOLDER):
                return f"there is no module {error.name}"
            reason = f"{error.name or 'a part of it'} cannot be imported"
            if not isinstance(error, ModuleNotFoundError):
                return reason
            _absent[module] = reason
    return _absent.get(module)


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, on a CPU: for tests, and only where such a path is forced."""
    return forced() and os.environ.get("TRITON_INTERPRET") == "1"


def needs_triton(case: Case, module: str) -> str | None:
    """Why a kernel in `module` of kernels/gpu cannot run on the case's device, or None."""
    if case.device != "cuda" and not interpreted():
        return f"it needs a CUDA device, and this is {case.device}"
    if case.device == "cuda" and not torch.cuda.is_available():
        return "torch sees no CUDA device here"
    return missing(module)


def _triton_refuses(case: Case, *, module: str) -> str | None:
    reason = needs_triton(case, module)
    if reason is None and not case.dtype.is_floating_point:
        reason = f"it has no kernel for {case.dtype}"
    if reason is None and case.noise not in (None, "triton"):
        reason = "this draw's noise was made elsewhere"
    return reason


def triton_path(kernel: str, place: str) -> Path:
    """A path of a few launches over all weights; `place` is "module:function" in kernels/gpu."""
    what = "a few launches over all weights at once, noise made inside them"
    refuses = partial(_triton_refuses, module=place.split(":")[0])
    return Path("triton", kernel, f"{_FOLDER}.{place}", what, rank=30, refuses=refuses)


def _persistent_refuses(case: Case) -> str | None:
    reason = needs_triton(case, "persistent")
    if reason is not None:
        return reason
    persistent: Any = import_module(f"{_FOLDER}.persistent")
    facts: dict[str, Any] = {
        "gates": GATES[case.kernel],
        "device": torch.device(case.device),
        "batch": case.batch or 1,
        "hidden": case.hidden or 1,
        "untied": case.recurrent_mask == "untied",
    }
    rows = (case.steps or 1) * (case.batch or 1)
    cannot: str | None = persistent.supported(dtype=case.dtype, rows=rows, projection=case.projection, **facts)
    if cannot is not None or asked_for("persistent"):
        return cannot
    slower: str | None = persistent.slower(cudnn=case.plain and not cells_beat_cudnn(case), **facts)
    return slower


def persistent_path(kernel: str, place: str) -> Path:
    """A path of one launch for all steps of a layer; `place` is "module:function" in kernels/gpu."""
    what, refuses = "one launch for all steps of a layer", _persistent_refuses
    return Path("persistent", kernel, f"{_FOLDER}.{place}", what, rank=10, refuses=refuses, mapped=True)


def cells_beat_cudnn(case: Case) -> bool:
    """For layers without noise, by results/gpu-layers.json: in TF32 and in a CUDA graph, LSTMs of 650 and 1500 units.

    Those of 200 units lost above 256 sequences, where one launch lost too.
    """
    if not case.graph or case.kernel != "LSTM" or case.projection or (case.hidden or 0) < 512:
        return False
    return case.dtype == torch.float32 and case.autocast is None and tf32(products=True) and tf32(products=False)
