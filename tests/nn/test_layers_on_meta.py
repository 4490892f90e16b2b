"""Layers on the "meta" device, which has shapes and no numbers: tools that only ask for sizes run them there."""

import pytest
import torch

import bayesrnn as br


@pytest.mark.parametrize("layer", [br.LSTM, br.GRU, br.RNN])
@pytest.mark.parametrize("noise", [{}, {"input_dropout": 0.2, "recurrent_dropout": 0.2}])
def test_shapes(layer, noise):
    for device in ("meta", "cpu"):
        with torch.device(device):
            out, state = layer(4, 6, num_layers=2, **noise)(torch.zeros(5, 3, 4))
        assert out.shape == (5, 3, 6)
        assert out.device.type == device
        assert all(part.shape == (2, 3, 6) for part in (state if isinstance(state, tuple) else (state,)))
