"""A module's weights in a folder: `model.safetensors`, and `config.json` that says what they belong to.

Nothing in the folder is executed or unpickled, so a folder may come from anyone.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn._version import __version__
from bayesrnn.errors import UserError
from bayesrnn.reading import MB, first_line, read_bytes, read_json, shown
from bayesrnn.wrappers import check_module, unwrapped, whole

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT = 1
BUILDERS = {"lab": "bayesrnn.lab.hub:builder"}
"""Installed code that can build a saved module again, by the name in config.json; imported only when it is needed."""
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*_FLOATS, *_WHOLE)}
_HEADER = 16 * MB  # of model.safetensors
_FILE = 64 * MB  # of another file
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LARGEST = 2**48

Builder = Callable[[Mapping[str, Any], Mapping[str, bytes]], tuple[nn.Module | None, Callable[[], nn.Module]]]
"""From `arguments` and `files` as saved: the module on the meta device, or None; and a function that builds it."""


def save(
    model: nn.Module,
    folder: str | Path,
    *,
    builder: str = "",
    arguments: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Save a module's posterior (all parameters and buffers) to a folder, for `br.load`.

    Args:
        model: any module. What it is made of is not saved: `br.load(folder, model)` fills a module that you build.
        folder: created if it is missing; a model saved there earlier is replaced.
        builder: the name in `BUILDERS` of installed code that can build the module again; empty: none.
        arguments: JSON values for the builder.
        files: named files for the builder.

    Example::

        br.save(model, "saved")  # model: br.BayesByBackprop(Net())
        same = br.load("saved", br.BayesByBackprop(Net()))
    """
    check_module(model)
    try:
        from safetensors.torch import save as to_bytes
    except ImportError:
        raise UserError("br.save and br.load need safetensors; pip install safetensors") from None
    path, tensors = Path(folder), _tensors(model)
    for name, tensor in tensors.items():
        if str(tensor.dtype).removeprefix("torch.") not in _DTYPES:
            raise UserError(f"{name} is of {tensor.dtype}, which br.save cannot write; convert it.")
    copies = {name: torch.empty(t.shape, dtype=t.dtype).copy_(whole(t.detach())) for name, t in tensors.items()}
    contents = {**(files or {}), WEIGHTS: to_bytes(copies, metadata={"format": "pt"})}
    about = {
        "model_type": "bayesrnn",
        "format": FORMAT,
        "versions": {"bayesrnn": __version__, "torch": torch.__version__},
        "builder": builder,
        "arguments": dict(arguments or {}),
        "tensors": _described(tensors),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
    }
    _check_config(about, path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / CONFIG).exists() and not _is_own(path):
            raise UserError(f"{path} holds a {CONFIG} of another program; choose another folder.")
        for name, content in {**contents, CONFIG: (json.dumps(about, indent=2) + "\n").encode()}.items():
            temporary = path / f".{name}.{os.getpid()}.tmp"
            temporary.write_bytes(content)
            os.replace(temporary, path / name)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another folder.") from None
    return path


