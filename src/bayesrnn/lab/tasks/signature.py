"""How a model is called, for exporting it: example inputs and the names of their axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

STEPS, ROWS = 5, 3  # sizes of the examples; free axes are not 1, which exporters take for fixed


@dataclass(frozen=True)
class Signature:
    """A model, example inputs, names of inputs and outputs, and the axes of each input: a name or a fixed size."""

    model: nn.Module
    inputs: tuple[Any, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    axes: tuple[tuple[str | int, ...], ...]

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs one by one; states are unpacked."""
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
        made = [{"name": n, "shape": list(axes), "dtype": str(x.dtype).removeprefix("torch.")} for n, axes, x in inputs]
        return {"inputs": made, "outputs": list(self.output_names)}
