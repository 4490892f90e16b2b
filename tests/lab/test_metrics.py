import doctest

import pytest

from bayesrnn.lab import metrics
from bayesrnn.lab.metrics import Metric, by_key, mean


def test_example_in_the_docstring():
    assert doctest.testmod(metrics).failed == 0


@pytest.mark.parametrize(
    ("values", "text"), [([], None), ([1.0], "1.0"), ([1.0, 3.0], "2.0 ± 1.4")], ids=["none", "one", "several"]
)
def test_mean_over_seeds(values, text):
    assert mean(values, "{:.1f}") == text


def test_by_key():
    one, two = Metric("test_error", "test error", "%"), Metric("end.rmse", "RMSE")
    assert by_key([one, two]) == {"test_error": one, "end.rmse": two}
