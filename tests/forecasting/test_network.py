"""Heads of the forecaster's networks."""

import pytest
import torch

from bayesrnn.forecasting import grids
from bayesrnn.forecasting.network import Head


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
