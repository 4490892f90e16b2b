"""Files from anywhere, read with limits: too large, too deep or not what they claim to be is one clear error."""

import json
import re
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

MB = 1 << 20
_DEPTH = 100


def read_bytes(path: str | Path, *, most: int) -> bytes:
    """The file's bytes; UserError where it cannot be read or has more than ``most``."""
    path = Path(path)
    try:
        if not path.is_file():  # a pipe or a device has no end
            raise UserError(f"There is no file {path}.")
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not one"
        raise UserError(f"{str(path)[:200]!r} cannot be read ({reason}).") from None
    if len(data) > most:
        raise UserError(f"{path} is larger than {most / MB:g} MB, which is more than such a file has.")
    return data


def read_text(path: str | Path, *, most: int) -> str:
    """The file as UTF-8 text."""
    try:
        return read_bytes(path, most=most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.") from None


def read_json(path: str | Path, *, most: int = 64 * MB) -> Any:
    """What the JSON file says."""
    return parse_json(read_text(path, most=most), where=str(path))


def parse_json(text: str | bytes, *, where: str) -> Any:
    """What JSON text says: nested at most 100 deep, every key of an object once. ``where`` is for messages.

    NaN and Infinity, which are no JSON, are read as they were written by Python: a diverged run has them.
    """
    if depth(text) > _DEPTH:
        raise UserError(f"{where} is nested more than {_DEPTH} deep.")
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"{where} is not JSON ({first}).") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is there twice")
    return made


def depth(text: str | bytes) -> int:
    """How deep lists and objects are nested in JSON text."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    deepest = level = 0
    for byte in _STRING.sub(b"", data).translate(None, _NOT_BRACKETS):
        level += 1 if byte in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
