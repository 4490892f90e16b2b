"""``bayesrnn export``: files that give the run's numbers without bayesrnn."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.base import Task

TINY = ["hidden=6", "batch_size=4", "window=6", "epochs=1", "layers=2"]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def trained(text_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    result = invoke("train", "brnn-medium", "--data", text_folder, "--out", out, "--device", "cpu", "tied=true", *TINY)
    assert result.exit_code == 0, result.output
    assert invoke("prune", out, "--fraction", 0.5).exit_code == 0
    return out


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def numbers(run, weights="best.safetensors"):
    """Tokens, a state, and what the run's model says to them."""
    torch.manual_seed(0)
    model = open_run(run, torch.device("cpu")).model
    checkpoint.load_model(model, checkpoint.load(run / weights)[0], run / weights)
    x, state = torch.randint(12, (7, 2)), (torch.randn(2, 2, 6), torch.randn(2, 2, 6))
    with torch.no_grad():
        logits, (h, c) = model(x, state)
    return (x, *state), (logits, h, c)


REBUILD = """
import json, sys, torch
sys.modules["bayesrnn"] = None
from safetensors.torch import load_file
about, weights = json.load(open("model.safetensors.json")), load_file("model.safetensors")
weights |= {name: weights[first] for name, first in about["tied"].items()}
model = torch.nn.ModuleDict()
for name, layer in about["layers"].items():
    model[name] = getattr(torch.nn, layer["type"].removeprefix("torch.nn."))(**layer["arguments"])
model.load_state_dict(weights)
model.eval()
x, h, c = torch.load("inputs.pt")
hidden, (h, c) = model["rnn"](model["embed"](x), (h, c))
torch.save((model["decoder"](hidden), h, c), "outputs.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("pruned", [False, True])
def test_plain_weights_and_their_description_are_enough(run, pruned):
    """Rebuilt in a process in which importing bayesrnn is an error."""
    inputs, expected = numbers(run, "pruned.safetensors" if pruned else "best.safetensors")
    result = invoke("export", run, *["--pruned"] * pruned)
    assert result.exit_code == 0, result.output
    about = json.loads((run / "model.safetensors.json").read_text())
    assert about["tied"] == {"decoder.weight": "embed.weight"}
    assert about["pruned"] is pruned
    assert about["files"]["vocabulary.txt"][0] == "<unk>"
    torch.save(inputs, run / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REBUILD)], cwd=run, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(torch.load(run / "outputs.pt"), expected)


@pytest.mark.slow
def test_exported_program(run):
    inputs, expected = numbers(run)
    result = invoke("export", run, "--format", "exported", "--out", run / "lm.pt2")
    assert result.exit_code == 0, result.output
    (x, *state) = inputs
    logits, (h, c) = torch.export.load(run / "lm.pt2").module()(x, tuple(state))
    torch.testing.assert_close((logits, h, c), expected)
    about = json.loads((run / "lm.pt2.json").read_text())
    assert about["inputs"][0] == {"name": "tokens", "shape": ["time", "batch"], "dtype": "int64"}
    assert about["outputs"] == ["logits", "h_next", "c_next"]
    with zipfile.ZipFile(run / "lm.pt2") as archive:  # graph and weights are JSON and bytes, not pickles
        configs = [n for n in archive.namelist() if n.endswith("_config.json")]
        assert configs
        assert not any(b'"use_pickle": true' in archive.read(n) for n in configs)


@pytest.mark.slow
def test_onnx(run):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    inputs, expected = numbers(run)
    result = invoke("export", run, "--format", "onnx")
    assert result.exit_code == 0, result.output
    assert "not checked" not in result.stdout
    session = runtime.InferenceSession(str(run / "model.onnx"))
    assert [(i.name, i.shape) for i in session.get_inputs()] == [
        ("tokens", ["time", "batch"]),
        ("h", [2, "batch", 6]),
        ("c", [2, "batch", 6]),
    ]
    got = session.run(None, {n: v.numpy() for n, v in zip(("tokens", "h", "c"), inputs, strict=True)})
    torch.testing.assert_close(tuple(map(torch.from_numpy, got)), expected, rtol=1e-4, atol=1e-5)


def test_bad_requests(run, tmp_path):
    invoke("export", run)
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "a.json")
    saved = br.save(torch.nn.Linear(1, 1), tmp_path / "saved")
    for arguments, said in (
        ([run, "--out", tmp_path / "pipe", "--force"], "pipe is not a regular file; choose another --out."),
        ([run, "--out", tmp_path / "a", "--force"], "a.json is not a regular file; choose another --out."),
        ([run, "--out", tmp_path, "--force"], "is not a regular file; choose another --out."),
        ([run], "model.safetensors exists already; replace it with --force"),
        ([run, "--format", "torch", "--out", "m.onnx"], "m.onnx ends like a file of --format onnx"),
        ([saved], "is not a run of bayesrnn train; its config.json has no settings."),
        ([run, "--format", "pickle"], "no format pickle; choose torch, exported, onnx"),
        (
            [run, "--format", "exported", "--out", "ex.exported"],
            "ex.exported must end in .pt2, or torch.export.load warns",
        ),
        ([run, "--format", "exported", "--out", "ex/m"], "choose --out ex/m.pt2."),
        ([run, "--out", tmp_path / "no" / "a.onnx"], "There is no folder"),
        ([tmp_path / "none"], "is not a run of bayesrnn train"),
    ):
        result = invoke("export", *arguments)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "a.json").is_fifo()
    assert not (tmp_path / "a").exists()
    assert invoke("export", run, "--force").exit_code == 0
    (run / "pruned.safetensors").unlink()
    assert "has no pruned weights" in invoke("export", run, "--pruned", "--force").stderr


@contextmanager
def full_disk():
    """No file grows beyond 1,000 bytes, as on a disk without room."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("form", ["torch", "exported", "onnx"])
