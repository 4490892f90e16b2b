"""Other people's devices and dtypes: default devices, meta and fake tensors, tracers, strides, empty batches."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels
from bayesrnn.kernels.cpu import build, memory, recurrent

NOISE = {"input_dropout": 0.3, "recurrent_dropout": 0.2}
LAYERS = {
    "LSTM": lambda **o: br.LSTM(3, 7, 2, **NOISE, **o),
    "LSTM, untied": lambda **o: br.LSTM(3, 7, tied=False, **NOISE, **o),
    "LSTM, cells": lambda **o: br.LSTM(3, 7, cell_dropout=0.3, **o),
    "LSTM, projection": lambda **o: br.LSTM(3, 7, proj_size=5, **NOISE, **o),
    "GRU": lambda **o: br.GRU(3, 7, bidirectional=True, **NOISE, **o),
    "RNN": lambda **o: br.RNN(3, 7, nonlinearity="relu", **NOISE, **o),
}
POSTERIORS = {
    "Normal": lambda: br.BayesByBackprop(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))),
    "mixture": lambda: br.BayesByBackprop(nn.Linear(3, 4), br.ScaleMixture(0.5, 1.0, 0.1)),
    "recurrent": lambda: br.BayesByBackprop(nn.LSTM(3, 4)),
    "sharpened": lambda: br.PosteriorSharpening(br.BayesByBackprop(nn.Linear(3, 4))),
}


def first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]()


@pytest.fixture(params=POSTERIORS)
def posterior(request):
    torch.manual_seed(0)
    return POSTERIORS[request.param]()


def gradients(model, x):
    model.zero_grad()
    with br.draw(model, seed=1):
        out = first(model(x))
        loss = out.square().sum() + (br.kl(model) if isinstance(model, (br.BayesByBackprop,)) else 0)
        loss.backward()
    return [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


class TestDefaultDevice:
    """A CPU model under another default device: buffers for C were made there, and the process died."""

    def test_layers(self, layer):
        x = torch.randn(5, 2, 3)
        expected = gradients(layer, x)
        with torch.device("meta"):
            assert_close(gradients(layer, x), expected, rtol=0, atol=0)
            fresh = first(layer(x))
            fresh.sum().backward()
        assert fresh.device.type == "cpu"

    def test_posteriors(self, posterior):
        x = torch.randn(5, 2, 3)
        expected = gradients(posterior, x)
        with torch.device("meta"):
            assert_close(gradients(posterior, x), expected, rtol=0, atol=0)

    def test_several_draws_at_once(self):
        q = POSTERIORS["recurrent"]()
        noises = [q.posterior.noise(torch.Generator().manual_seed(k)) for k in range(3)]
        expected = q.posterior.weights_many(q.means, noises)
        with torch.device("meta"):
            found = q.posterior.weights_many(q.means, noises)
        assert_close(found, expected, rtol=0, atol=0)

    @pytest.mark.parametrize("path", ["loop", "reference"])
    def test_other_paths(self, path):
        for make in (LAYERS["GRU"], POSTERIORS["mixture"]):
            model, x = make(), torch.randn(5, 2, 3)
            with kernels.force(path):
                expected = gradients(model, x)
                with torch.device("meta"):
                    assert_close(gradients(model, x), expected, rtol=0, atol=0)

    def test_the_default_of_the_process(self):
        """In a process of its own, which must not die: a pointer to nothing would end it."""
        code = """
        import torch, bayesrnn as br
        layers = [br.LSTM(3, 7, recurrent_dropout=0.2), br.GRU(3, 7, recurrent_dropout=0.2, tied=False)]
        q, x = br.BayesByBackprop(torch.nn.GRU(3, 4), br.ScaleMixture(0.5, 1.0, 0.1)), torch.randn(50, 20, 3)
        torch.set_default_device("meta")
        for model in (*layers, q):
            out = model(x)[0]
            (out.sum() + (br.kl(q) if model is q else 0)).backward()
            assert out.device.type == "cpu" and out.isfinite().all()
        print("alive")
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


