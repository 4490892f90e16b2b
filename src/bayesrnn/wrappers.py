"""Wrappers of other libraries around a model: `torch.compile`, data parallelism, sharding, Fabric."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

# where each wrapper is defined, its class, and the submodule that it calls; nothing here imports the library
_WRAPPERS = (
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "module"),
    ("torch.optim.swa_utils", "AveragedModel", "module"),
    ("lightning.fabric.wrappers", "_FabricModule", "_forward_module"),
    ("lightning_fabric.wrappers", "_FabricModule", "_forward_module"),
)


def _known() -> dict[type, str]:
    """The wrapper classes whose library has been imported, with the name of the wrapped submodule."""
    loaded = ((sys.modules.get(home), name, inner) for home, name, inner in _WRAPPERS)
    return {vars(library)[name]: inner for library, name, inner in loaded if library is not None}


def check_module(model: Any) -> None:
    """Refuse what is not a module, such as the function that `torch.compile` makes of a compiled module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, DistributedDataParallel, FullyShardedDataParallel, Fabric and the like."""
    known = _known()
    while (inner := next((part for cls, part in known.items() if isinstance(model, cls)), None)) is not None:
        model = model.get_submodule(inner)
    return model


def wrapper_name(module: nn.Module) -> str | None:
    """The class name of a module that is such a wrapper, or None; by name, so that old and new versions count."""
    names = {name for _, name, _ in _WRAPPERS}
    return next((cls.__name__ for cls in type(module).__mro__ if cls.__name__ in names), None)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a parameter that `fully_shard` has distributed over processes; any other tensor as it is."""
    library = sys.modules.get("torch.distributed.tensor")
    if library is None or not isinstance(tensor, library.DTensor):
        return tensor
    gathered: Any = tensor.full_tensor()
    made: Tensor = gathered
    return made
