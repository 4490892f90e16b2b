"""The folder of a run: one process at a time writes to it, and files of others are never touched."""

import errno
import hashlib
import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import shown
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.registry import UNNAMED, task_class
from bayesrnn.lab.runs.files import Content, as_json, is_own, read_own, sync, unwritten, write_file
from bayesrnn.lab.runs.record import EVALUATION, RECORD, Record

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

MARKER = ".unfinished"
CONFIG = "config.json"
DERIVED = (EVALUATION, "prune.json", "prune.png", "pruned.safetensors")
"""What other commands make from a run's weights; removed with the run."""
OTHER_DATA = "evaluation-*.json"
"""Evaluations on other data than the run's own, if the file says that this program wrote it."""
EXPORTS = ("model.safetensors", "model.pt2", "model.onnx")
"""Default names of ``bayesrnn export``; its own only with the description that it writes beside them."""
LOCK = ".lock"
FORMAT = 2
"""The format of a run folder, in config.json. 1 (no number): checkpoints without a checksum. 2: with one."""
KEYS = (
    *("program", "format", "recipe", "data", "seed", "start"),
    *("data_digest", "pruned", "files", "file_digests", "settings"),
)
"""The keys of config.json; ``pruned`` only where pruned weights are trained again, ``start``: its command."""
KINDS = ("recipe", "quickstart", "fast")
"""Keys of config.json that tell kinds of runs apart: of `train`, of `quickstart`, and of its earlier version."""
Files = Mapping[str, bytes]
"""What the data decides about a model (a vocabulary, a scale), by file name."""
_NO_RUN = "holds no run to resume; start one without --resume."
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


class Busy(UserError):
    """Another process writes to the folder."""


class RunFolder:
    """Claims a folder for one run of one process.

    During the run the folder holds a file ``.unfinished``; :meth:`finish` writes ``record.json`` and removes it. Files
    are written beside their final name and moved there, so a killed run leaves no torn file. A lock on the file
    ``.lock`` keeps a second process out; the kernel releases it when the process ends.

    Args:
        path: the folder; created if it is missing.
        files: names of the files this run writes, besides the record.
        force: replace an earlier run: remove its files and what commands made from it, nothing else.
        resume: continue the run in the folder and keep its files.
        by: words to put into the marker, besides this process's number.
        elsewhere: what messages advise if this folder cannot be used.
        kind: the key of config.json that tells this kind of run from others; ``force`` does not replace another kind.
    """

    def __init__(
        self, path: str | Path, *, files: Iterable[str], force: bool = False, resume: bool = False, by: str = "",
        elsewhere: str = "choose another --out", kind: str = "recipe",
    ) -> None:  # fmt: skip
        self.path, self._by, self._elsewhere, self._kind = Path(path), by, elsewhere, kind
        self.note = ""
        """What the user should know about the folder; may be empty."""
        own = [*files, RECORD, MARKER, *DERIVED]
        if resume and not self.path.is_dir():
            raise UserError(f"{self.path} {_NO_RUN}")
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
        artifacts = _artifacts(self.path)
        written = (*(f".{name}." for name in (*own, *artifacts)), ".evaluation-")
        torn = {name for name in found if name.endswith(".tmp") and name.startswith(written)}
        present = found - torn
        if resume and not (self.path / MARKER).exists():
            nothing = "holds a finished run; to train longer, start another with more train.epochs and another --out."
            if not self._lacks_record:
                raise UserError(f"{self.path} {nothing if is_own(self.path / RECORD) else _NO_RUN}")
            self._say(f"{self.path / RECORD} is missing or damaged; it is made again.")
        if present and not resume:
            self._check(present, own, force)
        if denied is not None:  # only now: the contents of the folder matter more to the user
            raise denied
        replaced = not resume and (MARKER in present or RECORD in present)
        derived = [name for name in DERIVED if name in present] + _derived(self.path) if replaced else []
        if not resume:
            # The marker first: from here on a killed run is recognised.
            self.mark()
            torn |= (set(own) & present) - {MARKER}
        # What was made from the run goes before the run itself, so that it is never taken for a new run's.
        _remove(self.path, (*derived, *torn))
        if derived:
            self._say(f"Removed with the earlier run in {self.path}: {', '.join(derived)}.")

    @property
    def _lacks_record(self) -> bool:
        """Whether a run with all but its record is here."""
        whole = is_own(self.path / CONFIG) and (self.path / "last.safetensors").is_file()
        return whole and not is_own(self.path / RECORD)

    def _say(self, text: str) -> None:
        self.note = f"{self.note} {text}".lstrip()

    _unlock: Callable[[], object] = staticmethod(lambda: None)
    _descriptor: int | None = None

    def _lock(self) -> OSError | None:
        """Take the lock; returns the error if the folder's permissions forbid it."""
        try:
            descriptor = _locked(self.path / LOCK, self._elsewhere)
        except OSError as error:
            return error
        if descriptor is None:
            self._say(f"{self.path} is on a file system without locks: make sure that no second process writes there.")
        else:
            self._descriptor = descriptor
            self._unlock = weakref.finalize(self, _let_go, self.path / LOCK, descriptor, os.getpid())
        return None

    def release(self) -> None:
        """Give the folder up to other processes."""
        self._descriptor = None
        self._unlock()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *unused: object) -> None:
        self.release()

    def _check(self, present: set[str], own: list[str], force: bool) -> None:
        lost = self._lacks_record
        unfinished, finished = MARKER in present, is_own(self.path / RECORD) or lost
        if not force:
            if unfinished:
                saved = {"next.safetensors", "last.safetensors", "previous.safetensors"} & present
                resumable = "continue it with --resume, " if saved else ""
                raise UserError(
                    f"{self.path} holds an unfinished run; {resumable}start it over with --force, or {self._elsewhere}."
                )
            if lost:
                raise UserError(
                    f"{self.path} holds a run whose {RECORD} is missing or damaged; make the record again with "
                    f"--resume, replace the run with --force, or {self._elsewhere}."
                )
            what = "a finished run" if finished else "files"
            raise UserError(f"{self.path} already holds {what}; replace it with --force, or {self._elsewhere}.")
        config = read_own(self.path / "config.json")
        kinds = [key for key in KINDS if isinstance(config, dict) and key in config]
        if (unfinished or finished) and kinds and self._kind not in kinds:
            raise UserError(
                f"{self.path} holds a run of another command, which --force does not replace; {self._elsewhere}, or "
                "remove that folder."
            )
        foreign = sorted(present & set(own))
        if foreign and not (unfinished or finished):
            raise UserError(
                f"{self.path / foreign[0]} was not written by a run of bayesrnn, and will not be replaced; "
                f"{self._elsewhere}."
            )

    def write(self, name: str, content: Content) -> Path:
        """Write one file, whole or not at all; refused if another process has taken the folder."""
        if self._descriptor is not None and not _is_at(self._descriptor, self.path / LOCK):
            raise Busy(
                f"{self.path / LOCK} was removed during the run, so another process may have the folder; this one "
                "stops. Make sure that no other one writes there, and continue with --resume."
            )
        return write_file(self.path / name, content)

    def describe(self, config: Mapping[str, Any], files: Files) -> None:
        """Write config.json and the files of the data."""
        self.write(CONFIG, json.dumps(config, indent=2) + "\n")
        for name, content in files.items():
            self.write(name, content)

    def mark(self) -> None:
        """Mark the run as unfinished, with the process that owns it."""
        self.write(MARKER, f"{os.getpid()} {self._by}".rstrip() + "\n")

    def move(self, name: str, to: str) -> None:
        """Rename a file, if it exists; a file of the new name is replaced."""
        try:
            with suppress(FileNotFoundError):
                os.replace(self.path / name, self.path / to)
            sync(self.path)
        except OSError as error:
            raise unwritten(self.path / to, error) from None

    def finish(self, record: Record | Mapping[str, Any], *, spare: Iterable[str] = ()) -> Path:
        """Write the record, remove ``spare`` files and the marker, and release the lock: the run is complete."""
        content = record.to_dict() if isinstance(record, Record) else record
        final = self.write(RECORD, as_json({"program": "bayesrnn", **content}))
        try:
            _remove(self.path, (*spare, MARKER))
        except OSError as error:
            raise unwritten(self.path, error) from None
        self.release()
        return final


