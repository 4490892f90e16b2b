"""Autocast in bfloat16 on a GPU: recurrences still run in one launch, and training follows that in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.kernels.gpu import persistent
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language import task as language

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture
def launches(monkeypatch):
    """One entry for every launch of all steps of a layer."""
    seen, real = [], persistent.launch

    def counted(*args, **kwargs):
        seen.append(args[0])
        return real(*args, **kwargs)

    monkeypatch.setattr(persistent, "launch", counted)
    return seen


class Net(nn.Module):
    def __init__(self, kind, words=50, size=40):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(words, size), getattr(nn, kind)(size, size, 2), nn.Linear(size, 7)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_drawn_weights_in_bfloat16_run_in_one_launch(kind, launches):
    torch.manual_seed(0)
    q = br.BayesByBackprop(Net(kind), prior=br.ScaleMixture(0.25, 0.4, 0.01), init_sigma=0.05).cuda()
    x = torch.randint(50, (9, 5), device="cuda")
    outcomes = []
    for lower in (True, False):
        q.zero_grad()
        launches.clear()
        with br.draw(q, seed=1), torch.autocast("cuda", torch.bfloat16, enabled=lower):
            out = q(x)
        (out.float().square().mean() + 1e-4 * br.kl(q)).backward()
        assert len(launches) == 4  # two layers, forward and backward
        outcomes.append([out.detach().float(), *(p.grad for p in q.parameters())])
    for a, b in zip(*outcomes, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert float((a - b).norm()) <= 5e-2 * float(b.norm())


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("inputs", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_layers_with_and_without_noise_run_in_one_launch(kind, inputs, rate, launches):
    torch.manual_seed(0)
    layer = getattr(br, kind)(33, 40, input_dropout=rate, recurrent_dropout=rate).cuda()
    x = torch.randn(9, 5, 33, device="cuda").bfloat16().float()
    outcomes = []
    for lower in (True, False):
        layer.zero_grad()
        launches.clear()
        with br.draw(layer, seed=1), torch.autocast("cuda", torch.bfloat16, enabled=lower):
            out, _ = layer(x.to(inputs) if lower else x)
        out.square().mean().backward()
        assert len(launches) == 2
        outcomes.append([out.detach(), *(p.grad for p in layer.parameters())])
    for a, b in zip(*outcomes, strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert float((a - b).norm()) <= 3e-2 * float(b.norm())


@pytest.mark.parametrize(
    "name",
    ["unregularised-medium", "zaremba-medium", "variational-tied-medium", "brnn-medium", "brnn-sharpened-medium"],
)
def test_training_in_bfloat16_follows_training_in_float32(name, tmp_path, launches):
    words = torch.randint(10, (400,), generator=torch.Generator().manual_seed(1)).tolist()
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" ".join(f"w{word}" for word in words))
    losses = []
    for precision in ("bf16", "tf32"):
        launches.clear()
        recipe = override(load(name), ["hidden=40", "batch_size=4", "window=8", f"precision={precision}"])
        task = language.Language(recipe, str(tmp_path), torch.device("cuda"))
        torch.manual_seed(0)
        task.attach(task.build(recipe, task.files()).cuda().train())
        step = Step(task, recipe.train)
        assert step.graph is not None, step.reason
        assert step.bf16 is (precision == "bf16")
        assert launches
        step.lr.fill_(0.1)
        torch.manual_seed(1)
        for _ in range(8):
            step()
        totals = step.read_totals()
        assert all(p.dtype == torch.float32 for p in step.params)
        losses.append((totals["nll"], totals["gradient_norm"]))
    (nll, norm), (wanted, wanted_norm) = losses
    assert nll == pytest.approx(wanted, rel=2e-2)
    assert norm == pytest.approx(wanted_norm, rel=0.1)