class TestMetaAndFake:
    def test_meta_layers(self, layer):
        out, _ = layer.to("meta")(torch.randn(5, 2, 3, device="meta"))
        out.sum().backward()
        assert out.device.type == "meta"
        assert all(p.grad.shape == p.shape for p in layer.parameters())

    def test_meta_posteriors(self, posterior):
        out = first(posterior.to("meta")(torch.randn(5, 2, 3, device="meta")))
        assert out.device.type == "meta"

    @pytest.mark.parametrize("name", LAYERS)
    def test_fake_layers(self, name):
        with FakeTensorMode():
            layer = LAYERS[name]()
            out = first(layer(torch.randn(5, 2, 3)))
            out.sum().backward()
        assert isinstance(out, FakeTensor)
        assert out.shape[:2] == (5, 2)

    @pytest.mark.parametrize("name", ["Normal", "mixture", "recurrent"])
    def test_fake_posteriors(self, name):
        q, mode = POSTERIORS[name](), FakeTensorMode()
        parameters = {n: mode.from_tensor(p) for n, p in q.named_parameters()}
        with mode:
            out = first(torch.func.functional_call(q, parameters, (torch.randn(5, 2, 3),)))
        assert isinstance(out, FakeTensor)
        assert first(q(torch.randn(5, 2, 3))).isfinite().all()

    @pytest.mark.parametrize("make", [br.BayesByBackprop, br.DropConnect])
    def test_fake_modules_are_refused_by_posteriors(self, make):
        with FakeTensorMode(), pytest.raises(TypeError, match=r"has fake parameters, .* make the real module Bayesian"):
            make(nn.Linear(2, 2))

    def test_real_layers_among_fake_inputs(self, layer):
        with FakeTensorMode(allow_non_fake_inputs=True):
            out = first(layer(torch.randn(5, 2, 3)))
        assert isinstance(out, FakeTensor)
        assert first(layer(torch.randn(5, 2, 3))).isfinite().all()  # nothing fake is left behind

    def test_real_posteriors_among_fake_inputs(self, posterior):
        with FakeTensorMode(allow_non_fake_inputs=True):
            out = first(posterior(torch.randn(5, 2, 3)))
        assert isinstance(out, FakeTensor)
        assert first(posterior(torch.randn(5, 2, 3))).isfinite().all()


class TestTracers:
    def test_a_held_draw_of_a_layer(self, layer):
        x, y = torch.randn(2, 5, 2, 3)
        with br.draw(layer, seed=1):
            expected = first(layer(x)), first(layer(y))
            graph = make_fx(lambda x: first(layer(x)))(x)
            assert_close((graph(x), graph(y)), expected)

    @pytest.mark.parametrize("before", [True, False], ids=["made before", "made inside"])
    @pytest.mark.parametrize("name", ["Normal", "mixture", "recurrent"])
    def test_a_held_draw_of_a_posterior(self, name, before):
        torch.manual_seed(0)
        q, (x, y) = POSTERIORS[name](), torch.randn(2, 5, 2, 3)
        with br.draw(q, seed=1):
            if before:
                q(x)
            graph = make_fx(lambda x: first(q(x)))(x)
            assert_close((graph(x), graph(y)), (first(q(x)), first(q(y))))

    def test_a_fresh_draw_is_drawn_at_every_run(self):
        q, x = POSTERIORS["Normal"](), torch.randn(5, 3)
        graph = make_fx(lambda x: q(x))(x)
        assert not torch.equal(graph(x), graph(x))

    def test_operations_are_seen_by_dispatch_modes(self, layer):
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(5, 2, 3))
        assert counter.get_total_flops() > 0

    def test_the_reason_is_told(self):
        with FakeTensorMode():
            text = kernels.explain("LSTM")
        assert "path 'reference'" in text
        assert "not 'loop': a tracer or another dispatch mode is at work" in text


