"""`bayesrnn forecast FILE`: forecasts without a run."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bayesrnn.lab.cli import app


@pytest.fixture
def sales(tmp_path):
    months = pd.date_range("2015-01-01", periods=72, freq="MS").strftime("%b %Y")
    y = 100 + 20 * np.sin(np.arange(72) / 12 * 2 * np.pi) + np.random.default_rng(0).normal(0, 3, 72)
    pd.DataFrame({"month": months, "sales": y}).to_csv(tmp_path / "sales.csv", index=False)
    return tmp_path / "sales.csv"


def forecast(*arguments):
    return CliRunner().invoke(app, ["forecast", *map(str, arguments)])


def test_csv_on_stdout_and_files(sales, tmp_path):
    result = forecast(sales, "--horizon", 6, "--level", 80, "--level", 95, "--minutes", 0.01)
    assert result.exit_code == 0, result.output
    found = pd.read_csv(io.StringIO(result.stdout))
    assert found["ds"].tolist() == [f"2021-{m:02}-01" for m in range(1, 7)]
    assert {"unique_id", "mean", "lo-80", "hi-95", "aleatoric_std", "epistemic_std"} <= set(found)
    assert set(found["unique_id"]) == {"sales"}
    assert "Forecasts sales; --target chooses one column." in result.stderr
    files = ["--out", tmp_path / "f.json", "--plot", tmp_path / "f.png"]
    assert forecast(sales, "--horizon", 6, "--target", "sales", "--level", 0.8, *files).exit_code == 0
    rows = json.loads((tmp_path / "f.json").read_text())
    np.testing.assert_allclose([row["median"] for row in rows], found["median"], rtol=1e-6)
    assert {row["unique_id"] for row in rows} == {"sales"}
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_refused(sales, tmp_path):
    for arguments, words in (
        ([tmp_path / "no.csv"], "There is no file"),
        ([sales, "--out", tmp_path / "f.txt"], "--out names a .csv or .json file"),
        ([sales, "--horizon", 200], "a horizon of 200 needs at least 204"),
        ([sales, "--target", "price"], "sales.csv has no column 'price'; --target is one of month, sales."),
        ([sales, "--date", "day"], "sales.csv has no column 'day'; --date is one of month, sales."),
        ([sales, "--level", 1], "--level is 1; it must be between 0 and 100%, such as 80 or 0.8."),
        ([sales, "--samples", 3, "--data", "x"], "--data, --samples: for a run, not for a file; omit them."),
        ([sales, "--freq", "YS"], "in line 3 is off the grid of one year; set --freq to the step of the stamps, or --"),
        ([sales, "--resample", "max"], "--resample is max; choose mean, sum or last."),
    ):
        result = forecast(*arguments)
        assert result.exit_code == 2
        assert words in result.output.replace("\n", " ")


def test_messages_name_lines_and_columns_of_the_file(sales):
    text = sales.read_text().splitlines()
    sales.write_text("\n".join([*text[:5], "soon,3", *text[6:]]))
    said = forecast(sales).stderr.replace("\n", " ")
    assert "line 6" in said
    assert "column 'month'" in said
    sales.write_text("\n".join([*text[:5], "May 2015,inf", *text[6:]]))
    assert "Series 'sales': 'inf', line 6, is infinite" in forecast(sales).stderr.replace("\n", " ")


def test_uneven_stamps_are_resampled(sales):
    result = forecast(sales, "--freq", "YS", "--resample", "mean", "--horizon", 1, "--minutes", 0.01)
    assert result.exit_code == 0, result.output
    assert pd.read_csv(io.StringIO(result.stdout))["ds"].tolist() == ["2021-01-01"]
