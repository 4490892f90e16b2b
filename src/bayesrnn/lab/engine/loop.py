"""Trains every recipe: epochs, schedules, validation, checkpoints, resuming."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesrnn import kernels
from bayesrnn.draws.torch_noise import torch_noise_layers
from bayesrnn.errors import UserError
from bayesrnn.lab.engine import contract, schedule
from bayesrnn.lab.engine.progress import Pace, Progress, Reporter, duration, heartbeat
from bayesrnn.lab.engine.ranks import Ranks, seed_of
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.modules import evaluating
from bayesrnn.lab.reading import counted
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import RunFolder, identity
from bayesrnn.nn import NoisyLayer

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task

FILES = ("config.json", "metrics.jsonl", *checkpoint.FILES, "state.json")
_LOOK_EVERY = 100  # steps between checks that the loss is finite, which wait for the device
_WRITTEN = 2e8  # bytes of a checkpoint that are written in a second, roughly
_OWN = ("step.state.", "step.totals", "rng.cpu", "rng.cuda")  # tensors that each rank has for itself


class Diverged(UserError):
    """The settings do not train: the loss is not finite, or far above that of a uniform guess."""


class Run:
    """One training run of a task into a folder.

    Args:
        task: what to train, on its device; its model is built here.
        seed: seed of the initial weights and of all noise.
        folder: folder for checkpoints and metrics; None on all ranks but the first.
        reporter: receives the progress.
        graph: False: no CUDA graph.
        ranks: the processes that train together; the task is split already.
    """

    def __init__(
        self, task: "Task", *, seed: int, folder: RunFolder | None, reporter: Reporter, graph: bool = True,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self.task, self.recipe, self.seed, self.reporter = task, task.recipe, seed, reporter
        self._folder, self.ranks = folder, ranks or Ranks()
        set_precision(self.recipe.train.precision, task.device)
        torch.manual_seed(seed)
        contract.attach(task, task.build(self.recipe, task.files()))
        self.model = task.model
        self._check_draws()
        self.common: Tensor | None = None  # random state of what all ranks do alike
        if self.ranks.several and not self.recipe.train.shared_draw:
            self.common = torch.get_rng_state()
            if not self.ranks.first:
                torch.manual_seed(seed_of(seed, self.ranks.rank))
        eta_clip = self.recipe.posterior.eta_clip
        self.step = Step(task, self.recipe.train, eta_clip=eta_clip, graph=graph, ranks=self.ranks)
        self.epoch, self.done = 1, 0  # the current epoch, and its steps done
        self._saved = ""  # the moment of the latest checkpoint
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0  # training time of this epoch, without validation
        self.pace, self._taken, self._report_every = Pace(), 0, _LOOK_EVERY
        self._estimated = False
        self.identity = "" if folder is None else identity(folder.path)
        # A GPU trains the next epoch while a checkpoint is written. Ranks wait for each other's errors.
        self._writer = checkpoint.Writer(background=self.step.on_cuda and not self.ranks.several)

    def _check_draws(self) -> None:
        if not (self.ranks.several and self.recipe.train.shared_draw):
            return
        if self.recipe.posterior.kind == "sharpened":
            raise UserError("train.shared_draw: sharpened weights depend on each process's own rows; set it to false.")
        theirs = [name for name, layer in torch_noise_layers(self.model) if not isinstance(layer, NoisyLayer)]
        if theirs:
            raise UserError(f"train.shared_draw: {theirs[0]} is a noise layer of torch, which cannot share draws.")

    @property
    def folder(self) -> RunFolder:
        """The run's folder, on rank 0."""
        assert self._folder is not None
        return self._folder

    @property
    def best(self) -> dict[str, Any] | None:
        candidates = [line for line in self.history if line["epoch"] >= self.task.first_best]
        return min(candidates, key=lambda line: line[self.task.metric], default=None)

    def resume(self) -> None:
        """Continue from the folder's last whole checkpoint, bit by bit as without the interruption."""
        tensors, about = self.ranks.from_first(lambda: self._loaded(checkpoint.load_last))
        name = checkpoint.LAST
        saved_by = about.get("ranks", 1)
        if saved_by != self.ranks.count:
            raise UserError(f"{name} was written by {saved_by} processes, not {self.ranks.count}; resume with as many.")
        checkpoint.load_model(self.model, tensors, name)
        with torch.no_grad():
            for key, tensor in self.step.tensors().items():
                found = tensors.get(self._key(f"step.{key}"))
                if found is None or found.shape != tensor.shape:
                    raise UserError(f"{name} has no usable {key}; it belongs to another run.")
                tensor.copy_(found)
        torch.set_rng_state(tensors[self._key("rng.cpu")])
        if self.step.on_cuda and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors[self._key("rng.cuda")], self.step.device)
        self.common = tensors.get("rng.common", self.common)
        self.epoch, self.done, self.history = about["epoch"], about["done"], about["history"]
        self.seconds = about["seconds"]
        self._saved = self._moment()
        self.ranks.from_first(self._rewrite)

    def _loaded(self, load: Callable[..., tuple[dict[str, Tensor], dict[str, Any], str]]) -> checkpoint.Checkpoint:
        tensors, about, note = load(self.folder, run=self.identity)
        if note:
            self.reporter.say(note)
        return tensors, about

    def _key(self, name: str) -> str:
        """The name in a checkpoint of a tensor that each rank has for itself; others have rank 0's name."""
        own = name.startswith(_OWN) and not self.ranks.first
        return f"rank{self.ranks.rank}.{name}" if own else name

    def _rewrite(self) -> None:
        """Rewrite the files beside the checkpoint, which may be older or newer than it, the best weights if missing."""
        self._write_metrics(self.history)
        best, wrong = self.best, None
        if best is None:
            return
        try:
            _, about = self._loaded(checkpoint.load_best)
            # A later epoch whose last checkpoint was damaged is trained again.
            if about["epoch"] == best["epoch"] or about["epoch"] > self.history[-1]["epoch"]:
                return
        except checkpoint.Damaged as error:
            wrong = str(error)
        if best is not self.history[-1] or self.done:
            wrong = wrong or f"{checkpoint.BEST} is not of epoch {best['epoch']}, the best one."
            raise UserError(f"{wrong} It cannot be recovered; start over with --force.")
        with self.step.averaged_weights():
            self._save_best(best)
        self._writer.wait()

    def train(self) -> None:
        """Train all remaining epochs."""
        try:
            self._epochs()
        finally:
            self._writer.wait()

    def _epochs(self) -> None:
        settings, metric = self.recipe.train, self.task.metric
        while self.epoch <= settings.epochs:
            best = self.best
            if settings.patience is not None and best and self.epoch - 1 - best["epoch"] >= settings.patience:
                return
            self.step.lr.fill_(schedule.rate(settings, self.epoch))
            results = [line[metric] for line in self.history]
            self.step.averaging.fill_(float(schedule.averages(settings, results, self.epoch)))
            if self.done == 0:
                self._start_epoch()
            self._epoch()
            began = time.perf_counter()
            with self.step.averaged_weights(), heartbeat(self.reporter.say, f"Validation after epoch {self.epoch}"):
                line = self._validated()
            self.pace.validation = time.perf_counter() - began
            self.history.append(line)
            self.epoch, self.done = self.epoch + 1, 0
            self._save()
            # After the last checkpoint, from which it can be recovered if this is interrupted.
            if self.best is line:
                with self.step.averaged_weights():
                    self.ranks.from_first(partial(self._save_best, line))
            self.reporter.epoch(line, settings.epochs)

    def _start_epoch(self) -> None:
        self.step.start_epoch()
        if self.epoch in self.recipe.train.average_restarts:
            self.step.restart_average()
        with self._alike():
            self.task.start_epoch(self.epoch)
        self.seconds = 0.0

    @contextmanager
    def _alike(self) -> Iterator[None]:
        """Inside, all ranks draw the same random numbers."""
        if self.common is None:
            yield
            return
        own = torch.get_rng_state()
        torch.set_rng_state(self.common)
        yield
        self.common = torch.get_rng_state()
        torch.set_rng_state(own)

    def _epoch(self) -> None:
        steps, every = self.task.steps, self.recipe.train.save_every
        self.model.train()
        self.pace.start(self.seconds, self.done)
        while self.done < steps:
            self.task.fetch(self.done)
            self.step()
            self.done, self._taken = self.done + 1, self._taken + 1
            if not self._estimated:
                self._time()
            saves = every and self.done % every == 0 and self.done < steps
            if self.done % _LOOK_EVERY == 0 or self.done == steps or saves:
                self._checked_totals()
                self.seconds = self.pace.seconds
            if self.done % self._report_every == 0 or self.done == steps:
                self._report()
            if saves:
                self._save()

    def _time(self) -> None:
        """Measure the first steps, until there is enough for an estimate."""
        last, counts_only = self.done == self.task.steps, self.step.on_cuda or self.ranks.several
        self._estimated = self.pace.measured(self._taken, last=last, counts_only=counts_only)
        if self._taken > 1 and not self._estimated:
            return
        if self.step.on_cuda:
            torch.cuda.synchronize(self.step.device)
        seconds = self.pace.mark(self._taken)
        if self._estimated:
            self._estimate(self.ranks.from_first(lambda: seconds))

    def _estimate(self, seconds: float) -> None:
        """Say how long the run will take, and choose how often it reports: about once per second."""
        began = time.perf_counter()
        self._report_every = max(1, min(_LOOK_EVERY, round(1 / max(seconds, 1e-9))))
        train, device = self.recipe.train, self.step.device.type
        with evaluating(self.model):
            found = self.ranks.from_first(self.task.evaluation_seconds)
        each, end = found or (0.0, 0.0)
        left = self._steps_left() * seconds + (train.epochs - self.epoch + 1) * (each + self._saving()) + end
        most = "at most " if train.patience is not None else ""
        self.reporter.say(
            f"{counted(train.epochs, 'epoch')} of {counted(self.task.steps, 'step')}, {seconds:.2g} s each on this "
            f"{device}: {most}about {duration(left)} left{', with' if found else ', plus'} validation."
        )
        self.pace.pause(time.perf_counter() - began)

    def _saving(self) -> float:
        """About how many seconds an epoch waits for its checkpoints, the last one and the best one."""
        if self.step.on_cuda and not self.ranks.several:  # written meanwhile
            return 0.0
        tensors = [*self.model.state_dict().values()] * 2 + [*self.step.tensors().values()]
        return sum(tensor.nbytes for tensor in tensors) / _WRITTEN

    def _steps_left(self) -> int:
        return (self.recipe.train.epochs - self.epoch) * self.task.steps + self.task.steps - self.done

    def _report(self) -> None:
        metrics = self.task.training(self.step.read_totals())
        epochs, speed = self.recipe.train.epochs, self.pace.steps_per_second(self.done)
        left = self._steps_left() / speed + (epochs - self.epoch + 1) * self.pace.validation
        self.reporter.step(
            Progress(
                epoch=self.epoch, epochs=epochs, step=self.done, steps=self.task.steps, unit=self.task.unit,
                per_second=speed * self.task.examples_per_step, seconds_left=left, metrics=metrics,
            )
        )  # fmt: skip

    def _checked_totals(self) -> dict[str, float]:
        totals = self.step.read_totals()
        if math.isfinite(totals["loss"]) and totals["nll"] / self.task.examples_per_step < self.task.limit:
            return totals
        what = "is not a number" if not math.isfinite(totals["loss"]) else "diverged"
        kept = f"the checkpoint of {self._saved} is kept" if self._saved else "nothing was saved yet"
        train = self.recipe.train
        decays = {"l2": train.l2, "weight_decay": train.weight_decay}
        grows = "".join(f", or train.{name}" for name, decay in decays.items() if decay * train.lr >= 1)
        raise Diverged(
            f"The loss {what} in epoch {self.epoch}, by step {self.done}; {kept}. "
            f"Lower train.lr or train.clip{grows} and start again."
        )

    def _validated(self) -> dict[str, Any]:
        task, totals = self.task, self.step.read_totals()
        # Draws of the validation do not change those of training.
        devices = [self.step.device] if self.step.on_cuda else []
        with evaluating(self.model), torch.random.fork_rng(devices):
            valid = contract.check_metrics(task.validate(), task)
        line = {
            "epoch": self.epoch,
            "lr": float(self.step.rate()),
            "loss": totals["loss"],
            **task.training(totals),
            "gradient_norm": totals["gradient_norm"],
            **valid,
            f"{task.unit}_per_second": task.examples_per_step * task.steps / max(self.seconds, 1e-9),
            "seconds": self.seconds,
        }
        line = self.ranks.from_first(lambda: line)  # every rank validates; all must decide alike
        if not math.isfinite(line[task.metric]):
            name = task.metric.replace("valid_", "validation ").replace("_", " ")
            raise Diverged(f"The {name} is {line[task.metric]} after epoch {self.epoch}; lower train.lr.")
        return line

    def load_best(self) -> dict[str, Any]:
        """Load the best epoch's weights into the model; returns that epoch's results."""
        tensors, about = self._loaded(checkpoint.load_best)
        checkpoint.load_model(self.model, tensors, self.folder.path / checkpoint.BEST)
        return about

    def _weights(self) -> dict[str, Tensor]:
        return {f"model.{key}": value for key, value in self.model.state_dict().items()}

    def _save(self) -> None:
        tensors = {**self._weights(), **{f"step.{k}": v for k, v in self.step.tensors().items()}}
        tensors["rng.cpu"] = torch.get_rng_state()
        if self.step.on_cuda:
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.step.device)
        if self.common is not None:
            tensors["rng.common"] = self.common
        if self.ranks.several:
            self.ranks.check_same([*self.step.params, *self.step.etas])
            every = self.ranks.gather({key: value for key, value in tensors.items() if key.startswith(_OWN)})
            for rank, own in enumerate(every[1:], 1):
                tensors |= {f"rank{rank}.{key}": value for key, value in own.items()}
        self.ranks.from_first(partial(self._write, tensors))
        self._saved = self._moment()

    def _moment(self) -> str:
        return f"epoch {self.epoch}, step {self.done}," if self.done else f"epoch {self.epoch - 1}"

    def _write(self, tensors: dict[str, Tensor]) -> None:
        self._writer.wait()  # a snapshot takes memory: at most two at a time
        about: dict[str, Any] = {"run": self.identity, "ranks": self.ranks.count, "epoch": self.epoch}
        about |= {"done": self.done, "seconds": self.seconds, "history": list(self.history)}
        where = {"epoch": self.epoch, "step": self.done, "best": self.best}
        copies = checkpoint.snapshot(tensors)

        def write() -> None:
            checkpoint.save_last(self.folder, copies, about)
            self._write_metrics(about["history"])
            self.folder.write("state.json", json.dumps(where, indent=2) + "\n")

        self._writer(write)

    def _save_best(self, line: dict[str, Any]) -> None:
        with self.task.best_weights():
            weights = checkpoint.snapshot(self._weights())
        self._writer(partial(checkpoint.save_best, self.folder, weights, {"run": self.identity, **line}))

    def _write_metrics(self, history: list[dict[str, Any]]) -> None:
        # Written whole from the checkpoint's history, so that the two agree after a kill.
        self.folder.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in history))


def set_precision(precision: str, device: torch.device) -> None:
    """Choose how CUDA multiplies float32 matrices from now on."""
    if device.type == "cuda":
        kernels.round_float32(precision != "fp32")