def test_a_full_disk_is_one_line_and_leaves_nothing(run, form):
    if form == "onnx":
        pytest.importorskip("onnxscript")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with full_disk():
        result = invoke("export", run, "--format", form)
    assert result.exit_code == 2
    assert "cannot be written (File too large)" in result.stderr
    assert result.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


class Fake:
    """What `signature` reads of a run."""

    def __init__(self, task, model, files=None):
        self.recipe = type("Recipe", (), {"task": task})
        self.model, self.files = model, files or {}


def test_signatures_of_other_tasks():
    from bayesrnn import export
    from bayesrnn.lab.tasks.captioning.model import Captioner
    from bayesrnn.lab.tasks.captioning.settings import Model as Captions
    from bayesrnn.lab.tasks.digits.task import MLP
    from bayesrnn.lab.tasks.sentiment.settings import Model as Rating
    from bayesrnn.lab.tasks.sentiment.task import RatingModel

    captioner = Captioner(6, 9, Captions(hidden=4, word_dropout=0.2, init=0.1)).eval()
    captioner.scale.fill_(1.0)
    called = task_class("captioning").signature(Fake("captioning", captioner))
    program = export.to_exported(called.model, called.inputs, dynamic_shapes=called.dynamic_shapes())
    features, words = torch.randn(2, 6), torch.randint(9, (7, 2))
    torch.testing.assert_close(program.module()(features, words), captioner(words, features=features))
    for task, model in (
        ("digits", MLP(8, dropout=0.5)),
        ("sentiment", RatingModel(10, Rating(cell="gru", embedding=4, hidden=4, word_dropout=0.5, output_dropout=0.1))),
    ):
        called = task_class(task).signature(Fake(task, model.eval()))
        program = export.to_exported(called.model, called.inputs, dynamic_shapes=called.dynamic_shapes())
        torch.testing.assert_close(program.module()(*called.inputs), model(*called.inputs))
        assert len(called.described()["outputs"]) == 1
    with pytest.raises(UserError, match="The task mine has no signature"):
        Task.signature(Fake("mine", nn.Linear(2, 2)))


def test_the_network_of_a_forecast_is_exported(tmp_path):
    result = invoke("train", "forecast-bbb", "--out", tmp_path / "run", "--device", "cpu", "epochs=1", "hidden=4",
                    "samples=2", "window=24")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "--pruned is not for forecast runs" in invoke("export", tmp_path / "run", "--pruned").stderr
    assert invoke("export", tmp_path / "run", "--format", "exported", "--out", tmp_path / "f.pt2").exit_code == 0
    about = json.loads((tmp_path / "f.pt2.json").read_text())
    inputs = [torch.randn([5 if size == "batch" else size for size in each["shape"]]) for each in about["inputs"]]
    model = open_run(tmp_path / "run", torch.device("cpu")).model.networks[0]
    torch.testing.assert_close(torch.export.load(tmp_path / "f.pt2").module()(*inputs), model(*inputs))


def test_the_networks_of_a_mixture_are_exported_as_weights(tmp_path):
    result = invoke("train", "forecast-mixture", "--out", tmp_path / "run", "--device", "cpu", "epochs=1", "hidden=4",
                    "components=2", "evaluate.samples=2", "window=24")  # fmt: skip
    assert result.exit_code == 0, result.output
    networks = dict(open_run(tmp_path / "run", torch.device("cpu")).model.networks.named_parameters())
    assert invoke("export", tmp_path / "run", "--out", tmp_path / "m.safetensors").exit_code == 0
    weights = load_file(tmp_path / "m.safetensors")
    assert weights.keys() == networks.keys()
    assert all(torch.equal(weights[name], p) for name, p in networks.items())
    result = invoke("export", tmp_path / "run", "--format", "onnx", "--out", tmp_path / "m.onnx")
    assert result.exit_code == 2
    assert "several networks, which are not one program; use --format torch" in result.output.replace("\n", " ")
