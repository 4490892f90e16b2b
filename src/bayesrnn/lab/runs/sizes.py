"""The size of a model before memory is allocated for it, as settings and files may come from anywhere."""

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import first_line

if TYPE_CHECKING:
    from bayesrnn.lab.recipes import Recipe
    from bayesrnn.lab.tasks.base import Files, Task

# What a task's `build` may raise for a damaged file or an absurd setting.
_WRONG = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, RuntimeError)
# Initialisation: the result has the shape of the input.
_STARTS = frozenset(
    "normal_ uniform_ trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ log exp neg __neg__ sqrt".split()
)


class _Unset(TorchFunctionMode):
    """Skip initialisation: there is nothing to set, and torch would load its compiler for some of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensor = args[0] if args else kwargs.get("tensor")  # a tensor's method, or a function of nn.init
        if getattr(func, "__name__", "") in _STARTS and isinstance(tensor, torch.Tensor):
            return tensor
        return func(*args, **kwargs)


def outline(cls: "type[Task]", recipe: "Recipe", files: "Files", *, where: str) -> nn.Module | None:
    """The model without its values (on torch's meta device); None if the task cannot be built that way.

    Raises:
        UserError: settings and files do not describe a model.
    """
    try:
        with torch.device("meta"), _Unset():
            return cls.build(recipe, files)
    except NotImplementedError:
        return None
    except _WRONG as error:
        if "overflow" in str(error).lower():  # torch's word for more bytes than it can count
            raise UserError(
                f"{where} describes a model of more weights than any memory holds; make it smaller, "
                "with model.hidden or model.layers."
            ) from None
        raise UserError(f"{where} does not describe a model ({first_line(error)}).") from None


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in a checkpoint of the model, by name."""
    return {name: tuple(t.shape) for name, t in model.state_dict().items()}


def check_fits(found: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Any], path: str) -> None:
    """Refuse weights (``model.*``) whose names and shapes are not exactly these."""
    weights = {key[len("model.") :]: tuple(t.shape) for key, t in tensors.items() if key.startswith("model.")}
    for key, shape in found.items():
        if key not in weights:
            raise UserError(f"{path} has no weights {key}; it belongs to another model.")
        if weights[key] != shape:
            raise UserError(
                f"{path}: {key} has shape {weights[key]} but the model has {shape}; "
                "vocabulary or recipe are not those of the run."
            )
    if extra := sorted(weights.keys() - found.keys()):
        raise UserError(f"{path} has weights {extra[0][:100]} that the model lacks; it belongs to another model.")


def check_memory(model: nn.Module) -> None:
    """Refuse a model whose weights and gradients alone exceed the machine's memory."""
    needed = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
    if needed > memory():
        raise UserError(
            f"The model has {needed // 8:,} weights, more than fits into this machine's memory "
            f"({memory() / 1e9:.0f} GB); make it smaller, with model.hidden or model.layers."
        )


def memory() -> float:
    """Bytes of this machine's memory; infinity if unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # not everywhere
        return math.inf
