"""`bayesrnn bench`: rows only after their check, a record, and one line for what cannot be done."""

import json
import os
import stat

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab import baselines, bench
from bayesrnn.lab.cli import app
from bayesrnn.lab.tasks.language.model import LanguageModel

SMALL = ["bench", "--device", "cpu", "--size", "8x2x60", "--seconds", "0"]


def run(*arguments):
    return CliRunner().invoke(app, [*SMALL, *arguments])


def test_the_record_has_a_row_for_every_kind_and_says_where_it_was_made(tmp_path):
    out = tmp_path / "bench.json"
    result = run("--draws", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert [row["kind"] for row in record["training"]] == list(bench.KINDS)
    for row in record["training"]:
        assert row["hidden"] == 8
        assert row["ratio"] == pytest.approx(row["plain_milliseconds"] / row["milliseconds"])
        assert row["words_per_second"] == pytest.approx(1000 * 35 * 2 / row["milliseconds"])
        assert row["kind"].startswith("torch.nn") or row["error"] < 2e-3
    assert [row["draws"] for row in record["prediction"]] == [3, 3]
    assert record["versions"]["torch"] == torch.__version__
    assert record["device"].startswith("cpu")
    assert "Bayes by Backprop" in result.output
    again = run("--out", str(out))
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_a_wrong_kernel_is_not_timed(monkeypatch, tmp_path):
    from bayesrnn.nn import recurrence as layered

    real = layered._direction

    def wrong(module, x, state, noise, *rest):
        from bayesrnn import kernels

        out = real(module, x, state, noise, *rest)
        return out if kernels.forced() else (out[0] * 1.01, *out[1:])

    monkeypatch.setattr(layered, "_direction", wrong)
    out = tmp_path / "bench.json"
    result = run("--kind", "tied", "--kind", "plain", "--draws", "0", "--out", str(out))
    assert result.exit_code == 2
    assert "A correctness check failed" in result.output
    rows = {row["kind"]: row for row in json.loads(out.read_text())["training"]}
    assert "ratio" not in rows["variational, tied"]
    assert "check is red" in rows["variational, tied"]["failed"]
    assert "ratio" in rows["plain"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "8"], "'8' is not a size"),
        (["--size", "0x2"], "'0x2' is not a size"),
        (["--size", "8x2x2"], "'8x2x2' has too few words"),
        (["--size", "8-8x"], "'8-8x' is not a size"),
        (["--size", "8-0-8x2"], "'8-0-8x2' is not a size"),
        (["--size", "8x2@"], "'8x2@' is not a size"),
        (["--size", "8x2@0"], "'8x2@0' is not a size: write units x batch, such as 650x20"),
        (["--kind", "haste"], "haste cannot be timed here: it must be installed, and needs a GPU."),
        (["--size", "8x99999999999999999999"], "'8x99999999999999999999' is too large"),
        (["--size", "8x2@10000001"], "'8x2@10000001' is too large: a size has numbers up to 10,000,000."),
        (["--kind", "quantum"], 'There is no kind \'quantum\' to time; there are "torch.nn with dropout"; "plain"; '),
        (["--precision", "fp8"], "--precision must be one of fp32, tf32, bf16"),
        (["--device", "tpu"], "There is no device tpu"),
        (["--kind", ""], "There is no kind '' to time"),
        (["--kind", " "], "There is no kind ' ' to time"),
        (["--out", "/nowhere/at/all.json"], "is not a folder"),
        (["--out", "."], ". is not a regular file; choose another --out."),
        (["--out", ".", "--force"], ". is not a regular file; choose another --out."),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_what_is_no_file_is_left_alone_and_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "run", lambda *args: pytest.fail("it was measured"))
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        result = run("--out", str(place), "--force")
        assert result.exit_code == 2
        assert f"{place} is not a regular file; choose another --out." in " ".join(result.output.splitlines())
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_sizes_and_defaults():
    assert bench.parse_size("650X20") == bench.Size(650, 20)
    assert bench.parse_size("8x2x50").words == 50
    wide = bench.parse_size("400-1150-1150-400x20@70")
    assert wide == bench.Size(1150, 20, window=70, widths=(400, 1150, 1150, 400))
    assert wide.title == "model (400-1150-1150-400 units), batch 20, windows of 70"
    assert bench.parse_size("8x2x50@7") == bench.Size(8, 2, 50, 7)
    with pytest.raises(UserError):
        bench.parse_size("a x b")
    assert bench.default_sizes(torch.device("cuda"))[0].title == "medium (650 units), batch 20"
    assert len(bench.default_sizes(torch.device("cpu"), quick=True)) == 1


