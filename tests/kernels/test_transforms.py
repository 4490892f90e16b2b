"""Layers and posteriors inside the transforms of torch.func: plain operations take over where a kernel cannot."""

import pytest
import torch
import torch.autograd.forward_ad as forward_mode
from torch import nn
from torch.func import functional_call

import bayesrnn as br
from bayesrnn import kernels

NOISE = {"input_dropout": 0.3, "recurrent_dropout": 0.2}
LAYERS = [
    pytest.param(lambda dtype: br.LSTM(4, 5, 2, dtype=dtype, **NOISE), id="LSTM"),
    pytest.param(lambda dtype: br.LSTM(4, 5, proj_size=3, dtype=dtype, **NOISE), id="LSTM, projection"),
    pytest.param(lambda dtype: br.LSTM(4, 5, cell_dropout=0.3, dtype=dtype), id="LSTM, cells"),
    pytest.param(lambda dtype: br.GRU(4, 5, tied=False, bidirectional=True, dtype=dtype, **NOISE), id="GRU"),
    pytest.param(lambda dtype: br.RNN(4, 5, dtype=dtype, **NOISE), id="RNN"),
]
POSTERIORS = [
    pytest.param(lambda dtype: br.BayesByBackprop(nn.Linear(4, 3).to(dtype), br.Normal(0.3)), id="Normal"),
    pytest.param(
        lambda dtype: br.BayesByBackprop(br.GRU(4, 3, dtype=dtype, **NOISE), br.ScaleMixture(0.5, 1.0, 0.1)), id="GRU"
    ),
]
DTYPES = [torch.float32, torch.float64]


def loss_of(model, x):
    """A loss as a function of the parameters."""

    def loss(parameters, x=x):
        out = functional_call(model, parameters, (x,))
        return (out[0] if isinstance(out, tuple) else out).square().sum()

    return loss


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", LAYERS + POSTERIORS)
def test_gradients_of_each_sequence_at_once(make, dtype):
    torch.manual_seed(0)
    model = make(dtype)
    several = torch.randn(3, 6, 2, 4, dtype=dtype)
    parameters, loss = dict(model.named_parameters()), loss_of(model, several[0])
    with br.draw(model, seed=0):
        wanted = [torch.autograd.grad(loss(parameters, x), list(parameters.values())) for x in several]
        found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, several)
    for name, own in zip(parameters, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(found[name], torch.stack(own), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", LAYERS + POSTERIORS)
def test_noise_that_is_made_inside_is_that_of_the_draw(make, dtype):
    torch.manual_seed(0)
    model, x = make(dtype), torch.randn(6, 2, 4, dtype=dtype)
    parameters, loss = dict(model.named_parameters()), loss_of(model, x)
    with br.draw(model, seed=0):
        inside = torch.func.grad(loss)(parameters)
        after = torch.autograd.grad(loss(parameters), list(parameters.values()))  # the same draw, held
    with br.draw(model, seed=0):
        outside = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for found, held, wanted in zip(inside.values(), after, outside, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(held, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fresh_draw_inside_leaves_no_trace(dtype):
    """Buffers of a transform, which have no memory of their own, are not kept for later."""
    q, x = br.BayesByBackprop(nn.Linear(4, 3).to(dtype)), torch.randn(6, 4, dtype=dtype)
    parameters = dict(q.named_parameters())
    for _ in range(2):
        torch.func.grad(loss_of(q, x))(parameters)
        torch.vmap(q, randomness="same")(torch.stack([x, x]))
        (q(x).sum() + br.kl(q)).backward()
    assert all(p.grad.isfinite().all() for p in q.parameters())


def test_a_draw_for_each_entry_is_refused():
    q = br.BayesByBackprop(nn.Linear(4, 3))
    if not kernels.able("compiled", kernels.Case("gaussian")):
        pytest.skip("no compiled kernels here")
    with pytest.raises(RuntimeError, match=r"cannot draw weights: hold one draw with br\.draw"):
        torch.vmap(q, randomness="different")(torch.randn(2, 5, 4))


def test_the_reason_is_told():
    told = []

    def explained(x):
        told.append(kernels.explain("LSTM", dtype=torch.float64, recurrent_mask="tied"))
        return x

    torch.vmap(explained)(torch.randn(2))
    assert "path 'reference'" in told[0]
    assert "not 'loop': it does not know the transforms of torch.func, and one is at work." in told[0]
    assert "path 'loop'" in kernels.explain("LSTM", dtype=torch.float64, recurrent_mask="tied")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", LAYERS)
def test_forward_mode(make, dtype):
    layer, x = make(dtype), torch.randn(3, 2, 4, dtype=dtype)
    with br.draw(layer, seed=0), forward_mode.dual_level():
        out = layer(forward_mode.make_dual(x, torch.ones_like(x)))[0]
        slope = forward_mode.unpack_dual(out).tangent
    x.requires_grad_()
    with br.draw(layer, seed=0):
        (backward,) = torch.autograd.grad(layer(x)[0].sum(), x)
    torch.testing.assert_close(slope.sum(), backward.sum(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("path", ["compiled", "loop"])
def test_a_kernel_without_forward_mode_says_so(path):
    gx, h, w = torch.randn(3, 4), torch.zeros(1, 4), torch.randn(4, 4)
    with forward_mode.dual_level():
        gx = forward_mode.make_dual(gx, torch.ones_like(gx))
        with pytest.raises(NotImplementedError, match=r"no forward-mode derivative: .*force\('reference'\)"):
            kernels.implementation("RNN", path)(gx, h, w, batch_sizes=[1] * 3)
