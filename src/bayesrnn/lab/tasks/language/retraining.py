"""Weights removed by steps while the rest trains on: it learns to do without what is gone, whose mean is zero."""

import copy
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesrnn import kernels, pruning
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine import provenance
from bayesrnn.lab.engine.progress import Reporter
from bayesrnn.lab.engine.resume import describe, go_on
from bayesrnn.lab.reading import read_json
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import MARKER, RunFolder, identity
from bayesrnn.lab.runs.opening import OpenedRun, check_files
from bayesrnn.lab.runs.record import RECORD
from bayesrnn.lab.tasks.base import weights_digest
from bayesrnn.lab.tasks.language.task import Language
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop

_ELSEWHERE = "prune a copy of the run"
RATE, LAST = 0.5, 1 / 100  # the first rate as a part of the recipe's, the last as a part of the first
SIGMA = 0.5  # the part of its sigma that a removed weight keeps while the rest trains


@dataclass(frozen=True)
class Schedule:
    """Epochs of retraining, and the rate while weights go.

    That is the first half of the epochs. In the second the rate falls, to a hundredth in the last epoch.
    """

    epochs: int
    lr: float

    @property
    def steps(self) -> int:
        """Epochs that begin with the removal of weights."""
        return max(1, self.epochs // 2)

    def share(self, epoch: int, fraction: float, before: float = 0.0) -> float:
        """Which share of the weights is gone in an epoch (from 1), of which ``before`` were from the beginning.

        Most go at first, where they cost least, and few in the end (arXiv 1710.01878, Eq. 1).
        """
        if epoch >= self.steps:
            return fraction
        return fraction - (fraction - before) * (1 - epoch / self.steps) ** 3

    def settings(self) -> list[str]:
        """As overrides of a recipe. Weights are not averaged, and no epoch is saved by stopping early."""
        falling = self.epochs - self.steps
        decay = LAST ** (1 / falling) if falling else 1.0
        return [
            f"train.epochs={self.epochs}",
            f"train.lr={self.lr!r}",
            f"train.decay={decay:.10g}",
            f"train.decay_after={self.steps}",
            "train.inverse_gamma=0",
            "train.cosine_from=null",
            "train.average_from=null",
            "train.average_stall=null",
            "train.average_restarts=[]",
            "train.patience=null",
        ]


def schedule(recipe: Recipe, epochs: int, lr: float | None = None) -> Schedule:
    """So many epochs; None: at half the rate that the recipe begins with."""
    return Schedule(epochs, RATE * recipe.train.lr if lr is None else lr)


class Retraining(Language):
    """A language task whose model begins with a run's weights, of which more and more are removed.

    A removed weight has mean 0 and keeps it; no other mark is needed, and a checkpoint has it. Every sigma stays what
    the run had found, but that of a removed weight is halved as it goes. Learnt further, sigma would grow from epoch to
    epoch, and the rest fit less; with all of the noise the rest fits less too, and with none it may overfit. In the end
    the noise of what is gone goes (:meth:`bare`). What the run had lost before has none to keep; then the KL is not
    reported: log sigma of such weights is a huge number that never changes, and beside it the rest is lost.

    Args:
        whole: the run's posterior; it is not changed.
        plan: when they go.
        fraction: the share that is gone in the end.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: str | None,
        device: torch.device,
        *,
        whole: BayesByBackprop,
        plan: Schedule,
        fraction: float,
    ) -> None:
        super().__init__(recipe, data, device)
        self.start, self.plan, self.fraction = copy.deepcopy(whole), plan, fraction
        self._share_before = _share(pruning.removed(whole))

    def attach(self, model: nn.Module) -> None:
        model.load_state_dict(self.start.state_dict())
        super().attach(model)

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """The weights of lowest |mean| / sigma go; those that are gone have the lowest there is."""
        super().start_epoch(epoch)
        if epoch > self.plan.steps:
            return
        q = cast(BayesByBackprop, self.model)
        masks, before = pruning.lowest(q, self.plan.share(epoch, self.fraction, self._share_before)), _gone(q)
        pruning.scale_sigma(q, {name: mask & ~before[name] for name, mask in masks.items()}, SIGMA)
        for name, mask in masks.items():
            q.means[name].masked_fill_(mask, 0.0)

    def removed(self) -> float:
        """The share of the weights that is gone."""
        return _share(_gone(cast(BayesByBackprop, self.model)))

    def held(self, q: BayesByBackprop) -> dict[str, Tensor]:
        """Which entries of this model of the task stay as they are, by its names: means that are gone, every rho."""
        names, gone = {id(p): name for name, p in q.named_parameters()}, _gone(q)
        means = {names[id(q.means[n])]: mask for n, mask in gone.items()}
        return means | {names[id(q.posterior.rho[n])]: torch.ones_like(mask) for n, mask in gone.items()}

    @contextmanager
    def bare(self) -> Iterator[None]:
        """What is gone has no noise either, inside the block: the model is the pruned one."""
        q = cast(BayesByBackprop, self.model)
        rho = q.posterior.rho
        kept = {name: tensor.clone() for name, tensor in rho.state_dict().items()}
        pruning.remove(q, _gone(q))
        try:
            yield
        finally:
            rho.load_state_dict(kept)

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        found = super().training(totals)
        if self._share_before:
            del found["kl_per_sequence"]
        return found


@torch.no_grad()
def _gone(q: BayesByBackprop) -> dict[str, Tensor]:
    return {name: mean == 0 for name, mean in q.means.items()}


def _share(masks: Mapping[str, Tensor]) -> float:
    return sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values())


class _PruningRun(engine.Run):
    """Weights go at the beginning of an epoch, and are held at zero from there.

    The best epoch is one of those with the whole share gone. Its weights are written as those of the pruned model; the
    checkpoint to go on from has the noise.
    """

    task: Retraining

    def start_epoch(self) -> None:
        super().start_epoch()
        self._hold()

    def resume(self) -> None:
        super().resume()
        self._hold()

    def _hold(self) -> None:
        assert self.step.held is not None
        self.step.held.hold(self.task.held(cast(BayesByBackprop, self.model)))

    def validated(self) -> dict[str, Any]:
        return {**super().validated(), "removed": self.task.removed()}

    def counts(self, line: dict[str, Any]) -> bool:
        return bool(line["epoch"] >= self.task.plan.steps)

    def save_best(self, line: dict[str, Any]) -> None:
        with self.task.bare():
            super().save_best(line)


@kernels.float32_precision()  # as it was, after the run
def retrain(
    run: OpenedRun,
    plan: Schedule,
    *,
    fraction: float,
    out: Path,
    reporter: Reporter,
    data: str | None = None,
    command: str = "",
    force: bool = False,
    graph: bool = True,
) -> dict[str, Tensor]:
    """Train a run's weights on, on its data, while this fraction of them is removed by steps.

    Returns the weights of the epoch best on validation, of those without the whole fraction. ``out`` is a run folder of
    its own, for evaluate, predict and export. A finished one of the same weights and settings is not trained again; an
    unfinished one is gone on with. The test data is not looked at. Sharpening is left out: its second level gives noise
    to all weights, those that are gone too.

    Args:
        run: the run, whole, on the device to train on. It is not changed.
        force: start over whatever is in ``out``.
    """
    overrides = ["posterior.kind=bayes_by_backprop", *plan.settings()]
    whole = pruning.gaussian_of(cast(BayesByBackprop, run.model))
    device = next(whole.parameters()).device
    source = data or run.config["data"]
    given = None if source == Language.default_data else source
    recipe = recipes.override(run.recipe, overrides)
    task = Retraining(recipe, given, device, whole=whole, plan=plan, fraction=fraction)
    check_files(task, run.files, advice=f"name the {task.source} it was trained on with --data")
    files = task.files()
    config = provenance.config(
        recipe, name=run.config["recipe"], data=source, seed=run.config["seed"], files=files, digest=task.digest()
    )
    config["pruned"] = {
        "fraction": fraction, "steps": plan.steps, "sigma": SIGMA, "weights": weights_digest(task.start)
    }  # fmt: skip
    if force or not _done(out, config):
        resume = not force and (out / MARKER).exists()
        names = (*engine.FILES, *files)
        with RunFolder(out, files=names, force=force, resume=resume, elsewhere=_ELSEWHERE) as folder:
            describe(folder, config, task, resume=resume)
            started, held = time.time(), task.held(task.start)
            trained = _PruningRun(task, seed=config["seed"], folder=folder, reporter=reporter, graph=graph, held=held)
            step = trained.step
            reporter.say("One step is one CUDA graph." if step.graph else f"Steps run eagerly: {step.reason}.")
            if resume:
                go_on(trained)
            _train(trained, fraction)
            record = provenance.record_of(
                trained,
                config,
                overrides=overrides,
                command=command,
                started=started,
                measure=False,
                pruned=config["pruned"],
            )
            folder.finish(record, spare=checkpoint.SPARE)
    return checkpoint.load_own(out / checkpoint.BEST, identity(out))[0]


def _train(run: engine.Run, fraction: float) -> None:
    try:
        run.train()
    except engine.Diverged as error:
        raise UserError(
            f"With {100 * fraction:.10g}% to be removed: {error} Here the rate is --retrain-lr, with --force."
        ) from None


def _done(out: Path, config: dict[str, Any]) -> bool:
    """Whether the folder has this very retraining, whole; another one is refused, and one of another version."""
    unfinished = (out / MARKER).exists()
    if not (out / ("config.json" if unfinished else RECORD)).exists():
        return False
    before, wanted = read_json(out / "config.json"), json.loads(json.dumps(config))
    said = before if isinstance(before, dict) else {}
    pruned = said.get("pruned")
    if isinstance(pruned, dict) and pruned.get("sigma") != SIGMA:
        what = "an unfinished" if unfinished else "a"
        raise UserError(
            f"{out} holds {what} retraining by another version, in which weights went, or their noise, in another way. "
            "Replace it with --force, or keep it: give the folder another name."
        )
    if unfinished:
        return False
    said = {"file_digests": wanted["file_digests"], **said, "data": wanted["data"]}  # earlier versions have no digests
    if said != wanted:
        raise UserError(f"{out} holds a retraining of other weights, or with other settings; replace it with --force.")
    return True
