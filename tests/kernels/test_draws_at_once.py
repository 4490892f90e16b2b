"""Many draws of whole weights at once, as a GPU runs them, by Triton's interpreter on the CPU.

The interpreter must be chosen before Triton is first imported, so test_interpreter.py runs this file in a
process of its own.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytest.importorskip("triton", reason="Triton is not installed")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.draws import Draw
from bayesrnn.kernels.gpu import persistent
from bayesrnn.prediction import montecarlo
from bayesrnn.prediction import weights as weight_draws

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
H200 = {"processors": 132, "memory": 232448}


class Tagger(nn.Module):
    def __init__(self, rnn, words=11, size=4):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(words, size, padding_idx=2), rnn, nn.Linear(rnn.hidden_size, 3)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


if not INTERPRETED:

    @hypothesis.given(
        batch=st.integers(1, 128),
        hidden=st.integers(1, 4000),
        processors=st.integers(1, 200),
        memory=st.integers(16 * 1024, 240 * 1024),
    )
    def test_a_plan_of_draws_fits_wherever_one_of_sequences_does(batch, hidden, processors, memory):
        chip = {"processors": processors, "memory": memory}
        if persistent.plan(batch, hidden, gates=4, untied=False, **chip) is None:
            return
        laid = persistent.plan_of_draws(batch, hidden, **chip)
        assert laid.programs * laid.units >= hidden > (laid.programs - 1) * laid.units
        assert 1 <= laid.groups * laid.programs <= processors
        tiles = laid.forward
        assert tiles.padded >= hidden
        assert tiles.padded % tiles.block == 0
        assert 8 * laid.units * tiles.padded + 4 * laid.rows * tiles.block <= memory

    def test_six_draws_of_the_published_size_run_at_once_on_an_h200():
        assert persistent.plan_of_draws(1, 650, **H200).groups == 6

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
    @pytest.mark.parametrize(("hidden", "rows"), [(65, 1), (650, 1), (200, 33)])
    def test_draws_at_once_on_a_gpu(cell, hidden, rows):
        torch.manual_seed(0)
        net = Tagger(getattr(nn, cell)(4, hidden, 2))
        q = br.BayesByBackprop(net, init_sigma=0.05).cuda().eval()
        x = torch.randint(11, (9, rows), device="cuda")
        with torch.no_grad():
            found = montecarlo.batched_weight_draws(q, x, montecarlo.Rest(), [Draw(seed) for seed in range(15)])
            for k in (0, 7, 14):
                with br.draw(q, seed=k):
                    alone = q(x)
                assert float((found[k] - alone).norm() / alone.norm()) < 5e-3  # products of 10 bits of mantissa

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_all_draws_take_few_launches(monkeypatch):
        counted, real = [], persistent.launch
        monkeypatch.setattr(persistent, "launch", lambda *args, **kwargs: (counted.append(1), real(*args, **kwargs)))
        q = br.BayesByBackprop(Tagger(nn.LSTM(4, 650)), init_sigma=0.05).cuda().eval()
        br.predict(q, torch.randint(11, (9, 1), device="cuda"), samples=50, seed=1)
        groups = persistent.plan_of_draws(1, 650, **persistent.limits(torch.device("cuda"))).groups
        assert len(counted) <= 2 + 50 // groups + 1

else:
    from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior
    from bayesrnn.kernels.gpu import draws as many
    from bayesrnn.kernels.gpu import gaussian

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_weights_are_those_of_each_seed(dtype):
        generator = torch.Generator().manual_seed(0)
        shapes = ((5, 7), (8, 16), (3,), (40,))
        spec = DrawSpec(
            ("a", "b", "c", "d"), shapes, (0, 1, None, None), (2, None, None, None), dtype, torch.device("cpu"),
            KernelPrior("none"),
        )  # fmt: skip
        means, rhos = ([torch.randn(s, generator=generator).to(dtype) for s in shapes] for _ in range(2))
        seeds = torch.tensor([3, 2**62 + 1, 0])
        found = many.draw_many(seeds, spec, means, rhos)
        for k in range(3):
            alone = gaussian.draw(seeds[k : k + 1], spec, means, rhos, sums=False).weights
            assert_close([w[k] for w in found], list(alone), rtol=0, atol=0)
        assert torch.equal(found[0][0, 2], means[0][2])  # no noise on padding

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    @pytest.mark.parametrize(("sizes", "reverse"), [([1] * 2, False), ([3, 3, 2], True), ([33] * 2, False)])
    @pytest.mark.usefixtures("nan_allocations")
    def test_recurrences_with_weights_of_their_own(problem, cell, sizes, reverse, monkeypatch):
        monkeypatch.setattr(persistent, "limits", lambda device: {**H200, "processors": 2})  # two at a time
        kernel, reference = (kernels.implementation(cell, path) for path in ("persistent", "reference"))
        bias = reverse
        cases = [problem(cell, sizes, 9, reverse=reverse, bias=bias, seed=k) for k in range(3)]
        columns = list(zip(*(case.tensors for case in cases), strict=True))
        stacked = [None if c[0] is None else torch.stack([t.detach().float() for t in c]) for c in columns]
        shared = [None if t is None else 0 for t in stacked]

        def run(*tensors):
            return kernel(tensors[0].clone(), *tensors[1:], **cases[0].options)

        with torch.no_grad():
            found = torch.vmap(run, in_dims=tuple(shared))(*stacked)
            for k, case in enumerate(cases):
                for a, b in zip(found, case.run(reference), strict=True):
                    assert float((a[k].double() - b).norm() / b.norm()) < 1e-3

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    def test_a_whole_model(cell):
        torch.manual_seed(0)
        q = br.BayesByBackprop(Tagger(getattr(nn, cell)(4, 9)), init_sigma=0.1).eval()
        x = torch.randint(11, (2, 2))
        with torch.no_grad(), kernels.force("persistent"):
            assert weight_draws._path_for_vmap(q, x) == "persistent"
            found = montecarlo.batched_weight_draws(q, x, montecarlo.Rest(), [Draw(1), Draw(2)])
            with br.draw(q, seed=2):
                alone = q(x)
        assert float((found[1] - alone).norm() / alone.norm()) < 1e-3

    def test_layers_that_no_launch_has_go_another_way():
        q = br.BayesByBackprop(Tagger(nn.RNN(4, 9))).eval()
        with kernels.force("persistent"):
            assert weight_draws._path_for_vmap(q, torch.randint(11, (3, 2))) != "persistent"

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    def test_with_gradients_the_plain_path_runs(problem, cell):
        kernel = kernels.implementation(cell, "persistent")
        case = problem(cell, [2, 2], 9).to(torch.float32)
        tensors = [t for t in case.tensors if t is not None]
        stacked = [torch.stack([t.detach()] * 2) for t in tensors]

        def total(*tensors):
            given = iter(tensors)
            return kernel(*(None if t is None else next(given) for t in case.tensors), **case.options)[0].sum()

        found = torch.vmap(torch.func.grad(total))(*stacked)
        assert found.shape == stacked[0].shape
