"""A complete task in a package of its own, outside the tree: data, recipe, metric, report section and command.

Nothing of bayesrnn is edited for it; an entry point of the group ``bayesrnn.tasks`` is all that it declares.
"""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from bayesrnn.lab import registry
from bayesrnn.lab.cli import app

INIT = '''
"""The pitch of waves."""

COMMANDS = {"hum": f"{__name__}.commands:command"}
'''
TASK = """
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.lab.metrics import Metric
from bayesrnn.lab.recipes.schema import Count, Rate, Section, Sections
from bayesrnn.lab.tasks.base import Minibatches, Task, posterior
from wave_task import COMMANDS


class Model(Section):
    hidden: Count = 8
    recurrent_dropout: Rate = 0.0


class Data(Section):
    waves: Count = 60
    batch_size: Count = 20


class Network(nn.Module):
    def __init__(self, hidden, rate):
        super().__init__()
        self.rnn = br.GRU(1, hidden, batch_first=True, recurrent_dropout=rate)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Waves(Task):
    sections = Sections(model=Model, data=Data)
    metric, unit, default_data = "valid_cents", "waves", "made up"
    metrics = (Metric("valid_cents", "validation error in cents", "cents", paper_key=""),
               Metric("test_cents", "test error in cents", "cents"))
    commands = COMMANDS
    report_sections = ("wave_task.sections:tuning",)

    def __init__(self, recipe, data, device):
        super().__init__(recipe, data, device)
        source = torch.Generator().manual_seed(0)
        pitch = torch.rand(recipe.data.waves + 40, 1, generator=source)
        x = torch.sin((0.2 + pitch) * torch.arange(12)).unsqueeze(-1).to(device)
        pitch = pitch.to(device)
        self.valid, self.test = (x[:20], pitch[:20]), (x[20:40], pitch[20:40])
        self.minibatches = Minibatches(x[40:], pitch[40:], batch_size=recipe.data.batch_size)
        self.steps = self.minibatches.steps
        self.batch_size = self.examples_per_step = recipe.data.batch_size

    @staticmethod
    def build(recipe, files):
        return posterior(Network(recipe.model.hidden, recipe.model.recurrent_dropout), recipe.posterior)

    def attach(self, model):
        super().attach(model)
        likelihood = br.Gaussian(0.1, learn=False).to(self.device)
        self.elbo = br.ELBO(model, likelihood, num_data=self.minibatches.count, check_finite=False)

    def tensors(self):
        return self.minibatches.tensors()

    def start_epoch(self, epoch):
        self.minibatches.shuffle()

    def batch(self, position):
        return self.minibatches(position)

    def objective(self, batch, state):
        x, y = batch
        terms = self.elbo(self.model(x), y)
        return terms.loss, terms, state

    def _cents(self, part):
        x, y = part
        with torch.no_grad():
            return float(100 * (self.model(x) - y).abs().mean())

    def validate(self):
        return {"valid_cents": self._cents(self.valid)}

    def final(self):
        return {**self.validate(), "test_cents": self._cents(self.test)}

    def evaluate(self, *, samples=None, seed=1, say=print, octave: int = 1):
        return {**self.final(), "octave": octave, "tuning": [self._cents(self.valid), self._cents(self.test)]}
"""
SECTIONS = """
from bayesrnn.lab.report import html


def tuning(page, groups, analyses):
    found = {g.label: g.first.metrics.get("tuning") for g in groups}
    rows = [[label, *(f"{value:.1f}" for value in values)] for label, values in found.items() if values]
    if rows:
        page.add("tuning", "Tuning <fork>", html.wide(html.table(["run", "valid", "test"], rows)))
"""
COMMAND = '''
from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.lab.console.errors import one_line


@one_line
def command(run: Annotated[Path, typer.Argument(help="A run folder.")], times: int = 1) -> None:
    """Hum the pitch of a trained run."""
    import torch

    from bayesrnn.lab.runs.opening import check_task, open_run

    check_task(run, "waves")
    opened = open_run(run, torch.device("cpu"))
    typer.echo(f"hum {times} x {sum(p.numel() for p in opened.model.parameters())}")
'''
RECIPE = """
task: waves
description: the pitch of made-up waves
model: {hidden: 4}
train: {epochs: 2, optimizer: adam, lr: 0.01, clip: 1.0}
"""


