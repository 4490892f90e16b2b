"""The recurrences in one launch, run by Triton's interpreter on the CPU, against the plain ones in float64.

The interpreter has no barrier over programs: there each step is a launch of its own. It must be chosen before Triton
is first imported: test_interpreter.py runs this file in a process of its own.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("triton", reason="Triton is not installed")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import strategies as st

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels import paths
from bayesrnn.kernels.gpu import persistent
from tests.kernels.rounding import shrink

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
H200 = {"processors": 132, "memory": 232448}
GATES = {"LSTM": 4, "GRU": 3}

if not INTERPRETED:

    @pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels/test_gpu_persistent.py runs them on the GPU")
    @hypothesis.given(
        batch=st.integers(1, 128),
        hidden=st.integers(1, 4000),
        gates=st.sampled_from([3, 4]),
        untied=st.booleans(),
        processors=st.integers(1, 200),
        memory=st.integers(16 * 1024, 240 * 1024),
    )
    def test_a_plan_fits_on_the_chip_and_covers_the_layer(batch, hidden, gates, untied, processors, memory):
        laid = persistent.plan(batch, hidden, gates=gates, untied=untied, processors=processors, memory=memory)
        if laid is None:
            units = max(8, 1 << (-(-hidden // processors) - 1).bit_length())
            columns = -(-hidden // 32) * 32
            # four gates of 16 bits in the smallest blocks, and two blocks of 32 columns of 32 rows of four gates in use
            assert 8 * units * columns + 2 * 32 * 256 > memory
            return
        assert laid.programs * laid.units >= hidden > (laid.programs - 1) * laid.units
        assert 1 <= laid.groups * laid.programs <= processors
        assert laid.groups * laid.rows < batch + laid.rows  # no group without sequences
        piece = hidden if untied else gates * hidden / 4
        for tiles, length, row_bytes in (
            (laid.forward, hidden, (8 if untied else 2) * laid.rows),
            (laid.backward, piece, 8 * laid.rows),
        ):
            assert tiles.padded >= length
            assert tiles.padded % tiles.block == 0
            assert 1 <= tiles.ahead <= tiles.padded // tiles.block
            assert 2 * 4 * laid.units * tiles.padded + 2 * row_bytes * tiles.block <= memory
            assert tiles.ahead * row_bytes * tiles.block <= 96 * 4 * 32 * tiles.warps  # of 255 registers a thread

    @pytest.mark.parametrize(("hidden", "gates", "untied"), [(650, 4, False), (1500, 4, True), (1500, 3, True)])
    def test_published_sizes_fit_on_one_h200(hidden, gates, untied):
        assert persistent.plan(20, hidden, gates=gates, untied=untied, **H200) is not None

    @pytest.mark.parametrize("name", ["LSTM", "GRU"])
    def test_what_it_refuses_and_why(name, monkeypatch):
        def why(**facts):
            given = {"dtype": torch.float32, "batch": 20, "hidden": 650, "device": torch.device("cuda"), **facts}
            return persistent.supported(gates=GATES[name], **given)

        assert why(device=torch.device("cpu")) == "it needs a CUDA device"
        monkeypatch.setattr(persistent, "limits", lambda device: H200)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        assert why() is None
        assert why(dtype=torch.bfloat16) == "it takes and gives float32, not torch.bfloat16"
        assert why(projection=True) == "it has no projections"
        assert why(batch=1000) is None
        assert why(hidden=4000) == "the recurrent weights of 4000 units do not fit on this chip"
        assert why(rows=2**31 // (650 * GATES[name])) is None
        assert "32 bits" in why(rows=2**31 // (650 * GATES[name]) + 1)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        assert "allow_tf32 forbids" in why()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
        assert why() == "it needs compute capability 8.0 or newer"

    def test_a_layer_in_one_launch_is_explained_so(monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(persistent, "limits", lambda device: H200)
        monkeypatch.delenv("BAYESRNN_KERNEL", raising=False)
        for layer in (br.GRU(3, 650), br.GRU(3, 650, recurrent_dropout=0.2, tied=False), br.LSTM(3, 650)):
            assert "path 'persistent'" in kernels.explain(layer, device="cuda", batch=20)
            assert "not 'persistent': of 400 sequences" in kernels.explain(
                layer.mode, device="cuda", batch=400, hidden=650
            )
        assert "path 'persistent'" not in kernels.explain(br.RNN(3, 650), device="cuda", batch=20)

        def why(layer, batch):
            return kernels.explain(layer, device="cuda", batch=batch)

        plain, noisy = br.LSTM(3, 650), br.LSTM(3, 650, recurrent_dropout=0.2)  # cuDNN or single steps can run them
        assert "path 'persistent'" in why(plain, 256)
        assert "above 256 cuDNN's kernel is faster" in why(plain, 257)
        assert why(plain, 257).startswith("the module (LSTM): cuDNN's kernel for whole layers: there is no noise")
        assert "path 'persistent'" in why(noisy, 192)
        assert "path 'cells'" in why(noisy, 193)
        assert "above 192 single steps are faster" in why(noisy, 193)
        assert "above 512 cuDNN's kernel is faster" in why(br.LSTM(3, 200), 513)
        assert "path 'persistent'" in why(br.LSTM(3, 200, recurrent_dropout=0.2), 960)
        assert "above 32 single steps are faster" in why(br.LSTM(3, 1500, recurrent_dropout=0.2), 33)
        assert "above 96 single steps are faster" in why(br.LSTM(3, 1500, recurrent_dropout=0.2, tied=False), 97)
        small = br.GRU(3, 65, recurrent_dropout=0.2)  # in 14 groups: 9 programs of 8 units each, of 132 processors
        assert "path 'persistent'" in kernels.explain(small, device="cuda", batch=400)
        assert "of 20000 sequences 448 fit on the chip at a time" in kernels.explain(small, device="cuda", batch=20_000)
        monkeypatch.setattr(paths, "tf32", lambda *, products: True)
        recorded = kernels.explain(plain, device="cuda", batch=257, graph=True)  # many launches cost little there
        assert "path 'cells'" in recorded
        assert "above 192 single steps are faster" in recorded
        assert "path 'persistent'" in kernels.explain(plain, device="cuda", batch=192, graph=True)
        for layer, facts in (
            (br.LSTM(3, 400), {"batch": 2000}),  # not measured
            (br.GRU(3, 650), {"batch": 600}),
            (plain, {"batch": 257, "autocast": torch.bfloat16}),
        ):
            text = kernels.explain(layer, device="cuda", graph=True, **facts)
            assert "cuDNN's kernel for whole layers: there is no noise" in text
        monkeypatch.setattr(paths, "tf32", lambda *, products: not products)
        assert "cuDNN's kernel for whole" in kernels.explain(plain, device="cuda", batch=257, graph=True)
        with kernels.recording():
            assert "cuDNN's kernel for whole" in why(plain, 257)
            monkeypatch.setattr(paths, "tf32", lambda *, products: True)
            assert "path 'cells'" in why(plain, 257)
            assert "path 'cells'" in why(br.BayesByBackprop(torch.nn.LSTM(3, 650)), 257)
        monkeypatch.setenv("BAYESRNN_KERNEL", "cells")
        assert "path 'cells' (BAYESRNN" in why(plain, 20)
        monkeypatch.setenv("BAYESRNN_KERNEL", "triton")
        assert "cuDNN's kernel for whole layers" in why(plain, 20)
        monkeypatch.setenv("BAYESRNN_KERNEL", "persistent")  # slower, but asked for
        assert "path 'persistent' (BAYESRNN" in kernels.explain(small, device="cuda", batch=20_000)

else:
    from bayesrnn.kernels.gpu import gru as gru_triton
    from bayesrnn.kernels.gpu import lstm as lstm_triton
    from bayesrnn.kernels.gru import reference as gru_reference
    from bayesrnn.kernels.lstm import reference as lstm_reference

    REFERENCE = {"LSTM": lstm_reference.lstm, "GRU": gru_reference.gru}
    KERNEL = {"LSTM": lstm_triton.lstm, "GRU": gru_triton.gru}
    RAGGED = [5, 5, 3, 1]
    CASES = [  # cell, batch sizes, units, masks, reverse, processors: sizes that cost much for one of the cells
        *((cell, [1], 9, "none", False, 4) for cell in GATES),
        *((cell, [2] * 2, 1, "untied", False, 1) for cell in GATES),
        ("LSTM", [1] * 5, 9, "untied", True, 4),
        ("GRU", [3] * 5, 9, "tied", False, 4),
        ("LSTM", [3] * 2, 65, "tied", False, 9),
        ("GRU", [3], 65, "untied", False, 4),
        ("GRU", [20] * 2, 9, "none", True, 4),
        ("LSTM", [33] * 2, 9, "untied", False, 2),  # one group takes two blocks of rows
        *((cell, [33] * 2, 9, "tied", False, 4) for cell in GATES),  # two groups
        ("GRU", [33, 32, 20, 2], 9, "tied", True, 8),
        *((cell, RAGGED, 9, "none", False, 4) for cell in GATES),
        *((cell, RAGGED, 9, "tied", True, 4) for cell in GATES),
        ("GRU", RAGGED, 9, "untied", False, 4),
        ("LSTM", RAGGED, 9, "untied", True, 4),
    ]

    @pytest.fixture
    def processors(monkeypatch):
        def set_to(count):
            monkeypatch.setattr(persistent, "limits", lambda device: {**H200, "processors": count})

        return set_to

    def largest_error(found, expected):
        """Of all outputs and gradients, each relative to its own size."""
        pairs = [(a.detach().double(), b.detach()) for a, b in zip(found, expected, strict=True)]
        assert all(a.isfinite().all() for a, _ in pairs)
        return max(float((a - b).norm() / b.norm()) for a, b in pairs)

    @pytest.mark.parametrize(("cell", "sizes", "hidden", "masks", "reverse", "count"), CASES)
    @pytest.mark.usefixtures("nan_allocations")
    def test_outputs_and_gradients_are_the_reference_s(problem, processors, cell, sizes, hidden, masks, reverse, count):
        processors(count)
        odd = len(sizes) % 2 == 1  # half of the cases with what only one of the cells has
        case = problem(cell, sizes, hidden, masks=masks, reverse=reverse, bias=odd, cell_mask=odd and cell == "LSTM")
        found = case.to(torch.float32).outcome(KERNEL[cell])
        assert largest_error(found, case.outcome(REFERENCE[cell])) < 1e-3  # 16 bits, 10 of them mantissa: 2^-11 each

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    def test_gradients_of_any_size(problem, cell):
        case = problem(cell, [3, 2], 9, masks="tied")
        kernel, float32, outputs = KERNEL[cell], case.to(torch.float32), 3 if cell == "LSTM" else 2
        plain = float32.outcome(kernel)
        for power in (-60, 30):  # a power of two is taken out before the products, and put back after them
            scaled = float32.outcome(kernel, scale=2.0**power)
            assert_close([g / 2.0**power for g in scaled[outputs:]], plain[outputs:], rtol=0, atol=0)
        for scale in (1e-12, 1e6):
            expected = case.outcome(REFERENCE[cell], scale=scale)
            assert largest_error(float32.outcome(kernel, scale=scale), expected) < 1e-3

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    def test_only_some_outputs_are_used(problem, cell):
        case = problem(cell, [3, 2], 9, masks="untied")
        for used in ([0], [1]):
            found = case.to(torch.float32).outcome(KERNEL[cell], used)
            assert largest_error(found, case.outcome(REFERENCE[cell], used)) < 1e-3

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    @pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in which the interpreter computes
    def test_gradients_too_large_for_16_bits_stay_finite(problem, cell):
        case = problem(cell, [2] * 9, 9, bias=False)
        *small, weight = [t for t in case.tensors if t is not None]
        with torch.no_grad():
            weight.mul_(30)
            for t in small:
                t.mul_(1e-8)  # so that the gates stay where gradients grow from step to step
        found, expected = case.to(torch.float32).outcome(KERNEL[cell]), case.outcome(REFERENCE[cell])
        assert expected[-len(small)].abs().max() > 2.0**10 * 5  # the gradient of h; 5 is more than comes in
        assert all(t.isfinite().all() for t in found)

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    @pytest.mark.filterwarnings("ignore::RuntimeWarning")
    def test_what_is_not_finite_stays_so(problem, cell, bad):
        case = problem(cell, [2] * 3, 9, masks="tied").to(torch.float32)
        out = case.run(KERNEL[cell])[0]
        gradient = torch.ones_like(out)
        gradient[-1, 3] = bad
        for grad in torch.autograd.grad(out, [t for t in case.tensors if t is not None], gradient):
            assert not grad.isfinite().all()
        weight = case.tensors[-2 if cell == "LSTM" else 2]
        with torch.no_grad():
            weight[4, 4] = float("nan")
        assert case.run(KERNEL[cell])[0].isnan().any()

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    def test_autograd_s_rules(problem, cell):
        case = problem(cell, RAGGED, 9, masks="tied").to(torch.float32)
        leaves = [t for t in case.tensors if t is not None]
        before = [t.detach().clone() for t in [*leaves[1:], case.masks[0]]]
        loss = sum(out.square().sum() for out in case.run(KERNEL[cell]))
        first = torch.autograd.grad(loss, leaves, retain_graph=True)
        again = torch.autograd.grad(loss, leaves, create_graph=True)
        assert_close(again, first, rtol=0, atol=0)
        assert_close([t.detach() for t in [*leaves[1:], case.masks[0]]], before, rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="can be differentiated once"):
            again[1].sum().backward()

    @pytest.mark.parametrize("cell", ["LSTM", "GRU"])
    def test_no_steps_are_refused(problem, cell):
        case = problem(cell, [2], 9).to(torch.float32)
        case.tensors[0], case.options["batch_sizes"] = case.tensors[0].detach()[:0], []
        with pytest.raises(ValueError, match="no steps"):
            case.run(KERNEL[cell])

    @pytest.mark.parametrize("layer", ["LSTM", "GRU"])
    def test_whole_layers_take_it(layer):
        torch.manual_seed(0)
        net = getattr(br, layer)(4, 9, bidirectional=True, input_dropout=0.2, recurrent_dropout=0.3, tied=False)
        x = torch.randn(3, 2, 4)
        assert kernels.choose(kernels.Case(layer, batch=2, hidden=9))[0].name != "persistent"
        found = {}
        for path in ("persistent", "reference"):
            with kernels.force(path), br.draw(net, seed=1):
                assert f"path '{path}'" in kernels.explain(net)
                out, _ = net(x)
                found[path] = [out, *torch.autograd.grad(out.sin().sum(), list(net.parameters()))]
        assert largest_error(found["persistent"], [t.double() for t in found["reference"]]) < 1e-3
        assert not torch.equal(found["persistent"][0], found["reference"][0])  # so it was another kernel

    @pytest.mark.parametrize("power", [-10, -15])  # the second: 16-bit numbers without all their digits
    def test_operands_are_rounded_and_not_cut_off(power):
        assert max(map(abs, shrink("cpu", 2.0**power))) < 1e-4
