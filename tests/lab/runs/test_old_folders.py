"""Run folders of every format there was, kept in ``folders/`` byte for byte: they open, and go on to the same end.

The first format, without a number and without checksums, was never released; its folder is the second's without them.
A new format of run folders needs a folder of its own here, which never changes afterwards:

    python tests/lab/runs/test_old_folders.py tests/lab/runs/folders/format-3
"""

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from bayesrnn.lab.engine import loop as engine
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.runs.folder import FORMAT, MARKER
from bayesrnn.lab.runs.opening import open_run

FOLDERS = Path(__file__).parent / "folders"
KEPT = ("config.json", "metrics.jsonl", "vocabulary.txt", "last.safetensors", "best.safetensors", MARKER)


class Stop(Exception):
    pass


class Until:
    """Ends the run at the report of so many steps."""

    def __init__(self, steps=None):
        self.steps = steps

    def say(self, text): ...
    def epoch(self, line, epochs): ...

    def step(self, progress):
        if self.steps is not None:
            self.steps -= 1
            if self.steps == 0:
                raise Stop


def train(out, steps=None, **options):
    """In the folder above, so that the text has the same name everywhere."""
    return launch("tiny.yaml", out=out, reporter=Until(steps), data="text", device="cpu", **options)


def figures(record):
    """What a run comes to: curves and figures, times and speeds aside."""
    curves = {key: values for key, values in record.curves.items() if "second" not in key}
    return {**curves, **{key: record.metrics[key] for key in ("valid_perplexity", "test_perplexity")}}


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_folder_of_an_earlier_version(number, tmp_path, monkeypatch):
    monkeypatch.chdir(FOLDERS)
    folder = shutil.copytree(FOLDERS / f"format-{number}", tmp_path / "run")
    assert json.loads((folder / "config.json").read_text()).get("format", 1) == number
    trained = open_run(folder, torch.device("cpu"))
    expected = json.loads((folder / "expected.json").read_text())
    task = trained.task(None, torch.device("cpu"))
    assert task.validate()["valid_perplexity"] == pytest.approx(expected["best_so_far"], rel=1e-5)
    found = figures(train(folder, resume=True))
    for key, values in expected["figures"].items():
        assert found[key] == pytest.approx(values, rel=1e-4), key  # another machine adds in another order
    assert not (folder / MARKER).exists()


def make(folder):
    """A folder of the present format, stopped in its last epoch, and what it must come to."""
    engine._LOOK_EVERY = 1
    if folder.exists():
        raise SystemExit(f"{folder} is there: a folder of a format never changes")
    whole = train(folder.with_suffix(".whole"))
    shutil.rmtree(folder.with_suffix(".whole"))
    with suppress(Stop):
        train(folder, steps=44)  # of 51
    task = open_run(folder, torch.device("cpu")).task(None, torch.device("cpu"))
    for name in {path.name for path in folder.iterdir()} - set(KEPT):
        (folder / name).unlink()
    about = {"best_so_far": task.validate()["valid_perplexity"], "figures": figures(whole)}
    (folder / "expected.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = Path(sys.argv[1]).resolve()
    os.chdir(FOLDERS)
    make(wanted)
