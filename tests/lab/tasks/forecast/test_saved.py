"""A saved forecaster in a report."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from bayesrnn.forecasting import Forecaster, plots
from bayesrnn.lab.cli import app
from bayesrnn.lab.tasks.forecast.panel import future_of, stamps_after, windows_of
from bayesrnn.lab.tasks.forecast.saved import Saved


def frame(names=("north", "south"), rows=120, freq="D"):
    rng, t = np.random.default_rng(0), np.arange(rows)
    parts = [
        pd.DataFrame({"unique_id": name, "ds": pd.date_range("2024-01-01", periods=rows, freq=freq),
                      "y": 10 + 3 * np.sin(t / 7 * 2 * np.pi) + rng.normal(size=rows), "price": t % 7 + 0.5})
        for name in names
    ]  # fmt: skip
    return pd.concat(parts)


@pytest.fixture(scope="module")
def made():
    return Forecaster(7, future=["price"], members=0).fit(frame())


def report(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_report_has_pictures_and_scores(made, tmp_path):
    made.save(tmp_path / "saved")
    result = report(tmp_path / "saved", "--out", tmp_path / "page")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "page" / "index.html").read_text()
    for words in (
        "Forecasts of north, south",
        "80% intervals cover",
        "95% coverage",
        "Future values of price are not known here",
        "of the variance",
        "Worst series",
        "all series",
    ):
        assert words in text
    names = {path.name for path in (tmp_path / "page").glob("*.png")}
    assert names == {"fan-north.png", "fan-south.png", "calibration.png", "doubt.png", "worst.png"}
    assert report(tmp_path / "saved", "--out", tmp_path / "page", "--fast").exit_code == 0  # the same again
    assert "calibration" not in (tmp_path / "page" / "index.html").read_text()


def test_a_report_of_something_else_is_not_replaced(made, tmp_path):
    for name in ("one", "two"):
        made.save(tmp_path / name)
    page = ["--out", tmp_path / "page", "--fast"]
    assert report(tmp_path / "one", *page).exit_code == 0
    result = report(tmp_path / "two", *page)
    assert result.exit_code == 2
    assert "is a report of other runs; choose another --out, or replace it with --replace." in result.stderr.replace(
        "\n", " "
    )
    assert report(tmp_path / "two", *page, "--replace").exit_code == 0
    both = report(tmp_path / "one", tmp_path / "two", "--out", tmp_path / "both", "--fast")
    assert both.exit_code == 0, both.output
    assert "Made by bayesrnn report from 2 models." in (tmp_path / "both" / "index.html").read_text()


def test_values_known_ahead_are_those_of_later_rows_then_of_the_last_season(made):
    history = made.history("north")
    found = future_of(made, history.iloc[:100], history.iloc[100:103])
    assert found["price"].round(4).tolist() == [(t % 7) + 0.5 for t in range(100, 107)]
    assert found["ds"].tolist() == list(pd.date_range("2024-04-10", periods=7))
    history["price"] = np.nan
    assert made.predict(history, future=future_of(made, history)).notna().all(axis=None)
    assert future_of(Forecaster(3, members=0).fit(frame()[["unique_id", "ds", "y"]]), history) is None


def test_stamps_after_months_and_numbers():
    months = frame(("a",), freq="ME").drop(columns="price")
    one = Forecaster(2, members=0).fit(months)
    assert [str(stamp.date()) for stamp in stamps_after(one, one.history("a"))] == ["2034-01-31", "2034-02-28"]
    counted = months.assign(ds=range(0, 240, 2))
    one = Forecaster(2, members=0).fit(counted)
    assert stamps_after(one, one.history("a")).tolist() == [240, 242]


def test_short_series_are_not_walked_through(made):
    assert windows_of(made) == 3
    assert windows_of(Forecaster(7, members=0).fit(frame(rows=20))) == 0


def test_series_without_values_and_of_different_size():
    """A series that has no values in a backtest has no score, and a large one does not drown the others."""
    table = pd.DataFrame({
        "unique_id": np.repeat(["small", "large", "none"], 4), "ds": np.tile(np.arange(4), 3), "step": 1,
        "y": [1.0, -1, 1, -1, 1e6, -1e6, 1e6, -1e6, *[np.nan] * 4], "crps": [0.5] * 4 + [1e5] * 4 + [np.nan] * 4,
        "aleatoric_std": [0.5] * 4 + [1e5] * 4 + [1.0] * 4, "epistemic_std": [0.0] * 4 + [1e5] * 4 + [0.0] * 4,
    })  # fmt: skip
    assert plots.worst_first(table) == ["small", "large"]
    mean = plots.doubt(table[table["unique_id"] != "none"], "ds")
    np.testing.assert_allclose(mean["aleatoric_std"], 0.3)
    np.testing.assert_allclose(mean["epistemic_std"], 0.05)


def test_fan_charts_show_history_that_has_values(monkeypatch):
    """Also where a series ends with more missing values than a picture shows."""
    data = frame(("a",), rows=300).drop(columns="price")
    data.loc[data.index[-100:], "y"] = np.nan
    data = pd.concat([data[:-1], data[-1:].assign(y=np.nan)])
    drawn = []
    monkeypatch.setattr(plots, "_fan", lambda axes, past, found: drawn.append(past))
    monkeypatch.setattr(plots, "_with_legend", lambda figure, axes, columns: b"")
    one = Forecaster(7, members=0, context=150).fit(data)
    plots.fan_charts(one, ["a"])
    assert drawn[0]["y"].notna().all()
    assert len(drawn[0]) == 60


def test_labels_of_names_that_begin_alike_differ():
    names = [f"a long name of a shop in the north, number {k}" for k in range(2)]
    names += [f"{k}".join(["a" * 50] * 2) for k in range(2)]  # also in the middle
    labels = plots.short_names(names)
    assert len(set(labels.values())) == 4
    assert max(map(len, labels.values())) < 46
    assert plots.short_names(["a", "b"]) == {"a": "a", "b": "b"}


def test_long_names_fit(tmp_path):
    """Legends end inside the picture, and titles with whole words about the rest."""
    names = [f"a long name of a shop in the north, number {k}" for k in range(5)]
    one = Forecaster(7, members=0).fit(frame(names).drop(columns="price"))
    pixels = imread(io.BytesIO(plots.fan_chart(one, width=4.6)))
    legend = pixels[: len(pixels) // 8, :, :3]
    assert (legend[:, [0, -1]] == 1).all()
    one.save(tmp_path / "saved")
    title = Saved(tmp_path / "saved").title
    assert title.endswith("… and 2 more")
    assert len(title) < 110
