"""``bayesrnn prune``: how many weights can go, and a model without them."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.cli.errors import one_line

if TYPE_CHECKING:
    import torch

    from bayesrnn.tasks.trained import Trained

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder of a Bayes by Backprop recipe.")],
    fraction: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of weights to remove.")] = 0.8,
    data: Annotated[str | None, typer.Option(help="The text, where it has moved since.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
) -> None:
    """Remove the weights of lowest signal-to-noise; writes prune.json, prune.png and pruned.safetensors."""
    import copy
    import json

    import bayesrnn as br
    from bayesrnn.cli.console import plain_console
    from bayesrnn.errors import UserError
    from bayesrnn.report.pruning import picture
    from bayesrnn.report.tables import Column, rich_table
    from bayesrnn.tasks import language
    from bayesrnn.tasks.evaluation import reset_of
    from bayesrnn.tasks.trained import check_task, open_run
    from bayesrnn.train import checkpoint
    from bayesrnn.train.engine import set_precision
    from bayesrnn.train.launch import device_of
    from bayesrnn.train.run_folder import write_file

    check_task(run, "language")
    where = device_of(device)
    trained = open_run(run, where)
    set_precision(trained.recipe.train.precision, where)
    if trained.recipe.posterior.kind == "none":
        raise UserError(f"{run} has no posterior over weights; only Bayes by Backprop recipes have signal-to-noise.")
    streams = trained.streams(data, where)
    q: Any = trained.model

    def perplexity(model: Any, stream: Any) -> float:
        reset = reset_of(trained)
        window = reset or language.evaluation_window(stream, len(trained.vocabulary))
        return language.perplexity(model, stream, window=window, carry_state=reset is None)

    rows: list[dict[str, float]] = []
    for share in sorted({*FRACTIONS, fraction}):
        smaller = copy.deepcopy(q)
        br.prune(smaller, share)
        rows.append({"fraction": share, "valid_perplexity": perplexity(smaller, streams.valid)})
    for row in rows:
        row["rise"] = row["valid_perplexity"] / rows[0]["valid_perplexity"] - 1
    # One value per weight and tensor, before the weights go.
    ratios = {name: ratio.cpu() for name, ratio in br.signal_to_noise(q).items()}
    report = br.prune(q, fraction)
    kept = {name: ratio > report.threshold for name, ratio in ratios.items()}
    summary = {
        **_about(trained, where),
        "fraction": fraction,
        "threshold": report.threshold,
        "valid_perplexity": perplexity(q, streams.valid),
        "test_perplexity": perplexity(q, streams.test),
        "tensors": {t.name: {"removed": t.removed, "total": t.total} for t in report.tensors},
        "curve": rows,
    }
    tensors = {f"model.{key}": value for key, value in q.state_dict().items()}
    checkpoint.save_file(run / "pruned.safetensors", tensors, {"fraction": fraction})
    write_file(run / "prune.json", json.dumps(summary, indent=2) + "\n")
    write_file(run / "prune.png", picture(rows, kept))
    console = plain_console()
    columns = (
        Column("fraction", "weights removed", "{:.0%}"),
        Column("valid_perplexity", "validation perplexity", "{:.2f}"),
        Column("rise", "rise", "{:+.1%}"),
    )
    console.print(rich_table(rows, columns))
    console.print(
        f"With {fraction:.0%} removed: {summary['valid_perplexity']:.2f} validation, "
        f"{summary['test_perplexity']:.2f} test. Written to {run}",
        soft_wrap=True,
    )


def _about(trained: "Trained", device: "torch.device") -> dict[str, Any]:
    """Which run was pruned, and where: the figures are then a record by themselves."""
    from bayesrnn.train.engine import environment
    from bayesrnn.train.launch import commit

    config = trained.config
    return {
        "recipe": config.get("recipe"),
        "seed": config.get("seed"),
        "data": Path(config.get("data", "")).name,
        "commit": commit(),
        **environment(device),
        "command": shlex.join(["bayesrnn", *sys.argv[1:]]),
        "settings": config["settings"],
    }
