"""YAML with limits, and words for messages; the limits of other files are in :mod:`bayesrnn.reading`."""

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.reading import DEPTH, check_text, depth
from bayesrnn.reading import MB as MB
from bayesrnn.reading import counted as counted
from bayesrnn.reading import first_line as first_line
from bayesrnn.reading import parse_json as parse_json
from bayesrnn.reading import printable as printable
from bayesrnn.reading import read_bytes as read_bytes
from bayesrnn.reading import read_json as read_json
from bayesrnn.reading import read_text as read_text
from bayesrnn.reading import shown as shown


def load_yaml(text: str, *, where: str) -> Any:
    """The value of YAML text: plain values, lists and mappings, without duplicate keys, anchors and aliases.

    A few bytes of aliases can stand for any amount of data (a "billion laughs"); no recipe needs one. Numbers that YAML
    1.1 and 1.2 read differently are refused: 1:30 (90 in base 60), 010 (8 or 10), 1_000, 0b11.
    """
    import yaml

    if depth(text, strings=False) > DEPTH:  # PyYAML's time grows with its square
        raise UserError(f"{where} is nested more than {DEPTH} deep.")
    wrong = (yaml.YAMLError, ValueError, OverflowError, RecursionError, AttributeError, IndexError, KeyError, TypeError)
    try:
        loader: Any = _strict_loader()(text)
        try:
            found = loader.get_single_data()
            check_text(found)
            return found
        finally:
            loader.dispose()
    except wrong as error:  # not only YAMLError: PyYAML trusts its tags
        reason = first_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            words = [error.context, error.problem] if str(error.problem).startswith("but ") else [error.problem]
            line = f"line {error.problem_mark.line + 1}: " if "\n" in text.strip() else ""
            reason = line + ", ".join(filter(None, words))
        raise UserError(f"{where} is not YAML as it is read here ({reason}).") from None


@cache
def _strict_loader() -> Any:
    import yaml

    class Strict(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise refused(event, "anchors and aliases are not read: write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            made = super().construct_mapping(node, deep=deep)
            if len(made) != len(node.value):
                keys = [key for key, _ in node.value]
                twice = (k for i, k in enumerate(keys) if any(k.value == key.value for key in keys[:i]))
                again = next(twice, keys[-1])  # else two spellings of one number
                raise refused(again, f"the key {shown(again.value)} is there twice")
            return made

        def construct_yaml_int(self, node: Any) -> int:
            return alike(node, super().construct_yaml_int(node))

        def construct_yaml_float(self, node: Any) -> float:
            return alike(node, super().construct_yaml_float(node))

    def refused(at: Any, problem: str) -> yaml.YAMLError:
        return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)

    def alike(node: Any, number: Any) -> Any:
        if not _ALIKE.fullmatch(node.value):
            raise refused(
                node,
                f"{shown(node.value)} is {shown(number)} in YAML 1.1 and something else in 1.2: write the number meant "
                "in plain digits, or a text in quotes",
            )
        return number

    Strict.add_constructor("tag:yaml.org,2002:int", Strict.construct_yaml_int)
    Strict.add_constructor("tag:yaml.org,2002:float", Strict.construct_yaml_float)
    return Strict


_ALIKE = re.compile(
    r"[-+]?(0*[0-7]|[1-9][0-9]*)|0x[0-9a-fA-F]+|[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


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


def as_given(value: Any) -> str:
    """A setting's value as a command takes it: null, true, [1,2]."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def is_number(value: Any) -> bool:
    """Whether a value from a file is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)
