"""The engine of language-model recipes: epochs, schedules, validation, checkpoints, resuming, the record of the run."""

import json
import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.recipes import Recipe
from bayesrnn.tasks import language
from bayesrnn.train import checkpoint
from bayesrnn.train.run_folder import RunFolder
from bayesrnn.train.step import Step

FILES = ("config.json", "metrics.jsonl", "vocabulary.txt", "best.safetensors", "last.safetensors", "state.json")
_LOOK_EVERY = 100  # steps between looks at the device's totals


@dataclass(frozen=True)
class Progress:
    """Where training stands; ``kl`` is per sequence, KL / (B C), ``perplexity`` that of the training text so far."""

    epoch: int
    epochs: int
    step: int
    steps: int
    words_per_second: float
    seconds_left: float
    perplexity: float
    kl: float


class Reporter(Protocol):
    """Is told how the run goes."""

    def say(self, text: str) -> None: ...
    def step(self, progress: Progress) -> None: ...
    def epoch(self, line: dict[str, Any], epochs: int) -> None: ...


class Run:
    """One training run of a recipe into a folder.

    Args:
        recipe, streams: what to train on what; the streams are already on the device.
        seed: of initial weights and all noise.
        folder: where checkpoints and metrics go.
        reporter: told of progress.
        graph: False: no CUDA graph.
    """

    def __init__(
        self,
        recipe: Recipe,
        streams: language.Streams,
        *,
        seed: int,
        folder: RunFolder,
        reporter: Reporter,
        graph: bool = True,
    ) -> None:
        self.recipe, self.streams, self.seed, self.folder, self.reporter = recipe, streams, seed, folder, reporter
        device = streams.train.device
        set_precision(recipe.train.precision, device)
        torch.manual_seed(seed)
        # Built on the CPU, so that a seed means the same initial weights on every device.
        self.model: nn.Module = language.build(recipe, len(streams.vocabulary)).to(device).train()
        self.windows = streams.windows
        self.objective = language.Objective(self.model, recipe, self.windows)
        self.step = Step(
            self.model,
            self.objective,
            streams.train,
            state=(recipe.model.layers, recipe.data.batch_size, recipe.model.hidden),
            window=recipe.data.window,
            carry_state=recipe.data.carry_state,
            optimizer=recipe.train.optimizer,
            clip=recipe.train.clip,
            eta_clip=recipe.posterior.eta_clip,
            weight_decay=recipe.train.weight_decay,
            precision=recipe.train.precision,
            graph=graph,
        )
        self.valid_streams = streams.valid_streams
        self.epoch, self.done = 1, 0  # the epoch under way, and its steps done
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0  # of training, validation aside, this epoch

    @property
    def best(self) -> dict[str, Any] | None:
        return min(self.history, key=lambda line: line["valid_perplexity"], default=None)

    def resume(self) -> None:
        """Go on from the folder's last checkpoint, as if nothing had happened."""
        path = self.folder.path / "last.safetensors"
        tensors, about = checkpoint.load(path)
        checkpoint.load_model(self.model, tensors, path)
        own = self.step.tensors()
        with torch.no_grad():
            for name, tensor in own.items():
                if f"step.{name}" not in tensors or tensors[f"step.{name}"].shape != tensor.shape:
                    raise UserError(f"{path} has no usable {name}; it belongs to another run.")
                tensor.copy_(tensors[f"step.{name}"])
        torch.set_rng_state(tensors["rng.cpu"])
        if self.step.on_cuda and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"], self.step.device)
        self.epoch, self.done, self.history = about["epoch"], about["done"], about["history"]
        self.seconds = about["seconds"]
        self._write_metrics()

    def train(self) -> None:
        """All epochs that are left."""
        settings = self.recipe.train
        while self.epoch <= settings.epochs and not self._out_of_patience():
            self.step.lr.fill_(settings.lr * settings.decay ** max(0, self.epoch - settings.decay_after))
            if self.done == 0:
                self.step.start_epoch()
                self.seconds = 0.0
            self._epoch()
            line = self._validated()
            improved = self.best is None or line["valid_perplexity"] < self.best["valid_perplexity"]
            self.history.append(line)
            if improved:
                checkpoint.save(self.folder, "best.safetensors", self._weights(), {"epoch": self.epoch, **line})
            self.epoch, self.done = self.epoch + 1, 0
            self._save()
            self.reporter.epoch(line, settings.epochs)

    def _out_of_patience(self) -> bool:
        patience, best = self.recipe.train.patience, self.best
        return patience is not None and best is not None and self.history[-1]["epoch"] - best["epoch"] >= patience

    def _epoch(self) -> None:
        words = self.recipe.data.batch_size * self.recipe.data.window
        every = self.recipe.train.save_every
        self.model.train()
        before, started, first = self.seconds, time.perf_counter(), self.done
        while self.done < self.windows:
            self.step()
            self.done += 1
            if self.done % _LOOK_EVERY == 0 or self.done == self.windows:
                totals = self._checked_totals()
                elapsed = time.perf_counter() - started
                self.seconds = before + elapsed
                speed = (self.done - first) / max(elapsed, 1e-9)
                left = (self.recipe.train.epochs - self.epoch) * self.windows + self.windows - self.done
                self.reporter.step(
                    Progress(
                        epoch=self.epoch,
                        epochs=self.recipe.train.epochs,
                        step=self.done,
                        steps=self.windows,
                        words_per_second=speed * words,
                        seconds_left=left / speed,
                        perplexity=_exp(totals["nll"] / words),
                        kl=totals["kl"] / self.objective.sequences,
                    )
                )
            if every and self.done % every == 0 and self.done < self.windows:
                self._checked_totals()
                self._save()

    def _checked_totals(self) -> dict[str, float]:
        totals = self.step.read_totals()
        words = self.recipe.data.batch_size * self.recipe.data.window
        limit = 2 * math.log(len(self.streams.vocabulary)) + 2
        if math.isfinite(totals["loss"]) and totals["nll"] / words < limit:
            return totals
        what = "is not a number" if not math.isfinite(totals["loss"]) else "diverged"
        kept = (
            f"the checkpoint of epoch {self.history[-1]['epoch']} is kept" if self.history else "nothing was saved yet"
        )
        raise UserError(
            f"The loss {what} in epoch {self.epoch}, by step {self.done}; {kept}. "
            "Lower train.lr or train.clip and start again."
        )

    def _validated(self) -> dict[str, Any]:
        totals = self.step.read_totals()
        data, sequences = self.recipe.data, self.objective.sequences
        words = data.batch_size * data.window
        valid = self.perplexity(self.valid_streams)
        line = {
            "epoch": self.epoch,
            "lr": float(self.step.lr),
            "loss": totals["loss"],
            "train_perplexity": _exp(totals["nll"] / words),
            "kl_per_sequence": totals["kl"] / sequences,
            "sharpening_per_sequence": totals["sharpening"] / data.batch_size,
            "gradient_norm": totals["gradient_norm"],
            "valid_perplexity": valid,
            "valid_streams": self.valid_streams.shape[1],
            "words_per_second": words * self.windows / max(self.seconds, 1e-9),
            "seconds": self.seconds,
        }
        if not math.isfinite(valid):
            raise UserError(f"The validation perplexity is {valid} after epoch {self.epoch}; lower train.lr.")
        return line

    def perplexity(self, stream: Tensor) -> float:
        """Of the posterior mean; the state as the recipe carries it."""
        window, carry = self.recipe.data.window, self.recipe.data.carry_state
        if carry:
            window = language.evaluation_window(stream, len(self.streams.vocabulary))
        return language.perplexity(self.model, stream, window=window, carry_state=carry)

    def load_best(self) -> dict[str, Any]:
        """Put the best epoch's weights into the model; returns that epoch's line."""
        path = self.folder.path / "best.safetensors"
        tensors, about = checkpoint.load(path)
        checkpoint.load_model(self.model, tensors, path)
        return about

    def _weights(self) -> dict[str, Tensor]:
        return {f"model.{key}": value for key, value in self.model.state_dict().items()}

    def _save(self) -> None:
        tensors = {**self._weights(), **{f"step.{k}": v for k, v in self.step.tensors().items()}}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.step.on_cuda:
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.step.device)
        about = {"epoch": self.epoch, "done": self.done, "seconds": self.seconds, "history": self.history}
        checkpoint.save(self.folder, "last.safetensors", tensors, about)
        self._write_metrics()
        where = {"epoch": self.epoch, "step": self.done, "best": self.best}
        self.folder.write("state.json", json.dumps(where, indent=2) + "\n")

    def _write_metrics(self) -> None:
        # Whole, from what the checkpoint holds: the two can never disagree after a kill.
        self.folder.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in self.history))


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def set_precision(precision: str, device: torch.device) -> None:
    """How a CUDA device multiplies float32 matrices from here on."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        if precision == "fp32":
            torch.backends.cudnn.allow_tf32 = False


def config(recipe: Recipe, *, name: str, data: str, seed: int) -> dict[str, Any]:
    """What a run folder says about itself, and what must be the same when it is resumed."""
    return {"program": "bayesrnn", "recipe": name, "data": data, "seed": seed, "settings": asdict(recipe)}


def final_metrics(run: Run) -> dict[str, Any]:
    """The best epoch's weights on one stream per split: the figures of the tables."""
    best = run.load_best()
    speeds = sorted(line["words_per_second"] for line in run.history)
    return {
        "best_epoch": best["epoch"],
        "valid_perplexity": run.perplexity(run.streams.valid),
        "test_perplexity": run.perplexity(run.streams.test),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "words_per_second": speeds[len(speeds) // 2],
        "train_seconds": sum(line["seconds"] for line in run.history),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Device and versions, for the record."""
    import platform

    from bayesrnn._version import __version__

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {"bayesrnn": __version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return {"device": f"{device.type} ({name})", "versions": versions}
