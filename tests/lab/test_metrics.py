import doctest

from bayesrnn.lab import metrics
from bayesrnn.lab.metrics import Metric, by_key


def test_example_in_the_docstring():
    assert doctest.testmod(metrics).failed == 0


def test_by_key():
    one, two = Metric("test_error", "test error", "%"), Metric("end.rmse", "RMSE")
    assert by_key([one, two]) == {"test_error": one, "end.rmse": two}
