"""Training by truncated backpropagation through time: one loop for any module that maps (x, state) to (y, state)."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError


class Terms(Protocol):
    """What an objective returns; :class:`bayesrnn.ELBO` does."""

    @property
    def loss(self) -> Tensor: ...  # scalar, to be minimised
    @property
    def nll(self) -> Tensor: ...  # sum of -log p over the targets


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to: the mean loss per step (``objective``) and the caller's two metrics."""

    number: int
    objective: float
    train: float
    valid: float
    lr: float
    seconds: float


@dataclass
class History:
    """All epochs, and the weights of the one with the lowest validation metric."""

    epochs: list[Epoch] = field(default_factory=list)
    best_state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def best(self) -> Epoch:
        return min(self.epochs, key=lambda epoch: (math.isnan(epoch.valid), epoch.valid))

    @property
    def last(self) -> Epoch:
        return self.epochs[-1]


def detach(state: Any) -> Any:
    """The same state, cut off from the graph that made it: a tensor, or nested tuples and lists of them."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, tuple | list):
        return type(state)(detach(part) for part in state)
    return state


def fit(
    model: nn.Module,
    objective: Callable[[Tensor, Tensor], Terms],
    batches: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    *,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    validate: Callable[[], tuple[float, float]],
    learning_rate: Callable[[int], float] | None = None,
    clip: float | None = None,
    on_step: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Train for a number of epochs; keep a copy of the weights of the best one.

    The state is carried from window to window without its gradient, and starts at zero in each epoch.

    Args:
        model: (x, state) to (output, state).
        objective: (output, target) to terms with ``.loss``.
        batches: a call gives one epoch's windows (x, y), in order.
        validate: a call gives (training metric, validation metric); lower is better. The mode is eval inside.
        learning_rate: epoch (from 1) to the factor on each group's initial learning rate.
        clip: largest global norm of the gradient.
        on_step, on_epoch: told of progress; ``on_step`` gets (epoch, step), both from 1.

    Raises:
        UserError: the loss is NaN or infinite; the message names epoch and step.
    """
    if epochs < 1:
        raise ValueError(f"epochs is {epochs}; it must be at least 1.")
    initial = [group["lr"] for group in optimizer.param_groups]
    history = History()
    best = math.inf
    for number in range(1, epochs + 1):
        start = time.perf_counter()
        factor = learning_rate(number) if learning_rate else 1.0
        for group, lr in zip(optimizer.param_groups, initial, strict=True):
            group["lr"] = lr * factor
        model.train()
        state: Any = None
        total, step = 0.0, 0
        for step, (x, y) in enumerate(batches(), start=1):
            output, state = model(x, state)
            state = detach(state)
            try:
                loss = objective(output, y).loss
                value = float(loss.detach())
            except FloatingPointError:  # the objective checks for itself
                value = math.nan
            if not math.isfinite(value):
                raise UserError(
                    f"The loss is {value} at epoch {number}, step {step}; "
                    "lower the learning rate or the clipping norm, and look for NaN in the data."
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            total += value
            if on_step:
                on_step(number, step)
        if step == 0:
            raise UserError("There is nothing to train on: the data gave no batches.")
        model.eval()
        train, valid = validate()
        epoch = Epoch(
            number=number,
            objective=total / step,
            train=train,
            valid=valid,
            lr=optimizer.param_groups[0]["lr"],
            seconds=time.perf_counter() - start,
        )
        history.epochs.append(epoch)
        # A first NaN metric still leaves weights to return.
        if valid < best or not history.best_state:
            best = min(best, valid)
            history.best_state = {key: value.detach().clone() for key, value in model.state_dict().items()}
        if on_epoch:
            on_epoch(epoch)
    return history