def test_layers_of_several_widths_and_windows_of_another_length(tmp_path):
    out = tmp_path / "bench.json"
    wide = ["--size", "6-8-8-7x2x60@9", "--seconds", "0", "--draws", "2", "--out", str(out)]
    result = CliRunner().invoke(app, ["bench", "--device", "cpu", *wide])
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert [row["kind"] for row in record["training"]] == list(bench.KINDS)
    assert {row["title"] for row in record["training"]} == {"model (6-8-8-7 units), batch 2, windows of 9"}
    for row in record["training"]:
        assert row["words_per_second"] == pytest.approx(1000 * 9 * 2 / row["milliseconds"])
        assert row["kind"] == bench.BASE or row["error"] < 2e-3
    size = bench.parse_size("6-8-8-7x2x60@9")
    ours = bench.recipe_of("plain", size, bench.Options("cpu")).model
    count = sum(p.numel() for p in LanguageModel(60, ours).parameters())
    assert count == sum(p.numel() for p in baselines.Plain(size).parameters())


@pytest.mark.parametrize("off", [1.0, 1.2])
def test_another_library_s_layer_is_checked_and_timed(monkeypatch, off):
    """A layer that is torch's own, or that times a factor, in place of one that needs a GPU."""

    class Theirs(nn.Module):
        def __init__(self, lstm):
            super().__init__()
            self.lstm = lstm

        def forward(self, x, state):
            out, (h, c) = self.lstm(x, state)
            return out * off, (h[0], c)

    monkeypatch.setitem(baselines.PEERS, "haste", lambda precision: lambda lstm, batch: Theirs(lstm))
    options = bench.Options("cpu", "fp32", 0.0, (bench.Size(8, 2, 60),), ("haste",))
    (row,) = bench.training(options, lambda text: None)
    assert (row["graph"], row["note"]) == (False, "it waits for streams of its own")
    assert ("ratio" in row) is (off == 1.0)
    assert ("failed" in row) is (off != 1.0)


def test_a_library_that_does_not_run_here_is_left_out(monkeypatch, tmp_path):
    def broken(lstm, batch):
        raise RuntimeError("no compiler\nand more")

    monkeypatch.setitem(baselines.PEERS, "haste", lambda precision: broken)
    monkeypatch.setattr(baselines, "installed_peers", lambda device: ["haste"])
    out = tmp_path / "bench.json"
    result = run("--kind", "haste", "--kind", "plain", "--draws", "0", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "haste: it does not run here: no compiler; not timed" in result.output
    rows = {row["kind"]: row for row in json.loads(out.read_text())["training"]}
    assert "ratio" in rows["plain"]
    assert "ratio" not in rows["haste"]


def test_other_libraries_are_rows_where_they_are_installed(monkeypatch):
    assert baselines.installed_peers(torch.device("cpu")) == []
    for there, wanted in ((None, []), (object(), ["FlashRNN", "haste"])):
        monkeypatch.setattr(baselines, "find_spec", lambda name, there=there: there)
        assert baselines.installed_peers(torch.device("cuda")) == wanted


def test_turns_are_shared_and_the_median_counts():
    order = []
    steps = {name: (lambda name=name: order.append(name)) for name in ("a", "b")}
    found = bench.take_turns(steps, 0.0, cuda=False)
    assert set(found) == {"a", "b"}
    assert order == ["a", "b"] * 6  # one to warm up, five to count


def test_rows_are_kept_as_they_come(monkeypatch, tmp_path):
    def stopped(options, say):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(bench, "prediction", stopped)
    out = tmp_path / "bench.json"
    assert run("--kind", "plain", "--draws", "3", "--out", str(out)).exit_code != 0
    record = json.loads(out.read_text())
    assert [row["kind"] for row in record["training"]] == ["plain"]
    assert record["prediction"] == []


@pytest.mark.parametrize("graph", [True, False])
def test_the_check_takes_the_path_of_the_graph_and_its_reference_does_not_care(monkeypatch, graph):
    from bayesrnn import kernels
    from bayesrnn.nn import recurrence as layered

    seen, real = set(), layered._direction

    def watched(*args):
        seen.add((kernels.forced(), kernels.is_recording()))
        return real(*args)

    monkeypatch.setattr(layered, "_direction", watched)
    options = bench.Options(device="cpu", precision="fp32")
    assert bench.check("variational, tied", bench.Size(8, 2, 60), options, graph=graph) < 2e-3
    assert seen == {(False, graph), (True, False)}


@pytest.mark.parametrize(("reason", "graph"), [("", True), ("the disk is round", False)])
def test_a_step_that_is_no_graph_is_not_checked_as_one(monkeypatch, reason, graph):
    asked, order = {}, []

    def check(kind, size, options, *, graph):
        order.append("check")
        asked[kind] = graph
        return 0.0

    def turns(steps, *args, **kwargs):
        order.append("time")
        return dict.fromkeys(steps, 1.0)

    monkeypatch.setattr(bench, "check", check)
    monkeypatch.setattr(bench, "plain_step", lambda *args, **kwargs: lambda: None)
    monkeypatch.setattr(bench, "engine_step", lambda *args: (lambda: None, reason))
    monkeypatch.setattr(bench, "take_turns", turns)
    options = bench.Options(device="cuda", sizes=(bench.Size(650, 512),), kinds=("plain",))
    (row,) = bench.training(options, lambda text: None)
    assert (asked, order) == ({"plain": graph}, ["check", "time"])
    assert row["graph"] is graph
    assert row.get("note", "") == reason
