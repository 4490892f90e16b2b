"""Checkpoints: one safetensors file each, with everything else as JSON in its header. Nothing is unpickled.

The header also holds a checksum of the whole file, itself left blank: a changed byte anywhere is found.
"""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import first_line, parse_json
from bayesrnn.lab.runs import sizes
from bayesrnn.lab.runs.files import write_file
from bayesrnn.lab.runs.folder import CONFIG, RunFolder, identity

NEXT, LAST, PREVIOUS = "next.safetensors", "last.safetensors", "previous.safetensors"
BEST, BEST_COPY = "best.safetensors", "best-copy.safetensors"
RESUMABLE = (NEXT, LAST, PREVIOUS)
FILES = (*RESUMABLE, BEST, BEST_COPY)
SPARE = (NEXT, PREVIOUS, BEST_COPY)
"""Files that a finished run does not need."""

_UNCHECKED, _KEY = "bayesrnn", "bayesrnn.2"  # one changed byte cannot turn the second into the first
_BLANK = "-" * 64
_HEADER = 100 << 20
_WRONG = (ValueError, TypeError, AttributeError, KeyError, RuntimeError)  # errors that a damaged header can cause

Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]


class Damaged(UserError):
    """The file is missing, truncated, changed, or was not written by this program."""


def snapshot(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, each with its own memory, as tied weights and flattened LSTM weights share theirs."""
    return {key: torch.empty(t.shape, dtype=t.dtype).copy_(t.detach()) for key, t in tensors.items()}


def save_last(folder: RunFolder, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write the newest checkpoint and keep the one before it; two whole ones exist at every moment."""
    folder.write(NEXT, _encoded(tensors, about))
    folder.move(LAST, PREVIOUS)
    folder.move(NEXT, LAST)


def save_best(folder: RunFolder, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write the best weights twice, one after the other, as later checkpoints cannot restore them."""
    encoded = _encoded(tensors, about)
    for name in (BEST, BEST_COPY):
        folder.write(name, encoded)


def save_file(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> Path:
    """Write tensors and JSON to any path, whole or not at all."""
    return write_file(path, _encoded(snapshot(tensors), about))


def _encoded(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytearray:
    """A safetensors file whose header holds the JSON and, in the place of a blank, the checksum of the file."""
    data = bytearray(to_bytes(tensors, {_KEY: json.dumps({"checksum": _BLANK, **about})}))
    at = data.index(_BLANK.encode())
    data[at : at + len(_BLANK)] = hashlib.sha256(data).hexdigest().encode()
    return data


def load(path: str | Path) -> Checkpoint:
    """The tensors (on the CPU) and the JSON of a checkpoint, if it is whole; see :class:`Damaged`."""
    path = Path(path)
    if not path.is_file():
        raise Damaged(f"There is no checkpoint {path}; was the run stopped before its first epoch ended?")
    try:
        data = path.read_bytes()
        about = _about(data, path)
        return from_bytes(data), about
    except Damaged:
        raise
    except (SafetensorError, UserError, OSError, *_WRONG) as error:
        raise Damaged(f"{path} is not a whole checkpoint ({first_line(error)}).") from None


def _about(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON of a checkpoint, after its checksum was verified."""
    end = 8 + int.from_bytes(data[:8], "little")
    if end > len(data) or end > _HEADER:
        raise ValueError("its header is longer than the file, or than any header")
    header = parse_json(data[8:end], where="its header")
    metadata = (header.get("__metadata__") or {}) if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("its header is not a JSON object")
    if _KEY not in metadata:
        if _UNCHECKED not in metadata:
            raise Damaged(f"{path} was not written by bayesrnn; it lacks bayesrnn's metadata.")
        return _json(metadata[_UNCHECKED])  # format 1
    about = _json(metadata[_KEY])
    checksum = str(about.pop("checksum", ""))
    at = data.find(checksum.encode(), 8, end)
    found = hashlib.sha256(data[:at])
    found.update(_BLANK.encode())
    found.update(memoryview(data)[at + len(_BLANK) :])
    if found.hexdigest() != checksum:
        raise ValueError("its checksum is wrong: bytes have changed since it was written")
    return about


def _json(text: Any) -> dict[str, Any]:
    about = parse_json(text, where="its description") if isinstance(text, str) else None
    if not isinstance(about, dict):
        raise ValueError("its description is not a JSON object")
    return about


def any_saved(folder: Path) -> bool:
    """Whether the folder has a checkpoint to resume from, whole or not."""
    return any((folder / name).exists() for name in RESUMABLE)


def digest(path: Path) -> str:
    """Digest of a whole file, so that files derived from it are not attributed to a later checkpoint."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


class Foreign(UserError):
    """The file is whole, but belongs to another run."""


def load_own(path: Path, run: str) -> Checkpoint:
    """Like :func:`load`, for the run with this identity; checkpoints of format 1 may not name their run."""
    tensors, about = load(path)
    if about.get("run", run) != run:
        raise Foreign(
            f"{path} was written by a run with another config.json. Put the run's own config.json or checkpoints back, "
            "or start over with --force."
        )
    return tensors, about


def load_of(folder: Path, name: str, remedy: str) -> Checkpoint:
    """A checkpoint of the run in a folder; ``remedy`` is the advice where it belongs to another run."""
    try:
        return load_own(folder / name, identity(folder))
    except Foreign:
        raise UserError(
            f"{folder / name} does not belong to {folder / CONFIG}: it is another run's, or config.json was changed "
            f"afterwards; {remedy}."
        ) from None


def load_first(folder: RunFolder, *names: str, into: str, run: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """The first of several checkpoints that is whole and the run's, and a sentence on what was wrong with the others.

    It is renamed to ``into``. A checkpoint of another run is refused: nothing is lost yet.
    """
    wrong = []
    for name in names:
        try:
            found = load_own(folder.path / name, run)
        except Damaged as error:
            if name == into or (folder.path / name).exists():
                wrong.append(str(error))
            continue
        if name != into:
            folder.move(name, into)
        return *found, f"{wrong[0]} {name} is whole and is used in its place." if wrong else ""
    raise Damaged(" ".join(wrong))


def load_last(folder: RunFolder, *, run: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """The newest whole checkpoint, and a sentence on what was wrong with a newer one."""
    try:
        found = load_first(folder, *RESUMABLE, into=LAST, run=run)
    except Damaged as error:
        raise Damaged(f"{error} Start over with --force.") from None
    (folder.path / NEXT).unlink(missing_ok=True)
    return found


def load_best(folder: RunFolder, *, run: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """The best weights, or their copy, and a sentence on what was wrong with them."""
    return load_first(folder, BEST, BEST_COPY, into=BEST, run=run)


def load_model(model: nn.Module, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Load a checkpoint's ``model.*`` tensors into a model, which must have exactly these."""
    sizes.check_fits(sizes.shapes(model), tensors, str(path))
    model.load_state_dict({key[len("model.") :]: t for key, t in tensors.items() if key.startswith("model.")})


class Writer:
    """Writes files one by one, at once or in the background. After an error it writes nothing more."""

    def __init__(self, *, background: bool) -> None:
        self._thread = ThreadPoolExecutor(1, "bayesrnn-writer") if background else None
        self._pending: list[Future[None]] = []
        self._failed = False

    def __call__(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._pending.append(self._thread.submit(self._run, job))

    def _run(self, job: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            job()
        except BaseException:
            self._failed = True
            raise

    def wait(self) -> None:
        """Wait until everything is written; raises the error, if there was one."""
        pending, self._pending = self._pending, []
        for job in pending:
            job.result()
