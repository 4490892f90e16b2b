"""Pruned weights trained again: what is left learns to do without what is gone, whose mean stays exactly zero."""

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

from bayesrnn import pruning, recipes
from bayesrnn.errors import UserError
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop
from bayesrnn.reading import read_json
from bayesrnn.recipes import Recipe
from bayesrnn.tasks.base import weights_digest
from bayesrnn.tasks.language import Language
from bayesrnn.tasks.trained import Trained, check_files
from bayesrnn.train import checkpoint, engine
from bayesrnn.train.launch import describe, go_on, recorded
from bayesrnn.train.run_folder import MARKER, RECORD, RunFolder, identity

_ELSEWHERE = "prune a copy of the run"
RATE, LAST = 0.3, 1 / 30  # the first rate as a part of the recipe's, the last as a part of the first


@dataclass(frozen=True)
class Schedule:
    """Epochs of retraining, and the rate of the first; it falls to a thirtieth of that in the last."""

    epochs: int
    lr: float

    def settings(self) -> list[str]:
        """As overrides of a recipe. Weights are not averaged, and no epoch is saved by stopping early."""
        decay = LAST ** (1 / max(1, self.epochs - 1))
        return [
            f"train.epochs={self.epochs}",
            f"train.lr={self.lr:g}",
            f"train.decay={decay:.10g}",
            "train.decay_after=1",
            "train.inverse_gamma=0",
            "train.average_from=null",
            "train.patience=null",
        ]


def schedule(recipe: Recipe, epochs: int, lr: float | None = None) -> Schedule:
    """So many epochs; None: at three tenths of the rate that the recipe begins with."""
    return Schedule(epochs, RATE * recipe.train.lr if lr is None else lr)


class Retraining(Language):
    """A language task whose model begins with a run's weights, some of which have mean 0 and keep it.

    Those keep their sigma and their KL, and rho goes on being learnt: without this noise the rest may overfit. In the
    end it goes (:meth:`bare`). What the run had lost before has no sigma to keep, and stays as it is; then the KL is
    not reported: log sigma of such weights is a huge number that never changes, and beside it the rest is lost.

    Args:
        whole: the run's posterior.
        pruned: the same after `br.prune`.
    """

    def __init__(
        self, recipe: Recipe, data: str | None, device: torch.device, *, whole: BayesByBackprop, pruned: BayesByBackprop
    ) -> None:
        super().__init__(recipe, data, device)
        self.gone, self._before = pruning.removed(pruned), pruning.removed(whole)
        self._gone_before = any(bool(mask.any()) for mask in self._before.values())
        self.start = copy.deepcopy(pruned)
        self.start.posterior.rho.load_state_dict(whole.posterior.rho.state_dict())

    def attach(self, model: nn.Module) -> None:
        model.load_state_dict(self.start.state_dict())
        super().attach(model)

    def held(self) -> dict[str, Tensor]:
        """Which entries of mean and rho stay, by the model's names of them."""
        q = self.start
        names = {id(p): name for name, p in q.named_parameters()}
        means = [(names[id(mean)], self.gone[n]) for n, mean in q.means.items()]
        rhos = [(names[id(q.posterior.rho[n])], self._before[n]) for n in q.means]
        return {name: mask for name, mask in (*means, *rhos) if mask.any()}

    @contextmanager
    def bare(self) -> Iterator[None]:
        """What is gone has no noise either, inside the block: the model is the pruned one."""
        assert isinstance(self.model, BayesByBackprop)
        rho = self.model.posterior.rho
        kept = {name: tensor.clone() for name, tensor in rho.state_dict().items()}
        pruning.remove(self.model, self.gone)
        try:
            yield
        finally:
            rho.load_state_dict(kept)

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        figures = super().training(totals)
        if self._gone_before:
            del figures["kl_per_sequence"]
        return figures


class _Run(engine.Run):
    """The best weights are written as those of the pruned model; the checkpoint to go on from has the noise."""

    task: Retraining

    def _save_best(self, line: dict[str, Any]) -> None:
        with self.task.bare():
            super()._save_best(line)


def retrain(
    run: Trained,
    pruned: BayesByBackprop,
    plan: Schedule,
    *,
    fraction: float,
    out: Path,
    reporter: engine.Reporter,
    data: str | None = None,
    command: str = "",
    force: bool = False,
    graph: bool = True,
) -> dict[str, Tensor]:
    """Train what is left of a run's weights, on the run's data; returns those of the epoch best on validation.

    ``out`` is a run folder of its own, for evaluate, predict and export. A finished one of the same weights and
    settings is not trained again; an unfinished one is gone on with. The test data is not looked at. Sharpening is left
    out: its second level gives noise to all weights, those that are gone too.

    Args:
        run: the run, whole.
        pruned: a copy of its posterior, after `br.prune`; on the device. It is not changed.
        fraction: what was removed, for the record.
        force: start over whatever is in ``out``.
    """
    overrides = ["posterior.kind=bayes_by_backprop", *plan.settings()]
    device = next(pruned.parameters()).device
    source = data or run.config["data"]
    given = None if source == Language.default_data else source
    whole = pruning.gaussian_of(cast(BayesByBackprop, run.model))
    task = Retraining(recipes.override(run.recipe, overrides), given, device, whole=whole, pruned=pruned)
    check_files(task, run.files, advice=f"name the {task.source} it was trained on with --data")
    files = task.files()
    config = engine.config(
        task.recipe, name=run.config["recipe"], data=source, seed=run.config["seed"], files=files, digest=task.digest()
    )
    config["pruned"] = {"fraction": fraction, "weights": weights_digest(task.start)}
    if force or not _done(out, config):
        resume = not force and (out / MARKER).exists()
        names = (*engine.FILES, *files)
        with RunFolder(out, files=names, force=force, resume=resume, elsewhere=_ELSEWHERE) as folder:
            describe(folder, config, task, resume=resume)
            started = time.time()
            trained = _Run(task, seed=config["seed"], folder=folder, reporter=reporter, graph=graph, held=task.held())
            step = trained.step
            reporter.say("One step is one CUDA graph." if step.graph else f"Steps run eagerly: {step.reason}.")
            if resume:
                go_on(trained)
            _train(trained, fraction)
            record = recorded(trained, config, overrides=overrides, command=command, started=started, measure=False)
            folder.finish({**record, "pruned": config["pruned"]}, spare=checkpoint.SPARE)
    return checkpoint.load_own(out / checkpoint.BEST, identity(out))[0]


def _train(run: engine.Run, fraction: float) -> None:
    try:
        run.train()
    except engine.Diverged as error:
        raise UserError(f"With {fraction:.0%} removed: {error} Here the rate is --retrain-lr, with --force.") from None


def _done(out: Path, config: dict[str, Any]) -> bool:
    """Whether the folder has this very retraining, whole; another one is refused."""
    if (out / MARKER).exists() or not (out / RECORD).exists():
        return False
    before, wanted = read_json(out / "config.json"), json.loads(json.dumps(config))
    said = before if isinstance(before, dict) else {}
    said = {"file_digests": wanted["file_digests"], **said, "data": wanted["data"]}  # earlier versions have no digests
    if said != wanted:
        raise UserError(f"{out} holds a retraining of other weights, or with other settings; replace it with --force.")
    return True
