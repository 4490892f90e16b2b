"""`bayesrnn forecast FILE`: forecasts without a run."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster
from bayesrnn.lab.cli import app
from bayesrnn.lab.tasks.forecast.words import Words


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
    first = result.stderr.splitlines()[0]
    assert first == (
        "Dates: 'month', monthly, 2015-01-01 to 2020-12-01. Forecasting 'sales'. Training takes up to 0.6 s."
    )
    files = ["--out", tmp_path / "f.json", "--plot", tmp_path / "f.png"]
    assert forecast(sales, "--horizon", 6, "--target", "sales", "--level", 0.8, *files).exit_code == 0
    rows = json.loads((tmp_path / "f.json").read_text())
    np.testing.assert_allclose([row["median"] for row in rows], found["median"], rtol=1e-6)
    assert {row["unique_id"] for row in rows} == {"sales"}
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_refused(sales, tmp_path):
    for arguments, words in (
        ([tmp_path / "no.csv"], "There is no file"),
        ([tmp_path / "nothere.tsv"], "There is no file or folder"),
        ([tmp_path / "runs" / "1"], "There is no file or folder"),
        ([sales, "--data", sales], "--data: for a run or a saved forecaster, not for a file; omit it."),
        ([sales, "--out", tmp_path / "f.txt"], "--out names a .csv or .json file"),
        ([sales, "--horizon", 200], "a horizon of 200 needs at least 204"),
        ([sales, "--target", "price"], "sales.csv has no column 'price'; --target is one of month, sales."),
        ([sales, "--date", "day"], "sales.csv has no column 'day'; --date is one of month, sales."),
        ([sales, "--level", 1], "--level is 1; it must be between 0 and 100%, such as 80 or 0.8."),
        (
            [sales, "--samples", 3, "--data", "x"],
            "--data, --samples: for a run or a saved forecaster, not for a file; omit them.",
        ),
        ([sales, "--freq", "YS"], "in line 3 is off the grid of one year; set --freq to the step of the stamps, or --"),
        ([sales, "--resample", "max"], "--resample is max; choose mean, sum or last."),
        ([sales, "--over", 1], "--over and --under are the two costs of one decision; give both."),
        ([sales, "--above", 1, "--below", 1], "--above and --below are different questions; ask one at a time."),
        ([sales, "--table", tmp_path / "t.csv"], "--table is for the forecasts of --walk; give both."),
        ([sales, "--save", tmp_path], "exists and is no saved forecaster; choose another --save."),
        ([sales, "--future", sales.with_name("no.csv")], "There is no file"),
        ([sales, "--series", "shop"], "sales.csv has no column 'shop'; --series is one of month, sales."),
        ([sales, "--over", 0, "--under", 1], "--over is 0.0; a cost per unit is a number above 0."),
        ([sales, "--anomalies", sales, "--false-alarms", 1], "--false-alarms is 1.0; it is a share between"),
        ([sales, "--above", "nan"], "--above is nan; give a number."),
        ([sales, "--minutes", -1], "--minutes is -1.0; it is a number from 0"),
        ([sales, "--seed", 2**40], "4294967295"),
        (
            [sales, "--out", tmp_path / "x.csv", "--walk", 1, "--table", tmp_path / "x.csv"],
            "is the file of --out and of",
        ),
        ([sales, "--out", sales], "--out would replace"),
        ([sales, "--save", sales / "saved"], "saved cannot be written (Not a directory); choose another --save."),
        ([sales, "--steps", 9, "--horizon", 3], "--steps is 9, and the model forecasts 3 steps"),
    ):
        result = forecast(*arguments)
        assert result.exit_code == 2
        assert words in result.output.replace("\n", " ")
        assert "weights" not in result.output  # nothing was trained


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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    t = np.arange(150)
    stock = 50 + 10 * np.sin(t / 7 * 2 * np.pi) + np.random.default_rng(0).normal(0, 1, 150)
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=150), "stock": stock})
    frame.iloc[:140].to_csv(folder / "stock.csv", index=False)
    newer = frame.iloc[140:].copy()
    newer.iloc[4, 1] = 300.0
    newer.rename(columns={"day": "ds"}).to_csv(folder / "newer.csv", index=False)
    walk = ["--walk", 3, "--table", folder / "walk.csv"]
    result = forecast(
        folder / "stock.csv", "--horizon", 7, "--minutes", 0.01, "--save", folder / "saved", *walk
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Backtest on 3 windows: mae" in result.stderr
    assert f"The forecaster is in {folder / 'saved'}" in result.stderr.replace("\n", "")
    return folder, result.stdout


class TestSaved:
    def test_it_forecasts_as_before(self, saved):
        folder, text = saved
        assert forecast(folder / "saved").stdout == text
        table = pd.read_csv(folder / "walk.csv")
        assert len(table) == 21
        assert {"cutoff", "step", "y", "lo-80", "hi-95", "crps"} <= set(table)

    def test_decisions(self, saved):
        folder = saved[0] / "saved"
        found = {
            key: pd.read_csv(io.StringIO(forecast(folder, *options).stdout))
            for key, options in (
                ("above", ["--above", 30]), ("below", ["--below", 30]), ("order", ["--over", 1, "--under", 3]),
                ("alarm", ["--anomalies", saved[0] / "newer.csv", "--false-alarms", 0.001]),
            )
        }  # fmt: skip
        assert found["above"]["probability"][0] == 1
        assert found["below"]["probability"][0] < 0.05
        assert (found["order"]["cost"] <= found["order"]["cost_of_mean"] + 1e-9).all()
        assert found["alarm"].iloc[:7].query("alarm")["ds"].tolist() == ["2024-05-24"]  # later blocks have seen it

    def test_newer_rows(self, saved):
        folder = saved[0]
        found = pd.read_csv(io.StringIO(forecast(folder / "saved", "--data", folder / "newer.csv").stdout))
        assert found["ds"].iloc[0] == "2024-05-30"

    def test_what_is_refused(self, saved):
        for arguments, words in (
            (["--steps", 999], "--steps is 999, and the model forecasts"),
            (["--horizon", 3, "--minutes", 1], "--horizon, --minutes: for a file or a run"),
            (["--data", "no.csv"], "There is no file no.csv"),
            (["--future", saved[0] / "newer.csv"], "the model knows no columns ahead; omit it, or train with it."),
        ):
            result = forecast(saved[0] / "saved", *arguments)
            assert result.exit_code == 2
            assert words in result.output.replace("\n", " ")


def test_columns_that_are_known_ahead(tmp_path):
    rng, days = np.random.default_rng(0), pd.date_range("2024-01-01", periods=130)
    price = rng.normal(3, 1, 130)
    frame = pd.DataFrame({"ds": days, "y": 20 - 4 * price + 0.1 * rng.normal(size=130), "price": price})
    frame.iloc[:125].to_csv(tmp_path / "y.csv", index=False)
    frame.iloc[125:][["ds", "price"]].to_csv(tmp_path / "prices.csv", index=False)
    settings = ["--horizon", 5, "--minutes", 0.01, "--future", tmp_path / "prices.csv"]
    result = forecast(tmp_path / "y.csv", *settings)
    assert result.exit_code == 0, result.output
    found = pd.read_csv(io.StringIO(result.stdout))
    assert np.abs(found["median"] - frame["y"].iloc[125:].to_numpy()).mean() < 1
    frame.iloc[125:][["ds"]].to_csv(tmp_path / "prices.csv", index=False)
    assert "--future is a file with columns of the data" in forecast(tmp_path / "y.csv", *settings).stderr.replace(
        "\n", " "
    )


def test_names_of_series_and_files_that_do_not_go_with_the_data(sales, tmp_path):
    """Refused before training: nothing that took time is lost."""
    data = pd.read_csv(sales)
    pd.concat([data.assign(shop="n"), data.assign(shop="s")]).assign(price=1.0).to_csv(sales, index=False)
    settings = [sales, "--horizon", 3, "--minutes", 0, "--target", "sales"]
    assert "name the column of series with --series" in forecast(*settings).stderr.replace("\n", " ")
    result = forecast(*settings, "--series", "shop")
    assert pd.read_csv(io.StringIO(result.stdout))["shop"].tolist() == ["n"] * 3 + ["s"] * 3
    ahead = pd.DataFrame({"month": ["2021-01-01", "2021-02-01"], "shop": "n", "price": 1.0})
    ahead.to_csv(tmp_path / "ahead.csv", index=False)
    new = pd.DataFrame({"month": ["2021-01-01"], "shop": "n", "price": 1.0, "sales": "many"})
    new.to_csv(tmp_path / "new.csv", index=False)
    for option, value, words in (
        ("--future", tmp_path / "ahead.csv", "Series 's' has no rows in --future"),
        ("--anomalies", tmp_path / "new.csv", "Series 'n': 'many' in column 'sales'"),
        ("--walk", 99, "and 99 windows of 3 steps, 3 apart, need 298; ask for fewer"),
    ):
        said = forecast(*settings, "--series", "shop", option, value).stderr.replace("\n", " ")
        assert words in said
        assert "weights" not in said


def test_the_first_lines_name_columns_gaps_and_time(tmp_path):
    hours = pd.date_range("2024-01-01", periods=200, freq="h")
    frame = pd.DataFrame({"when": hours, "load": np.sin(np.arange(200.0)), "temp": np.arange(200) % 7, "note": hours})
    frame.loc[[3, 4, 198, 199], "load"] = np.nan
    frame.to_csv(tmp_path / "a.csv", index=False)
    result = forecast(tmp_path / "a.csv", "--target", "load", "--horizon", 4, "--minutes", 0, "--walk", 2)
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert lines[0].startswith(
        "Dates: 'when', hourly, 2024-01-01 00:00 to 2024-01-09 07:00. Forecasting 'load' (4 values missing). "
        "Known up to now: temp"
    )
    assert lines[0].endswith("Training takes up to 0 s, and as long again for the backtest on 2 windows.")
    gap = "Series 'load' ends with 2 missing values: its last value is at 2024-01-09 05:00, "
    assert lines[1] == f"{gap}and its forecast starts at 2024-01-09 08:00."
    assert "Training a copy on the rows before the backtest: up to 0 s." in lines


def test_horizon_and_steps(sales, tmp_path):
    """A model is trained for all steps, and prints some."""
    settings = ["--minutes", 0, "--horizon", 6, "--steps", 2, "--save", tmp_path / "saved"]
    assert len(pd.read_csv(io.StringIO(forecast(sales, *settings).stdout))) == 2
    assert len(pd.read_csv(io.StringIO(forecast(tmp_path / "saved").stdout))) == 6


def test_an_answer_is_printed_where_files_cannot_be_written(sales, tmp_path, monkeypatch):
    def full(path, content):
        raise UserError(f"{path} cannot be written (No space left on device).")

    monkeypatch.setattr("bayesrnn.lab.tasks.forecast.tables.write_file", full)
    monkeypatch.setattr(Forecaster, "save", lambda self, folder: full(folder, b""))
    for options in (["--out", tmp_path / "f.csv"], ["--plot", tmp_path / "f.png"], ["--save", tmp_path / "saved"]):
        result = forecast(sales, "--minutes", 0, "--horizon", 3, *options)
        assert len(pd.read_csv(io.StringIO(result.stdout))) == 3
        assert result.exit_code == 2
        assert "No space left on device" in result.stderr.replace("\n", " ")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbered")
    frame = pd.DataFrame({"when": [f"day {k}" for k in range(90)], "y": np.sin(np.arange(90.0)), "z": 1.0})
    for name, rows in (("old", frame[:80]), ("new", frame[80:]), ("whole", frame)):
        rows.to_csv(folder / f"{name}.csv", index=False)
    result = forecast(
        folder / "old.csv", "--date", "none", "--horizon", 3, "--minutes", 0, "--save", folder / "saved"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Dates: none; rows are numbered from 0 to 79." in result.stderr
    assert "when" not in result.stderr  # a date is no covariate
    assert pd.read_csv(io.StringIO(result.stdout))["row"].tolist() == [80, 81, 82]
    return folder


class TestNumberedRows:
    @pytest.mark.parametrize("name", ["new", "whole"])
    def test_new_rows_go_on_with_the_numbers(self, numbered, name):
        result = forecast(numbered / "saved", "--data", numbered / f"{name}.csv")
        assert result.exit_code == 0, result.output
        assert pd.read_csv(io.StringIO(result.stdout))["row"].tolist() == [90, 91, 92]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    days = pd.date_range("2024-01-01", periods=100)
    frame = pd.DataFrame({"when": days, "y": np.sin(np.arange(100.0)), "price": np.arange(100) % 5})
    frame[:90].to_csv(folder / "old.csv", index=False)
    frame[90:95].to_csv(folder / "ahead.csv", index=False)
    ahead = ["--future", folder / "ahead.csv"]
    result = forecast(folder / "old.csv", *ahead, "--horizon", 5, "--minutes", 0, "--save", folder / "saved")
    assert result.exit_code == 0, result.output
    assert "Known ahead: price." in result.stderr
    wrong = {
        "bad": frame[90:95].assign(y=["1", "2", "many", "4", "5"]), "dates": frame[90:].drop(columns="when"),
        "twice": pd.concat([frame[90:95], frame[90:91]]), "few": frame[90:93],
    }  # fmt: skip
    for name, rows in wrong.items():
        rows.to_csv(folder / f"{name}.csv", index=False)
    return folder


class TestWords:
    """Errors name the file that is wrong, its lines and columns, and options of the command."""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ([], "The model needs future values of price; give --future a file with the dates of the next 5 steps"),
            (["--anomalies", "bad"], "'many' in column 'y', line 4"),
            (["--anomalies", "dates"], "dates.csv has no column of dates"),
            (["--data", "dates"], "dates.csv has no column of dates"),
            (["--data", "bad"], "'many' in column 'y', line 4"),
            (["--future", "dates"], "dates.csv has no column of dates"),
            (["--future", "twice"], "lines 2 and 7 of --future are both at"),
            (["--future", "few"], "--future has no price at 2024-04-03"),
            (["--above", "inf"], "--above is inf; give a number."),
        ],
    )
    def test_of_a_saved_forecaster(self, files, options, words):
        given = [files / f"{o}.csv" if (files / f"{o}.csv").exists() else o for o in options]
        said = forecast(files / "saved", *given).stderr.replace("\n", " ")
        assert words in said
        for python in ("_col", "old.csv", "row ", "predict("):
            assert python not in said

    def test_of_files_before_training(self, files):
        for option, name, words in (
            ("--future", "twice", "lines 2 and 7 of --future"), ("--anomalies", "bad", "column 'y', line 4"),
            ("--anomalies", "old", "old.csv has no values after those of the data"),
        ):  # fmt: skip
            said = forecast(files / "old.csv", "--horizon", 5, option, files / f"{name}.csv").stderr.replace("\n", " ")
            assert words in said
            assert "weights" not in said

    def test_rows_of_series_are_not_lines(self):
        words = Words(path=Path("a.csv"), rows=tuple(range(72)), stamps="when")
        for message, said in (
            ("Series 'a' has 1 value (row 70); fit needs more.", "Series 'a' has 1 value; fit needs more."),
            ("Series 'a' has 5 rows (0 to 4), too few.", "Series 'a' has 5 rows, too few."),
            ("Series 'a' is constant (rows 0 to 71 are 5); add.", "Series 'a' is constant (always 5); add."),
            ("Row 3 has no stamp in column 'ds'.", "Line 5 has no stamp in column 'when'."),
            ("The frame has no 'x', which past= names.", "a.csv has no 'x', which the model needs."),
            ("freq is 'x'; name it with target_col.", "--freq is 'x'; name it with --target."),
        ):
            assert words.said(message) == said
        recipe = Words(spelling="data.{}", sets="=")
        assert recipe.said("no 'x', which past= names") == "no 'x', which data.covariates names"


def test_pictures_of_several_series_and_of_alarms(tmp_path):
    """As many panels as there are series, up to six; then the command says which."""
    days = pd.date_range("2024-01-01", periods=60)
    wide = pd.DataFrame({f"s{k}": np.sin(np.arange(60.0) + k) for k in range(8)}).assign(ds=days)
    wide[:50].to_csv(tmp_path / "a.csv", index=False)
    wide[50:].to_csv(tmp_path / "new.csv", index=False)
    settings = ["--horizon", 3, "--minutes", 0, "--plot", tmp_path / "a.png"]
    result = forecast(tmp_path / "a.csv", *settings)
    assert "The picture has the 6 of 8 series that come first: s0, s1, s2, s3, s4, s5." in result.stderr
    pixels = imread(tmp_path / "a.png")
    assert pixels.shape[0] > 1.5 * pixels.shape[1]
    result = forecast(tmp_path / "a.csv", *settings, "--anomalies", tmp_path / "new.csv")
    assert result.exit_code == 0, result.output
    assert "6 of 8 series with the largest scores" in result.stderr
    assert imread(tmp_path / "a.png").shape[0] > 1.5 * pixels.shape[1]


def test_the_first_line_of_numbers_and_of_a_series_without_values(tmp_path):
    frame = pd.DataFrame({"t": np.arange(0, 80, 2), "y": np.sin(np.arange(40.0))})
    both = pd.concat([frame.assign(shop="a"), frame.assign(shop="b", y=np.nan)])
    both.to_csv(tmp_path / "a.csv", index=False)
    said = forecast(tmp_path / "a.csv", "--date", "t", "--series", "shop", "--horizon", 3).stderr
    assert said.startswith("Dates: 't', whole numbers, every 2, 0 to 78. Forecasting 'y' for each 'shop' (a, b) (40")
    assert "ends with" not in said
    assert "Series 'b' has no value" in said
