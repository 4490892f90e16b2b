"""Pictures of forecasts."""

import struct

from bayesrnn.lab.tasks.forecast.plots import _ticks, forecast_plot, walked


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


def test_labels_of_months_divide_the_year():
    months = [f"{2000 + i // 12}-{i % 12 + 1:02}" for i in range(5, 77)]
    assert [months[i] for i in _ticks(months, 7)] == ["2001-01", "2002-01", "2003-01", "2004-01", "2005-01", "2006-01"]
    assert [months[i] for i in _ticks(months[:20], 7)] == [
        "2000-07",
        "2000-10",
        "2001-01",
        "2001-04",
        "2001-07",
        "2001-10",
        "2002-01",
    ]
    assert [months[i] for i in _ticks(months[:3], 7)] == months[:3]
    days = [f"2020-01-{i + 1:02}" for i in range(30)]
    assert list(_ticks(days, 7)) == [0, 5, 10, 15, 20, 25]
    assert list(_ticks([], 7)) == []
