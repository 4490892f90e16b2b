"""Faults that a process makes for itself before it runs: death in a write, a full disk, a clock that jumps."""

import ctypes
import errno
import functools
import io
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayesrnn.lab.runs import files as run_files


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_write(moment: int) -> None:
    """Prepare this process to kill itself in the course of a write: half-way, before or after a move, and so on."""
    count = itertools.count(1)

    def then(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if next(count) == moment:
            die()
        return call(*args, **kwargs)

    class Torn(io.FileIO):
        def writelines(self, parts: Any) -> None:
            """A file comes in parts; half of its bytes are written."""
            whole = b"".join(parts)
            if next(count) == moment:
                super().write(whole[: len(whole) // 2])
                die()
            super().write(whole)

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, functools.partial(then, getattr(os, name)))
    run_files.open = Torn  # type: ignore[attr-defined]


def disk_full_after(size: int) -> None:
    """Prepare this process to find the disk full after so many bytes, in the middle of a write."""
    left = [size]

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            part = min(len(data), left[0])
            left[0] -= part
            written = super().write(memoryview(data)[:part])
            if part < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return written

    run_files.open = Full  # type: ignore[attr-defined]


def jumping_clock(chance: random.Random) -> None:
    """The time of day jumps by years at every look."""
    time.time = lambda: chance.uniform(0, 4e9)


def no_privileges() -> None:
    """Permissions hold for this process from here on, also if it is root's."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and ctypes.CDLL(None).capset(header, none):
        raise OSError("capabilities cannot be dropped")


class Impossible(Exception):
    """The fault cannot be made on this machine."""


@contextmanager
def mounted(path: Path, size: int) -> Iterator[Callable[[int], None]]:
    """A file system in memory of so many bytes at the path; yields what gives it another size."""

    def mount(option: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Impossible("mounting needs root")

    try:
        mount(f"size={size}")
    except OSError:
        raise Impossible("there is no mount command") from None
    try:
        yield lambda more: mount(f"remount,size={more}")
    finally:
        subprocess.run(["umount", str(path)], check=True)
