"""Heads of the forecaster's networks."""

import numpy as np
import pandas as pd
import pytest
import torch

from bayesrnn.forecasting import Forecaster, grids
from bayesrnn.forecasting.network import Encoder, Head, tensors
from bayesrnn.forecasting.windows import Shape, Windows


@pytest.mark.parametrize(("name", "off"), [("mixture", 0.02), ("negative_binomial", 0.0)])
def test_quantiles_over_draws_are_those_of_the_likelihood(name, off):
    """Counts up to about 30 exactly; mixtures, of separate modes here, to 2% of the widest interval."""
    head = Head(name, 2)
    torch.manual_seed(0)
    parameters = torch.randn(3, 5, 2, head.likelihood.size).double() * 0.7
    found, _ = head.grid(parameters)
    exact = torch.stack([head.likelihood.quantile(parameters, float(q)) for q in grids.LEVELS], -1)
    width = exact[..., -1:] - exact[..., :1]
    assert name == "mixture" or bool((width < 48).any())
    error = (torch.as_tensor(found) - exact).abs() / width
    assert float(error[(width < 48).expand_as(error)].max()) <= off


def test_networks_without_a_recurrent_layer_read_the_summary_alone():
    torch.manual_seed(0)
    sizes = {"horizon": 3, "size": 2, "hidden": 8, "layers": 1, "dropout": 0.0}
    network = Encoder(5, 4, 6, cell="none", **sizes)
    torch.nn.init.normal_(network.whole.weight)
    about, ahead = torch.randn(7, 4), torch.randn(7, 3, 6)
    found = network(torch.full((2, 7, 5), float("nan")), about, ahead)
    assert found.shape == (7, 3, 2)
    assert bool(found.isfinite().all())
    assert not torch.equal(found, network(torch.zeros(2, 7, 5), about + 1, ahead))


def test_earlier_values_of_the_same_phase():
    """A series that repeats itself: a forecast of it differs from the last value alone."""
    y = np.tile([1.0, 2.0, 5.0, 3.0], 10)
    panel = Forecaster(6, season=4).panel_of(pd.Series(y, name="y").rename_axis("ds").reset_index())
    shape = Shape(16, 6, (4,))
    batch = Windows(panel, shape).batch(np.zeros(1, int), np.array([20]))
    found = tensors(batch, shape, np.array([0.5]), batch.target)[2][0, :, -5:].numpy()
    np.testing.assert_allclose(found[:, 0], 2 * (batch.context[0, -1] - batch.target[0]), rtol=1e-5)
    assert np.abs(found[:, 1:4]).max() < 1e-6  # one season ago, two, and the mean of four
    np.testing.assert_allclose(found[:, 4], np.linspace(-0.5, 0.5, 6))
