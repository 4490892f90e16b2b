"""When the C kernels can run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bayesrnn.kernels.cpu.build import why_not
from bayesrnn.kernels.dispatch import Case, Path


def _refuses(case: Case) -> str | None:
    if case.device != "cpu":
        return f"it runs on a CPU, and this is {case.device}"
    if case.dtype != torch.float32:
        return f"it has no kernel for {case.dtype}"
    if case.projection:
        return "it has no projection"
    if case.noise not in (None, "compiled"):
        return "this draw's noise was made elsewhere"
    return why_not()


compiled_path: Callable[..., Path] = partial(
    Path,
    "compiled",
    what="C, compiled at first use: all steps of a layer in one call, all weights in one pass each way",
    rank=40,
    refuses=_refuses,
)
"""`compiled_path(kernel, function)`: a path in C."""
