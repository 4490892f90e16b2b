"""Training a pruned model: weights are removed step by step while the others train on."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesrnn import pruning
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import Request, launch
from bayesrnn.lab.engine.loop import Diverged
from bayesrnn.lab.engine.progress import Reporter
from bayesrnn.lab.reading import read_json
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.folder import CONFIG, MARKER, identity
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.runs.record import RECORD
from bayesrnn.lab.tasks.base import weights_digest
from bayesrnn.lab.tasks.language.task import Language
from bayesrnn.posteriors.bayes_by_backprop import BayesByBackprop

RATE, LAST = 0.5, 1 / 100  # the first rate as a part of the recipe's, the last as a part of the first
SIGMA = 0.5  # the part of its sigma that a removed weight keeps while the rest trains


@dataclass(frozen=True)
class Schedule:
    """Epochs of retraining: in the first half weights are removed, in the second the rate falls to a hundredth."""

    epochs: int
    lr: float

    def share(self, epoch: int, fraction: float) -> float:
        """The share of weights removed in an epoch (from 1; arXiv 1710.01878, Eq. 1)."""
        return fraction * (1 - (1 - min(1.0, epoch / self.steps)) ** 3)

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

    A removed weight has mean 0 and keeps it. Sigmas are not trained: they would grow from epoch to epoch. That of a
    removed weight is halved: with all of the noise the rest fits less, with none it may overfit. The best epoch is one
    without the whole share, and is saved without the noise of removed weights.

    Args:
        whole: the run's posterior; it is not changed.
        plan: when weights are removed.
        fraction: the share that is removed in the end.
    """

    model: BayesByBackprop
    masks: dict[str, Tensor]

    def __init__(
        self, recipe: Recipe, data: str | None, device: torch.device, *, whole: BayesByBackprop, plan: Schedule,
        fraction: float,
    ) -> None:  # fmt: skip
        super().__init__(recipe, data, device)
        self.start, self.plan, self.fraction = copy.deepcopy(whole), plan, fraction
        self.first_best = plan.steps

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        self.model.load_state_dict(self.start.state_dict())
        self.model.posterior.rho.requires_grad_(False)
        names = {id(p): name for name, p in model.named_parameters()}
        self.masks = {names[id(mean)]: torch.ones_like(mean) for mean in self.model.means.values()}

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), **self.masks}

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Remove the weights of lowest |mean| / sigma; removed ones have the lowest there is."""
        super().start_epoch(epoch)
        if epoch > self.plan.steps:
            return
        before = self._removed()
        masks = pruning.lowest(self.model, self.plan.share(epoch, self.fraction))
        pruning.scale_sigma(self.model, {name: mask & ~before[name] for name, mask in masks.items()}, SIGMA)
        for (name, mask), free in zip(masks.items(), self.masks.values(), strict=True):
            self.model.means[name].masked_fill_(mask, 0.0)
            free.copy_(~mask)

    def _removed(self) -> dict[str, Tensor]:
        return {name: free == 0 for name, free in zip(self.model.means, self.masks.values(), strict=True)}

    def validate(self) -> dict[str, Any]:
        masks = self.masks.values()
        share = sum(int((free == 0).sum()) for free in masks) / sum(free.numel() for free in masks)
        return {**super().validate(), "removed": share}

    @contextmanager
    def best_weights(self) -> Iterator[None]:
        """Inside, removed weights have no noise either: the model is the pruned one."""
        rho = self.model.posterior.rho
        trained = {name: tensor.clone() for name, tensor in rho.state_dict().items()}
        pruning.remove(self.model, self._removed())
        try:
            yield
        finally:
            rho.load_state_dict(trained)


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
    pruned = {"fraction": fraction, "steps": plan.steps, "sigma": SIGMA, "weights": weights_digest(whole)}
    device = next(whole.parameters()).device
    wanted = Request(
        run.config["recipe"], recipes.override(run.recipe, overrides), run.place(data, device), run.config["seed"],
        overrides, task=partial(Retraining, whole=whole, plan=plan, fraction=fraction), about={"pruned": pruned},
        elsewhere="prune a copy of the run",
    )  # fmt: skip
    if force or not _finished(out, wanted):
        resume = not force and (out / MARKER).exists()
        try:
            launch(
                wanted, out=out, reporter=reporter, device=str(device), resume=resume, force=force, graph=graph,
                measure=False, command=command,
            )  # fmt: skip
        except Diverged as error:
            raise UserError(
                f"With {100 * fraction:.10g}% to be removed: {error} Here the rate is --retrain-lr, with --force."
            ) from None
    return checkpoint.load_own(out / checkpoint.BEST, identity(out))[0]


def _finished(out: Path, wanted: Request) -> bool:
    """Whether this retraining has finished in the folder; another one is refused."""
    if (out / MARKER).exists() or not (out / RECORD).exists():
        return False
    config = read_json(out / CONFIG)
    now = {"settings": wanted.recipe.model_dump(mode="json"), **wanted.about}
    if not isinstance(config, dict) or any(config.get(key) != value for key, value in now.items()):
        raise UserError(f"{out} holds a retraining of other weights, or with other settings; replace it with --force.")
    return True
