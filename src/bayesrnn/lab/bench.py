"""Speed on this machine: whole training steps of `bayesrnn train` beside plain torch.nn, as ratios.

A step reads a window of text, runs the model, takes the loss over all words, backpropagates, clips and updates; on
CUDA both sides are one CUDA graph. Each model takes turns with the plain one, and its ratio is that of the two medians.
A row is timed only after the same model has passed a check: outputs' loss and gradients on the path that the timed step
takes, in a CUDA graph or not, against the reference path in float32.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.task import Language

Say = Callable[[str], None]
WINDOW = 35
KINDS = {
    "torch.nn with dropout": None,
    "plain": "unregularised-medium",
    "variational, tied": "variational-tied-medium",
    "variational, untied": "variational-untied-medium",
    "Bayes by Backprop": "brnn-medium",
    "sharpened": "brnn-sharpened-medium",
}
TOLERANCE = {"fp32": 2e-3, "tf32": 3e-2, "bf16": 1e-1}
_STEPS_PER_TURN = 20  # on CUDA: one turn is long enough for events to be exact


@dataclass(frozen=True)
class Size:
    """A language model of two LSTM layers and the batch it is trained with."""

    hidden: int
    batch: int
    words: int = 10_000

    @property
    def title(self) -> str:
        name = {200: "small", 650: "medium", 1500: "large"}.get(self.hidden, "model")
        return f"{name} ({self.hidden} units), batch {self.batch}"


@dataclass(frozen=True)
class Options:
    device: str
    precision: str = "tf32"
    seconds: float = 3.0
    sizes: tuple[Size, ...] = ()
    kinds: tuple[str, ...] = tuple(KINDS)
    draws: int = 100

    @property
    def cuda(self) -> bool:
        return torch.device(self.device).type == "cuda"


def default_sizes(device: torch.device, quick: bool = False) -> tuple[Size, ...]:
    if device.type == "cuda":
        return (Size(650, 20),) if quick else (Size(650, 20), Size(1500, 20), Size(650, 128))
    return (Size(32, 5, 300),) if quick else (Size(200, 20), Size(650, 20))


def parse_size(text: str) -> Size:
    """ "650x20" or "650x20x10000": units, batch, words."""
    try:
        parts = [int(part) for part in text.lower().split("x")]
        if len(parts) not in (2, 3) or min(parts) < 1:
            raise ValueError
    except ValueError:
        raise UserError(f"{text!r} is not a size: write units x batch, such as 650x20, or 650x20x10000.") from None
    size = Size(*parts)
    if size.words < 3:
        raise UserError(f"{text!r} has too few words: a text needs two and its end of line, such as 8x2x3.")
    return size


class Plain(nn.Module):
    """Embedding, LSTM and softmax weights of torch.nn, nothing of ours."""

    def __init__(self, size: Size, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(size.words, size.hidden), nn.Dropout(dropout)
        self.rnn = nn.LSTM(size.hidden, size.hidden, 2, dropout=dropout)
        self.head = nn.Linear(size.hidden, size.words)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, state = self.rnn(self.drop(self.embed(x)), state)
        return self.head(self.drop(out)), state


def plain_step(size: Size, options: Options, dropout: float = 0.0) -> Callable[[], None]:
    """A training step in torch alone: its own clipping, its fused SGD, and a CUDA graph of all of it."""
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = Plain(size, dropout).to(device)
    x, y = torch.randint(size.words, (2, WINDOW, size.batch), device=device)
    state = tuple(torch.zeros(2, size.batch, size.hidden, device=device) for _ in range(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=device.type == "cuda")

    def work() -> None:
        optimizer.zero_grad()
        with _autocast(options.precision, device):
            logits, after = model(x, state)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / size.batch
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        with torch.no_grad():
            for own, new in zip(state, after, strict=True):
                own.copy_(new)

    return _recorded(work) if device.type == "cuda" else work


def _autocast(precision: str, device: torch.device) -> Any:
    lower = precision == "bf16" and device.type == "cuda"
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if lower else nullcontext()


def _recorded(work: Callable[[], None]) -> Callable[[], None]:
    (graph,) = kernels.record([work], lambda: (), warm_up=work, device=torch.device("cuda"))

    def replay(kept: Callable[[], None] = work) -> None:  # the graph works on tensors that `work` alone keeps alive
        graph.replay()

    return replay


@contextmanager
def text(size: Size, windows: int) -> Iterator[Path]:
    """A folder with random text of exactly this many word types, enough for so many windows."""
    generator = torch.Generator().manual_seed(0)
    count = max(size.batch * (WINDOW * windows + 1), size.words)
    ids = torch.randint(size.words - 1, (count,), generator=generator)  # the last type is <eos>, the one before <unk>
    ids[: size.words - 1] = torch.arange(size.words - 1)
    with tempfile.TemporaryDirectory(prefix="bayesrnn-bench-") as folder:
        words = ["<unk>" if k == size.words - 2 else f"w{k}" for k in ids.tolist()]
        for split, part in (("train", words), ("valid", words[:200]), ("test", words[:200])):
            (Path(folder) / f"{split}.txt").write_text(" ".join(part) + "\n")
        yield Path(folder)


def recipe_of(kind: str, size: Size, options: Options) -> Any:
    name = KINDS[kind]
    assert name is not None
    sizes = [f"model.hidden={size.hidden}", f"data.batch_size={size.batch}", f"data.window={WINDOW}"]
    return recipes.override(recipes.load(name), [*sizes, f"train.precision={options.precision}"])


def engine_step(kind: str, size: Size, options: Options) -> tuple[Callable[[], None], str]:
    """The step that `bayesrnn train` runs for a recipe of this kind, and why it is no CUDA graph, if so."""
    recipe = recipe_of(kind, size, options)
    with text(size, windows=100) as folder:
        task = Language(recipe, str(folder), torch.device(options.device))
    torch.manual_seed(0)
    task.attach(Language.build(recipe, task.files()).to(task.device))
    task.model.train()
    step = Step(task, recipe.train)
    step.lr.fill_(1e-3)
    done = 0

    def work() -> None:
        nonlocal done
        if done % task.steps == 0:
            step.start_epoch()
        step()
        done += 1

    return work, step.reason if options.cuda else ""


def check(kind: str, size: Size, options: Options, *, graph: bool = False) -> float:
    """The largest relative error of loss and gradients, on the path taken here or in a CUDA graph, in float32."""
    recipe, device = recipe_of(kind, size, options), torch.device(options.device)
    torch.manual_seed(0)
    model = language.build(recipe, 200).to(device).train()
    elbo = language.window_elbo(model, recipe, windows=100)
    x, y = torch.randint(200, (2, 7, size.batch), device=device)
    state = tuple(0.1 * torch.randn(2, size.batch, size.hidden, device=device) for _ in range(2))
    params = [p for p in model.parameters() if p.requires_grad]

    def outcome(precision: str) -> list[Tensor]:
        torch.manual_seed(1)
        with _autocast(precision, device):
            terms, (_, (h, c)) = elbo.evaluate(lambda: model(x, state, y), y)
        grads = torch.autograd.grad(terms.loss, params, allow_unused=True)
        return [t.detach().double() for t in (terms.loss, h, c, *(g for g in grads if g is not None))]

    with kernels.recording() if graph else nullcontext():
        found = outcome(options.precision)
    with kernels.force("reference"), kernels.float32_precision(False):
        wanted = outcome("fp32")
    errors = [float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in zip(found, wanted, strict=True)]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf


def take_turns(steps: dict[str, Callable[[], Any]], seconds: float, *, cuda: bool, each: int = 1) -> dict[str, float]:
    """Median milliseconds of each; they take turns, so that what else the machine does falls on all."""

    def turn(step: Callable[[], Any]) -> float:
        if not cuda:
            start = time.perf_counter()
            for _ in range(each):
                step()
            return (time.perf_counter() - start) * 1000 / each
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()  # type: ignore[no-untyped-call]
        for _ in range(each):
            step()
        end.record()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        elapsed: float = begin.elapsed_time(end)  # type: ignore[no-untyped-call]
        return elapsed / each

    for step in steps.values():
        turn(step)
    times: dict[str, list[float]] = {name: [] for name in steps}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(times.values()))) < 5:
        for name, step in steps.items():
            times[name].append(turn(step))
    return {name: statistics.median(values) for name, values in times.items()}


def training(options: Options, say: Say) -> Iterator[dict[str, Any]]:
    """One row for each size and kind."""
    cuda = options.cuda
    for size in options.sizes:
        base = plain_step(size, options)
        for kind in options.kinds:
            row: dict[str, Any] = {**asdict(size), "title": size.title, "kind": kind}
            if KINDS[kind] is None:
                step, row["graph"] = plain_step(size, options, dropout=0.5), cuda
            else:
                step, reason = engine_step(kind, size, options)
                row["graph"] = cuda and not reason
                if reason:
                    row["note"] = reason
                row["error"] = check(kind, size, options, graph=row["graph"])
                if row["error"] > TOLERANCE[options.precision]:
                    row["failed"] = f"the check is red: relative error {row['error']:.2g} against the reference"
                    say(f"{size.title}, {kind}: {row['failed']}; not timed")
                    yield row
                    continue
            both = {"torch.nn": base, kind: step}
            took = take_turns(both, options.seconds, cuda=cuda, each=_STEPS_PER_TURN if cuda else 1)
            row |= {
                "plain_milliseconds": took["torch.nn"],
                "milliseconds": took[kind],
                "ratio": took["torch.nn"] / took[kind],
                "words_per_second": 1000 * WINDOW * size.batch / took[kind],
            }
            say(
                f"{size.title}, {kind}: {row['milliseconds']:.2f} ms a step, {row['ratio']:.2f}x torch.nn's speed "
                f"({took['torch.nn']:.2f} ms), {row['words_per_second']:,.0f} words/s"
                + (f"; no CUDA graph: {row['note']}" if "note" in row else "")
            )
            del step, both
            if cuda:
                torch.cuda.empty_cache()
            yield row


def prediction(options: Options, say: Say) -> Iterator[dict[str, Any]]:
    """Many draws for one sequence, against one pass with one draw."""
    size, device = options.sizes[0], torch.device(options.device)
    x = torch.randint(size.words, (WINDOW, 1), device=device)
    for kind in ("variational, tied", "Bayes by Backprop"):
        if kind not in options.kinds or not options.draws:
            continue
        torch.manual_seed(0)
        model = language.build(recipe_of(kind, size, options), size.words).to(device).eval()

        def one(model: nn.Module = model) -> None:
            with torch.no_grad(), br.draw(model, seed=1):
                model(x)

        def many(model: nn.Module = model) -> None:
            br.predict(model, x, samples=options.draws, seed=1, keep_samples=False)

        took = take_turns({"one": one, "many": many}, options.seconds, cuda=options.cuda)
        row = {
            "kind": kind, **asdict(size), "batch": 1, "draws": options.draws, "one_milliseconds": took["one"],
            "milliseconds": took["many"], "passes": took["many"] / took["one"],
        }  # fmt: skip
        say(
            f"prediction, {kind}, {size.hidden} units, one sequence: {options.draws} draws take {took['many']:.1f} ms, "
            f"as long as {row['passes']:.1f} passes with one draw ({took['one']:.2f} ms)"
        )
        yield row


@kernels.float32_precision()  # as it was, after the benchmark
def run(
    options: Options, say: Say, command: str = "", keep: Callable[[dict[str, Any]], None] = lambda record: None
) -> dict[str, Any]:
    """Run all measurements and return the record; `keep` gets it after each row, so that no result is lost."""
    device = torch.device(options.device)
    set_precision(options.precision, device)
    record: dict[str, Any] = {
        "command": command,
        "commit": commit(),
        **environment(device),
        "threads": torch.get_num_threads(),
        "precision": options.precision if device.type == "cuda" else "fp32",
        "steps": WINDOW,
    }
    say(f"{record['device']}, torch {torch.__version__}, {record['precision']}")
    record |= {"training": [], "prediction": []}
    for name, rows in (("training", training), ("prediction", prediction)):
        for row in rows(options, say):
            record[name].append(row)
            keep(record)
    return record
