"""Commands for language models: options, then one call."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line
from bayesrnn.lab.recipes.tables import TABLES

_retraining: Any = partial(typer.Option, rich_help_panel="Training again")
_Run = Annotated[Path, typer.Argument(help="A run folder.")]
_Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")]
_CHOICE = " or ".join(f"{name} ({what})" for name, what in TABLES.items())


@one_line
def predict(
    run: _Run,
    file: Annotated[
        Path | None, typer.Argument(help="UTF-8 text, one sentence per line. Default, or -: stdin.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Draws to average over; 0: the posterior mean. Default: 10."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: _Device = None,
) -> None:
    """Score a text: per word its surprisal, and entropy and mutual information of the prediction, all in nats."""
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.base import NO_DRAWS, is_random
    from bayesrnn.lab.tasks.language import words

    check_task(run, "language")
    trained = open_run(run, device_of(device))
    if not (random := is_random(trained.recipe)) and samples:
        raise UserError(NO_DRAWS.format("--samples"))
    draws = samples if samples is not None else 10 * random
    for line in words.score_text(trained, words.tokens(file), samples=draws, seed=seed):
        typer.echo(json.dumps(line))


@one_line
def prune(
    run: Annotated[Path, typer.Argument(help="A run folder of a language model trained by Bayes by Backprop.")],
    fraction: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of weights to remove.")] = 0.8,
    data: Annotated[str | None, typer.Option(help="The text, if it has moved since.")] = None,
    device: _Device = None,
    retrain: Annotated[
        int | None, _retraining(min=1, help="Epochs to train on; weights are removed in steps in their first half.")
    ] = None,
    retrain_lr: Annotated[
        float | None,
        _retraining(help="Rate while weights are removed; then it falls to a hundredth. Default: half the recipe's."),
    ] = None,
    force: Annotated[bool, _retraining("--force", help="Replace what was trained again before.")] = False,
) -> None:
    """Remove a language model's weights of lowest signal-to-noise.

    Writes prune.json, prune.png and pruned.safetensors.

    For an unfinished run, or with another text than the run's, the results are shown and nothing is written.

    With --retrain weights are removed in steps, each at the beginning of an epoch, and the rest is trained on, in a run
    folder of its own inside this one, pruned-FRACTION. If it is stopped, the same command continues.
    """
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task
    from bayesrnn.lab.tasks.language import pruning

    check_task(run, "language")
    options = pruning.PruneOptions(fraction, data, retrain, retrain_lr, force)
    pruning.prune(run, options, device_of(device), plain_console())


@one_line
def tokenize(
    text: Annotated[Path, typer.Argument(help="Folder with train, valid and test text files.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the token files to.")],
    min_count: Annotated[int, typer.Option(min=1, help="Rarer words of the training text are unknown words.")] = 1,
    words: Annotated[int | None, typer.Option(min=2, help="Keep at most this many of the most frequent words.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing token files.")] = False,
) -> None:
    """Turn a text of any size into token files, in constant memory; then `bayesrnn train RECIPE --data OUT`."""
    from bayesrnn.lab.tasks.language import token_files

    about = token_files.tokenize(text, out, min_count=min_count, words=words, force=force, say=typer.echo)
    typer.echo(f"{about['vocabulary']:,} word types. Written to {out}; train on it with --data {out}")


@one_line
def reproduce(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=f"{_CHOICE}.")],
    results: Annotated[Path, typer.Option(help="Folder of records, RECIPE/SEED.json, or of runs, RECIPE/SEED.")] = Path(
        "results"
    ),
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Print a paper's values beside ours.

    To make a row, train its recipe, evaluate the run, and name the folder of runs with --results. The tables are
    gal2016 and fortunato2017, both on Penn Treebank: rows of records whose text is not named ptb say so. For other
    recipes use bayesrnn report.
    """
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.report.tables import Column, markdown_table, rich_table
    from bayesrnn.lab.tasks.language import paper_tables

    if table not in TABLES:
        raise UserError(f"There is no table {table}; choose {_CHOICE}.")
    if results.is_file():
        raise UserError(f"{results} is a file; name the folder of records with --results.")
    console = plain_console()
    rows = paper_tables.lines(table, results)
    names = ("row", "measure", "paper", "ours", "seeds")
    columns = [Column(name, name, "{:.2f}" if name == "paper" else "{}") for name in names]
    if markdown:
        typer.echo(markdown_table(rows, columns), nl=False)
    else:
        above = [None, *(row["row"] for row in rows)]
        once = [{**row, "row": row["row"] * (row["row"] != name)} for row, name in zip(rows, above, strict=False)]
        shown = rich_table(once, columns)
        for i, column in enumerate(shown.columns):  # in a narrow terminal names are folded, and all values are shown
            column.no_wrap, column.overflow, column.vertical = i > 0, "fold", "top"
        console.print(shown)
    if not any(row["ours"] for row in rows):
        what = "holds no records of these rows" if results.is_dir() else "is missing"
        typer.echo(
            f"{results} {what}, so there is nothing to compare: start this in a clone of the repository, or train and "
            "evaluate the rows, and name the folder of runs with --results.",
            err=True,
        )
