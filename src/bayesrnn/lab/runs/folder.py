"""The folder a run writes to: whole files or none, one process at a time, and nothing of anyone else's is touched."""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import socket
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import shown

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

MARKER = ".unfinished"
RECORD = "record.json"
# What other commands make of a run's weights: gone with the run that is replaced.
DERIVED = ("evaluation.json", "prune.json", "prune.png", "pruned.safetensors")
OTHER_DATA = "evaluation-*.json"
"""Figures of other data than the run's own, by `bayesrnn evaluate`, where the file says so itself."""
CAPTIONS = "captions.json"
"""Of `bayesrnn evaluate`, where it says so itself: data sets have files of this name too."""
EXPORTS = ("model.safetensors", "model.pt2", "model.onnx")
"""Default names of `bayesrnn export`; only with the description that it writes beside them are they its own."""
LOCK = ".lock"
FORMAT = 2
"""Of a run folder, in config.json. 1 (no number): checkpoints without a checksum. 2: with one."""
KEYS = ("program", "format", "recipe", "data", "seed", "data_digest", "pruned", "files", "file_digests", "settings")
"""Of config.json; ``pruned`` is there where pruned weights are trained again."""
KINDS = ("recipe", "quickstart", "fast")
"""Keys of config.json that tell kinds of runs apart: of `train`, of `quickstart`, and of its earlier version."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


Content = str | bytes | Sequence[bytes | memoryview]
"""Of a file: text, bytes, or bytes in parts."""


class Busy(UserError):
    """Another process writes to the folder."""


class RunFolder:
    """Claims a folder for one run of one process.

    While the run lasts the folder holds a file ``.unfinished``; :meth:`finish` writes ``record.json`` and takes the
    marker away. Files are written beside their final name and moved there, so a killed run leaves no torn file. A lock
    on the file ``.lock`` keeps a second process out; it ends with the process, however that ends.

    Args:
        path: the folder; made if it is not there.
        files: names of the files this run writes, the record aside.
        force: replace an earlier run, finished or not: its files and what our commands made of it go, and no others.
        resume: go on with the run that the folder holds: its files stay.
        by: words to put into the marker, besides this process's number.
        elsewhere: what to do, in messages, where this folder cannot be had.
        kind: the key of config.json that tells this kind of run from others; ``force`` does not replace another kind.

    Raises:
        Busy: another process has the folder.
        UserError: the folder is not empty and ``force`` is not given, or its files are not those of an earlier run.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        files: Iterable[str],
        force: bool = False,
        resume: bool = False,
        by: str = "",
        elsewhere: str = "choose another --out",
        kind: str = "recipe",
    ) -> None:
        self.path, self._by, self._elsewhere, self._kind = Path(path), by, elsewhere, kind
        self.note = ""
        """What the user should know about the folder; empty: nothing."""
        own = [*files, RECORD, MARKER, *DERIVED]
        if resume and not self.path.is_dir():
            raise UserError(f"{self.path} holds no run to resume; start one without --resume.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            denied = self._lock()
            try:
                self._claim(own, denied, force=force, resume=resume)
            except BaseException:
                self.release()
                raise
        except (FileExistsError, NotADirectoryError):
            raise UserError(f"{self.path} is a file, and a folder is needed; {elsewhere}.") from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be written ({error.strerror}); {elsewhere}.") from None

    def _claim(self, own: list[str], denied: OSError | None, *, force: bool, resume: bool) -> None:
        found = {p.name for p in self.path.iterdir()} - {LOCK}
        written = (*(f".{name}." for name in (*own, CAPTIONS)), ".evaluation-")
        torn = {name for name in found if name.endswith(".tmp") and name.startswith(written)}
        present = found - torn
        if resume:
            self._check_unfinished()
        elif present:
            self._check(present, own, force)
        if denied is not None:  # only now: what is in the folder is worth more to know
            raise denied
        replaced = not resume and (MARKER in present or RECORD in present)
        made = [*(name for name in DERIVED if name in present), *_exports(self.path)] if replaced else []
        made += [*_captions(self.path), *_other_data(self.path)] if replaced else []
        inside = list(_retrainings(self.path)) if replaced else []
        with ExitStack() as locks:
            for folder in inside:
                descriptor = _locked(folder / LOCK, self._elsewhere)
                if descriptor is not None:
                    locks.callback(_let_go, folder / LOCK, descriptor, os.getpid())
            if not resume:
                # The marker goes first: from here on a killed run is recognised.
                self.mark()
                torn |= (set(own) & present) - {MARKER}
            # What was made of the run goes before the run itself: stopped in between, it cannot be taken for a new one.
            for folder in inside:
                _remove(folder, [*_exports(folder), *_captions(folder), *_other_data(folder), *own])
            _remove(self.path, made)
            _remove(self.path, torn)
        for folder in inside:
            with suppress(OSError):  # something else is in it, and stays
                folder.rmdir()
        gone = made + [("the run in " * p.exists()) + p.name for p in inside if p.parent == self.path]
        if gone:
            self._say(f"Removed with the earlier run in {self.path}: {', '.join(gone)}.")

    def _say(self, text: str) -> None:
        self.note = f"{self.note} {text}".lstrip()

    _unlock: Callable[[], object]
    _descriptor: int | None

    def _lock(self) -> OSError | None:
        """Take the lock; returns what the folder's permissions say against it."""
        self._unlock, self._descriptor = lambda: None, None
        try:
            descriptor = _locked(self.path / LOCK, self._elsewhere)
        except OSError as error:
            return error
        if descriptor is None:
            self._say(f"{self.path} is on a file system without locks: see to it that no second process writes there.")
        else:
            self._descriptor = descriptor
            self._unlock = weakref.finalize(self, _let_go, self.path / LOCK, descriptor, os.getpid())
        return None

    def release(self) -> None:
        """Let other processes have the folder."""
        self._descriptor = None
        self._unlock()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *unused: object) -> None:
        self.release()

    def _check_unfinished(self) -> None:
        if (self.path / MARKER).exists():
            return
        if self._has_record():
            raise UserError(f"{self.path} holds a finished run; there is nothing to resume.")
        raise UserError(f"{self.path} holds no run to resume; start one without --resume.")

    def _check(self, present: set[str], own: list[str], force: bool) -> None:
        unfinished, finished = MARKER in present, self._has_record()
        if not force:
            if unfinished:
                saved = {"next.safetensors", "last.safetensors", "previous.safetensors"} & present
                go_on = "go on with it by --resume, " if saved else ""
                raise UserError(
                    f"{self.path} holds an unfinished run; {go_on}start it over with --force, or {self._elsewhere}."
                )
            what = "a finished run" if finished else "files"
            raise UserError(f"{self.path} already holds {what}; replace it with --force, or {self._elsewhere}.")
        config = _read(self.path / "config.json")
        kinds = [key for key in KINDS if isinstance(config, dict) and key in config]
        if (unfinished or finished) and kinds and self._kind not in kinds:
            raise UserError(
                f"{self.path} holds a run of another command, which --force does not replace; {self._elsewhere}, or "
                "remove that folder."
            )
        foreign = sorted(present & set(own))
        if foreign and not (unfinished or finished):
            raise UserError(
                f"{self.path} has a {foreign[0]} that no run of bayesrnn wrote, and it will not be replaced; "
                f"{self._elsewhere}."
            )

    def _has_record(self) -> bool:
        return is_own(self.path / RECORD)

    def write(self, name: str, content: Content) -> Path:
        """Write one file, atomically; not where the folder has been taken from this process."""
        if self._descriptor is not None and not _is_at(self._descriptor, self.path / LOCK):
            raise Busy(
                f"{self.path / LOCK} was taken away during the run, so another process may have the folder; this one "
                "stops. See to it that no other one writes there, and go on with --resume."
            )
        return write_file(self.path / name, content)

    def mark(self) -> None:
        """Say that the run is unfinished, and whose it is."""
        self.write(MARKER, f"{os.getpid()} {self._by}".rstrip() + "\n")

    def move(self, name: str, to: str) -> None:
        """Give a file another name, if it is there; a file of that name is replaced."""
        try:
            with suppress(FileNotFoundError):
                os.replace(self.path / name, self.path / to)
            _sync(self.path)
        except OSError as error:
            raise _unwritten(self.path / to, error) from None

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add one line of JSON to a file."""
        try:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise _unwritten(self.path / name, error) from None

    def finish(self, record: dict[str, Any], *, spare: Iterable[str] = ()) -> Path:
        """Write the record, take ``spare`` files and the marker away, and let go: the run is complete."""
        final = self.write(RECORD, as_json({"program": "bayesrnn", **record}))
        for name in (*spare, MARKER):
            try:
                (self.path / name).unlink(missing_ok=True)
            except OSError as error:
                raise _unwritten(self.path / name, error) from None
        self.release()
        return final


_RETRAINING = re.compile(r"pruned-[0-9.e+-]+")


def _retrainings(folder: Path) -> Iterator[Path]:
    """Runs inside a run that trained its pruned weights again; the innermost first. They go with the run."""
    for path in sorted(folder.iterdir()):
        if _RETRAINING.fullmatch(path.name) and path.is_dir() and not path.is_symlink() and _is_retraining(path):
            yield from _retrainings(path)
            yield path


def _is_retraining(folder: Path) -> bool:
    if not (folder / "config.json").exists():
        return (folder / MARKER).exists()  # killed before it said what it is
    config = _read(folder / "config.json")
    return isinstance(config, dict) and "pruned" in config


def _exports(folder: Path) -> list[str]:
    """Files of `bayesrnn export` under its own names, each before its description; what has none is someone else's."""
    found = []
    for name in EXPORTS:
        beside = f"{name}.json"
        about = _read(folder / beside)
        if isinstance(about, dict) and str(about.get("written_by")).startswith("bayesrnn "):
            found += [part for part in (name, beside) if (folder / part).is_file()]
    return found


