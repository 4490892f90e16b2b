"""What the engine needs from a task, checked where it is used: a mistake in a task of your own is one line."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from bayesrnn.elbo import Terms
from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task

_REMEDIES = {
    "recipe": "call super().__init__(recipe, data, device) first",
    "steps": "set self.steps to the steps of an epoch",
    "batch_size": "set self.batch_size to the rows of a batch",
    "examples_per_step": "set self.examples_per_step to the targets of a step",
}


def check_made(task: "Task") -> None:
    """What ``__init__`` must have set."""
    for name, remedy in _REMEDIES.items():
        if getattr(task, name, None) is None:
            raise UserError(f"{type(task).__name__}.__init__ does not set {name}; {remedy}.")


def attach(task: "Task", model: Any) -> None:
    """Hand the model that ``build`` made to the task."""
    name = type(task).__name__
    if not isinstance(model, nn.Module):
        raise UserError(f"{name}.build must return a torch.nn.Module; it returned {_kind(model)}.")
    # On the CPU until now, so that a seed gives the same initial weights on every device.
    task.attach(model.to(task.device).train())
    if getattr(task, "model", None) is None:
        raise UserError(f"{name}.attach does not keep the model; call super().attach(model) in it.")


def check_objective(found: Any, task: "Task") -> tuple[Tensor, Terms, tuple[Tensor, ...]]:
    """The loss, its terms and the next state that ``objective`` returned."""
    if isinstance(found, tuple) and len(found) == 3:
        loss, terms, state = found
        if isinstance(loss, Tensor) and isinstance(terms, Terms) and isinstance(state, tuple):
            return loss, terms, state
    got = f"({', '.join(map(_kind, found))})" if isinstance(found, tuple) else _kind(found)
    raise UserError(
        f"{type(task).__name__}.objective must return (loss, terms, state): a tensor, the Terms of br.ELBO and a tuple "
        f"of tensors; it returned {got}."
    )


def check_metrics(found: Any, task: "Task") -> dict[str, Any]:
    """The metrics that ``validate`` returned."""
    name = f"{type(task).__name__}.validate"
    if not isinstance(found, Mapping):
        raise UserError(f"{name} must return a dict of metrics; it returned {_kind(found)}.")
    if task.metric not in found:
        named = f"{type(task).__name__}.metric"
        raise UserError(f"{name} must return a dict with {task.metric!r} ({named}); it returned {[*found]}.")
    for key, value in found.items():
        if isinstance(value, Tensor | str) or (key == task.metric and not isinstance(value, int | float)):
            raise UserError(f"{name} must return numbers; {key} is {_kind(value)}, so take float(...) of it.")
    return dict(found)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