def load(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Open a folder of `br.save` or `bayesrnn export --hub`; returns the module in eval mode, on the CPU.

    Nothing in the folder is executed or unpickled. Names, shapes, dtypes and digests are checked before memory is
    taken for the weights.

    Args:
        folder: the folder. Links are followed to regular files only.
        model: a module like the one that was saved; its weights are replaced. None: built from config.json, for models
            of `bayesrnn export --hub`; this needs `pip install 'bayesrnn[lab]'`.

    Raises:
        UserError: the folder is damaged, of a newer version, or of another model; one line says which.
    """
    path = Path(folder)
    about = _config(path)
    if model is None:
        outline, build = _built(about, path)
        if outline is not None:
            _check_fits(outline, about["tensors"], path)
        weights = _weights(about, path)
        with torch.random.fork_rng([]):
            model = build()
    else:
        check_module(model)
        _check_fits(model, about["tensors"], path)
        weights = _weights(about, path)
    _check_fits(model, about["tensors"], path)
    inner = unwrapped(model)
    first = {id(tensor): name for name, tensor in _tensors(inner).items()}
    state = inner.state_dict(keep_vars=True)
    inner.load_state_dict({name: weights[first[id(tensor)]] for name, tensor in state.items()})
    return model.eval()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once: tied weights have their first name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in unwrapped(model).state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise UserError(f"{name} is not a tensor; a module with extra state cannot be saved or loaded.")
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def _described(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {n: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)} for n, t in tensors.items()}


def _is_own(path: Path) -> bool:
    try:
        about = read_json(path / CONFIG, most=_HEADER)
    except UserError:
        return False
    return isinstance(about, dict) and about.get("model_type") == "bayesrnn"


def _config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise UserError(f"There is no folder {str(path)[:200]}.")
    if not (path / CONFIG).exists():
        raise UserError(f"{path} has no {CONFIG}; br.load opens folders of br.save and of bayesrnn export --hub.")
    about = read_json(path / CONFIG, most=_HEADER)
    if isinstance(about, dict) and about.get("program") == "bayesrnn":
        raise UserError(f"{path} is the folder of a run; export it first: bayesrnn export {path} --hub FOLDER")
    if not isinstance(about, dict) or about.get("model_type") != "bayesrnn":
        raise UserError(f"{path / CONFIG} was not written by bayesrnn; br.load opens folders of br.save.")
    _check_config(about, path)
    return about


def _check_config(about: Mapping[str, Any], path: Path) -> None:
    number = about.get("format")
    if type(number) is int and number > FORMAT:
        raise UserError(f"{path} was saved by a newer bayesrnn (format {number}, this one reads {FORMAT}); update it.")
    wrong = ""
    if type(number) is not int or number != FORMAT:
        wrong = "its format is not a known number"
    elif not isinstance(about.get("builder"), str) or not isinstance(about.get("arguments"), dict):
        wrong = "builder or arguments are missing"
    elif not isinstance(about.get("files"), dict) or len(about["files"]) > 100 or WEIGHTS not in about["files"]:
        wrong = f"it does not list {WEIGHTS}"
    elif not isinstance(about.get("tensors"), dict) or len(about["tensors"]) > 100_000:
        wrong = "it does not list the tensors"
    else:
        names = [n for n in about["files"] if not _NAME.fullmatch(n) or n == CONFIG]
        tensors = [n for n, tensor in about["tensors"].items() if not _is_described(tensor)]
        if names:
            wrong = f"{shown(names[0])} is not a plain name of a file"
        elif tensors:
            wrong = f"{shown(tensors[0])} has no known dtype and shape"
    if wrong:
        raise UserError(f"{path / CONFIG} is damaged: {wrong}.")


def _is_described(tensor: Any) -> bool:
    if not isinstance(tensor, dict) or tensor.get("dtype") not in tuple(_DTYPES):
        return False
    shape = tensor.get("shape")
    if not isinstance(shape, list) or len(shape) > 10:
        return False
    return all(type(size) is int and 0 <= size < _LARGEST for size in shape) and math.prod(shape) < _LARGEST


def _built(about: Mapping[str, Any], path: Path) -> tuple[nn.Module | None, Callable[[], nn.Module]]:
    """The outline of the module, and what builds it."""
    if not about["builder"]:
        raise UserError(f"{path} holds weights of a module of your own: build it, and call br.load(folder, model).")
    if about["builder"] not in BUILDERS:
        raise UserError(f"{path} needs {shown(about['builder'])} to build its module; known are {', '.join(BUILDERS)}.")
    module, _, name = BUILDERS[about["builder"]].partition(":")
    try:
        builder: Builder = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs {error.name} to build its module; pip install 'bayesrnn[lab]'") from None
    files = {name: _read(path, name, about, _FILE) for name in about["files"] if name != WEIGHTS}
    return builder(about["arguments"], files)


def _read(path: Path, name: str, about: Mapping[str, Any], most: int) -> bytes:
    content = read_bytes(path / name, most=most)
    if hashlib.sha256(content).hexdigest() != about["files"][name]:
        raise UserError(f"{path / name} is not the file that was saved: {CONFIG} has another digest of it.")
    return content


def _weights(about: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load as from_bytes
    except ImportError:
        raise UserError("br.save and br.load need safetensors; pip install safetensors") from None
    size = sum(math.prod(t["shape"]) * _DTYPES[t["dtype"]].itemsize for t in about["tensors"].values())
    data = _read(path, WEIGHTS, about, size + _HEADER)
    try:
        found: dict[str, Tensor] = from_bytes(data)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path / WEIGHTS} is damaged ({first_line(error)}).") from None
    if _described(found) != about["tensors"]:
        raise UserError(f"{path / WEIGHTS} does not have the tensors that {CONFIG} lists.")
    return found


def _check_fits(model: nn.Module, listed: Mapping[str, Any], path: Path) -> None:
    """Refuse a module whose tensors are not exactly those listed."""
    own = _described(_tensors(model))
    for name in [*own, *listed]:
        here, there = (
            f"{found[name]['dtype']} {tuple(found[name]['shape'])}" if name in found else "missing"
            for found in (own, listed)
        )
        if here != there:
            raise UserError(f"{path} is of another model: {shown(name)} is {there} there and {here} in the module.")
