"""How a run's model is called: example inputs and the names of its axes, for exporting it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.lab.runs.opening import OpenedRun

_STEPS, _ROWS = 5, 3  # sizes of the examples; free axes are not 1, which exporters take for fixed


@dataclass(frozen=True)
class Signature:
    """A model, example inputs for it, and names for inputs, outputs and axes: an axis has a name or a fixed size."""

    model: nn.Module
    inputs: tuple[Any, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    axes: tuple[tuple[str | int, ...], ...]
    """Of each input."""

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs one by one, states taken apart."""
        return [x for x in torch.utils._pytree.tree_leaves(self.inputs) if isinstance(x, Tensor)]

    def dynamic_shapes(self) -> Any:
        """As `torch.export` takes them."""
        names = {axis for axes in self.axes for axis in axes if isinstance(axis, str)}
        dims = {name: torch.export.Dim(name, min=1) for name in sorted(names)}
        flat = iter(self.axes)
        return torch.utils._pytree.tree_map_only(
            Tensor, lambda _: {k: dims[a] for k, a in enumerate(next(flat)) if isinstance(a, str)}, self.inputs
        )

    def described(self) -> dict[str, Any]:
        """For JSON: inputs with shapes and dtypes, outputs with names."""
        inputs = zip(self.input_names, self.axes, self.tensors, strict=True)
        return {
            "inputs": [
                {"name": name, "shape": list(axes), "dtype": str(x.dtype).removeprefix("torch.")}
                for name, axes, x in inputs
            ],
            "outputs": list(self.output_names),
        }


class _WithFeatures(nn.Module):
    """A captioner called with positional arguments, image and words so far."""

    def __init__(self, captioner: nn.Module) -> None:
        super().__init__()
        self.captioner = captioner

    def forward(self, features: Tensor, tokens: Tensor) -> Any:
        return self.captioner(tokens, features=features)


def in_use(run: OpenedRun) -> nn.Module:
    """The run's model without what it was trained with and is not used any more: of a mixture the kept networks."""
    if run.recipe.task == "forecast":
        from bayesrnn.lab.tasks.forecast.model import Components

        if isinstance(run.model, Components):
            return run.model.at_mean()
    return run.model


def signature(run: OpenedRun) -> Signature:
    """Of the run's model; UserError for a task that has none here."""
    task, model = run.recipe.task, in_use(run)
    device = next(model.parameters()).device
    if task == "language":
        m = run.recipe.model
        state = torch.zeros(m.layers, _ROWS, m.hidden, device=device)
        words = torch.zeros(_STEPS, _ROWS, dtype=torch.long, device=device)
        states: tuple[str | int, ...] = (m.layers, "batch", m.hidden)
        inputs, outputs = ("tokens", "h", "c"), ("logits", "h_next", "c_next")
        return Signature(model, (words, (state, state.clone())), inputs, outputs, (("time", "batch"), states, states))
    if task == "sentiment":
        words = torch.zeros(_STEPS, _ROWS, dtype=torch.long, device=device)
        return Signature(model, (words,), ("tokens",), ("rating",), (("time", "batch"),))
    if task == "digits":
        from bayesrnn.lab.tasks.digits.images import SIDE

        images = torch.zeros(_ROWS, 1, SIDE, SIDE, device=device)
        return Signature(model, (images,), ("images",), ("logits",), (("batch", 1, SIDE, SIDE),))
    if task == "forecast":
        from bayesrnn.lab.tasks.forecast.task import Plan

        plan = Plan.from_json(run.files["frame.json"])
        steps, columns = plan.frame.window, len(plan.columns)
        window = torch.zeros(steps, _ROWS, columns, device=device)
        return Signature(model, (window,), ("window",), ("mean_and_log_sigma",), ((steps, "batch", columns),))
    if task == "captioning":
        size = len(next(b for n, b in model.named_buffers() if n.endswith("shift")))
        images = torch.zeros(_ROWS, size, device=device)
        words = torch.zeros(_STEPS, _ROWS, dtype=torch.long, device=device)
        axes = ("batch", size), ("time", "batch")
        return Signature(_WithFeatures(model), (images, words), ("features", "tokens"), ("logits", "h", "c"), axes)
    raise UserError(f"How a {task} model is called is not known here; export its weights with --format torch.")