def _derived(folder: Path) -> list[str]:
    """Files of other commands that say themselves that this program wrote them: exports, artifacts, other data."""
    found = []
    for name in EXPORTS:
        beside = f"{name}.json"
        if str(read_own(folder / beside).get("written_by")).startswith("bayesrnn "):
            found += [part for part in (name, beside) if (folder / part).is_file()]
    found += [name for name in _artifacts(folder) if is_own(folder / name)]
    return found + sorted(path.name for path in folder.glob(OTHER_DATA) if is_own(path))


def _artifacts(folder: Path) -> tuple[str, ...]:
    """What the task of the run in this folder writes besides metrics; empty if the task is unknown."""
    for name in (CONFIG, RECORD):
        settings = read_own(folder / name).get("settings")
        if isinstance(settings, dict):
            with suppress(UserError, ImportError):
                return task_class(str(settings.get("task", UNNAMED))).artifacts
    return ()


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def _locked(path: Path, elsewhere: str) -> int | None:
    """A descriptor of the locked file; None: this file system has no locks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no locks")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                with suppress(OSError):  # the note is a courtesy; the kernel holds the lock
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode(), 0)
                return descriptor
            os.close(descriptor)  # its owner has just removed it
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
    """Keep other processes out while files are written beside a finished run.

    Waits for a process that does the same; :class:`Busy` if it takes longer than ``patience`` seconds, or trains.
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
            raise unwritten(folder, error) from None
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
    # A forked child has the descriptor too, but must not remove the file; nor is another process's lock ours.
    if os.getpid() == owner and _is_at(descriptor, path):
        with suppress(OSError):
            path.unlink()
    os.close(descriptor)


def identity(folder: Path) -> str:
    """Identity of the run in the folder, so that a checkpoint of another run is recognised."""
    path = folder / CONFIG
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def file_digests(files: Files) -> dict[str, str]:
    """Digests by name: weights mean something only beside the files that they were trained with."""
    return {name: hashlib.sha256(content).hexdigest()[:32] for name, content in files.items()}


def config_of(recipe: Recipe, *, name: str, data: str, seed: int, files: Files, digest: str = "") -> dict[str, Any]:
    """The content of config.json, which must be the same when the run is resumed; ``digest`` is the data's."""
    about: dict[str, Any] = {"program": "bayesrnn", "format": FORMAT, "recipe": name, "data": data, "seed": seed}
    about |= {"data_digest": digest} if digest else {}
    about |= {"files": list(files), "file_digests": file_digests(files)}
    return {**about, "settings": recipe.model_dump(mode="json")}


def check_format(config: dict[str, Any], folder: Path) -> None:
    """Refuse a run folder of a newer version, or with unknown keys; without a number it is format 1."""
    number = config.get("format", 1)
    if not isinstance(number, int) or number > FORMAT:
        raise UserError(
            f"{folder} was written by a newer bayesrnn (its format is {number}, this one reads up to {FORMAT}); "
            "update bayesrnn."
        )
    if unknown := [key for key in config if key not in KEYS]:
        raise UserError(f"{folder}: config.json has an unknown key {shown(unknown[0])}; known are {', '.join(KEYS)}.")
