"""Which path a kernel takes: the one table, what refuses and why, and the explanation in words."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from contextlib import nullcontext
from itertools import chain

import pytest
import torch
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.kernels import Case, dispatch, paths
from bayesrnn.lab.cli import app
from bayesrnn.lab.tasks.language.model import LanguageModel
from bayesrnn.lab.tasks.language.settings import Model
from bayesrnn.nn import recurrence as layered
from bayesrnn.nn import routing

NOISE = {"input_dropout": 0.3, "recurrent_dropout": 0.2}


@pytest.fixture(autouse=True)
def no_override(monkeypatch):
    monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)


@pytest.fixture
def with_cuda(monkeypatch):
    """As if torch saw a CUDA device and all modules were there; what a kernel itself refuses is tested elsewhere."""
    monkeypatch.setattr(paths, "needs_triton", lambda case, module: None if case.device == "cuda" else "no CUDA")
    found = dispatch.all_paths()
    changed = {
        kernel: [dataclasses.replace(r, refuses=lambda case: None) if r.name == "persistent" else r for r in rows]
        for kernel, rows in found.by_kernel.items()
    }
    monkeypatch.setattr(dispatch, "all_paths", lambda: found._replace(by_kernel=changed))


def test_every_function_of_the_table_is_there():
    for row in chain.from_iterable(dispatch.all_paths().by_kernel.values()):
        if not isinstance(row.function, str) or paths.missing(row.function.split(":")[0].rpartition(".")[2]) is None:
            assert callable(row.load())


def test_a_path_is_one_file_in_a_kernel_s_folder(tmp_path, monkeypatch):
    """Added from outside: nothing else is edited."""
    from bayesrnn.kernels import lstm

    (tmp_path / "quick.py").write_text(
        "from bayesrnn.kernels.dispatch import Path\n"
        "from bayesrnn.kernels.lstm import reference\n"
        "calls = []\n"
        "def lstm(*args, **options):\n"
        "    calls.append(options)\n"
        "    return reference.lstm(*args, **options)\n"
        "def refuses(case):\n"
        "    return 'it has no projection' if case.projection else None\n"
        "PATHS = (Path('quick', 'LSTM', lstm, 'a quick way', rank=5, refuses=refuses),)\n"
    )
    monkeypatch.setattr(lstm, "__path__", [*lstm.__path__, str(tmp_path)])
    dispatch.all_paths.cache_clear()
    try:
        assert kernels.path(name="LSTM") == "quick"
        assert "LSTM: path 'quick': a quick way." in kernels.explain("LSTM")
        assert "not 'quick': it has no projection." in kernels.explain("LSTM", projection=True)
        layer, x = br.LSTM(3, 4, **NOISE), torch.randn(5, 2, 3)
        with br.draw(layer, seed=1):
            found = layer(x)[0]
            assert sys.modules["bayesrnn.kernels.lstm.quick"].calls
            with kernels.force("reference"):
                torch.testing.assert_close(found, layer(x)[0])
        with kernels.force("quick"):
            assert kernels.path(name="GRU") in ("compiled", "loop")
    finally:
        sys.modules.pop("bayesrnn.kernels.lstm.quick", None)
        dispatch.all_paths.cache_clear()
    monkeypatch.undo()
    assert "quick" not in dispatch.path_names()


def test_the_fastest_path_that_does_not_refuse_is_taken(with_cuda):
    assert kernels.path("cuda", name="LSTM") == "persistent"
    assert kernels.path("cuda", name="gaussian") == "triton"
    assert kernels.path("cuda", name="update") == "triton"
    with kernels.force("cells"):
        assert kernels.path("cuda", name="LSTM") == "cells"
        assert kernels.path("cuda", name="LSTM", projection=True) == "loop"  # it has none, the next has
        assert kernels.path("cuda", name="LSTM", cell_mask=True) == "loop"
        assert kernels.path("cuda", name="gaussian") == "triton"
        assert kernels.path("cuda", name="RNN") == "loop"
        assert kernels.path("cpu", name="LSTM") in ("compiled", "loop")


def test_a_path_asked_for_is_never_passed_by_a_faster_one(with_cuda, monkeypatch):
    for path in ("loop", "reference"):
        with kernels.force(path):
            for name in ("LSTM", "GRU", "RNN", "input"):
                assert kernels.path("cuda", name=name) == path
    monkeypatch.setenv("BAYESRNN_KERNEL", "loop")
    assert kernels.path("cuda", name="LSTM") == "loop"
    with kernels.force("reference"):  # the block is nearer
        assert kernels.path("cuda", name="LSTM") == "reference"


def test_a_path_without_its_module_is_absent(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(paths, "missing", lambda module: "triton cannot be imported")
    assert kernels.path("cuda", name="LSTM") == "cells"
    assert kernels.path("cuda", name="gaussian") == "reference"
    assert "not 'triton': triton cannot be imported." in kernels.explain("gaussian", device="cuda")
    assert not kernels.able("triton", Case("gaussian", "cuda"))


def test_missing_modules_are_named():
    assert "there is no module bayesrnn.kernels.gpu.quantum" in str(paths.missing("quantum"))
    assert paths.missing("tiles") is None


def test_an_import_that_fails_once_is_tried_again(monkeypatch):
    """A module that is not installed stays missing; a failure of another kind may pass."""
    real = paths.import_module

    def broken(name):
        raise ImportError("the driver is busy", name="libcuda")

    monkeypatch.setattr(paths, "import_module", broken)
    assert paths.missing("tiles") == "libcuda cannot be imported"
    monkeypatch.setattr(paths, "import_module", real)
    assert paths.missing("tiles") is None


def test_whether_a_path_can_run_a_case_does_not_depend_on_what_was_asked_for():
    with kernels.force("reference"):
        assert kernels.able("loop", Case("LSTM"))
    assert not kernels.able("loop", Case("update"))
    assert not kernels.able("cells", Case("LSTM", "cpu"))
    with pytest.raises(ValueError, match="path must be one of"):
        kernels.able("quick", Case("LSTM"))


def test_unknown_kernels_are_refused():
    with pytest.raises(ValueError, match="there is no kernel 'TRANSFORMER'"):
        kernels.explain("TRANSFORMER")


@pytest.mark.parametrize(
    ("what", "facts", "words"),
    [
        (3, {}, "takes a module or the name of a kernel, got int"),
        (br.LSTM, {}, "takes a module or the name of a kernel, got type"),
        ("LSTM", {"dtype": "float32"}, "dtype must be a torch.dtype such as torch.float32, got 'float32'"),
        ("LSTM", {"units": 5}, "there is no 'units' to explain; there are device, dtype, autocast, batch, hidden"),
        (br.LSTM(2, 3), {"kernel": "GRU"}, "there is no 'kernel' to explain"),
        ("GRU", {"batch": 0}, "batch must be a whole number above 0, got 0"),
        ("GRU", {"hidden": "650"}, "hidden must be a whole number above 0, got '650'"),
        ("LSTM", {"steps": True}, "steps must be a whole number above 0, got True"),
        ("LSTM", {"recurrent_mask": "both"}, "recurrent_mask must be None, 'tied' or 'untied', got 'both'"),
    ],
)
def test_what_no_case_has_is_refused(what, facts, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        kernels.explain(what, **facts)


@pytest.mark.parametrize("name", ["fast", "Loop", "persistent "])
def test_a_wrong_name_in_the_environment_is_one_line(monkeypatch, name):
    monkeypatch.setenv("BAYESRNN_KERNEL", name)
    words = f"BAYESRNN_KERNEL must be one of persistent, cells, triton, compiled, loop, reference, not {name!r}."
    with pytest.raises(UserError, match=re.escape(words)):
        br.LSTM(2, 3, **NOISE)(torch.randn(4, 1, 2))
    result = CliRunner().invoke(app, ["bench", "--device", "cpu", "--quick", "--seconds", "0"])
    assert result.exit_code == 2
    assert words in result.output


def test_the_interpreter_serves_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not paths.interpreted()
    assert kernels.path("cpu", name="gaussian", dtype=torch.float64) == "reference"
    with kernels.force("triton"):
        assert paths.interpreted()
        found = kernels.path("cpu", name="gaussian", dtype=torch.float64)
        assert found == ("triton" if paths.missing("gaussian") is None else "reference")


def test_words_for_a_name():
    text = kernels.explain("LSTM", device="cpu", dtype=torch.float64)
    assert text.splitlines()[0].startswith("LSTM: path 'loop': torch operations")
    assert "  not 'persistent': it needs a CUDA device, and this is cpu." in text
    with kernels.force("reference"):
        text = kernels.explain("LSTM", device="cpu")
    assert "path 'reference' (kernels.force asks for it)" in text
    assert "  not 'loop': another path was asked for." in text


def test_words_for_the_override(monkeypatch):
    monkeypatch.setenv("BAYESRNN_KERNEL", "cells")
    text = kernels.explain("LSTM", device="cpu", dtype=torch.float64)
    assert "path 'loop' (BAYESRNN_KERNEL asks for 'cells')" in text


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (torch.nn.LSTM(3, 4), "torch's kernel for whole layers: torch's own layer"),
        (br.LSTM(3, 4), "torch's kernel for whole layers: there is no noise in the recurrence"),
        (br.LSTM(3, 4, **NOISE), "path 'loop'"),
        (br.LSTM(3, 4, **NOISE).eval(), "in eval mode it runs without noise"),
        (br.GRU(3, 4, **NOISE, share="batch"), "the batch shares its noise"),
        (br.LSTM(3, 4, cell_dropout=0.1), "path 'loop'"),
        (torch.nn.Linear(3, 4), "nothing here has more than one path"),
    ],
)
def test_words_for_a_module(layer, words):
    assert words in kernels.explain(layer.double())


def test_words_for_a_whole_model(with_cuda):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = br.LSTM(3, 4, **NOISE), torch.nn.GRU(4, 4)

    text = kernels.explain(Net(), device="cuda", batch=20)
    assert "a (LSTM): path 'persistent'" in text
    assert "b (GRU): cuDNN's kernel for whole layers: torch's own layer." in text
    q = br.BayesByBackprop(torch.nn.LSTM(3, 4))
    text = kernels.explain(q, device="cuda", batch=20)
    assert "the module (BayesByBackprop), drawn weights: path 'triton'" in text
    assert "module (LSTM): path 'persistent'" in text  # drawn weights, so that the layer is ours to run


def test_words_for_other_posteriors_and_for_sharpening():
    other = kernels.explain(br.DropConnect(torch.nn.Linear(3, 4), p=0.5))
    assert other == "the module (DropConnect), drawn weights: torch operations of MultipliedWeights itself."
    sharpened = kernels.explain(br.PosteriorSharpening(br.BayesByBackprop(torch.nn.Linear(3, 4))).double())
    assert sharpened.startswith("q (BayesByBackprop), drawn weights: path 'reference'")


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "input", "gaussian", "update"])
@pytest.mark.parametrize("path", dispatch.path_names())
def test_words_for_every_kernel_on_every_path(with_cuda, name, path):
    rows = dispatch.paths_of(name)
    row = next((r for r in rows if r.name == path), None)
    device = "cpu" if path == "compiled" else "cuda"
    with kernels.force(path):
        text = kernels.explain(name, device=device)
        if row is not None and row.refuses(Case(name, device)) is None:
            assert text.splitlines()[0] == f"{name}: path '{path}' (kernels.force asks for it): {row.what}."
        else:
            assert f"(kernels.force asks for '{path}')" in text.splitlines()[0]
        order = dispatch.path_names()
        later = [r for r in rows if order.index(r.name) < order.index(path)]
        assert text.count("another path was asked for") == len(later)


@pytest.fixture
def taken(monkeypatch):
    """The kernels that ran, with their paths."""
    seen, real = [], dispatch.Path.load

    def noted(self):
        seen.append((self.kernel, self.name))
        return real(self)

    monkeypatch.setattr(dispatch.Path, "load", noted)
    return seen


def test_what_explain_says_is_what_runs(taken):
    layer = br.LSTM(3, 4, **NOISE).double()
    for path in ("loop", "reference"):
        taken.clear()
        with kernels.force(path):
            layer(torch.randn(5, 2, 3, dtype=torch.float64))
            assert f"path '{path}'" in kernels.explain(layer)
        assert ("LSTM", path) in taken


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", ["ours", "shared noise", "torch's"])
def test_a_layer_that_could_take_torch_s_kernel_is_chosen_once(inside, kind, monkeypatch):
    """The recurrence runs by the very facts by which it was preferred to torch's kernel."""
    asked = []
    real = kernels.kernel

    def noted(name, device="cpu", **facts):
        asked.append((name, facts.get("plain"), facts.get("graph")))
        return real(name, device, **facts)

    monkeypatch.setattr(kernels, "kernel", noted)
    monkeypatch.setattr(layered, "beats_torch", lambda module, input: True)
    monkeypatch.setattr(routing, "_taken", lambda function, args: True)
    x = torch.randn(5, 2, 3)
    with kernels.recording() if inside else nullcontext():
        if kind == "torch's":
            with routing.FastRecurrence():
                torch.nn.LSTM(3, 4)(x)
        else:
            br.LSTM(3, 4, **({"weight_dropout": 0.3} if kind == "shared noise" else {}))(x)
    assert [fact for fact in asked if fact[0] == "LSTM"] == [("LSTM", True, inside)]
    asked.clear()
    br.LSTM(3, 4, recurrent_dropout=0.3)(x)  # torch's kernel has no such masks
    assert [fact for fact in asked if fact[0] == "LSTM"] == [("LSTM", False, False)]


