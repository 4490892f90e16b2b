"""Few trees: tests of the forecaster look at how it works, not at how good it is."""

import pytest

from bayesrnn.forecasting import trees


@pytest.fixture(autouse=True)
def _few_trees(monkeypatch):
    monkeypatch.setattr(trees, "_TREES", 30)
    monkeypatch.setattr(trees, "_RATE", 0.2)
