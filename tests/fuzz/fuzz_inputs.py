"""What inputs are made of: bytes of no kind, valid inputs with changes, any JSON, odd texts.

They are made by hypothesis, or by `quick.py`, which has the same names and is much faster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if os.environ.get("BAYESRNN_FUZZ_QUICK"):
    import quick as st
else:
    from hypothesis import strategies as st

ODD = [
    *("nan inf -inf 1e999 -1 0 1e-400 null true ~ << 1:1:1 2001-02-30 & * [ ] { } ' # , ; | . .. &a *a ٣ é".split(" ")),
    *("../../etc/passwd /dev/zero %s%n ${HOME} $(id) __class__ !!python/name:os.system".split(" ")),
    *("", " ", "\x00", "\ufeff", '"', "\\", "- ", ": ", "\t", "\r", "\u2028", "\x1b[2J", "\ud7ff"),
    *("9" * 40, "9" * 5000, "0x" + "f" * 40),
]


@st.composite
def changed(draw: Any, valid: Any) -> bytes:
    """A valid input with a few changes: bytes set, cut out, put in, repeated, odd texts in place of others."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from("set cut insert odd repeat end swap".split()))
        if kind == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif kind == "odd":
            data[at : at + draw(st.integers(0, 8))] = draw(st.sampled_from(ODD)).encode()
        elif kind == "repeat":
            length = draw(st.integers(1, 30))
            data[at:at] = bytes(data[at : at + length]) * draw(st.integers(1, 50))
        elif kind == "end":
            del data[at:]
        elif kind == "swap":
            other = draw(st.integers(0, max(len(data) - 1, 0)))
            data[at : at + 4], data[other : other + 4] = data[other : other + 4], data[at : at + 4]
    return bytes(data)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.sampled_from(ODD),
    st.sampled_from(["\ud800", "a\udfff"]),  # halves of characters
    st.text(max_size=12),
)


def values(depth: int = 3) -> Any:
    """Any JSON."""
    keys = st.text(max_size=8) | st.sampled_from(["model", "train", "files", "settings", "metrics", "curves", "task"])
    return st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=6
    )


@st.composite
def altered(draw: Any, valid: dict[str, Any]) -> dict[str, Any]:
    """A valid JSON object in which one or two values, at any depth, are replaced, removed or added."""
    made = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 2))):
        place: Any = made
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            kind = draw(st.sampled_from(["replace", "remove", "add"]))
            if kind == "replace" or not isinstance(place, dict):
                place[key] = draw(values())
            elif kind == "remove":
                del place[key]
            else:
                place[draw(st.text(max_size=6))] = draw(values())
            break
    return made


@st.composite
def renumbered(draw: Any, valid: dict[str, Any]) -> dict[str, Any]:
    """A valid JSON object in which some of the fractions, at any depth, are any others."""
    often = draw(st.integers(2, 9))

    def other(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: other(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [other(inner) for inner in value]
        return draw(st.floats()) if isinstance(value, float) and draw(st.integers(0, often)) == 0 else value

    made: dict[str, Any] = other(valid)
    return made


def mixed(*strategies: Any) -> Any:
    return st.one_of(*strategies)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Reader:
    """``read(input, folder)`` calls it; the folder is empty, and its own."""

    inputs: Callable[[], Any]
    read: Callable[[Any, Path], object]
    what: str


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
