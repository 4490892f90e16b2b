"""``bayesrnn explore``: a trained run in the browser."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder, or a folder of Forecaster.save.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[RUN2]", help="A run of the same task, to compare with.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The data, if it has moved since.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free one.")] = 0,
    browser: Annotated[
        bool, typer.Option(help="Open a browser. On a machine with other users its command line shows the address.")
    ] = True,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Open a page on a trained run: predictions with their uncertainty, single draws, and the weights.

    The page is served to this machine alone, at an address with a new token at every start. Nothing is written.
    """
    from bayesrnn.errors import UserError
    from bayesrnn.lab.reading import not_imported

    try:
        from bayesrnn.lab.explore.server import serve
    except ImportError as error:
        if (error.name or "bayesrnn").partition(".")[0] == "bayesrnn":
            raise
        raise UserError(f"explore needs {not_imported(error)}; pip install 'bayesrnn[explore]'.") from None
    import torch

    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.explore.panel import Options
    from bayesrnn.lab.registry import open_saved
    from bayesrnn.lab.runs.opening import open_run

    torch.set_num_threads(1)  # answers are small, and two threads spend more time waiting for each other
    where = device_of(device)
    runs = [open_saved(path) or open_run(path, where) for path in (run, other) if path is not None]
    serve(runs, Options(data), port=port, browser=browser, say=partial(plain_console().say, style=""))