def _captions(folder: Path) -> list[str]:
    """The captions of `bayesrnn evaluate`, if they are there."""
    return [CAPTIONS] if is_own(folder / CAPTIONS) else []


def _other_data(folder: Path) -> list[str]:
    """What `bayesrnn evaluate` has written about other data."""
    return sorted(path.name for path in folder.glob(OTHER_DATA) if is_own(path))


def is_own(path: Path) -> bool:
    """Whether a JSON file says that this program wrote it."""
    content = _read(path)
    return isinstance(content, dict) and content.get("program") == "bayesrnn"


def _read(path: Path) -> Any:
    """What a JSON file says; None where it is not there or is none."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _locked(path: Path, elsewhere: str) -> int | None:
    """A descriptor of the locked file; None: there are no locks here."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no locks")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                with suppress(OSError):  # the note is a courtesy, the lock is the kernel's
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
                return descriptor
            os.close(descriptor)  # its owner has just taken it away
        except BlockingIOError:
            who = os.pread(descriptor, 100, 0).decode("utf-8", "replace")
            os.close(descriptor)
            raise Busy(
                f"{path.parent} is being written to by another process{f' ({who})' if who else ''}; "
                f"wait until it ends, or {elsewhere}."
            ) from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in _NO_LOCKS:
                raise
            path.unlink(missing_ok=True)
            return None