class TestBatchedGradients:
    """Backward passes under vmap: each of these raised an error from inside."""

    @pytest.mark.parametrize("path", ["compiled", "loop"])
    def test_jacobians_of_a_layer(self, layer, path):
        x = torch.randn(3, 2, 3)

        def out(x):
            return first(layer(x))

        with br.draw(layer, seed=1), kernels.force(path):
            layer(x)
            plain = torch.autograd.functional.jacobian(out, x)
            assert_close(torch.autograd.functional.jacobian(out, x, vectorize=True), plain)
            assert_close(torch.func.jacrev(out)(x), plain, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("name", ["Normal", "mixture"])
    def test_gradients_of_drawn_weights(self, name, dtype):
        torch.manual_seed(0)
        q, x = POSTERIORS[name]().to(dtype), torch.randn(2, 3, dtype=dtype)
        with br.draw(q, seed=1):
            out = q(x)
            leaves = list(q.parameters())
            eye = torch.eye(out.numel(), dtype=dtype).view(-1, *out.shape)
            found = torch.autograd.grad(out, leaves, eye, is_grads_batched=True, retain_graph=True)
            wanted = [torch.autograd.grad(out, leaves, e, retain_graph=True) for e in eye]
        assert_close(list(found), [torch.stack(parts) for parts in zip(*wanted, strict=True)])

    def test_vmap_of_torch_func_over_a_backward(self):
        layer, x = LAYERS["GRU"](), torch.randn(3, 2, 3, requires_grad=True)
        out = first(layer(x))
        cotangents = torch.randn(4, *out.shape)
        pull = lambda c: torch.autograd.grad(out, x, c, retain_graph=True)[0]  # noqa: E731
        assert_close(torch.vmap(pull)(cotangents), torch.stack([pull(c) for c in cotangents]))

    @pytest.mark.parametrize("path", ["compiled", "loop", "reference"])
    def test_outputs_may_be_changed_in_place(self, layer, path):
        """As those of torch.nn on a CPU: the backward does not read them."""
        x = torch.randn(5, 2, 3)
        with br.draw(layer, seed=1), kernels.force(path):
            expected = gradients(layer, x)
            layer.zero_grad()
            out = first(layer(x))
            out += 1
            (out - 1).square().sum().backward()
        assert_close([p.grad for p in layer.parameters()], expected[1:], rtol=1e-4, atol=1e-5)


class TestLayouts:
    @pytest.mark.parametrize("path", ["compiled", "loop"])
    def test_strided_inputs_and_states(self, layer, path):
        x = torch.randn(3, 2, 10).permute(2, 1, 0)[::2]
        with br.draw(layer, seed=1), kernels.force(path):
            out, state = layer(x)
            state = [s.repeat_interleave(2, -1)[..., ::2] for s in (state if isinstance(state, tuple) else (state,))]
            given = tuple(state) if isinstance(layer, nn.LSTM) else state[0]
            found = first(layer(x, given))
        with br.draw(layer, seed=1), kernels.force("reference"):
            assert_close(out, first(layer(x.contiguous())))
            assert_close(found, first(layer(x.contiguous(), given)))

    def test_strided_weights(self):
        torch.manual_seed(0)
        layer, x = LAYERS["GRU"](), torch.randn(5, 2, 3)
        expected = gradients(layer, x)
        for name, p in list(layer.named_parameters()):
            if p.dim() == 2:
                layer._parameters[name] = nn.Parameter(p.detach().t().contiguous().t())
        layer._flat_weights = [layer._parameters[n] for n in layer._flat_weights_names]
        assert_close(gradients(layer, x), expected)

    def test_strided_posteriors(self):
        q, x = POSTERIORS["mixture"](), torch.randn(5, 3)
        expected = gradients(q, x)
        weight = q.module._parameters["weight"]
        weight.data = weight.data.t().contiguous().t()
        assert_close(gradients(q, x), expected)

    @pytest.mark.parametrize("path", ["compiled", "loop", "reference"])
    def test_a_batch_of_nothing(self, layer, path):
        with kernels.force(path):
            out = first(layer(torch.randn(5, 0, 3)))
            out.sum().backward()
        assert out.shape[:2] == (5, 0)
        assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())

    def test_subclasses_of_tensors(self, layer):
        class Named(torch.Tensor):
            pass

        x = torch.randn(5, 2, 3)
        with br.draw(layer, seed=1):
            found = first(layer(x.as_subclass(Named)))
            assert_close(found.as_subclass(torch.Tensor), first(layer(x)))


class TestDtypes:
    def test_another_default_dtype_changes_nothing(self, layer):
        x = torch.randn(5, 2, 3)
        expected = gradients(layer, x)
        torch.set_default_dtype(torch.float64)
        try:
            assert_close(gradients(layer, x), expected, rtol=0, atol=0)
        finally:
            torch.set_default_dtype(torch.float32)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("compiled", [True, False])
    @pytest.mark.parametrize(
        "make",
        [
            lambda: br.BayesByBackprop(nn.GRU(3, 4), prior=br.ScaleMixture(0.5, 0.3, 0.01)),
            lambda: br.PosteriorSharpening(br.BayesByBackprop(nn.GRU(3, 4))),
            lambda: br.DropConnect(nn.GRU(3, 4), p=0.3),
            lambda: br.GRU(3, 4, weight_dropout=0.3, input_dropout=0.3),
        ],
    )
    def test_a_model_that_is_moved_inside_a_draw_keeps_it(self, make, compiled, dtype, monkeypatch):
        if not compiled:
            monkeypatch.setattr("bayesrnn.kernels.paths.why_not", lambda: "no compiler")
        model, x = make(), torch.randn(5, 2, 3)
        with br.draw(model, seed=1):
            first(model(x))
            found, kl = first(model.to(dtype)(x.to(dtype))), br.kl(model)
        with br.draw(model, seed=1):
            assert_close(found, first(model(x.to(dtype))), rtol=0, atol=0)
            assert_close(kl, br.kl(model))

    def test_a_layer_made_in_another_default_dtype(self):
        torch.set_default_dtype(torch.float64)
        try:
            for make in (*LAYERS.values(), *POSTERIORS.values()):
                out = first(make()(torch.randn(5, 2, 3)))
                assert out.dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)

    def test_an_input_of_another_dtype_is_refused(self, layer):
        with pytest.raises((ValueError, RuntimeError), match="dtype"):
            layer(torch.randn(5, 2, 3, dtype=torch.float64))

    def test_an_input_on_another_device_is_refused(self, layer):
        with pytest.raises(RuntimeError, match="device"):
            layer(torch.randn(5, 2, 3, device="meta"))


