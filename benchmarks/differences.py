"""Where papers and released code disagree: both choices trained, all else equal.

    python benchmarks/differences.py --list                            # what there is to run
    python benchmarks/differences.py --data ptb                        # all of it; writes results/differences/*.json
    python benchmarks/differences.py --data ptb --only brnn-per-weight brnn-clip-data --size medium --epochs 39

A run is a recipe of the library in the width of ``--size``, its learning rates squeezed into ``--epochs``, with one
thing changed: a setting, or a task of this file where the library offers no such choice. A run whose record is there is
left alone. The records are in `results/differences/`.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn import draws
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.engine.launch import device_of
from bayesrnn.lab.engine.progress import Progress
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.runs.folder import RunFolder, config_of
from bayesrnn.lab.runs.record import from_json
from bayesrnn.lab.tasks.language import scoring
from bayesrnn.lab.tasks.language.task import Language
from bayesrnn.lab.tasks.language.text import read_folder
from bayesrnn.lab.text import batchify, noise_of_draws, windows

ROOT = Path(__file__).resolve().parent.parent
SIZES = {
    "tiny": ["hidden=8", "batch_size=4", "window=10"],
    "small": ["hidden=200"],
    "medium": ["hidden=650"],
    "large": ["hidden=1500", "init=0.04", "clip=10"],
}
EPOCHS = 20
LUA_ROWS, LUA_WINDOW = 20, 35


class KLAtEveryStep(Language):
    """The KL is added at each of the T steps of a window: T times too much."""

    factor = 1.0

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        self.elbo.num_data *= self.recipe.data.window**-self.factor


class KLPerWord(KLAtEveryStep):
    """The KL is divided by the number of words, beside a loss that is summed over T: T times too little."""

    factor = -1.0


class ClippedData(Language):
    """The gradient of the data alone is clipped; that of the KL is added to it whole. The engine clips nothing."""

    clip = 5.0

    def objective(self, batch: Tensor, state: Any) -> Any:
        loss, terms, after = super().objective(batch, state)
        data = terms.nll / batch.shape[1]
        factor = _factor([p for p in self.model.parameters() if p.requires_grad], data, self.clip)
        return _with_gradient_of(factor * data + (loss - data), loss), terms, after


class OneClip(Language):
    """The rates of sharpening are clipped together with all other parameters, in the papers' units of eta."""

    def objective(self, batch: Tensor, state: Any) -> Any:
        loss, terms, after = super().objective(batch, state)
        model: Any = self.model
        etas = list(model.eta.parameters())
        known = {id(p) for p in etas}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        factor = _factor(others, loss, self.recipe.train.clip, scaled=(etas, 1 / batch.shape[1]))
        return _with_gradient_of(factor * loss, loss), terms, after


class TokenEmbedding(br.Embedding):
    """Drops tokens, not types: one occurrence of a word may go while the next stays."""

    def _kept(self, tokens: Tensor, like: Tensor, source: draws.Source) -> Tensor:
        return source.steps("tokens", draws.Noise(self.word_dropout), tokens.shape, like, batch_dim=1)


class PerToken(Language):
    """Words are dropped token by token."""

    @staticmethod
    def build(recipe: Recipe, files: Any) -> nn.Module:
        model: Any = Language.build(recipe, files)
        own = model.embed
        model.embed = TokenEmbedding(*own.weight.shape, _weight=own.weight.detach(), word_dropout=own.word_dropout)
        return model


