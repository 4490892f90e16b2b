"""Checkpoints: one safetensors file each, with what is no tensor as JSON in its header. Nothing is unpickled.

The header also holds a checksum of the whole file, itself left blank: a changed byte anywhere is found.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.train.run_folder import RunFolder, write_file

LAST, PREVIOUS = "last.safetensors", "previous.safetensors"
BEST, BEST_COPY = "best.safetensors", "best-copy.safetensors"
FILES = (LAST, PREVIOUS, BEST, BEST_COPY)
SPARE = (PREVIOUS, BEST_COPY)
"""What a finished run does not need."""

_UNCHECKED, _KEY = "bayesrnn", "bayesrnn.2"  # no changed byte makes the first of the second
_BLANK = "-" * 64

Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]


class Damaged(UserError):
    """The file is not there, cut short, changed, or not one of ours."""


def save(
    folder: RunFolder, name: str, tensors: dict[str, Tensor], about: dict[str, Any], *, keep: str | None = None
) -> Path:
    """Write tensors and JSON under one name, whole or not at all; ``keep``: the name for the file it replaces."""
    return folder.write(name, _encoded(tensors, about), keep=keep)


def save_file(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> Path:
    """As :func:`save`, to any path."""
    return write_file(path, _encoded(tensors, about))


def _encoded(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    from safetensors.torch import save as to_bytes

    # Copies: tied weights and flattened LSTM weights share memory, which the format refuses.
    plain = {key: torch.empty_like(t, device="cpu").copy_(t.detach()).contiguous() for key, t in tensors.items()}
    text = json.dumps({"checksum": _BLANK, **about})
    data = to_bytes(plain, metadata={_KEY: text})
    at = data.index(_BLANK.encode(), 8)
    checksum = hashlib.sha256(data).hexdigest().encode()
    return b"".join((memoryview(data)[:at], checksum, memoryview(data)[at + len(checksum) :]))


def load(path: str | Path) -> Checkpoint:
    """The tensors (on the CPU) and the JSON of a checkpoint.

    Raises:
        Damaged: it is not there, cut short, changed, or not one of ours.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    path = Path(path)
    if not path.is_file():
        raise Damaged(f"There is no checkpoint {path}; was the run stopped before its first epoch ended?")
    try:
        data = path.read_bytes()
        about = _about(data, path)
        return from_bytes(data), about
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} is not a whole checkpoint ({str(error).splitlines()[0]}).") from None


def _about(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON of a checkpoint, once its checksum has been found to be right."""
    end = 8 + int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8:end]).get("__metadata__") or {}
    if _KEY not in metadata:
        if _UNCHECKED not in metadata:
            raise Damaged(f"{path} was not written by bayesrnn; it has weights but not what they belong to.")
        old: dict[str, Any] = json.loads(metadata[_UNCHECKED])  # of format 1
        return old
    about: dict[str, Any] = json.loads(metadata[_KEY])
    checksum = about.pop("checksum", "")
    at = data.find(checksum.encode(), 8, end)
    found = hashlib.sha256(data[:at])
    found.update(_BLANK.encode())
    found.update(memoryview(data)[at + len(_BLANK) :])
    if found.hexdigest() != checksum:
        raise ValueError("its checksum is wrong: bytes have changed since it was written")
    return about


def any_saved(folder: Path) -> bool:
    """Whether the folder has a checkpoint to go on from, whole or not."""
    return any((folder / name).exists() for name in (LAST, PREVIOUS))


def load_either(folder: Path, name: str, other: str) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """The checkpoint, or where it is damaged the other one, which takes its place; and a sentence on what was wrong."""
    path, second = folder / name, folder / other
    try:
        return *load(path), ""
    except Damaged as error:
        if not second.is_file():
            raise
        wrong = str(error) if path.exists() else f"{path} is not there."
        try:
            found = load(second)
        except Damaged as also:
            raise Damaged(f"{wrong} {also} Start over with --force.") from None
    # From here on it is the newest good one: it must not be replaced by the damaged one at the next save.
    os.replace(second, path)
    return *found, f"{wrong} {other} is whole and is used in its place."


def load_model(model: Any, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Put a checkpoint's ``model.*`` tensors into a model, which must have exactly these."""
    weights = {key[len("model.") :]: value for key, value in tensors.items() if key.startswith("model.")}
    expected = model.state_dict()
    for key, value in expected.items():
        if key not in weights:
            raise UserError(f"{path} has no weights {key}; it belongs to another model.")
        if weights[key].shape != value.shape:
            raise UserError(
                f"{path}: {key} has shape {tuple(weights[key].shape)} but the model has {tuple(value.shape)}; "
                "vocabulary or recipe are not those of the run."
            )
    if extra := sorted(weights.keys() - expected.keys()):
        raise UserError(f"{path} has weights {extra[0]} that the model has not; it belongs to another model.")
    model.load_state_dict(weights)
