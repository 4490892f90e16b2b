"""Readers of recipes, settings, checkpoints, run folders and records."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_inputs import ODD, SCALARS, altered, as_json, changed, mixed, renumbered, st, values, write

# Recipes and overrides


@cache
def recipe_texts() -> list[bytes]:
    from bayesrnn.lab import recipes

    tasks = Path(recipes.__file__).parent.parent / "tasks"
    wanted = ("brnn-medium", "variational-tied-medium", "digits-bbb-400", "sentiment-lstm-variational", "forecast")
    return [path.read_bytes() for name in wanted for path in tasks.glob(f"*/recipes/{name}.yaml")]


def recipe_inputs() -> Any:
    keys = ["model:", "train:", "  epochs: ", "  hidden: ", "task: ", "paper: ", "1e-7"]
    marks = [
        "[",
        "]",
        "{",
        "}",
        ", ",
        ": ",
        "- ",
        "\n",
        "  ",
        "&a ",
        "*a",
        "<<: ",
        "|",
        ">",
        "!!",
        "? ",
        "'",
        "...",
        "---",
    ]
    pieces = st.sampled_from([*keys, *marks, *ODD])
    built = st.lists(pieces, max_size=25).map(lambda parts: "".join(parts).encode("utf-8", "surrogatepass"))
    return mixed(st.binary(max_size=80), changed(st.sampled_from(recipe_texts())), built)


def read_recipe(data: bytes, folder: Path) -> object:
    from bayesrnn.lab import recipes

    return recipes.load(str(write(folder, "mine.yaml", data)))


def override_inputs() -> Any:
    from bayesrnn.lab import recipes

    keys = sorted({k for n in ("brnn-medium", "digits-bbb-400") for k in recipes.flatten(recipes.load(n))})
    short = [k.rpartition(".")[2] for k in keys]
    key = st.sampled_from(keys + short) | st.text(max_size=10)
    usual = st.integers(1, 50).map(str) | st.sampled_from(["0.5", "true", "null", "adam", "weight", "fp32"])
    odd = mixed(st.sampled_from(ODD), st.text(max_size=12), values().map(lambda v: json.dumps(v)))
    value = mixed(usual, usual, odd)
    one = st.tuples(key, st.sampled_from(["=", "=", "=", "==", "", " = "]), value).map("".join)
    return st.tuples(st.sampled_from(["brnn-medium", "digits-bbb-400"]), st.lists(one, min_size=1, max_size=3))


@cache
def _base(name: str) -> Any:
    from bayesrnn.lab import recipes

    return recipes.load(name)


def read_overrides(given: tuple[str, list[str]], folder: Path) -> object:
    from bayesrnn.lab import recipes

    name, assignments = given
    return recipes.override(_base(name), assignments)


# Checkpoints and run folders


@cache
def tiny_run() -> dict[str, bytes]:
    """The files of a small language run, made here."""
    import torch

    from bayesrnn.lab import recipes
    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.runs.folder import config_of
    from bayesrnn.lab.tasks.base import task_class

    recipe = recipes.override(recipes.load("brnn-medium"), ["hidden=3", "layers=1"])
    words = b"<unk>\n<eos>\na\nb\nc\n"
    files = {"vocabulary.txt": words}
    torch.manual_seed(0)
    model = task_class("language").build(recipe, files)
    about = {"epoch": 1, "valid_perplexity": 4.5}
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save_file(Path(folder) / "x", {f"model.{k}": v for k, v in model.state_dict().items()}, about)
        weights = path.read_bytes()
    config = config_of(recipe, name="brnn-medium", data="python-docs", seed=1, files=files)
    del config["file_digests"]  # else no changed vocabulary would be read
    return {"config.json": json.dumps(config).encode(), "best.safetensors": weights, **files}


def safetensors_of(header: Any, body: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else as_json(header)
    return struct.pack("<Q", (len(text) if length is None else length) % 2**64) + text + body


def checkpoint_inputs() -> Any:
    names = st.sampled_from(["model.a", "a", "__metadata__", ""])
    dtypes = st.sampled_from(["F32", "F16", "BF16", "I64", "BOOL", "U8", "F8_E4M3", "F64", "X", "", "F4", "C64"])
    sizes = st.lists(st.integers(-1, 5) | st.integers(0, 2**63), max_size=3)
    offsets = st.lists(st.integers(-1, 40) | st.integers(0, 2**64), min_size=2, max_size=2)
    tensor = st.fixed_dictionaries({"dtype": dtypes, "shape": sizes, "data_offsets": offsets}) | values()
    texts = st.sampled_from(["{}", "[]", "", '{"checksum": 1}', '{"checksum": "' + "0" * 64 + '"}', "[" * 300, "1"])
    metadata = st.dictionaries(st.sampled_from(["bayesrnn", "bayesrnn.2", "x"]), texts | SCALARS, max_size=2)
    header = st.dictionaries(names, tensor, max_size=3) | st.builds(
        lambda m, rest: {**rest, "__metadata__": m}, metadata, st.dictionaries(names, tensor, max_size=2)
    )
    known = st.fixed_dictionaries({f"model.{k}": tensor for k in ("module.embed.weight", "module.rnn.weight_ih_l0")})
    old = st.builds(lambda rest: {**rest, "__metadata__": {"bayesrnn": "{}"}}, known)
    whole = st.builds(safetensors_of, header | old | st.binary(max_size=30), st.binary(max_size=40),
                      st.none() | st.integers(0, 2**64 - 1) | st.integers(0, 100))  # fmt: skip
    return mixed(st.binary(max_size=60), changed(st.just(tiny_run()["best.safetensors"])), whole)


@cache
def tiny_model() -> Any:
    from bayesrnn.lab import recipes
    from bayesrnn.lab.tasks.base import task_class

    run = tiny_run()
    recipe = recipes.from_dict(json.loads(run["config.json"])["settings"], where="config.json")
    return task_class("language").build(recipe, run)


def read_checkpoint(data: bytes, folder: Path) -> object:
    from bayesrnn.lab.runs import checkpoint

    path = write(folder, "best.safetensors", data)
    tensors, about = checkpoint.load(path)
    checkpoint.load_model(tiny_model(), tensors, path)
    return about


def config_inputs() -> Any:
    valid = json.loads(tiny_run()["config.json"])
    return mixed(
        st.binary(max_size=40),
        values().map(as_json),
        altered(valid).map(as_json),
        changed(st.just(tiny_run()["config.json"])),
        st.integers(1, 200).map(lambda n: b'{"settings": ' + b"[" * n),
    )


def read_config(data: bytes, folder: Path) -> object:
    import torch

    from bayesrnn.lab.runs.opening import open_run

    for name, content in {**tiny_run(), "config.json": data}.items():
        write(folder, name, content)
    return open_run(folder, torch.device("cpu"))


def vocabulary_inputs() -> Any:
    lines = st.lists(st.text(max_size=4) | st.sampled_from(["<unk>", "<eos>", "a", "b", "c", "", "\r"]), max_size=7)
    built = lines.map(lambda words: ("\n".join(words) + "\n").encode("utf-8", "surrogatepass"))
    return mixed(st.binary(max_size=30), built, changed(st.just(tiny_run()["vocabulary.txt"])))


def read_vocabulary(data: bytes, folder: Path) -> object:
    import torch

    from bayesrnn.lab.runs.opening import open_run

    for name, content in {**tiny_run(), "vocabulary.txt": data}.items():
        write(folder, name, content)
    return open_run(folder, torch.device("cpu"))


# Records, metrics and the report made of them

DRAWN = int(os.environ.get("BAYESRNN_FUZZ_DRAWN", "100"))


@cache
def a_record() -> dict[str, Any]:
    return {
        "program": "bayesrnn",
        "recipe": "brnn-medium",
        "seed": 1,
        "device": "cpu",
        "versions": {"torch": "2"},
        "overrides": ["train.epochs=2"],
        "settings": {
            "task": "language",
            "paper": {"test": 75.5, "entropy_gap": 0.67},
            "model": {"hidden": 8},
            "posterior": {"kind": "sharpened"},
        },
        "curves": {"train_perplexity": [9.0, 8.0], "valid_perplexity": [9.5, 8.5], "kl_per_sequence": [3.0, 2.0]},
        "metrics": {
            "best_epoch": 2,
            "valid_perplexity": 8.5,
            "test_perplexity": 8.25,
            "entropy_gap_mean": 0.5,
            "entropy_gap": 0.6,
            "entropy_samples": 10,
            "reliability": [{"confidence": 0.5, "accuracy": 0.25, "count": 4.0}],
            "intervals": [{"level": 0.9, "coverage": 0.85}],
            "uncertainty": {"risk": {"coverage": [0.5, 1.0], "rmse": [0.1, 0.2]}},
        },
        "pruning": {"fraction": 0.5, "curve": [{"fraction": 0.0, "valid_perplexity": 8.5, "rise": 0.0}]},
    }


@cache
def a_forecast() -> dict[str, Any]:
    numbers = [1.0, 2.0, 3.0]
    return {
        "recipe": "forecast",
        "seed": 1,
        "settings": {"task": "forecast", "model": {"hidden": 8}},
        "curves": {"valid_crps": [0.5, 0.4]},
        "metrics": {
            "level": 0.9,
            "valid_crps": 0.4,
            "reliability": {"pit": [0.5, 0.5], "levels": [0.5], "coverage": [0.55]},
            "by_horizon": {"crps": numbers},
            "unfamiliar": [{"kind": "noise", "entropy_auroc": 0.9}],
            "selective": {"entropy": [[0.5, 60.0]]},
            "pruning": [{"fraction": 0.5, "valid_error": 1.5}],
        },
    }


def record_inputs() -> Any:
    metrics = json.dumps({"epoch": 1, "valid_perplexity": 9.5}).encode() + b"\n"
    record = mixed(
        st.binary(max_size=40),
        values().map(as_json),
        altered(a_record()).map(as_json),
        altered(a_record()).map(as_json),
        altered(a_forecast()).map(as_json),
        renumbered(a_record()).map(as_json),
        renumbered(a_forecast()).map(as_json),
        changed(st.just(as_json(a_record()))),
    )
    return st.tuples(record, st.booleans(), changed(st.just(metrics * 2)))


def read_record(given: tuple[bytes, bool, bytes], folder: Path) -> object:
    """A page of the record. Drawing takes most of the time: one input of ``DRAWN`` has its pictures, coarse ones."""
    from unittest import mock

    from bayesrnn.lab.report import page, plots
    from bayesrnn.lab.runs import collection

    record, finished, metrics = given
    write(folder, "record.json" if finished else "config.json", record)
    write(folder, "metrics.jsonl", metrics)
    together = collection.groups(collection.read(folder))
    if zlib.crc32(record + metrics) % DRAWN == 0:
        with mock.patch.object(plots, "DPI", 30), warnings.catch_warnings():
            warnings.simplefilter("error")
            text, pictures = page.build(together, {}, title=page.heading(together))
        assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    else:
        names = ("curves", "against_diagonal", "lines", "histogram", "patterns")
        with mock.patch.multiple(plots, **{name: lambda *a, **k: b"png" for name in names}):
            text, _ = page.build(together, {}, title=page.heading(together))
    assert "<script" not in text.lower()
    return text.encode("utf-8")


# What a forecast run keeps of its data


@cache
def forecast_task() -> Any:
    import torch

    from bayesrnn.lab import recipes
    from bayesrnn.lab.tasks.forecast.task import Forecast

    recipe = recipes.override(recipes.load("forecast"), ["hidden=3", "window=8", "horizon=2"])
    rows = "".join(f"{1900 + k},{k % 7 + 0.1 * k:.2f}\n" for k in range(80))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "s.csv", f"year,level\n{rows}".encode())
        return Forecast(recipe, str(path), torch.device("cpu"))


def forecast_inputs() -> Any:
    whole = forecast_task().files()
    plan = mixed(
        st.binary(max_size=40),
        values().map(as_json),
        altered(json.loads(whole["plan.json"])).map(as_json),
        altered(json.loads(whole["plan.json"])).map(as_json),
        changed(st.just(whole["plan.json"])),
        st.just(whole["plan.json"]),
    )
    series = st.just(whole["series.safetensors"])
    return st.tuples(plan, mixed(series, series, changed(series)))


def read_forecast(given: tuple[bytes, bytes], folder: Path) -> object:
    """As `bayesrnn forecast` does, with the weights of the run."""
    import torch

    from bayesrnn.errors import UserError
    from bayesrnn.lab.runs import sizes
    from bayesrnn.lab.tasks.forecast.task import Forecast

    own = forecast_task()
    files = dict(zip(("plan.json", "series.safetensors"), given, strict=True))
    outline = sizes.outline(Forecast, own.recipe, files, where="run")
    model = Forecast.build(own.recipe, own.files())
    if outline is None or sizes.shapes(outline) != sizes.shapes(model):
        raise UserError("other weights")
    for name, value in own.plan.arrays.items():
        model.get_buffer(name).copy_(torch.as_tensor(value))
    task = Forecast.for_run(own.recipe, None, torch.device("cpu"), files)
    task.attach(model)
    return task.finished().update(task.whole).predict()
