"""Heads of the forecaster's networks."""

import pytest
import torch

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.network import Encoder, Head


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