class StepByStep(nn.Module):
    """An LSTM with new masks on inputs and state at every step of time; without masks in eval mode."""

    def __init__(self, rnn: br.LSTM) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        rates, rnn = self.rnn.rates, self.rnn
        if not self.training:
            return rnn(x, state)
        last = []
        for layer in range(rnn.num_layers):
            weights = [getattr(rnn, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            h, c = (s[layer] for s in state)
            outputs = []
            for step in F.dropout(x, rates.input_dropout):
                h, c = torch.lstm_cell(step, (F.dropout(h, rates.recurrent_dropout), c), *weights)
                outputs.append(h)
            x = torch.stack(outputs)
            last.append((h, c))
        h, c = (torch.stack(parts) for parts in zip(*last, strict=True))
        return x, (h, c)


class PerStep(Language):
    """All masks but those of words are new at every step."""

    @staticmethod
    def build(recipe: Recipe, files: Any) -> nn.Module:
        model: Any = Language.build(recipe, files)
        model.rnn, model.drop = StepByStep(model.rnn), nn.Dropout(model.drop.p)
        return model


def _factor(
    params: list[Tensor], loss: Tensor, clip: float, scaled: tuple[list[Tensor], float] | None = None
) -> Tensor:
    """What clipping would multiply the loss's gradient with; ``scaled``: more parameters, and their gradients' unit."""
    more, unit = scaled or ([], 1.0)
    found = torch.autograd.grad(loss, params + more, retain_graph=True, allow_unused=True)
    units = [1.0] * len(params) + [unit] * len(more)
    norms = [torch.linalg.vector_norm(g) * u for g, u in zip(found, units, strict=True) if g is not None]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return (clip / (norm + 1e-6)).clamp(max=1.0).detach()


def _with_gradient_of(other: Tensor, loss: Tensor) -> Tensor:
    return other + (loss - other).detach()


@dataclass(frozen=True)
class Variant:
    """A recipe with one thing changed."""

    recipe: str
    changes: tuple[str, ...] = ()
    task: type[Language] = Language
    epochs: int = EPOCHS
    monte_carlo: bool = False
    schedule: dict[str, float] = field(default_factory=dict)
    """Learning rates of another recipe: epochs, decay and decay_after, before they are squeezed."""


_LARGE = {"epochs": 55, "decay": 1 / 1.15}
_BRNN, _SHARPENED, _VARIATIONAL = "brnn-medium", "brnn-sharpened-medium", "variational-tied-medium"
_PUBLISHED = {name: {"epochs": 70, "decay": 0.9, "decay_after": 20} for name in (_BRNN, _SHARPENED)}  # recipes: 60, .87
_TWO = "model.one_bias=false"
_NO_NOISE = tuple(f"model.{name}_dropout=0" for name in ("input", "recurrent", "output"))
VARIANTS = {
    "brnn": Variant(_BRNN, (_TWO,)),
    "brnn-per-weight": Variant(_BRNN, (_TWO, "posterior.group=weight")),
    "brnn-kl-every-step": Variant(_BRNN, (_TWO,), KLAtEveryStep),
    "brnn-kl-per-word": Variant(_BRNN, (_TWO,), KLPerWord),
    "brnn-forget-bias": Variant(_BRNN, (_TWO, "model.forget_bias=1")),
    "brnn-one-bias": Variant(_BRNN),
    "brnn-clip-data": Variant(_BRNN, (_TWO, "train.clip=null"), ClippedData),
    "sharpened": Variant(_SHARPENED),
    "sharpened-eta-large": Variant(_SHARPENED, ("posterior.init_eta=0.0005",)),
    "sharpened-eta-large-one-clip": Variant(
        _SHARPENED, ("posterior.init_eta=0.0005", "posterior.eta_clip=1e9"), OneClip
    ),
    "variational": Variant(_VARIATIONAL, monte_carlo=True),
    "variational-per-token": Variant(_VARIATIONAL, task=PerToken, monte_carlo=True),
    "variational-per-step": Variant(_VARIATIONAL, task=PerStep),
    "variational-per-step-not-recurrent": Variant(_VARIATIONAL, (*_NO_NOISE, "model.step_dropout=0.35")),
    "variational-decay-times-rate": Variant(_VARIATIONAL, ("train.weight_decay=0", "train.l2=1e-7")),
    "variational-no-decay": Variant(_VARIATIONAL, ("train.weight_decay=0",)),
    "zaremba": Variant("zaremba-medium", epochs=39),
    "zaremba-earlier": Variant("zaremba-medium", epochs=39, schedule={"decay_after": 6}),
    "variational-after-10": Variant(_VARIATIONAL, epochs=55, schedule={**_LARGE, "decay_after": 10}),
    "variational-after-14": Variant(_VARIATIONAL, epochs=55, schedule={**_LARGE, "decay_after": 14}),
}
COMPUTED = "lua-count"


def recipe_of(variant: Variant, size: str, epochs: int) -> tuple[Recipe, list[str]]:
    """The recipe in this width, the epochs of its schedule scaled to so many, and what was overridden for it."""
    base = recipes.load(variant.recipe)
    plan = {key: getattr(base.train, key) for key in ("epochs", "decay", "decay_after")}
    plan |= _PUBLISHED.get(variant.recipe, {}) | variant.schedule
    share = epochs / plan["epochs"]
    squeezed = [
        f"train.epochs={epochs}",
        f"train.decay={plan['decay'] ** (1 / share):.10g}",
        f"train.decay_after={round(plan['decay_after'] * share)}",
    ]
    overrides = [*SIZES[size], *squeezed, *variant.changes]
    return recipes.override(base, overrides), overrides


class Reporter:
    """A line per epoch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def step(self, progress: Progress) -> None: ...

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self.say(
            f"epoch {line['epoch']}/{epochs}, perplexity {line['train_perplexity']:.2f} train, "
            f"{line['valid_perplexity']:.2f} validation, {line['seconds']:.1f} s"
        )


def train(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a folder that goes again; its record. One that diverges is a result too, without figures."""
    variant, device = VARIANTS[name], device_of(options.device)
    recipe, overrides = recipe_of(variant, options.size, options.epochs or variant.epochs)
    task, told = variant.task(recipe, options.data, device), Reporter(name)
    files = task.files()
    config = config_of(recipe, name=variant.recipe, data=options.data, seed=options.seed, files=files)
    metrics: dict[str, Any]
    with (
        tempfile.TemporaryDirectory() as place,
        RunFolder(Path(place) / "run", files=(*engine.FILES, *files)) as folder,
    ):
        folder.write("config.json", json.dumps(config))
        run = engine.Run(task, seed=options.seed, folder=folder, reporter=told, graph=options.graph)
        told.say("one step is one CUDA graph" if run.step.graph else f"steps run eagerly: {run.step.reason}")
        try:
            run.train()
            metrics = provenance.final_metrics(run)
            if variant.monte_carlo:
                metrics |= monte_carlo(task, options.samples, options.seed)
            if recipe.posterior.kind == "sharpened":
                metrics |= bound(task)
        except engine.Diverged as error:
            metrics = {"diverged": str(error)}
            told.say(str(error))
        curves = provenance.curves(run) if run.history else {}
    return {
        "run": name,
        "recipe": variant.recipe,
        "task": (variant.task.__doc__ or "").strip() if variant.task is not Language else "",
        "overrides": overrides,
        "settings": recipe.model_dump(),
        "cuda_graph": run.step.graph is not None,
        "curves": curves,
        "metrics": metrics,
        **_about(options, device, recipe.train.epochs),
    }


def monte_carlo(task: Language, samples: int, seed: int) -> dict[str, Any]:
    """Perplexities of averaged draws: masks of a whole pass, without and with those of words, and of a window."""
    found: dict[str, Any] = {"samples": samples}
    for split, stream in (("valid", task.streams.valid), ("test", task.streams.test)):
        key = f"{split}_perplexity_mc"
        for more, words in (("", False), ("_words", True)):
            with noise_of_draws(task.model, words=words):
                found[key + more] = scoring.monte_carlo_perplexities(task.model, stream, samples=samples, seed=seed)[
                    samples
                ]
        with noise_of_draws(task.model):
            found[f"{key}_window"] = new_masks_perplexity(
                task.model, stream, samples=samples, window=task.recipe.data.window, seed=seed
            )
    return found


def bound(task: Language) -> dict[str, Any]:
    """The sharpened bounds, on as many streams as in training."""
    found = {}
    for split, stream in (("valid", task.streams.valid), ("test", task.streams.test)):
        rows, window = task.recipe.data.batch_size, task.recipe.data.window
        parts = batchify(stream[:, 0], min(rows, len(stream) // (window + 1)))
        found[f"{split}_perplexity_bound"] = scoring.sharpened_perplexity(task.model, parts, window=window)
    return found


@torch.no_grad()
def new_masks_perplexity(model: nn.Module, stream: Tensor, *, samples: int, window: int, seed: int) -> float:
    """Perplexity of averaged probabilities, each draw with new masks in every window, its state carried."""
    total, state = 0.0, None
    devices = [stream.device] if stream.is_cuda else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        model.train()
        for x, y in windows(stream, window):
            logits, state = model(x.expand(-1, samples), state)
            logs = logits.log_softmax(-1).gather(-1, y.expand(-1, samples).unsqueeze(-1)).squeeze(-1)
            total -= float((logs.double().logsumexp(1) - math.log(samples)).sum())
        model.eval()
    return math.exp(total / (len(stream) - 1))


def lua_count(options: argparse.Namespace) -> dict[str, Any]:
    """What the released Lua code divides a validation loss by: windows with a fraction, of which it sums whole ones.

    It cuts the text into 20 rows and adds up the loss of floor((rows - 1) / 35) windows, then divides by
    (rows - 1) / 35. A perplexity P is printed as P to the power of the quotient of the two.
    """
    words = len(read_folder(options.data).valid)
    divided = (words // LUA_ROWS - 1) / LUA_WINDOW
    if divided < 1:
        raise UserError(f"The validation text has {words} words, fewer than a window of each of {LUA_ROWS} rows.")
    metrics = {"words": words, "windows": int(divided), "divided_by": divided, "exponent": int(divided) / divided}
    return {"run": COMPUTED, "metrics": metrics, **_about(options, torch.device("cpu"), 0)}


def _about(options: argparse.Namespace, device: torch.device, epochs: int) -> dict[str, Any]:
    return {
        "size": options.size,
        "epochs": epochs,
        "seed": options.seed,
        "data": Path(options.data).name,
        "commit": commit(),
        **provenance.environment(device),
        "command": shlex.join(["python", "benchmarks/differences.py", *sys.argv[1:]]),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train both choices where papers and released code disagree.")
    names = [*VARIANTS, COMPUTED]
    parser.add_argument("--data", help="folder with train, valid and test text")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="these runs alone")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    parser.add_argument("--size", choices=SIZES, default="small", help="2 x 8, 200, 650 or 1500 units")
    parser.add_argument("--epochs", type=int, help=f"default: {EPOCHS}, and 55 where the question is about epochs")
    parser.add_argument("--samples", type=int, default=100, help="draws of Monte Carlo figures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="no CUDA graph")
    parser.add_argument("--force", action="store_true", help="run also what has a record")
    parser.add_argument("--out", type=Path, default=ROOT / "results/differences")
    options = parser.parse_args(words)
    if options.data is None and not options.list:
        parser.error("--data is missing: a folder with train, valid and test text")
    return options


def main(words: list[str] | None = None) -> None:
    options = arguments(words)
    if options.list:
        print("\n".join([*VARIANTS, COMPUTED]))
        return
    commit()  # now: the checkout may move on meanwhile
    for name in options.only:
        path = options.out / f"{name}-{options.size}-{options.seed}.json"
        if path.exists() and not options.force:
            print(f"{name}: {path} is there already", flush=True)
            continue
        started = time.time()
        record = from_json(lua_count(options) if name == COMPUTED else train(name, options), where=path)
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write(path)
        shown = {k: round(v, 3) for k, v in record.metrics.items() if isinstance(v, float)}
        print(f"{name}: {shown}, {time.time() - started:.0f} s in all; {path}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"differences: {error}")
