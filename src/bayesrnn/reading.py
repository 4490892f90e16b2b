"""Untrusted files, read with limits: one clear error for what is too large, too deep or malformed."""

import json
import os
import re
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

MB = 1 << 20
DEPTH = 100
_DIGITS = 300  # more do not fit into a float


def read_bytes(path: str | Path, *, most: int) -> bytes:
    """The file's bytes; UserError if it cannot be read or has more than ``most``."""
    path = Path(path)
    try:
        if not path.is_file():  # a pipe or a device has no end
            raise UserError(f"{str(path)[:200]} cannot be read (there is no such file).")
        with open(path, "rb") as file:
            # Ask for no more than there is: read() allocates what it is asked for.
            data = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not one"
        raise UserError(f"{str(path)[:200]!r} cannot be read ({reason}).") from None
    if len(data) > most:
        raise UserError(f"{path} is larger than {most / MB:g} MB, the limit for such a file.")
    return data


def read_text(path: str | Path, *, most: int) -> str:
    """The file as UTF-8 text."""
    try:
        return read_bytes(path, most=most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8.") from None


def read_json(path: str | Path, *, most: int = 64 * MB) -> Any:
    """The content of a JSON file."""
    data = read_bytes(path, most=most)
    try:
        return parse_json(data.decode("utf-8-sig"), where=str(path))
    except UnicodeDecodeError as error:
        wrong = f"{path} is not JSON (byte {error.start} is not UTF-8)"
    except UserError as error:
        wrong = str(error).removesuffix(".")
    raise UserError(f"{wrong}: it is damaged; restore it from a backup.")


def parse_json(text: str | bytes, *, where: str) -> Any:
    """The value of JSON text, nested at most 100 deep, without duplicate keys. ``where`` is for messages.

    NaN and Infinity are accepted, as Python writes them for diverged runs.
    """
    if depth(text) > DEPTH:
        raise UserError(f"{where} is nested more than {DEPTH} deep.")
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_int=_whole)
        if _HALVES.search(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
            check_text(found)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({first_line(error)}).") from None
    return found


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"a number of more than {_DIGITS} digits")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is there twice")
    return made


def check_text(value: Any) -> None:
    """ValueError for half a character (a lone surrogate), which can be neither printed nor written."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text has half of a character, which no file in UTF-8 can hold") from None
    elif isinstance(value, (list, tuple)):
        for each in value:
            check_text(each)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key)
            check_text(inner)


_HALVES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")  # what may contain one in JSON


def depth(text: str | bytes, *, strings: bool = True) -> int:
    """Nesting depth of JSON text; with ``strings=False`` brackets inside strings count too."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    deepest = level = 0
    for byte in (_STRING.sub(b"", data) if strings else data).translate(None, _NOT_BRACKETS):
        level += 1 if byte in b"[{" else -1
        deepest = max(deepest, level)
    return deepest


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def first_line(error: BaseException) -> str:
    """An error's message on one line of at most 200 characters."""
    return printable(str(error).split("\n")[0])[:200].strip() or type(error).__name__


def printable(text: str) -> str:
    """Text without line ends and control characters, so that a file cannot steer a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def shown(value: Any) -> str:
    """A value from a file for a message: one line of at most 80 characters."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    if isinstance(value, (list, tuple, dict, set)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def counted(number: int, noun: str) -> str:
    """A count with its noun: 1 word, 1,200 words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
