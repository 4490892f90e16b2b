"""The programs in benchmarks/ say in one line what they cannot do, before they measure anything."""

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

from bayesrnn import kernels
from bayesrnn.errors import UserError
from bayesrnn.lab.recipes import load, override

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TINY = ["hidden=8", "batch_size=2", "window=5"]


@pytest.fixture
def program(monkeypatch):
    """A program of the folder, as a module; its neighbours can be imported by it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("gradients", "comparison", "recurrent", "gaussian", "cpu", "distributed", "kernel_times"):
        sys.modules.pop(name, None)


@pytest.fixture
def refused(program, monkeypatch, capsys):
    """The last line of a program that ends with status 2 and prints nothing else."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            program(name).main()
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (2, "")
        return err.splitlines()[-1]

    return run


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["recurrent", "gaussian", "kernel_times brnn-medium"])
def test_no_gpu(refused, name):
    pytest.importorskip("triton")
    assert refused(*name.split()).endswith("this measures on a GPU, and torch sees no CUDA device here")


def test_a_record_has_a_folder_before_it_is_measured(refused, tmp_path):
    line = refused("cpu", "--out", tmp_path / "none" / "cpu.json")
    assert line.endswith("none is not a folder; make it first, or choose another --out.")


@pytest.mark.parametrize("name", ["recurrent", "cpu", "distributed"])
def test_a_record_is_replaced_only_if_that_is_wanted(program, monkeypatch, capsys, tmp_path, name):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # before anything is measured on it
    (tmp_path / "record.json").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    module = program(name)
    for given, message in (
        (["record.json"], "record.json exists already; replace it with --force, or choose another --out."),
        (["pipe", "--force"], "pipe is not a regular file; choose another --out."),
        (["none/record.json"], "none is not a folder; make it first, or choose another --out."),
    ):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(tmp_path / given[0]), *given[1:]])
        with pytest.raises(SystemExit):
            module.main()
        assert message in capsys.readouterr().err
    assert (tmp_path / "record.json").read_text() == "mine"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(("recipe", "cudnn"), [("variational-tied-medium", False), ("brnn-medium", True)])
def test_gradients_are_named_after_what_ran(program, monkeypatch, text_folder, recipe, cudnn):
    gradients = program("gradients")
    task = gradients.made(override(load(recipe), TINY), str(text_folder), torch.device("cpu"))
    with pytest.raises(UserError, match=r"'one launch' is not what runs on cpu under this name: .*rnn .LSTM.: "):
        gradients.explained(task)
    # On a GPU these are the words; there a layer may also be too large for one launch.
    words = {"persistent": "rnn (LSTM): path 'persistent': x.", "cells": "rnn (LSTM): path 'cells': x.\n  not 'x'."}
    words["triton"] = "rnn (LSTM): cuDNN's kernel for whole layers: x."
    monkeypatch.setattr(kernels, "explain", lambda *args, **facts: words[kernels.asked()[0]])
    found = {"one launch": words["persistent"], "step by step": words["cells"]}
    assert gradients.explained(task) == (found | {"cuDNN": words["triton"]} if cudnn else found)
    assert kernels.asked() is None
    words["persistent"] = words["cells"]
    with pytest.raises(UserError, match="'one launch' is not what runs"):
        gradients.explained(task)


def test_gradients_refuse_a_device_whose_paths_have_other_names(refused, text_folder, tmp_path):
    words = ["--data", text_folder, "--device", "cpu", "--only", "brnn-200", "--set", *TINY, "--out", tmp_path]
    assert "'one launch' is not what runs on cpu" in refused("gradients", *words)
    (tmp_path / "brnn-200.json").write_text("mine")
    assert refused("gradients", *words).endswith("or choose another --out.")


@pytest.fixture
def paths(program, monkeypatch):
    """The program with paths of a CPU in place of a GPU's."""
    gradients = program("gradients")
    ways = {"exact": "loop", "one launch": "compiled", "step by step": "reference"}
    monkeypatch.setattr(gradients, "PATHS", ways)
    monkeypatch.setattr(gradients, "RUNS", {name: (f"path '{way}'",) for name, way in ways.items() if name != "exact"})
    return gradients


