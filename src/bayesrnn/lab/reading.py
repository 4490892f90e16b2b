"""Untrusted files, read with limits: one clear error for what is too large, too deep or malformed."""

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError

MB = 1 << 20
_DEPTH = 100
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
        raise UserError(f"{path} is larger than {most / MB:g} MB, which is more than such a file has.")
    return data


def read_text(path: str | Path, *, most: int) -> str:
    """The file as UTF-8 text."""
    try:
        return read_bytes(path, most=most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); convert it to UTF-8.") from None


def read_json(path: str | Path, *, most: int = 64 * MB) -> Any:
    """The content of a JSON file."""
    return parse_json(read_text(path, most=most), where=str(path))


def parse_json(text: str | bytes, *, where: str) -> Any:
    """The value of JSON text, nested at most 100 deep, without duplicate keys. ``where`` is for messages.

    NaN and Infinity are accepted, as Python writes them for diverged runs.
    """
    if depth(text) > _DEPTH:
        raise UserError(f"{where} is nested more than {_DEPTH} deep.")
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_int=_whole)
        if _HALVES.search(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text):
            _check_text(found)
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


def _check_text(value: Any) -> None:
    """ValueError for half a character (a lone surrogate), which can be neither printed nor written."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("a text has half of a character, which no file in UTF-8 can hold") from None
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check_text(each)
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_text(key)
            _check_text(inner)


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


def load_yaml(text: str, *, where: str) -> Any:
    """The value of YAML text: plain values, lists and mappings, without duplicate keys, anchors and aliases.

    A few bytes of aliases can stand for any amount of data (a "billion laughs"); no recipe needs one. Numbers that YAML
    1.1 and 1.2 read differently are refused: 1:30 (90 in base 60), 010 (8 or 10), 1_000, 0b11.
    """
    import yaml

    if depth(text, strings=False) > _DEPTH:  # PyYAML's time grows with its square
        raise UserError(f"{where} is nested more than {_DEPTH} deep.")
    wrong = (yaml.YAMLError, ValueError, OverflowError, RecursionError, AttributeError, IndexError, KeyError, TypeError)
    try:
        loader: Any = _strict_loader()(text)
        try:
            found = loader.get_single_data()
            _check_text(found)
            return found
        finally:
            loader.dispose()
    except wrong as error:  # not only YAMLError: PyYAML trusts its tags
        raise UserError(f"{where} is not YAML as it is read here ({first_line(error)}).") from None


@cache
def _strict_loader() -> Any:
    import yaml

    class Strict(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise yaml.YAMLError("anchors and aliases are not read: write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            made = super().construct_mapping(node, deep=deep)
            if len(made) != len(node.value):
                raise yaml.YAMLError("a key is there twice")
            return made

        def construct_yaml_int(self, node: Any) -> int:
            return alike(node, super().construct_yaml_int(node))

        def construct_yaml_float(self, node: Any) -> float:
            return alike(node, super().construct_yaml_float(node))

    def alike(node: Any, number: Any) -> Any:
        if not _ALIKE.fullmatch(node.value):
            raise yaml.YAMLError(
                f"{shown(node.value)} is {shown(number)} in YAML 1.1 and something else in 1.2: write the number meant "
                "in plain digits, or a text in quotes"
            )
        return number

    Strict.add_constructor("tag:yaml.org,2002:int", Strict.construct_yaml_int)
    Strict.add_constructor("tag:yaml.org,2002:float", Strict.construct_yaml_float)
    return Strict


_ALIKE = re.compile(
    r"[-+]?(0*[0-7]|[1-9][0-9]*)|0x[0-9a-fA-F]+|[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def first_line(error: BaseException) -> str:
    """An error's message on one line of at most 200 characters."""
    return printable(str(error).split("\n")[0])[:200].strip() or type(error).__name__


def not_imported(error: ImportError) -> str:
    """Why an optional package cannot be imported: it is missing, or its own import fails."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"a package that is not here ({error.name})"
    return f"a package that cannot be imported here ({first_line(error)})"


def lack_of_memory(error: BaseException) -> str | None:
    """How much memory was requested, if the error is about lack of memory; otherwise None."""
    text = str(error)
    if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", text, re.IGNORECASE):
        return None
    asked = re.search(r"allocate (\d+) bytes", text)
    return f"{int(asked.group(1)) / 1e9:,.1f} GB asked for at once" if asked else first_line(error)


def data_name(data: str) -> str:
    """The name of the data in a record: the last part of the path, also for "."."""
    return Path(os.path.abspath(data)).name if data else ""


def counted(number: int, noun: str) -> str:
    """A count with its noun: 1 word, 1,200 words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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


def as_given(value: Any) -> str:
    """A setting's value as a command takes it: null, true, [1,2]."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def is_number(value: Any) -> bool:
    """Whether a value from a file is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