@pytest.fixture
def package(tmp_path, monkeypatch, new_packages):
    """A folder on the path with the package and its entry point, as pip installs them."""
    folder = tmp_path / "site"
    files = {
        "wave_task/__init__.py": INIT,
        "wave_task/task.py": TASK,
        "wave_task/sections.py": SECTIONS,
        "wave_task/commands.py": COMMAND,
        "wave_task/recipes/waves-gru.yaml": RECIPE,
        "wave_task-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: wave_task\nVersion: 1.0\n",
        "wave_task-1.0.dist-info/entry_points.txt": "[bayesrnn.tasks]\nwaves = wave_task.task:Waves\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "wave_task"]:
        del sys.modules[name]


def invoke(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_task_from_another_package(package, tmp_path):
    run = tmp_path / "run"
    assert "waves-gru" in invoke("recipes")
    invoke("train", "waves-gru", "--out", run, "--device", "cpu")
    record = json.loads((run / "record.json").read_text())
    assert record["settings"]["task"] == "waves"
    assert record["metrics"]["test_cents"] > 0

    assert "octave" in invoke("evaluate", run, "--octave", 2, "--device", "cpu")
    assert json.loads((run / "record.json").read_text())["metrics"]["octave"] == 2

    invoke("report", run, "--out", tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text()
    assert "Tuning &lt;fork&gt;" in page
    assert "validation error in cents" in page

    invoke("sweep", "waves-gru", "--grid", "train.lr=0.01,0.02", "--out", tmp_path / "sweep", "--device", "cpu")
    found = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [trial["value"] > 0 for trial in found["trials"]] == [True, True]

    assert invoke("hum", run, "--times", 3).startswith("hum 3 x ")
    assert "Hum the pitch of a trained run." in invoke("--help")


def test_commands_of_other_packages_are_imported_only_when_asked_for(package):
    """A command of this package starts without importing the tasks of others."""
    code = (
        "import sys; sys.argv = ['bayesrnn', 'recipes', '--help']\n"
        "from bayesrnn.lab.cli import main\n"
        "try: main()\n"
        "finally: assert not {'wave_task.task', 'wave_task.commands', 'torch'} & set(sys.modules)"
    )
    path = [str(package), *sys.path]
    program = [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{code}"]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("wave_task/task.py", "import torchh\n", "No module named 'torchh'"),
        (
            "wave_task/__init__.py",
            'COMMANDS = {"hum": "wave_task.nosuch:command"}\n',
            "No module named 'wave_task.nosuch'",
        ),
        ("wave_task/__init__.py", "1 / 0\n", "division by zero"),
    ],
)
def test_a_broken_package_breaks_nothing_else(package, file, text, reason):
    (package / file).write_text(text)
    registry._warn.cache_clear()
    told = "recipes" if file.endswith("task.py") else "--help"  # whichever imports the file first
    for words in (["--help"], ["recipes"], ["recipes", "brnn-medium"]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "brnn-medium" in result.stdout or "evaluate" in result.stdout
        if words == [told]:
            assert f"(wave_task.task:Waves) cannot be loaded: {reason}" in result.stderr
        assert "pip install" not in result.stderr


def test_a_bad_recipe_of_a_package_hides_no_other(package):
    (package / "wave_task/recipes/other.yaml").write_text("task: wave\n")
    result = CliRunner().invoke(app, ["recipes"])
    assert result.exit_code == 0
    assert "waves-gru" in result.stdout
    assert "other.yaml: There is no task wave; did you mean waves?" in result.stderr