@contextmanager
def briefly_locked(folder: Path, *, patience: float = 10.0) -> Iterator[None]:
    """Keeps other processes out while files are written beside a finished run; waits for one that does the same.

    Raises:
        Busy: it took that one longer than ``patience`` seconds, or it trains.
    """
    until = time.monotonic() + patience
    while True:
        try:
            descriptor = _locked(folder / LOCK, "start this again later")
            break
        except Busy:
            if (folder / MARKER).exists() or time.monotonic() > until:
                raise
            time.sleep(0.1)
        except OSError as error:
            raise _unwritten(folder, error) from None
    try:
        yield
    finally:
        if descriptor is not None:
            _let_go(folder / LOCK, descriptor, os.getpid())


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _let_go(path: Path, descriptor: int, owner: int) -> None:
    # A forked child has the descriptor too, but not the lock's file to take away; nor is another process's ours.
    if os.getpid() == owner and _is_at(descriptor, path):
        with suppress(OSError):
            path.unlink()
    os.close(descriptor)


def as_json(value: Any) -> str:
    """The text of a JSON file. What is no finite number is null there: JSON has no word for it."""
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_out(path: Path, *, force: bool, option: str = "--out") -> None:
    """Refuse, before the work, a file that the user named and that could not be written after it."""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is no folder; make it first, or choose another {option}.")
    check_free(path, force=force, option=option)


def check_free(path: Path, *, force: bool, option: str = "--out") -> None:
    """Refuse a file that is there, unless `force`; and, whatever `force` says, what is there and is no plain file."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another {option}.") from None
    if stat.S_ISLNK(mode):  # moved onto, the link itself would go: /dev/stdout is one
        raise UserError(f"{path} is a link; name the file itself, or choose another {option}.")
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is no file; choose another {option}.")
    if not force:
        raise UserError(f"{path} is there already; replace it with --force, or choose another {option}.")


def write_file(final: Path, content: Content) -> Path:
    """Write a whole file or leave what was there: beside its final name, then moved. Only files are replaced."""
    content = content.encode("utf-8") if isinstance(content, str) else content
    # A name of its own: two processes may write the same file, such as the table of a sweep.
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    try:
        if final.exists() and not final.is_file():  # a device or a pipe, which would become a file for everyone
            raise UserError(f"{final} is no file, and will not be replaced by one.")
        with open(temporary, "xb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
        _sync(final.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise _unwritten(final, error) from None
    return final


def _unwritten(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written ({error.strerror}); what was saved before is still whole.")


def _sync(folder: Path) -> None:
    """The moves themselves reach the disk, so that a power failure cannot undo them."""
    with suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def identity(folder: Path) -> str:
    """Of the run that the folder holds: a checkpoint of another one is not taken for its own."""
    path = folder / "config.json"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def check_format(config: dict[str, Any], folder: Path) -> None:
    """Refuse a run folder that a later version wrote, or with unknown keys; one without a number is of the first."""
    number = config.get("format", 1)
    if not isinstance(number, int) or number > FORMAT:
        raise UserError(
            f"{folder} was written by a newer bayesrnn (its format is {number}, this one reads up to {FORMAT}); "
            "update bayesrnn."
        )
    if unknown := [key for key in config if key not in KEYS]:
        raise UserError(f"{folder}: there is no key {shown(unknown[0])} in a config.json; it has {', '.join(KEYS)}.")
