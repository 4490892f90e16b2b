"""``bayesrnn quickstart``: three language models side by side on text that Python carries, in about three minutes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line
from bayesrnn.lab.report.tables import Column

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from bayesrnn.lab.runs.folder import RunFolder
    from bayesrnn.lab.tasks.language.comparison import Settings, Text
    from bayesrnn.lab.tasks.language.loop import Epoch

FILES = ("config.json", "metrics.jsonl", "vocabulary.txt", "curves.png", "index.html")
WEIGHTS = "{}.safetensors"

COLUMNS = (
    Column("model", "model"),
    Column("train_end", "train, end", "{:.1f}"),
    Column("valid_end", "valid, end", "{:.1f}"),
    Column("train_best", "train, best", "{:.1f}"),
    Column("valid_best", "valid, best", "{:.1f}"),
    Column("test_best", "test, best", "{:.1f}"),
    Column("entropy_gap", "entropy gap", "{:.2f}"),
    Column("prunable", "can go", "{:.0%}"),
    Column("seconds", "seconds", "{:.0f}"),
)
MEANING = (
    (
        "train, valid, test",
        "Perplexity, lower is better: at the end of training, and at the epoch with the best validation perplexity. "
        "The entropy gap and what can go are measured at that best epoch too.",
    ),
    (
        "entropy gap",
        "How much less sure the model is of its next word (nats per word) when the test text is read backwards, "
        "which is no language. Higher is better: it knows what it doesn't know.",
    ),
    (
        "can go",
        "Weights that can be set to zero before validation perplexity rises by more than 1%: lowest signal-to-noise "
        "first for Bayes by Backprop, smallest first for the others.",
    ),
)


@one_line
def command(
    fast: Annotated[bool, typer.Option("--fast", help="A smoke run of seconds: too short to compare.")] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of all randomness.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder to write the run to.")] = Path("runs/quickstart"),
    force: Annotated[bool, typer.Option("--force", help="Replace the files of an earlier run in that folder.")] = False,
) -> None:
    """Train a plain, a variational and a Bayes-by-Backprop LSTM side by side on Python's own documentation.

    No download, CPU only, about three minutes on two cores. Prints one table and writes a folder with the curves,
    the weights and a page to open in a browser.
    """
    from rich.console import Console

    from bayesrnn.lab.runs.folder import RunFolder

    methods = ("plain", "variational", "bayes_by_backprop")
    folder = RunFolder(out, files=[*FILES, *map(WEIGHTS.format, methods)], force=force, kind="fast")
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=110)

    from bayesrnn.lab.tasks.language.comparison import FAST, Settings

    invocation = ["bayesrnn", "quickstart", *["--fast"] * fast, "--seed", str(seed), "--out", str(out)]
    _run(
        FAST if fast else Settings(),
        folder,
        console,
        seed=seed,
        fast=fast,
        invocation=" ".join(invocation + ["--force"] * force),
    )


def _run(
    settings: "Settings", folder: "RunFolder", console: "Console", *, seed: int, fast: bool, invocation: str
) -> None:
    import json
    import time
    from dataclasses import asdict
    from datetime import UTC, datetime

    from safetensors.torch import save

    from bayesrnn.lab.cli.progress import reporter
    from bayesrnn.lab.report.plots import Curve, learning_curves
    from bayesrnn.lab.report.tables import rich_table
    from bayesrnn.lab.tasks.language.comparison import METHODS, Text, compare, findings
    from bayesrnn.lab.tasks.language.text import python_docs

    started, clock = datetime.now(UTC), time.perf_counter()
    text = Text(python_docs(), settings)
    about = _about(text, settings)
    console.print(about)
    folder.write("config.json", json.dumps({"seed": seed, "fast": fast, **asdict(settings)}, indent=2) + "\n")
    folder.write("vocabulary.txt", "\n".join(text.vocabulary.words) + "\n")

    rows: list[dict[str, Any]] = []
    curves: dict[str, dict[str, list[float]]] = {method: {"train": [], "valid": []} for method in METHODS}
    with reporter(console, METHODS, epochs=settings.epochs, steps=text.steps) as progress:

        def on_epoch(method: str, epoch: "Epoch") -> None:
            folder.append("metrics.jsonl", {"model": method, **asdict(epoch)})
            curves[method]["train"].append(epoch.train)
            curves[method]["valid"].append(epoch.valid)
            progress.epoch(method, epoch)

        def on_model(method: str, model: "nn.Module", row: dict[str, Any]) -> None:
            rows.append(row)
            folder.write(WEIGHTS.format(method), save({k: v.clone() for k, v in model.state_dict().items()}))

        compare(text, settings, seed=seed, on_step=progress.step, on_epoch=on_epoch, on_model=on_model)

    said = findings(rows, epochs=settings.epochs)
    if fast:
        said = ["This was --fast, a smoke run: the models have hardly begun to learn, so compare nothing."]
    png = learning_curves({METHODS[method]: Curve(**curve) for method, curve in curves.items()})
    record = {
        "command": invocation,
        "started": started.isoformat(timespec="seconds"),
        "seconds": time.perf_counter() - clock,
        "seed": seed,
        "fast": fast,
        "environment": _environment(),
        "settings": asdict(settings),
        "table": rows,
        "findings": said,
        "curves": curves,
    }
    folder.write("curves.png", png)
    folder.write("index.html", _page(record, png, about=about))
    folder.finish(record)

    console.print()
    console.print(rich_table(rows, COLUMNS))
    for sentence in said:
        console.print(f"• {sentence}")
    console.print()
    for term, meaning in MEANING:
        console.print(f"{term}: {meaning}", style="dim")
    console.print(
        f"\n{record['seconds']:.0f} seconds in all. For the curves, open {folder.path / 'index.html'}", soft_wrap=True
    )


def _about(text: "Text", settings: "Settings") -> str:
    return (
        f"Python's own documentation: {text.train.numel():,} words to train on, {text.valid.numel():,} to validate, "
        f"{text.test.numel():,} to test, {len(text.vocabulary):,} word types. Three LSTMs of {settings.hidden} units."
    )


def _environment() -> dict[str, Any]:
    import platform

    import numpy
    import torch

    from bayesrnn._version import __version__

    return {
        "bayesrnn": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }


def _page(record: dict[str, Any], png: bytes, *, about: str) -> str:
    from bayesrnn.lab.report import html
    from bayesrnn.lab.report.tables import html_table

    environment = ", ".join(f"{key} {value}" for key, value in record["environment"].items())
    settings = "\n".join(f"{key} = {value}" for key, value in record["settings"].items())
    return html.page(
        "bayesrnn quickstart: plain and Bayesian LSTMs side by side",
        [
            html.paragraphs(about),
            html.heading("What happened"),
            html.bullets(record["findings"]),
            html.wide(html_table(record["table"], COLUMNS)),
            html.image(
                png,
                alt="Training and validation perplexity of the three models per epoch; the numbers are in the table.",
                caption="Perplexity at the posterior mean. Where a solid line turns up, that model overfits.",
            ),
            html.heading("What the columns mean"),
            html.definitions(MEANING),
            html.heading("To run it again"),
            html.preformatted(f"{record['command']}\n\n{settings}"),
        ],
        footer=f"{record['started']}, {record['seconds']:.0f} seconds, {environment}.",
    )
