"""Checks of arguments: each raises one line that names the argument, what it may be, and what it was."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def is_number(value: Any) -> bool:
    """A real number of Python or numpy; True and False are not numbers."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """A whole number of Python or numpy; True and False are not numbers."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def first_tensor(value: Any) -> Any:
    """The tensor in what a model returned: itself, the first of a tuple, or the data of a packed sequence."""
    if isinstance(value, (tuple, list)) and not isinstance(value, PackedSequence):
        value = value[0] if value else value
    return value.data if isinstance(value, PackedSequence) else value


def entries(value: Any) -> list[str]:
    """The entries of a dict, as `['key']`, or of a dataclass, as `.name`."""
    if isinstance(value, Mapping):
        return [f"[{key!r}]" for key in value]
    return [f".{field.name}" for field in fields(value)] if is_dataclass(value) else []


def check_probability(name: str, p: float) -> float:
    if not is_number(p) or not 0 <= p < 1:
        raise ValueError(f"{name} must be a number in [0, 1), got {p!r}: it is the probability of dropping")
    return float(p)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def check_whole(name: str, value: Any, *, least: int, what: str) -> int:
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number of {what}, at least {least}, got {value!r}")
    return int(value)


def unknown_keyword(what: str, name: str, known: Sequence[str]) -> str:
    """The message for a keyword that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(name, [one for one in known if one != name], 1)
    return f"{what} has no argument {name!r}" + (f": did you mean {near[0]!r}?" if near else "")


def check_seed(seed: Any) -> int | None:
    if seed is not None and not isinstance(seed, Integral):
        raise ValueError(f"seed must be a whole number, or None for new draws, got {seed!r}")
    return None if seed is None else int(seed)
