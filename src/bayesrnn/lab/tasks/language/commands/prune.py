"""``bayesrnn prune``: how many weights can go, and a model without them."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.lab.console.errors import one_line

_option: Any = partial(typer.Option, rich_help_panel="Training again")


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder of a Bayes by Backprop recipe.")],
    fraction: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of weights to remove.")] = 0.8,
    data: Annotated[str | None, typer.Option(help="The text, if it has moved since.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    retrain: Annotated[
        int | None, _option(min=1, help="Epochs to train on; weights are removed by steps in the first half of them.")
    ] = None,
    retrain_at: Annotated[
        str | None,
        _option(help="More shares to remove and train again, with commas, for the curve; 0 is the whole model."),
    ] = None,
    retrain_lr: Annotated[
        float | None,
        _option(help="Rate while weights are removed; then it falls to a hundredth. Default: half the recipe's."),
    ] = None,
    force: Annotated[bool, _option("--force", help="Replace what was trained again before.")] = False,
) -> None:
    """Remove the weights of lowest signal-to-noise; writes prune.json, prune.png and pruned.safetensors.

    For an unfinished run, or with another text than the run's, the results are shown and nothing is written.

    With --retrain the weights are removed by steps, each at the beginning of an epoch, and the rest is trained on, in a
    run folder of its own inside this one, pruned-FRACTION. If it is stopped, the same command continues.
    """
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task
    from bayesrnn.lab.tasks.language.pruning import Asked, prune

    check_task(run, "language")
    asked = Asked(fraction, data, retrain, retrain_at, retrain_lr, force)
    prune(run, asked, device_of(device), plain_console())
