"""The words of a text that a user gives, scored one by one."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.language.streams import reset_of
from bayesrnn.lab.tasks.language.text import MAX_BYTES, read_tokens, tokens_of
from bayesrnn.lab.tasks.language.words import scored_words
from bayesrnn.lab.text import EOS, vocabulary_of

if TYPE_CHECKING:
    from torch import nn

    from bayesrnn.lab.runs.opening import OpenedRun

_PART = 1 << 20


def tokens(file: Path | None) -> list[str]:
    """The words of a file; None or "-": those of stdin."""
    found = tokens_of(_stdin(), "stdin") if file is None or file == Path("-") else read_tokens(file)
    if not found:
        raise UserError("There is no text to score.")
    return found


def _stdin() -> bytes:
    """All of stdin, up to the size of a file; binary input is read up to its first zero byte."""
    if sys.stdin is None:
        raise UserError("stdin is closed; send a text to it, or name a file.")
    data = bytearray()
    try:
        while part := sys.stdin.buffer.read(_PART):  # by parts: between them an interrupt is seen
            data += part
            if b"\0" in part:
                return bytes(data[: data.index(0) + 1])
            if len(data) > MAX_BYTES:
                raise UserError(f"stdin has more than {MAX_BYTES / (1 << 30):g} GB, too much to hold in memory.")
    except OSError as error:
        raise UserError(f"stdin cannot be read ({error.strerror or error}).") from None
    return bytes(data)


def scored(
    run: "OpenedRun", words: list[str], *, samples: int, seed: int, models: "Sequence[nn.Module]" = ()
) -> Iterator[dict[str, Any]]:
    """One line per word; the first is predicted from the end of a sentence.

    With ``data.carry_state: false`` the state starts from zero in every window, as in training. ``models``: plain
    modules with the weights of the draws, if they have been made before.
    """
    vocabulary = vocabulary_of(run.files)
    stream = vocabulary.encode([EOS, *words]).unsqueeze(1).to(next(run.model.parameters()).device)
    reset = reset_of(run.recipe)
    for word in scored_words(run.model, stream, words, samples=samples, seed=seed, reset=reset, models=models):
        yield {
            "word": word.text,
            "known": word.text in vocabulary,
            "surprisal": word.surprisal,
            "entropy": word.entropy,
            "mutual_information": word.mutual_information,
        }


def print_json(lines: Iterable[dict[str, Any]]) -> None:
    """One JSON object per word."""
    import typer

    for line in lines:
        typer.echo(json.dumps(line))


def print_coloured(lines: Iterable[dict[str, Any]]) -> None:
    """The text with surprising words in red."""
    from rich.console import Console
    from rich.text import Text

    text = Text()
    for line in lines:
        share = min(line["surprisal"] / 10, 1.0)
        red, green = round(90 + 165 * share), round(220 - 150 * share)
        text.append(line["word"], style=f"rgb({red},{green},90)")
        text.append("\n" if line["word"] == EOS else " ")
    Console().print(text)
