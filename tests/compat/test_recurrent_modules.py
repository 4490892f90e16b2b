"""PyTorch's own inputs for its recurrent modules, run through ours: outputs and gradients on every path of a CPU."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.testing import assert_close

import bayesrnn as br
from bayesrnn import kernels

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's tests warn at import in some versions
    from torch.testing._internal.common_modules import module_db
# that import forbids setting torch's precision flags for the rest of the process
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True

OURS = {nn.LSTM: br.LSTM, nn.GRU: br.GRU, nn.RNN: br.RNN}
PATHS = [None, "compiled", "loop", "reference"]
QUICK = (None, "compiled")  # those that users get in float32


def samples(cell, training, dtype):
    info = next(info for info in module_db if info.module_cls is cell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    return list(made)


def tensors(value):
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors(part)] if isinstance(value, (tuple, list)) else []


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("cell", OURS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("path", "dtype"), [*((path, torch.float64) for path in PATHS), *((p, torch.float32) for p in PATHS if p in QUICK)]
)
def test_outputs_and_gradients_are_torch_s(cell, training, path, dtype):
    made = samples(cell, training, dtype)
    assert len(made) > 8
    for sample in made:
        built, given = sample.constructor_input, sample.forward_input
        torch.manual_seed(0)
        theirs = cell(*built.args, **built.kwargs).to(dtype).train(training)
        ours = OURS[cell](*built.args, **built.kwargs).to(dtype).train(training)
        ours.load_state_dict(theirs.state_dict())
        found = []
        for layer, forced in ((theirs, None), (ours, path)):
            with kernels.force(forced) if forced else nullcontext():
                out = tensors(layer(*given.args, **given.kwargs))
            leaves = [t for t in tensors([*given.args, *given.kwargs.values()]) if t.requires_grad]
            wanted = [*leaves, *layer.parameters()]
            grads = torch.autograd.grad(sum(o.square().sum() for o in out), wanted, allow_unused=True)
            found.append((out, [g for g in grads if g is not None]))
        assert_close(found[1], found[0], rtol=1e-4 if dtype == torch.float32 else 1e-7, atol=1e-5)


@pytest.mark.parametrize("cell", OURS.values(), ids=lambda c: c.__name__)
@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3), (4,), (1, 4, 3, 4)])
@pytest.mark.parametrize("rates", [{}, {"recurrent_dropout": 0.5}, {"weight_dropout": 0.5}], ids=str)
def test_input_of_a_wrong_shape_is_an_error(cell, shape, rates):
    """The idea of torch's `test_rnn_check_forward_args`."""
    layer = cell(4, 6, **rates)
    with pytest.raises((RuntimeError, ValueError)):
        layer(torch.randn(shape))


@pytest.mark.parametrize("cell", OURS.values(), ids=lambda c: c.__name__)
@pytest.mark.parametrize("rates", [{}, {"recurrent_dropout": 0.5}, {"weight_dropout": 0.5}], ids=str)
def test_a_state_of_a_wrong_shape_is_an_error(cell, rates):
    layer, x = cell(4, 6, 2, **rates), torch.randn(5, 3, 4)
    for shape in ((2, 2, 6), (1, 3, 6), (2, 3, 5)):
        state = torch.zeros(shape)
        with pytest.raises(RuntimeError, match="Expected hidden"):
            layer(x, (state, state) if cell is br.LSTM else state)


@pytest.mark.parametrize("cell", OURS.values(), ids=lambda c: c.__name__)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_default_dtypes(cell, dtype):
    torch.set_default_dtype(dtype)
    try:
        layer = cell(4, 6, recurrent_dropout=0.4, weight_dropout=0.2)
        x = torch.randn(5, 3, 4)
        with br.draw(layer, seed=1):
            out = layer(x)[0]
        found = br.predict(layer, x, samples=5, seed=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert found.mean.dtype == torch.promote_types(dtype, torch.float32)
