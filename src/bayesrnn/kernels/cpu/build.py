"""The C kernels of this folder: compiled at first use by the machine's own compiler, kept in the user's cache folder.

Nothing happens at import. Where there is no compiler, or it fails, or `BAYESRNN_COMPILE=0`, `library()` is None and
`why_not()` says why; the callers then take their paths in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

SOURCES = ("kernels.c", "vector.h", "noise.h", "gaussian.h", "product.h", "recurrent.h")
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
)
_HERE = Path(__file__).parent
_TIMEOUT = 300  # seconds for one compilation


class Unavailable(Exception):
    """The reason why the compiled kernels are unavailable, in one line."""


_lock = threading.Lock()
_outcome: ctypes.CDLL | Unavailable | None = None
_forked = False


def _after_fork() -> None:
    global _forked, _lock
    _forked, _lock = True, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def library() -> ctypes.CDLL | None:
    """The compiled kernels, built and loaded at the first call; None if that fails."""
    return loaded() if why_not() is None else None


def why_not() -> str | None:
    """Why the compiled kernels are unavailable; None if they are available."""
    global _outcome
    if os.environ.get("BAYESRNN_COMPILE") == "0":
        return "BAYESRNN_COMPILE=0 switches them off"
    if _outcome is None:
        with _lock:
            if _outcome is None:
                try:
                    _outcome = _load()
                except Unavailable as reason:
                    _outcome = reason
                except OSError as error:
                    _outcome = Unavailable(f"the compiled kernels could not be written or loaded: {error}")
    return str(_outcome) if isinstance(_outcome, Unavailable) else None


def loaded() -> ctypes.CDLL:
    """The compiled kernels, for callers that have asked `why_not`."""
    assert isinstance(_outcome, ctypes.CDLL)
    return _outcome


def threads() -> int:
    """The number of threads that torch uses; 1 in a forked process, which has none of its parent's OpenMP threads."""
    return 1 if _forked else torch.get_num_threads()


def _load() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise Unavailable(f"kernels are compiled on Linux only, this is {sys.platform}")
    compiler = _compiler()
    runtime = _openmp()
    folder = _private_folder()
    target = folder / f"kernels-{_key(compiler, runtime)}.so"
    if not _usable(target):
        with _only_one(target.with_suffix(".lock")):
            if not _usable(target):
                _compile(compiler, runtime, target)
    made = ctypes.CDLL(str(target))
    made.bayesrnn_draw.restype, made.bayesrnn_mark.restype = ctypes.c_double, ctypes.c_uint64
    return made


def _compiler() -> list[str]:
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(command[0])
        if found is not None:
            return [found, *command[1:]]
    raise Unavailable("no C compiler was found: " + (f"CC={named[0]}" if named else "neither cc, gcc nor clang"))


def _openmp() -> str:
    """The OpenMP library that torch has loaded; the idle threads of a second one would compete for the cores."""
    names, home = ("libgomp", "libiomp5", "libomp"), str(Path(torch.__file__).parent)
    paths = {"/" + line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found = sorted(p for p in paths if Path(p).name.startswith(names))
    if not found:
        raise Unavailable("torch has loaded no OpenMP library, so there would be no threads")
    return next((p for p in found if p.startswith(home)), found[0])


def _private_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "bayesrnn"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Unavailable(f"{folder} must be a folder of yours that nobody else can write to (mode 700)")
    return folder


def _usable(target: Path) -> bool:
    """Whether the file exists; raises if another user could have written it."""
    try:
        found = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Unavailable(f"{target} is not yours alone and is not loaded: remove it")
    return True


def _key(compiler: list[str], runtime: str) -> str:
    """A hash of everything the compiled file depends on: sources, flags, compiler and processor."""
    digest = hashlib.blake2b(digest_size=12)
    for name in SOURCES:
        digest.update((_HERE / name).read_bytes())
    binary = Path(compiler[0]).resolve()
    digest.update(repr((FLAGS, compiler, str(binary), binary.stat().st_size, binary.stat().st_mtime_ns)).encode())
    digest.update(repr((runtime, platform.machine(), _processor())).encode())
    return digest.hexdigest()


def _processor() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return []
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU implementer", "CPU part")
    return [line for line in lines if line.partition(":")[0].strip() in wanted]


@contextlib.contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Let processes that start together compile once; without file locks each compiles, with the same result."""
    import fcntl

    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compile(compiler: list[str], runtime: str, target: Path) -> None:
    handle, name = tempfile.mkstemp(prefix=target.stem, suffix=".part", dir=target.parent)
    os.close(handle)
    # objects first: linking with -fopenmp would add the compiler's own OpenMP library to torch's
    command = [*compiler, *FLAGS, "-fPIC", "-c", str(_HERE / SOURCES[0]), "-o", name + ".o"]
    link = [*compiler, "-shared", "-Wl,-z,defs", name + ".o", runtime, "-lm", "-lc", "-o", name]
    try:
        for step in (command, link):
            done = subprocess.run(step, capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL)
            if done.returncode:
                said = done.stderr.strip().splitlines() or ["nothing"]
                raise Unavailable(f"{compiler[0]} failed (exit {done.returncode}): {said[0]}")
        os.chmod(name, 0o700)
        os.replace(name, target)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{compiler[0]} took longer than {_TIMEOUT} seconds") from None
    finally:
        for left in (name, name + ".o"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)
