"""Training a pruned model: weights are removed step by step while the others train on."""

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
from bayesrnn.lab.engine.resume import continues, go_on
from bayesrnn.lab.reading import read_json
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import MARKER, RunFolder, config_of, identity
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
    """Epochs of retraining: in the first half weights are removed, in the second the rate falls to a hundredth."""

    epochs: int
    lr: float

    def share(self, epoch: int, fraction: float, before: float = 0.0) -> float:
        """The share of weights removed in an epoch (from 1), ``before`` of them from the start (1710.01878, Eq. 1)."""
        if epoch >= self.steps:
            return fraction
        return fraction - (fraction - before) * (1 - epoch / self.steps) ** 3

    @property
    def steps(self) -> int:
        """Epochs that begin with the removal of weights."""
        return max(1, self.epochs // 2)

    def settings(self) -> list[str]:
        """As overrides of a recipe, without averaging and early stopping."""
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
    """A schedule of so many epochs; ``lr=None``: half the recipe's first rate."""
    return Schedule(epochs, RATE * recipe.train.lr if lr is None else lr)


class Retraining(Language):
    """A language task whose model begins with a run's weights, of which more and more are removed.

    A removed weight has mean 0 and keeps it; checkpoints need no other mark. Sigmas are not trained: they would grow
    from epoch to epoch. That of a removed weight is halved: with all of the noise the rest fits less, with none it may
    overfit. At the end the noise of removed weights goes too (:meth:`bare`). If the run was pruned before, the KL is
    not reported: log sigma of such weights is huge.

    Args:
        whole: the run's posterior; it is not changed.
        plan: when weights are removed.
        fraction: the share that is removed in the end.
    """

    def __init__(
        self, recipe: Recipe, data: str | None, device: torch.device, *, whole: BayesByBackprop, plan: Schedule,
        fraction: float,
    ) -> None:  # fmt: skip
        super().__init__(recipe, data, device)
        self.start, self.plan, self.fraction = copy.deepcopy(whole), plan, fraction
        self._share_before = _share(pruning.removed(whole))

    def attach(self, model: nn.Module) -> None:
        model.load_state_dict(self.start.state_dict())
        super().attach(model)

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Remove the weights of lowest |mean| / sigma; removed ones have the lowest there is."""
        super().start_epoch(epoch)
        if epoch > self.plan.steps:
            return
        q = cast(BayesByBackprop, self.model)
        masks, before = pruning.lowest(q, self.plan.share(epoch, self.fraction, self._share_before)), _gone(q)
        pruning.scale_sigma(q, {name: mask & ~before[name] for name, mask in masks.items()}, SIGMA)
        for name, mask in masks.items():
            q.means[name].masked_fill_(mask, 0.0)

    def removed(self) -> float:
        """The share of the weights that is removed."""
        return _share(_gone(cast(BayesByBackprop, self.model)))

    def held(self, q: BayesByBackprop) -> dict[str, Tensor]:
        """Which entries no step changes, by parameter name: means of removed weights, and every rho."""
        names, gone = {id(p): name for name, p in q.named_parameters()}, _gone(q)
        means = {names[id(q.means[n])]: mask for n, mask in gone.items()}
        return means | {names[id(q.posterior.rho[n])]: torch.ones_like(mask) for n, mask in gone.items()}

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Inside, removed weights have no noise either: the model is the pruned one."""
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
    """Weights are removed at the beginning of an epoch, and held at zero from there.

    The best epoch is one without the whole share; its weights are written as those of the pruned model.
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
    run: OpenedRun, plan: Schedule, *, fraction: float, out: Path, reporter: Reporter, data: str | None = None,
    command: str = "", force: bool = False, graph: bool = True,
) -> dict[str, Tensor]:  # fmt: skip
    """Train a run's weights on, on its data, while this fraction of them is removed step by step.

    Returns the weights of the best epoch (on validation) without the whole fraction. ``out`` is a run folder of its
    own. A finished one of the same weights and settings is not trained again, an unfinished one is continued; ``force``
    starts over. Sharpening is left out: its second level gives noise to all weights, removed ones too.
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
    config = config_of(
        recipe, name=run.config["recipe"], data=source, seed=run.config["seed"], files=files, digest=task.digest()
    )
    config["pruned"] = {
        "fraction": fraction, "steps": plan.steps, "sigma": SIGMA, "weights": weights_digest(task.start)
    }  # fmt: skip
    if force or not _done(out, config):
        resume = not force and (out / MARKER).exists()
        provenance.commit()  # now: the checkout may have changed when the run ends
        names = (*engine.FILES, *files)
        with RunFolder(out, files=names, force=force, resume=resume, elsewhere=_ELSEWHERE) as folder:
            if not (resume and continues(folder, config, task)):
                folder.describe(config, files)
            started, held = time.time(), task.held(task.start)
            trained = _PruningRun(task, seed=config["seed"], folder=folder, reporter=reporter, graph=graph, held=held)
            step = trained.step
            reporter.say("One step is one CUDA graph." if step.graph else f"Steps run eagerly: {step.reason}.")
            if resume:
                go_on(trained)
            _train(trained, fraction)
            record = provenance.record_of(
                trained, config, overrides=overrides, command=command, started=started, measure=False,
                pruned=config["pruned"],
            )  # fmt: skip
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
    """Whether this retraining has finished in the folder; another one, or one by another version, is refused."""
    unfinished = (out / MARKER).exists()
    if not (out / ("config.json" if unfinished else RECORD)).exists():
        return False
    before, wanted = read_json(out / "config.json"), json.loads(json.dumps(config))
    said = before if isinstance(before, dict) else {}
    pruned = said.get("pruned")
    if isinstance(pruned, dict) and pruned.get("sigma") != SIGMA:
        what = "an unfinished" if unfinished else "a"
        raise UserError(
            f"{out} holds {what} retraining by another version, which removed weights or their noise differently. "
            "Replace it with --force, or keep it: rename the folder."
        )
    if unfinished:
        return False
    said = {"file_digests": wanted["file_digests"], **said, "data": wanted["data"]}  # earlier versions have no digests
    if said != wanted:
        raise UserError(f"{out} holds a retraining of other weights, or with other settings; replace it with --force.")
    return True
