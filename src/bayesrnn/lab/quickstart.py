"""The quickstart: three language-model recipes side by side, and how far their confidence can be trusted.

Every model trains in its own process with one thread. Two threads of OpenMP meet many times in a step, and spin while
they wait: where other programs share the cores, a step of these models takes 30 times the CPU time of one thread.
"""

import multiprocessing
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from bayesrnn.errors import UserError
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.report.tables import Column
from bayesrnn.lab.runs.record import Record

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bayesrnn.lab.tasks.language.scoring import Scores

MODELS = {"plain": "plain LSTM", "variational": "variational LSTM", "bbb": "Bayes-by-Backprop LSTM"}
"""Key to name shown. The recipe is ``quickstart-KEY``; its run folder is ``KEY``."""
FAST = ("model.hidden=16", "data.min_count=20", "data.batch_size=40", "train.epochs=2", "evaluate.samples=2")
BINS, SURE = 10, 0.5  # ranges of confidence; a model is sure where it gives its guess at least this probability
OVERFIT = 0.03  # a model overfits if it ends this far above its best validation perplexity
FIRST, LENGTH = 1500, range(8, 15)  # the sentence shown is among the first words of the test text, and this long

COLUMNS = (
    Column("model", "model"),
    Column("perplexity", "perplexity", "{:.1f}"),
    Column("calibration_error", "calibration error", "{:.3f}"),
    Column("said", "when sure, says", "{:.0%}"),
    Column("right", "and is right", "{:.0%}"),
    Column("sure", "words it is sure of", "{:,}"),
)


class Word(BaseModel):
    """A word of a text, the model's guess, and the probability that the model gives its guess."""

    text: str
    guess: str
    confidence: float


class Bin(BaseModel):
    """The words in a range of confidence: mean confidence, how often the guess is right, number of words."""

    confidence: float
    accuracy: float
    count: int


class ModelRow(BaseModel):
    """A line of the table: one model on the test text."""

    model: str
    perplexity: float
    calibration_error: float
    reliability: list[Bin]
    said: float | None
    right: float | None
    sure: int


class Outcome(BaseModel):
    """A trained model: its rows of the table, its guesses at the first words of the test text, its run's record."""

    rows: list[ModelRow]
    words: list[Word]
    text: str
    record: Record
    cpu_seconds: float


class Quickstart(BaseModel):
    """The record of a quickstart, ``record.json``. The first finding is the title of the page."""

    program: str = "bayesrnn"
    format: int = 2
    command: str
    started: str
    seconds: float = 0.0
    cpu_seconds: float
    seed: int
    fast: bool
    text: str
    versions: dict[str, str]
    settings: dict[str, dict[str, Any]]
    table: list[ModelRow]
    sentence: dict[str, list[Word]]
    findings: list[str]
    curves: dict[str, list[float]]


def train(out: Path, *, seed: int, fast: bool, told: Callable[[str, int, int, float], None]) -> dict[str, Outcome]:
    """Train and measure all models at once; ``told`` gets the model, epoch, epochs and validation perplexity."""
    context = multiprocessing.get_context("spawn")
    processes, waiting, found = [], {}, {}
    try:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for the parent alone
        try:
            for name in MODELS:
                mine, theirs = context.Pipe(duplex=False)
                processes.append(context.Process(target=_process, args=(theirs, name, out / name, seed, fast)))
                processes[-1].start()
                theirs.close()
                waiting[mine] = name
        finally:
            signal.signal(signal.SIGINT, handler)
        while waiting:
            for connection in wait(list(waiting)):
                assert isinstance(connection, Connection)
                name = waiting[connection]
                try:
                    message = connection.recv()
                except EOFError:
                    message = UserError(f"The process that trains the {MODELS[name]} died; is memory short?")
                if isinstance(message, UserError):
                    raise message
                if isinstance(message, Outcome):
                    found[waiting.pop(connection)] = message
                else:
                    told(name, *message)
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return {name: found[name] for name in MODELS}


def _process(connection: Connection, name: str, out: Path, seed: int, fast: bool) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    try:
        connection.send(train_one(name, out, seed=seed, fast=fast, send=connection.send))
    except UserError as error:
        connection.send(UserError(str(error)))


def _end_with(sentinel: int) -> None:
    """A parent that is killed leaves no process behind."""
    wait([sentinel])
    os._exit(1)


class _Reporter(Silent):
    def __init__(self, send: Callable[[Any], object]) -> None:
        self._send = send

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self._send((line["epoch"], epochs, line["valid_perplexity"]))


