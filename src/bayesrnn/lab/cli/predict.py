"""``bayesrnn predict``: how surprising each word of a text is, and how sure the model was."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line

if TYPE_CHECKING:
    from bayesrnn.lab.runs.opening import OpenedRun


_PART = 1 << 20


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    file: Annotated[
        Path | None, typer.Argument(help="UTF-8 text, one sentence per line. Default, or -: stdin.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=100_000, help="Draws to average over; 0: the posterior mean.")
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    colour: Annotated[bool, typer.Option("--colour", help="Coloured words instead of JSON lines.")] = False,
) -> None:
    """Score a text: per word its surprisal, and entropy and mutual information of the prediction, all in nats."""
    import json

    from bayesrnn.errors import UserError
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.language.text import read_tokens, tokens_of

    check_task(run, "language")
    trained = open_run(run, device_of(device))
    tokens = tokens_of(_stdin(), "stdin") if file in (None, Path("-")) else read_tokens(file)
    if not tokens:
        raise UserError("There is no text to score.")
    if not colour:
        for line in scored(trained, tokens, samples=samples, seed=seed):
            typer.echo(json.dumps(line))
        return
    from rich.console import Console
    from rich.text import Text

    text = Text()
    for line in scored(trained, tokens, samples=samples, seed=seed):
        share = min(line["surprisal"] / 10, 1.0)
        red, green = round(90 + 165 * share), round(220 - 150 * share)
        text.append(line["word"], style=f"rgb({red},{green},90)")
        text.append("\n" if line["word"] == "<eos>" else " ")
    Console().print(text)


def _stdin() -> bytes:
    """All of stdin, as much as a file may have; of what is no text no more than shows it. An interrupt ends it."""
    import sys

    from bayesrnn.errors import UserError
    from bayesrnn.lab.tasks.language.text import MAX_BYTES

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


def scored(trained: "OpenedRun", tokens: list[str], *, samples: int, seed: int) -> Iterator[dict[str, Any]]:
    """One line per word; the first is predicted from the end of a sentence.

    Of a recipe with ``data.carry_state: false`` the state starts from zero in every window, as in training.
    """
    import math

    from bayesrnn.lab.tasks.language import scoring
    from bayesrnn.lab.tasks.language.evaluation import reset_of
    from bayesrnn.lab.tasks.language.task import vocabulary_of
    from bayesrnn.lab.tasks.language.text import EOS

    vocabulary = vocabulary_of(trained.files)
    device = next(trained.model.parameters()).device
    stream = vocabulary.encode([EOS, *tokens]).unsqueeze(1).to(device)
    position = 0
    with scoring.word_dropout(trained.model, on=False):
        found = scoring.log_probabilities(trained.model, stream, samples=samples, seed=seed, reset=reset_of(trained))
        for y, logs in found:
            mean = logs.logsumexp(0) - math.log(len(logs))
            surprisal = -mean.gather(-1, y.unsqueeze(-1)).squeeze(-1)
            entropy = scoring.entropy_of_logs(mean)
            information = (entropy - scoring.entropy_of_logs(logs).mean(0)).clamp_min(0)
            values = zip(surprisal.tolist(), entropy.tolist(), information.tolist(), strict=True)
            for s, h, i in values:
                word = tokens[position]
                known = word in vocabulary
                yield {"word": word, "known": known, "surprisal": s, "entropy": h, "mutual_information": i}
                position += 1
