"""Adding a posterior, a likelihood, a task or a kernel path works as the pages say: each is put outside the tree."""

import importlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels import dispatch
from bayesrnn.lab.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PACKAGE = "contributed"


def blocks(heading, language="python"):
    """The fenced blocks of one section."""
    (section,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def cookbook(page, language="python"):
    """The fenced blocks of a page of the cookbook."""
    text = (ROOT / "docs/cookbook" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package outside the tree, and a function that imports a module of it from its code."""
    folder = tmp_path / "site" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.chdir(tmp_path)

    def write(name, code):
        (folder / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        return importlib.import_module(f"{PACKAGE}.{name}")

    write.folder = folder
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def train(elbo, x, y, steps=30):
    optimiser = torch.optim.Adam(elbo.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        loss = elbo(elbo.model(x), y).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


class Net(nn.Module):
    def __init__(self, outputs=1):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, outputs)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def test_a_page_of_at_most_800_words():
    assert len(PAGE.split()) <= 800


def test_a_posterior(package):
    laplace = package("laplace", cookbook("new-posterior.md")[0]).LaplaceWeights
    torch.manual_seed(0)
    q = br.Bayesian(Net(), laplace)
    assert isinstance(q.posterior, br.Posterior)
    x = torch.randn(40, 5, 3)
    y = x.sum((1, 2))[:, None]
    elbo = br.ELBO(q, br.Gaussian(1.0), num_data=2000)
    losses = train(elbo, x, y, steps=60)
    assert losses[-1] < 0.9 * losses[0]

    expected = torch.zeros(())
    for name, mean in q.means.items():
        log_scale = q.posterior.log_scale[name.replace(".", "/")]
        assert log_scale.grad.all()
        found = torch.distributions.Laplace(mean, log_scale.exp())
        expected = expected + torch.distributions.kl_divergence(found, torch.distributions.Laplace(0.0, 1.0)).sum()
    torch.testing.assert_close(br.kl(q), expected)

    p = br.predict(q, x, samples=8, seed=0, likelihood=elbo.likelihood)
    low, high = p.interval(0.9)
    assert ((low < p.mean) & (p.mean < high)).all()
    assert (p.epistemic > 0).all()
    with br.draw(q, seed=1):
        assert torch.equal(q(x), q(x))
    assert type(q.mean_module()) is Net


def test_a_likelihood(package):
    likelihood = package("exponential", *blocks("Add a likelihood")).Exponential()
    torch.manual_seed(0)
    x = torch.randn(200, 5, 3)
    y = torch.distributions.Exponential(torch.exp(-x[:, -1, :1])).sample()
    model = br.BayesByBackprop(Net())
    losses = train(br.ELBO(model, likelihood, num_data=5000), x, y, steps=60)
    assert sum(losses[-10:]) < sum(losses[:10])

    output = torch.randn(7, 1)
    expected = torch.distributions.Exponential(torch.exp(-output[:, 0]))
    there = torch.rand(7)
    torch.testing.assert_close(likelihood.log_prob(output, there), expected.log_prob(there))
    torch.testing.assert_close(likelihood.cdf(output, there), expected.cdf(there))
    torch.testing.assert_close(likelihood.mean(output), expected.mean)
    torch.testing.assert_close(likelihood.variance(output), expected.variance)

    p = br.predict(model, x, samples=16, seed=0, likelihood=likelihood)
    low, high = p.interval(0.9)
    inside = (low <= y.squeeze(-1)) & (y.squeeze(-1) <= high)
    assert 0.75 < inside.float().mean() <= 1


@pytest.mark.usefixtures("new_packages")
def test_a_task(tmp_path, monkeypatch):
    """The files of the page, built by its own pyproject.toml into a wheel, which is unpacked."""
    folder, site = tmp_path / "project", tmp_path / "site"
    (folder / "waves/recipes").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(*cookbook("new-task.md", "toml"))
    (folder / "waves/__init__.py").touch()
    (folder / "waves/task.py").write_text(*cookbook("new-task.md"))
    (folder / "waves/recipes/waves-gru.yaml").write_text(*cookbook("new-task.md", "yaml"))
    build = "import hatchling.build; hatchling.build.build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=folder, check=True)
    zipfile.ZipFile(tmp_path / "waves-0.1.0-py3-none-any.whl").extractall(site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "waves-gru" in invoke("recipes")
    invoke("train", "waves-gru", "--out", "run", "--device", "cpu", "model.hidden=8")
    record = json.loads(Path("run/record.json").read_text())
    assert record["settings"]["task"] == "waves"
    assert "covered" in invoke("evaluate", "run", "--level", 0.8, "--samples", 4, "--device", "cpu")
    metrics = json.loads(Path("run/record.json").read_text())["metrics"]
    assert metrics["valid_rmse"] == pytest.approx(record["metrics"]["valid_rmse"])
    assert 0 <= metrics["covered"] <= 1
    invoke("report", "run", "--out", "page")
    assert "inside the interval" in Path("page/index.html").read_text()
    assert "<td>" in Path("page/index.html").read_text().partition("Coverage")[2]
    assert int(invoke("count-weights", "run")) > 0
    refused = CliRunner().invoke(app, ["evaluate", "run", "--level", "1.5", "--device", "cpu"])
    assert (refused.exit_code, "--level must be between 0 and 1" in refused.output) == (2, True)
    for name in ("waves", "waves.task"):
        del sys.modules[name]


def test_a_kernel_path(tmp_path, monkeypatch):
    from bayesrnn.kernels import rnn

    (tmp_path / "equal.py").write_text(*blocks("Add a kernel path"))
    monkeypatch.setattr(rnn, "__path__", [*rnn.__path__, str(tmp_path)])
    monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)
    dispatch.all_paths.cache_clear()
    try:
        assert "path 'equal'" not in kernels.explain("RNN").splitlines()[0]  # slower than the loop, so not by itself
        for nonlinearity in ("tanh", "relu"):
            for noise in ({"recurrent_dropout": 0.3}, {"recurrent_dropout": 0.3, "bidirectional": True}, {}):
                layer = br.RNN(3, 4, nonlinearity=nonlinearity, **noise).double()
                x = torch.randn(5, 2, 3, dtype=torch.float64)
                found = {path: outcome(layer, x, path) for path in ("equal", "reference")}
                torch.testing.assert_close(found["equal"], found["reference"])
        with kernels.force("equal"):
            assert "path 'equal' (kernels.force asks for it): equal lengths only" in kernels.explain("RNN")
            assert "not 'equal': the sequences differ in length" in kernels.explain("RNN", ragged=True)
    finally:
        sys.modules.pop("bayesrnn.kernels.rnn.equal", None)
        dispatch.all_paths.cache_clear()
    monkeypatch.undo()
    assert "equal" not in dispatch.path_names()


def outcome(layer, x, path):
    """Output, final state and gradients of one draw on one path."""
    inputs = x.clone().requires_grad_()
    with kernels.force(path), br.draw(layer, seed=1):
        out, h = layer(inputs)
        total = (out * torch.arange(out.numel()).view_as(out)).sum() + h.sum()
        return [out, h, *torch.autograd.grad(total, [inputs, *layer.parameters()])]
