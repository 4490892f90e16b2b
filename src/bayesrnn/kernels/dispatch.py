"""The one place that chooses between the paths of a kernel.

Every file in a kernel's folder (`lstm/`, `gru/`, `rnn/`, `input/`, `decoder/`, `gaussian/`, `update/`) may declare
`PATHS`, ways to compute it. They are collected here and ordered by `Path.rank`. A kernel runs on the first path that
does not refuse the case. `BAYESRNN_KERNEL=persistent`, `=cells`, `=triton`, `=compiled`, `=loop` or `=reference` starts
the search at that path; `force` does the same inside a block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

import torch

from bayesrnn.errors import UserError
from bayesrnn.kernels.shared.tensors import traced, transformed

_ROOT = __name__.rpartition(".")[0]
_NO_PATHS = ("cpu", "gpu", "shared")  # folders with what the paths are built from


class Case(NamedTuple):
    """The facts a choice depends on. None means unknown, which is no reason against a path."""

    kernel: str
    """"LSTM", "GRU", "RNN": one direction of one layer. "input": the products before it. "gaussian": drawn weights.
    "update": clipping and a step of SGD. "decoder": targets' log-probabilities by a linear layer and a softmax."""
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    """dtype of the state, or of the posterior's parameters."""
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
    """A layer without noise, which torch's own kernel (cuDNN on a GPU) can run whole."""
    graph: bool = False
    """Launched from a CUDA graph, where many small launches cost no CPU time."""
    noise: str | None = None
    """For "gaussian": the path that makes this draw's noise from a seed, or "tensors"."""


def _never(case: Case) -> str | None:
    return None


@dataclass(frozen=True)
class Path:
    """One way to compute one kernel.

    Args:
        name: paths of several kernels that work alike share a name and a rank.
        kernel: see `Case.kernel`.
        function: the function, or "module:function" for one whose import is expensive or may fail.
        what: one phrase for `explain`.
        rank: paths are tried from the lowest rank to the highest.
        refuses: the reason why it cannot run a case, or None.
        mapped: it also runs inside the transforms of `torch.func`, such as vmap, where tensors have no memory.
        traced: it consists of torch operations only, so that tracers and fake tensors can follow it.

    Example, a file `kernels/lstm/quick.py` of its own::

        PATHS = (Path("quick", "LSTM", lstm, "a quick way", rank=35, refuses=lambda case: None),)
    """

    name: str
    kernel: str
    function: Callable[..., Any] | str
    what: str
    rank: int
    refuses: Callable[[Case], str | None] = _never
    mapped: bool = False
    traced: bool = False

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        if not isinstance(self.function, str):
            return self.function
        module, name = self.function.split(":")
        loaded: Callable[..., Any] = getattr(import_module(module), name)
        return loaded

    def reason_against(self, case: Case) -> str | None:
        """Why it cannot run this case now, or None."""
        reason = self.refuses(case)
        if reason is None and not self.mapped and transformed():
            reason = "it does not know the transforms of torch.func, and one is at work"
        if reason is None and not self.traced and traced():
            reason = "a tracer or another dispatch mode is at work, which follows torch operations only"
        return reason


loop_path = partial(Path, "loop", what="torch operations with a hand-written backward", rank=80)
reference_path = partial(
    Path,
    "reference",
    what="plain torch operations: slow, differentiable any number of times, known to vmap",
    rank=90,
    mapped=True,
    traced=True,
)


class Paths(NamedTuple):
    """The paths of each kernel, and the rank of each name; both from the fastest to the plainest."""

    by_kernel: dict[str, list[Path]]
    ranks: dict[str, int]


@cache
def all_paths() -> Paths:
    """The paths that the kernels' folders declare."""
    found: list[Path] = []
    for folder in iter_modules(import_module(_ROOT).__path__):
        if folder.ispkg and folder.name not in _NO_PATHS:
            package = import_module(f"{_ROOT}.{folder.name}")
            for file in iter_modules(package.__path__):
                found += getattr(import_module(f"{_ROOT}.{folder.name}.{file.name}"), "PATHS", ())
    made = Paths({}, {})
    for path in sorted(found, key=lambda path: path.rank):
        made.by_kernel.setdefault(path.kernel, []).append(path)
        made.ranks.setdefault(path.name, path.rank)
    return made


def path_names() -> list[str]:
    """The names of all paths, in the order in which they are tried."""
    return list(all_paths().ranks)


def paths_of(kernel: str) -> list[Path]:
    """The paths of one kernel, in the order in which they are tried."""
    by_kernel = all_paths().by_kernel
    if kernel not in by_kernel:
        raise ValueError(f"there is no kernel {kernel!r}: the names are {', '.join(by_kernel)}")
    return by_kernel[kernel]


def implementation(kernel: str, path: str) -> Callable[..., Any]:
    """The function of one kernel on one path, whatever was asked for."""
    return next(row for row in paths_of(kernel) if row.name == _check(path)).load()


_forced: ContextVar[str | None] = ContextVar("bayesrnn_kernel", default=None)


@contextmanager
def force(path: str) -> Iterator[None]:
    """Run every recurrent layer, noisy or not, on the named path inside the block, or on the next one that can.

    This includes torch's own layers inside a posterior or a language model of this library.
    "reference" can be differentiated twice and runs under `torch.func.vmap`; torch's fused kernels cannot.
    """
    token = _forced.set(_check(path))
    try:
        yield
    finally:
        _forced.reset(token)


def _check(path: str) -> str:
    if path not in path_names():
        raise ValueError(f"path must be one of {', '.join(map(repr, path_names()))}, got {path!r}")
    return path


def forced() -> bool:
    """Whether a `force` block is active: then no layer may take torch's fused kernel."""
    return _forced.get() is not None


def asked() -> tuple[str, str] | None:
    """The path that was asked for and by what: a `force` block, or the environment."""
    if (chosen := _forced.get()) is not None:
        return chosen, "kernels.force"
    if chosen := os.environ.get("BAYESRNN_KERNEL"):
        if chosen not in path_names():
            raise UserError(f"BAYESRNN_KERNEL must be one of {', '.join(path_names())}, not {chosen!r}.")
        return chosen, "BAYESRNN_KERNEL"
    return None


def asked_for(path: str) -> bool:
    """Whether this very path was asked for: then it runs wherever it can, even where another one is faster."""
    request = asked()
    return request is not None and request[0] == path


def choose(case: Case) -> tuple[Path, list[tuple[Path, str]]]:
    """The path that this case takes, and the faster ones, each with the reason against it."""
    request = asked()
    start = 0 if request is None else all_paths().ranks[request[0]]
    against: list[tuple[Path, str]] = []
    for row in paths_of(case.kernel):
        reason = "another path was asked for" if row.rank < start else row.reason_against(case)
        if reason is None:
            return row, against
        against.append((row, reason))
    raise ValueError(f"no path can run this {case.kernel}: " + "; ".join(f"{row.name}: {why}" for row, why in against))


def able(path: str, case: Case) -> bool:
    """Whether a path can run a case, whatever was asked for."""
    name = _check(path)
    return any(row.name == name and row.refuses(case) is None for row in paths_of(case.kernel))


def path(device: str = "cpu", *, name: str = "LSTM", **facts: Any) -> str:
    """The path that layers with noise per sequence take now; `facts` are the fields of `Case`."""
    return choose(Case(name, device, **facts))[0].name


def kernel(name: str, device: str = "cpu", **facts: Any) -> Callable[..., Any]:
    """The function of kernel `name` for a case with these facts. All paths of a kernel take the same arguments."""
    return choose(Case(name, device, **facts))[0].load()