@pytest.mark.parametrize("recipe", ["variational-tied-medium", "brnn-medium"])
def test_gradients_of_all_paths_agree(paths, monkeypatch, text_folder, recipe):
    task = paths.made(override(load(recipe), TINY), str(text_folder), torch.device("cpu"))
    for change in (lambda task: None, paths.narrow):
        change(task)
        found = paths.compare(task, 3)
        assert found.keys() == paths.GROUPS.keys()
        for ways in found.values():
            assert ways.keys() == {"one launch", "step by step"}
            for line in ways.values():
                assert 0 <= line["one_window"] <= line["worst_window"] < 1e-5
                assert max(abs(line["shrink"]), abs(line["along"])) < 1e-5
    work = paths.Gradient.work

    def shorter(self):
        work(self)
        if self.name == "one launch":
            self.flat.mul_(0.99)

    monkeypatch.setattr(paths.Gradient, "work", shorter)
    wrong = paths.compare(task, 3)["recurrent"]["one launch"]
    for key in ("shrink", "small_shrink", "along"):
        assert wrong[key] == pytest.approx(-0.01, rel=1e-3)
    assert wrong["worst_window"] == pytest.approx(0.01, rel=1e-3)
    assert wrong["shrink_error"] < 1e-5


def test_training_goes_on_alike_on_all_paths(paths, text_folder):
    task = paths.made(override(load("brnn-medium"), TINY), str(text_folder), torch.device("cpu"))
    before = [p.detach().clone() for p in task.model.parameters()]
    found = paths.continued(task, 2)
    assert found.keys() == {"one launch"}
    assert all(abs(value) < 1e-2 for key in ("train_each", "valid_each") for value in found["one launch"][key])
    assert found["one launch"]["train_low"] <= found["one launch"]["train_percent"] <= found["one launch"]["train_high"]
    assert all(torch.equal(p, old) for p, old in zip(task.model.parameters(), before, strict=True))


def test_figures_of_noise_find_what_is_wrong(program):
    gradients = program("gradients")
    torch.manual_seed(0)
    draw = gradients.drawn(torch.device("cpu"), 200, 100)
    sound = gradients.noise_figures(draw, 4)
    assert sound["numbers"] == 4 * 25_000
    assert all(abs(value) < 5 for key, value in sound.items() if key != "numbers")
    held = draw()
    repeated = gradients.noise_figures(lambda: held, 4)
    assert repeated["between_steps"] > 100
    narrow = gradients.noise_figures(lambda: [0.9 * part for part in draw()], 4)
    assert narrow["variance"] < -20
    assert narrow["kolmogorov_largest"] > 2
    masks = gradients.mask_figures(torch.device("cpu"), count=100_000)
    assert all(abs(value) < 5 for row in masks.values() for value in row.values())


@pytest.fixture
def cpu(program):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield program("cpu")
    torch.set_num_threads(before)


def test_rows_of_every_cell_on_a_cpu(cpu, capsys):
    rows = list(cpu.training(0.0, ["LSTM", "GRU", "RNN"], [8], [2, 3]))
    assert [(row["cell"], row["model"], row["batch"]) for row in rows] == [
        ("LSTM", "layers", 2), ("LSTM", "layers", 3), ("LSTM", "language model", 2), ("LSTM", "language model", 3),
        ("GRU", "layers", 2), ("GRU", "layers", 3), ("RNN", "layers", 2), ("RNN", "layers", 3),
    ]  # fmt: skip
    ratios = [set(row) - {"cell", "model", "hidden", "batch", "plain_words_per_second"} for row in rows[::2]]
    assert ratios == [
        {"none", "tied", "untied", "bbb"}, {"tied", "untied", "bbb"}, {"none", "tied"}, {"none", "tied"}
    ]  # fmt: skip
    assert all(value > 0 for row in rows for value in row.values() if isinstance(value, float))
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("kind", ["none", "tied"])
def test_no_row_for_a_layer_that_is_wrong(cpu, monkeypatch, cell, kind):
    import bayesrnn as br

    layer = getattr(br, cell)
    real = layer.forward

    def wrong(self, x, state=None):
        out, after = real(self, x, state)
        return (out if kernels.forced() and kernels.asked()[0] == "reference" else out * 1.01), after

    cpu.check(kind, 8, 2, cell)
    monkeypatch.setattr(layer, "forward", wrong)
    with pytest.raises(AssertionError):
        cpu.check(kind, 8, 2, cell)


def test_kernels_are_named_by_their_functions_and_may_overlap(program):
    times = program("kernel_times")
    assert times.short("void at::native::(anonymous namespace)::_kernel<float, 4>(int)") == "_kernel"
    copy = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIterator&)>(int)"
    assert times.short(copy) == "elementwise_kernel direct_copy_kernel_cuda"
    assert times.covered([(5, 7), (0, 2), (1, 3), (1, 2)]) == 5
