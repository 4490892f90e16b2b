import json
import re
import subprocess
import sys

import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from bayesrnn.lab.cli import app

METHODS = ["plain", "variational", "bayes_by_backprop"]


def quickstart(*arguments):
    return CliRunner().invoke(app, ["quickstart", *map(str, arguments)])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("quickstart") / "run"
    result = quickstart("--fast", "--seed", 3, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.stdout


def test_prints_the_table_and_where_to_look(run):
    out, stdout = run
    for name in ("plain LSTM", "variational LSTM", "Bayes by Backprop"):
        assert name in stdout
    for heading in ("entropy gap", "can go", "seconds"):
        assert heading in stdout
    assert "a smoke run" in stdout
    assert str(out / "index.html") in stdout


def test_what_is_printed_is_what_is_recorded(run):
    out, stdout = run
    record = json.loads((out / "record.json").read_text())
    assert record["seed"] == 3
    assert record["fast"] is True
    assert {"bayesrnn", "python", "torch", "device", "threads"} <= set(record["environment"])
    page = (out / "index.html").read_text()
    for row in record["table"]:
        for key in ("train_end", "valid_end", "train_best", "valid_best", "test_best"):
            assert f"{row[key]:.1f}" in stdout
            assert f"{row[key]:.1f}" in page
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for method in METHODS:
        own = [line["valid"] for line in lines if line["model"] == method]
        assert own == record["curves"][method]["valid"]
        row = next(row for row in record["table"] if row["method"] == method)
        assert row["valid_end"] == own[-1]
        assert row["valid_best"] == min(own)


def test_the_folder_is_whole(run):
    out, _ = run
    assert {p.name for p in out.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "record.json",
        "vocabulary.txt",
        "curves.png",
        "index.html",
        *(f"{method}.safetensors" for method in METHODS),
    }
    words = (out / "vocabulary.txt").read_text().splitlines()
    with safe_open(out / "plain.safetensors", "pt") as weights:
        assert weights.get_slice("decoder.weight").get_shape()[0] == len(words)
    page = (out / "index.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)


def test_an_earlier_run_is_not_overwritten(run):
    out, _ = run
    before = (out / "record.json").read_bytes()
    result = quickstart("--fast", "--out", out)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "--force" in result.stderr
    assert result.stdout == ""
    assert (out / "record.json").read_bytes() == before


def test_a_killed_run_is_recognised(tmp_path):
    (tmp_path / ".unfinished").write_text("1\n")
    result = quickstart("--fast", "--out", tmp_path)
    assert result.exit_code == 2
    assert "unfinished run; start it over with --force" in result.stderr


@pytest.mark.slow
def test_as_a_command_piped_and_forced_gives_the_same_numbers(run, tmp_path):
    out, _ = run
    (tmp_path / ".unfinished").write_text("1\n")
    (tmp_path / "plain.safetensors").write_text("torn")
    code = "from bayesrnn.lab.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "quickstart", "--fast", "--seed", "3", "--out", str(tmp_path), "--force"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", result.stdout)
    assert len(result.stdout.splitlines()) < 60
    tables = [json.loads((folder / "record.json").read_text())["table"] for folder in (out, tmp_path)]
    for one, other in zip(*tables, strict=True):
        one.pop("seconds")
        other.pop("seconds")
        assert one == pytest.approx(other)


@pytest.mark.parametrize("arguments", [("--seed", "-1"), ("--seed", "x"), ("--nonsense",)])
def test_bad_options(arguments, tmp_path):
    result = quickstart(*arguments, "--out", tmp_path)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())