@pytest.mark.skipif(build.why_not() is not None, reason="no compiled kernels")
class TestPointers:
    """What does not fit never reaches C."""

    @pytest.mark.parametrize(
        ("tensor", "words"),
        [
            (torch.empty(4, dtype=torch.float64), "got torch.float64 on cpu"),
            (torch.empty(4, device="meta"), "got torch.float32 on meta"),
            (torch.empty(5), r"a tensor must be of shape \(4,\), got \(5,\)"),
            (torch.empty(4, 2)[:, 0], r"contiguous memory, got strides \(2,\)"),
            (torch.ones(4).to_sparse(), "memory of their own"),
            (torch.ones(4)._neg_view(), "memory of their own"),
        ],
    )
    def test_one_line(self, tensor, words):
        with pytest.raises(ValueError, match=words) as caught:
            memory.address(tensor, (4,))
        assert "\n" not in str(caught.value)

    def test_what_is_right_passes(self):
        good = torch.empty(4)
        assert memory.address(good, (4,)) == good.data_ptr()
        assert memory.address(None, (4,)) == 0

    def test_fake_tensors(self):
        with FakeTensorMode():
            fake = torch.empty(4)
        with pytest.raises(ValueError, match="got FakeTensor"):
            memory.address(fake, (4,))
        assert not recurrent.serves(fake.view(2, 2))

    def test_every_buffer_of_c_is_on_the_cpu(self, layer):
        """A recurrence whose scratch came from another device would be refused here, not in C."""
        with torch.device("meta"):
            assert memory.Pool().take((3, 4), torch.empty(1, device="cpu")).device.type == "cpu"


_MODELS = {
    "noisy layer": lambda: br.GRU(3, 4, recurrent_dropout=0.5),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)),
    "without parameters": lambda: br.Dropout(0.5),
    "posterior": lambda: br.BayesByBackprop(nn.LSTM(3, 4)),
    "dropconnect": lambda: br.DropConnect(nn.LSTM(3, 4)),
}


class TestUnseeded:
    """Draws, predictions and objectives without a seed, on a CPU, while another device is the default."""

    @pytest.mark.parametrize("name", _MODELS)
    def test_another_default_device(self, name):
        model, x, likelihood = _MODELS[name](), torch.randn(5, 2, 3), br.Gaussian(1.0)
        objective, target = br.ELBO(model, likelihood, num_data=900), torch.zeros(5, 2, 3 if "without" in name else 4)
        with torch.device("meta"):
            with br.draw(model):
                model(x)
            found = br.predict(model, x, samples=5, likelihood=likelihood)
            terms = objective(model.train()(x), target)
        assert found.mean.device.type == terms.loss.device.type == "cpu"
        assert bool(torch.isfinite(found.mean).all())
        assert bool(torch.isfinite(terms.loss))

    def test_distributions(self):
        model, x, y = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), torch.randn(6, 3), torch.randn(6)
        likelihood = br.StudentT(df=4.0)
        expected = br.predict(model, x, samples=7, seed=1, likelihood=likelihood)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                found = br.predict(model, x, samples=7, seed=1, likelihood=likelihood)
                assert_close(found.crps(y), expected.crps(y))
                assert_close(found.interval(0.9), expected.interval(0.9))
        finally:
            torch.set_default_dtype(before)

    def test_fake_and_meta_tensors_are_refused_by_predict_alone(self):
        model = br.BayesByBackprop(nn.Linear(3, 4))
        objective = br.ELBO(model, br.Gaussian(1.0), num_data=900)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert objective(model(torch.randn(2, 3)), torch.zeros(2, 4)).loss.shape == ()
            with pytest.raises(TypeError, match=r"br\.predict needs real tensors"):
                br.predict(model, torch.randn(2, 3))
        with pytest.raises(TypeError, match=r"br\.predict needs real tensors"):
            br.predict(model, torch.randn(2, 3, device="meta"))
