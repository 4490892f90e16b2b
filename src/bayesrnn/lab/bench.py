"""Speed on this machine: whole training steps of `bayesrnn train` beside plain torch.nn, as ratios.

A step reads a window of text, runs the model, takes the loss over all words, backpropagates, clips and updates; on
CUDA both sides are one CUDA graph. Each model takes turns with the plain one, and its ratio is that of the two medians.
A row is timed only after the same model has passed a check: outputs' loss and gradients on the path that the timed step
takes, in a CUDA graph or not, against the reference path in float32.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.baselines import PEERS, autocast, layer_error, plain_step, worst_error
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.model import zero_state
from bayesrnn.lab.tasks.language.task import Language

Say = Callable[[str], None]
BASE = "torch.nn with dropout"
KINDS = {
    BASE: None,
    "plain": "unregularised-medium",
    "variational, tied": "variational-tied-medium",
    "variational, untied": "variational-untied-medium",
    "Bayes by Backprop": "brnn-medium",
    "sharpened": "brnn-sharpened-medium",
}
_LARGEST = 10_000_000
TOLERANCE = {"fp32": 2e-3, "tf32": 3e-2, "bf16": 1e-1}
_STEPS_PER_TURN = 20  # on CUDA: one turn is long enough for events to be exact


@dataclass(frozen=True)
class Size:
    """A language model of two LSTM layers, the batch and the windows it is trained with.

    Args:
        widths: of the embedding and of each layer, in place of two layers of ``hidden`` units.
    """

    hidden: int
    batch: int
    words: int = 10_000
    window: int = 35
    widths: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        name = {200: "small", 650: "medium", 1500: "large"}.get(self.hidden, "model")
        windows = "" if self.window == Size.window else f", windows of {self.window}"
        return f"{'model' if self.widths else name} ({self.units} units), batch {self.batch}{windows}"

    @property
    def units(self) -> str:
        """In words: 650, or 400-1150-1150-400."""
        return "-".join(map(str, self.widths)) or str(self.hidden)

    @property
    def layers(self) -> tuple[int, ...]:
        """The width of the embedding, then of each layer."""
        return self.widths or (self.hidden,) * 3


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
    """ "650x20" or "650x20x10000": units, batch, words; "400-1150-1150-400x20@70": widths, batch, words per window."""
    try:
        sizes, at, length = text.lower().partition("@")
        units, *parts = sizes.split("x")
        widths, numbers = [int(width) for width in units.split("-")], [int(part) for part in parts]
        window = int(length) if at else Size.window
        if len(numbers) not in (1, 2) or min(*widths, *numbers, window) < 1:
            raise ValueError
        if max(*widths, *numbers, window) > _LARGEST:
            raise UserError(f"{text!r} is too large: a size has numbers up to {_LARGEST:,}.")
    except ValueError:
        raise UserError(
            f"{text!r} is not a size: write units x batch, such as 650x20, or 650x20x10000 with the number of words, "
            "or 400-1150-1150-400x20@70 with the widths of the embedding and of each layer, and words per window."
        ) from None
    batch, *words = numbers
    own = tuple(widths) if len(widths) > 1 else ()
    size = Size(max(widths), batch, words[0] if words else Size.words, window, own)
    if size.words < 3:
        raise UserError(f"{text!r} has too few words: a text needs two and its end of line, such as 8x2x3.")
    return size


@contextmanager
def text(size: Size, windows: int) -> Iterator[Path]:
    """A folder with random text of exactly this many word types, enough for so many windows."""
    generator = torch.Generator().manual_seed(0)
    count = max(size.batch * (size.window * windows + 1), size.words)
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
    sizes = [f"model.hidden={size.hidden}", f"data.batch_size={size.batch}", f"data.window={size.window}"]
    if size.widths:
        first, *rest = size.widths
        sizes += [f"model.embedding={first}", f"model.units={rest}", f"model.layers={len(rest)}"]
    return recipes.override(recipes.load(name), [*sizes, f"train.precision={options.precision}"])


def step_of(recipe: Any, folder: Path, device: torch.device) -> tuple[Language, Step]:
    """A language recipe's task on a text, and its training step."""
    task = Language(recipe, str(folder), device)
    torch.manual_seed(0)
    task.attach(Language.build(recipe, task.files()).to(task.device))
    task.model.train()
    step = Step(task, recipe.train)
    step.lr.fill_(1e-3)
    return task, step


def engine_step(kind: str, size: Size, options: Options) -> tuple[Callable[[], None], str]:
    """The step that `bayesrnn train` runs for a recipe of this kind, and why it is no CUDA graph, if so."""
    with text(size, windows=100) as folder:
        task, step = step_of(recipe_of(kind, size, options), folder, torch.device(options.device))
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
    zeros = zero_state(recipe.model, size.batch, device)
    state = tuple(0.1 * torch.randn_like(zero) for zero in zeros)
    params = [p for p in model.parameters() if p.requires_grad]

    def outcome(precision: str) -> list[Tensor]:
        torch.manual_seed(1)
        with autocast(precision, device):
            terms, (_, after) = elbo.evaluate(lambda: model(x, state, y), y)
        grads = torch.autograd.grad(terms.loss, params, allow_unused=True)
        return [t.detach().double() for t in (terms.loss, *after, *(g for g in grads if g is not None))]

    with kernels.recording() if graph else nullcontext():
        found = outcome(options.precision)
    with kernels.force("reference"), kernels.float32_precision(False):
        wanted = outcome("fp32")
    return worst_error(found, wanted)


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
            if kind == BASE:
                step, row["graph"] = plain_step(size, options, dropout=0.5), cuda
            else:
                if kind in PEERS:
                    layer = PEERS[kind](options.precision)
                    row |= {"graph": False, "note": "it waits for streams of its own"}
                    try:
                        row["error"] = layer_error(layer, size, options.precision, torch.device(options.device))
                        step = plain_step(size, options, 0.5, layer, graph=False)
                    except Exception as error:  # whatever another library's compilation raises
                        row["failed"] = f"it does not run here: {str(error).strip().partition(chr(10))[0]}"
                        say(f"{size.title}, {kind}: {row['failed']}; not timed")
                        yield row
                        continue
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
                "words_per_second": 1000 * size.window * size.batch / took[kind],
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
    x = torch.randint(size.words, (size.window, 1), device=device)
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
            f"prediction, {kind}, {size.units} units, one sequence: {options.draws} draws take {took['many']:.1f} ms, "
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
    }
    say(f"{record['device']}, torch {torch.__version__}, {record['precision']}")
    record |= {"training": [], "prediction": []}
    for name, rows in (("training", training), ("prediction", prediction)):
        for row in rows(options, say):
            record[name].append(row)
            keep(record)
    return record
