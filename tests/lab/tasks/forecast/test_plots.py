"""Pictures of forecasts."""

import struct

from bayesrnn.lab.tasks.forecast.plots import _stamps, forecast_plot, walked


def size(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_pictures():
    rows = {"mean": [1.0, 2.0], "low": [0.0, 0.5], "high": [2.0, 3.5], "epistemic_std": [0.1, 0.2]}
    labels = [str(i) for i in range(12)]
    width, height = size(forecast_plot([1.0] * 10, rows, labels, name="level", level=0.9, direct=1))
    assert (width, height) == (1080, 570)
    plain = forecast_plot([1.0] * 10, {**rows, "epistemic_std": [0.0, 0.0]}, labels, name="level", level=0.9, direct=2)
    assert size(plain) == (1080, 570)


def test_a_walk_is_drawn_alike_every_time():
    n = 30
    rows = {
        "mean": [float(i % 7) for i in range(n)],
        "low": [i % 7 - 2.0 for i in range(n)],
        "high": [i % 7 + 2.0 for i in range(n)],
        "aleatoric_std": [0.9] * n,
        "epistemic_std": [0.2] * n,
        "actual": [i % 7 + (3.0 if i == 4 else 0.5) for i in range(n)],
    }
    dates = [str(1990 + i) for i in range(n)]
    first = walked(rows, dates, name="level", level=0.9, last=20)
    assert size(first)[0] == 1080
    assert walked(rows, dates, name="level", level=0.9, last=20) == first


def test_dates_of_records():
    for labels, first, kind in (
        (["2001-11", "2001-12"], "2001-11-01", "M"), (["2001Q3", "2001Q4"], "2001-07-01", "M"),
        (["2024-05-01 00:00:00", "2024-05-01 01:00:00"], "2024-05-01", "M"), (["1998", "1999"], "1998", "i"),
        (["17", "18"], "17", "i"), (["soon", "later"], "0", "i"), (["0001-01", "0001-02"], "0", "i"),
    ):  # fmt: skip
        found = _stamps(labels)
        assert found.dtype.kind == kind
        assert str(found[0]).startswith(first)