def test_precision_is_read_whichever_switches_were_used():
    """torch's older switches raise an error once one of the newer was used; in a process of its own, as it lasts."""
    code = """
import torch, bayesrnn as br
from bayesrnn import kernels
assert not kernels.tf32(products=True) and kernels.tf32(products=False)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = False
assert kernels.tf32(products=True) and not kernels.tf32(products=False)
torch.backends.cudnn.allow_tf32 = True
torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.backends.cudnn.rnn.fp32_precision = "ieee"
assert kernels.tf32(products=True) and not kernels.tf32(products=False)
torch.backends.cudnn.rnn.fp32_precision = "tf32"
torch.backends.cuda.matmul.fp32_precision = "ieee"
assert not kernels.tf32(products=True) and kernels.tf32(products=False)
print(kernels.explain(br.LSTM(3, 650), device="cuda", batch=20, graph=True))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "LSTM" in done.stdout


def test_explain_speaks_of_the_moment():
    layer = br.LSTM(3, 650, recurrent_dropout=0.3).eval()
    assert "in eval mode it runs without noise" in kernels.explain(layer)
    with br.draw(layer, seed=1):
        assert "without noise" not in kernels.explain(layer)
    with br.mean(layer.train()):
        assert "at the posterior mean it runs without noise" in kernels.explain(layer)
    assert "cuDNN's kernel for whole layers" in kernels.explain(
        "LSTM", device="cuda", hidden=650, batch=9000, plain=True
    )
    model = LanguageModel(50, Model(hidden=8, layers=2))
    assert "there is no noise in the recurrence" in kernels.explain(model)  # not "torch's own layer"
    assert "torch's own layer" in kernels.explain(torch.nn.LSTM(3, 4))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"graph": "yes"}, "graph must be True or False, got 'yes'"),
        ({"plain": 3}, "plain must be True or False, got 3"),
        ({"autocast": "bf16"}, "autocast must be a torch.dtype"),
        ({"dtype": torch.int64}, "dtype must be one of floating point, got torch.int64"),
    ],
)
def test_explain_refuses_facts_of_the_wrong_kind(facts, words):
    with pytest.raises((TypeError, ValueError), match=words):
        kernels.explain("LSTM", **facts)


@pytest.mark.parametrize("path", ["loop", "reference"])
@pytest.mark.parametrize(
    "make", [lambda: LanguageModel(9, Model(hidden=4, layers=1)), lambda: br.BayesByBackprop(torch.nn.LSTM(3, 4))]
)
def test_a_block_reaches_torch_s_own_layers_inside_our_models(make, path, taken):
    model = make()
    x = torch.randint(9, (5, 2)) if isinstance(model, LanguageModel) else torch.randn(5, 2, 3)
    with br.draw(model, seed=1):
        expected = model(x)[0]
        taken.clear()
        with kernels.force(path):
            found = model(x)[0]
            assert f"path '{path}' (kernels.force asks for it)" in kernels.explain(model)
    assert ("LSTM", path) in taken
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
