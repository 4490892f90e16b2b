"""``bayesrnn quickstart``: three language models side by side on the documentation that Python carries."""

import json
import shlex
import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.cli.options import SEEDS
from bayesrnn.lab.console.errors import one_line

if TYPE_CHECKING:
    from bayesrnn.lab.quickstart import Quickstart

PICTURE = "calibration.png"
FILES = ("config.json", PICTURE, "index.html")
_FEWEST = 20  # words behind a mark in the picture


@one_line
def command(
    fast: Annotated[bool, typer.Option("--fast", help="A smoke run of seconds: too short to compare.")] = False,
    seed: Annotated[int, typer.Option(**SEEDS, help="Seed of all randomness.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("runs/quickstart"),
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier quickstart in that folder.")] = False,
) -> None:
    """Train a plain, a variational and a Bayes-by-Backprop LSTM, and see how sure they are of text they never saw.

    No download, CPU only, about a minute on two cores. Writes a page to open in a browser, and one run folder per model
    for the other commands.
    """
    from bayesrnn.lab import quickstart
    from bayesrnn.lab.cli.progress import reporter
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.report.tables import rich_table
    from bayesrnn.lab.runs.folder import RunFolder

    clock, started = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    words = ["bayesrnn", "quickstart", *["--fast"] * fast, "--seed", str(seed), "--out", str(out)]
    with RunFolder(out, files=FILES, force=_replaces(out, force), kind="quickstart") as folder:
        console = plain_console()
        console.print("Three LSTMs learn the documentation that Python carries, each in its own process.")
        folder.write("config.json", json.dumps({"program": "bayesrnn", "quickstart": {"seed": seed, "fast": fast}}))
        with reporter(console, quickstart.MODELS) as told:
            outcomes = quickstart.train(out, seed=seed, fast=fast, told=told)
        record = quickstart.summary(outcomes, command=shlex.join(words), started=started, seed=seed, fast=fast)
        picture = _picture(record)
        folder.write(PICTURE, picture)
        record.seconds = time.perf_counter() - clock
        folder.write("index.html", _page(record, picture, out))
        folder.finish(record.model_dump())
    console.print(rich_table([row.model_dump() for row in record.table], quickstart.COLUMNS))
    for sentence in record.findings:
        console.print(f"• {sentence}")
    console.print(f"\n{record.seconds:.0f} seconds. Open {out / 'index.html'} in a browser.", soft_wrap=True)


def _replaces(out: Path, force: bool) -> bool:
    """Whether to replace what the folder holds: a quickstart, if it was stopped or the user says so; nothing else."""
    from bayesrnn.lab.quickstart import MODELS
    from bayesrnn.lab.runs.files import read_own
    from bayesrnn.lab.runs.folder import CONFIG, MARKER
    from bayesrnn.lab.runs.record import RECORD

    there = [name for name in (CONFIG, RECORD, *MODELS) if (out / name).exists()]
    ours = "quickstart" in read_own(out / CONFIG) or {"table", "findings"} <= read_own(out / RECORD).keys()
    if force and there and not ours:
        raise UserError(f"{out / there[0]} is of another run, which --force does not replace; choose another --out.")
    return force or (ours and (out / MARKER).exists())


def _picture(record: "Quickstart") -> bytes:
    from bayesrnn.lab.report.plots import against_diagonal

    bins = {row.model: [b for b in row.reliability if b.count >= _FEWEST] for row in record.table}
    return against_diagonal(
        {model: [(b.confidence, b.accuracy) for b in each] for model, each in bins.items()},
        across="how sure the model is of its guess",
        up="how often its guess is right",
        sizes={model: [b.count for b in each] for model, each in bins.items()},
    )


def _page(record: "Quickstart", picture: bytes, out: Path) -> str:
    from bayesrnn.lab.quickstart import BINS, COLUMNS, SURE
    from bayesrnn.lab.report.html import render

    return render(
        "quickstart.html", record=record, picture=b64encode(picture).decode(), out=out, bins=BINS, sure=SURE,
        columns=COLUMNS, fewest=_FEWEST, samples=max(each["evaluate"]["samples"] for each in record.settings.values()),
    )  # fmt: skip