def train_one(name: str, out: Path, *, seed: int, fast: bool, send: Callable[[Any], object]) -> Outcome:
    """Train one recipe on the engine into its run folder, and measure it on the test text. ``send`` gets the epochs."""
    import torch

    from bayesrnn.lab.engine.launch import launch
    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.runs.folder import identity
    from bayesrnn.lab.runs.opening import open_run
    from bayesrnn.lab.tasks.language.scoring import scores
    from bayesrnn.lab.text import noise_of_draws

    torch.set_num_threads(1)
    recipe, overrides, cpu = f"quickstart-{name}", list(FAST) if fast else [], torch.device("cpu")
    record = launch(
        recipe, out=out, reporter=_Reporter(send), overrides=overrides, seed=seed, device="cpu", force=True,
        measure=False, command=shlex.join(["bayesrnn", "train", recipe, *overrides, "--seed", str(seed)]),
    )  # fmt: skip
    run = open_run(out, cpu)
    task: Any = run.task(None, cpu)
    test, rows, options = task.streams.test, [], {"samples": 0, "seed": seed}
    if task.random:
        options["samples"] = run.recipe.evaluate.samples
    else:  # its weights are the best epoch's until the last ones are loaded
        rows = [row(f"{MODELS[name]} at epoch {record.metric('best_epoch')}", scores(run.model, test, bins=BINS))]
    last = out / checkpoint.LAST
    checkpoint.load_model(run.model, checkpoint.load_own(last, identity(out))[0], last)
    with noise_of_draws(run.model):
        rows.insert(0, row(MODELS[name], scores(run.model, test, bins=BINS, **options)))
        words = guesses(run.model, test[: FIRST + 1], task.streams.vocabulary.words, **options)
    return Outcome(rows=rows, words=words, text=task.describe(), record=record, cpu_seconds=time.process_time())


def row(model: str, found: "Scores") -> ModelRow:
    """The table's line for a model with these scores."""
    bins = [Bin.model_validate(each) for each in found.reliability]
    sure = [b for b in bins if b.confidence >= SURE]  # SURE is where a range begins
    count = sum(b.count for b in sure)
    return ModelRow(
        model=model,
        perplexity=found.perplexity,
        calibration_error=found.calibration_error,
        reliability=bins,
        said=sum(b.confidence * b.count for b in sure) / count if count else None,
        right=sum(b.accuracy * b.count for b in sure) / count if count else None,
        sure=count,
    )


def guesses(model: "nn.Module", stream: "Tensor", vocabulary: Sequence[str], *, samples: int, seed: int) -> list[Word]:
    """The most likely word at each place of a stream (N, 1), by the mean of draws or, with none, the mean weights."""
    from bayesrnn.lab.tasks.language.scoring import log_probabilities

    found = []
    for target, logs in log_probabilities(model, stream, samples=samples, seed=seed):
        top, guess = logs.exp().mean(0).max(-1)
        for t, g, c in zip(target.tolist(), guess.tolist(), top.tolist(), strict=True):
            found.append(Word(text=vocabulary[t], guess=vocabulary[g], confidence=c))
    return found


def typical_sentence(texts: Mapping[str, list[Word]]) -> dict[str, list[Word]]:
    """The sentence on which every model's confidence exceeds its accuracy about as much as it does on average."""
    from bayesrnn.lab.text import EOS, UNK

    words = [word.text for word in next(iter(texts.values()))]
    ends = [-1, *(k for k, word in enumerate(words) if word == EOS)]
    spans = [slice(a + 1, b) for a, b in pairwise(ends) if b > a + 1] or [slice(0, len(words))]
    whole = [s for s in spans if s.stop - s.start in LENGTH and UNK not in words[s]] or spans
    surplus = [[w.confidence - (w.guess == w.text) for w in text] for text in texts.values()]

    def distance(span: slice) -> float:
        return sum(abs(fmean(each[span]) - fmean(each)) for each in surplus)

    chosen = min(whole, key=distance)
    return {name: text[chosen] for name, text in texts.items()}


def findings(rows: Sequence[ModelRow], curves: Mapping[str, list[float]]) -> list[str]:
    """The table in sentences, whoever wins, and what the validation perplexities of the epochs say."""
    claims = [
        f"the {r.model} "
        + ("is never sure" if r.said is None else f"says {r.said:.0%} and is right {r.right:.0%} of the time")
        for r in rows[: len(curves)]
    ]
    sentences = [f"When sure of the next word, {'; '.join(claims)}."]
    for column in COLUMNS[1:3]:
        order = sorted(rows, key=lambda r: getattr(r, column.key))
        values = "; ".join(f"{r.model} {column.text(r.model_dump())}" for r in order)
        sentences.append(f"{column.heading.capitalize()} on unseen text, the best first: {values}.")
    for model, valid in curves.items():
        best, end, epochs = min(valid), valid[-1], len(valid)
        verdict = "overfits" if end > best * (1 + OVERFIT) else "does not overfit"
        then = f", {end:.1f} at the end (epoch {epochs})" if end > best else ", the last"
        sentences.append(
            f"The {model} {verdict}: validation perplexity {best:.1f} in epoch {1 + valid.index(best)}{then}."
        )
    return sentences


def summary(outcomes: Mapping[str, Outcome], *, command: str, started: str, seed: int, fast: bool) -> Quickstart:
    """The record, from the outcomes by model."""
    first = next(iter(outcomes.values()))
    named = {MODELS[name]: outcome for name, outcome in outcomes.items()}
    rows = [o.rows[0] for o in named.values()] + [r for o in named.values() for r in o.rows[1:]]
    curves = {name: o.record.curve("valid_perplexity") for name, o in named.items()}
    smoke = ["This was --fast, a smoke run: the models have hardly begun to learn, so compare nothing."]
    return Quickstart(
        command=command, started=started, seed=seed, fast=fast, text=first.text, versions=first.record.versions,
        cpu_seconds=sum(o.cpu_seconds for o in named.values()) + time.process_time(),
        settings={name: o.record.settings for name, o in named.items()}, table=rows, curves=curves,
        sentence=typical_sentence({name: o.words for name, o in named.items()}),
        findings=smoke if fast else findings(rows, curves),
    )  # fmt: skip
