"""``bayesrnn evaluate``: perplexities, uncertainty and calibration of a trained run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.cli.errors import one_line


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    samples: Annotated[int | None, typer.Option(min=0, help="Draws to average over. Default: the recipe's.")] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Also learn on while being tested.")] = False,
    reversed_text: Annotated[bool, typer.Option("--reversed", help="Also the entropy on reversed text.")] = False,
    data: Annotated[str | None, typer.Option(help="The text, where it has moved since.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    dynamic_lr: Annotated[float | None, typer.Option(help="Step size of --dynamic. Default: the recipe's.")] = None,
    dynamic_rule: Annotated[str, typer.Option(help="sgd, or rms (Krause et al.).")] = "sgd",
    dynamic_decay: Annotated[float, typer.Option(min=0.0, help="Pull back to the trained weights.")] = 0.0,
    drop_words: Annotated[bool, typer.Option("--drop-words", help="Keep word dropout on in draws.")] = False,
    entropy_samples: Annotated[int, typer.Option(min=0, help="Draws for the entropy gap.")] = 10,
) -> None:
    """Measure a run's best weights; writes evaluation.json and adds the figures to record.json."""
    from bayesrnn.cli.console import plain_console
    from bayesrnn.errors import UserError
    from bayesrnn.report.tables import Column, rich_table
    from bayesrnn.tasks.evaluation import evaluate
    from bayesrnn.tasks.trained import open_run
    from bayesrnn.train.engine import set_precision
    from bayesrnn.train.launch import device_of

    if dynamic_rule not in ("sgd", "rms"):
        raise UserError(f"There is no rule {dynamic_rule}; choose sgd or rms.")
    console = plain_console()
    where = device_of(device)
    trained = open_run(run, where)
    set_precision(trained.recipe.train.precision, where)
    metrics = evaluate(
        trained,
        trained.streams(data, where),
        samples=trained.recipe.evaluate.samples if samples is None else samples,
        dynamic=dynamic,
        reversed_text=reversed_text,
        dynamic_lr=dynamic_lr,
        dynamic_rule=dynamic_rule,
        dynamic_decay=dynamic_decay,
        drop_words=drop_words,
        entropy_samples=entropy_samples,
        seed=seed,
        say=lambda text: console.print(text, style="dim"),
    )
    record(run, metrics)
    rows = [{"key": key, "value": _shown(value)} for key, value in metrics.items() if not isinstance(value, list)]
    console.print(rich_table(rows, (Column("key", "measure"), Column("value", trained.config["recipe"]))))


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 10 else f"{value:.2f}"


def record(run: Path, metrics: dict[str, Any]) -> None:
    """Write evaluation.json, and put the figures into the run's record if it has one."""
    import json

    from bayesrnn.train.run_folder import RECORD, write_file

    write_file(run / "evaluation.json", json.dumps(metrics, indent=2) + "\n")
    try:
        whole = json.loads((run / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return
    whole.setdefault("metrics", {}).update(metrics)
    write_file(run / RECORD, json.dumps(whole, indent=2) + "\n")
