"""Checkpoints: one safetensors file each, with what is no tensor as JSON in its header. Nothing is unpickled."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.train.run_folder import RunFolder, write_file

_KEY = "bayesrnn"


def save(folder: RunFolder, name: str, tensors: dict[str, Tensor], about: dict[str, Any]) -> Path:
    """Write tensors and JSON under one name, whole or not at all."""
    return save_file(folder.path / name, tensors, about)


def save_file(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> Path:
    """As :func:`save`, to any path."""
    from safetensors.torch import save as to_bytes

    # Clones: tied weights and flattened LSTM weights share memory, which the format refuses.
    plain = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in tensors.items()}
    return write_file(path, to_bytes(plain, metadata={_KEY: json.dumps(about)}))


def load(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors (on the CPU) and the JSON of a checkpoint.

    Raises:
        UserError: it is not there, cut short, or not one of ours.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}; was the run stopped before its first epoch ended?")
    try:
        with safe_open(path, framework="pt") as file:
            about = (file.metadata() or {}).get(_KEY)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole checkpoint ({str(error).splitlines()[0]}).") from None
    if about is None:
        raise UserError(f"{path} was not written by bayesrnn; it has weights but not what they belong to.")
    return tensors, json.loads(about)


def load_model(model: Any, tensors: dict[str, Tensor], path: str | Path) -> None:
    """Put a checkpoint's ``model.*`` tensors into a model, which must have exactly these."""
    weights = {key[len("model.") :]: value for key, value in tensors.items() if key.startswith("model.")}
    expected = model.state_dict()
    for key, value in expected.items():
        if key not in weights:
            raise UserError(f"{path} has no weights {key}; it belongs to another model.")
        if weights[key].shape != value.shape:
            raise UserError(
                f"{path}: {key} has shape {tuple(weights[key].shape)} but the model has {tuple(value.shape)}; "
                "vocabulary or recipe are not those of the run."
            )
    if extra := sorted(weights.keys() - expected.keys()):
        raise UserError(f"{path} has weights {extra[0]} that the model has not; it belongs to another model.")
    model.load_state_dict(weights)
