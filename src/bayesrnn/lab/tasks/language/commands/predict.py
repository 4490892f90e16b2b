"""``bayesrnn predict``: how surprising each word of a text is, and how sure the model was."""

from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.lab.console.errors import one_line


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
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.language import prediction

    check_task(run, "language")
    trained = open_run(run, device_of(device))
    lines = prediction.scored(trained, prediction.tokens(file), samples=samples, seed=seed)
    if colour:
        prediction.print_coloured(lines)
    else:
        prediction.print_json(lines)
