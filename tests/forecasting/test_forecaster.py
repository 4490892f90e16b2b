"""The forecaster: what goes in, what comes out, and that it does not look ahead."""

import numpy as np
import pandas as pd
import pytest

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, plots, scores
from bayesrnn.forecasting.scores import pit


def hourly(series=2, rows=400, seed=0, first="2024-01-01", tz=None):
    rng, t = np.random.default_rng(seed), np.arange(rows)
    stamps = pd.date_range(first, periods=rows, freq="h", tz=tz)
    waves = [20 + 5 * np.sin(2 * np.pi * (t + 3 * k) / 24) + rng.normal(0, 1, rows) for k in range(series)]
    parts = [pd.DataFrame({"unique_id": f"s{k}", "ds": stamps, "y": y}) for k, y in enumerate(waves)]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def fitted():
    """Without networks: fast."""
    frame = hourly()
    return Forecaster(24, members=0).fit(frame), frame


@pytest.fixture(scope="module")
def networked():
    frame = hourly(rows=700)
    # The networks must be used, so the likelihood is named.
    return Forecaster(12, members=1, hidden=8, samples=4, minutes=0.02, likelihood="student").fit(frame), frame


class TestPredict:
    def test_the_frame_has_a_row_per_series_and_step(self, fitted):
        found = fitted[0].predict(level=[80, 95], quantiles=[0.1])
        assert list(found) == ["unique_id", "ds", "mean", "median", "lo-80", "hi-80", "lo-95", "hi-95", "q-0.1",
                               "aleatoric_std", "epistemic_std"]  # fmt: skip
        assert len(found) == 48
        assert found["ds"].iloc[0] == pd.Timestamp("2024-01-01") + pd.Timedelta(hours=400)
        assert (found["lo-95"] < found["lo-80"]).all()
        assert (found["lo-80"] < found["median"]).all()
        np.testing.assert_allclose(found["lo-80"], found["q-0.1"])

    def test_the_forecast_finds_the_season(self, fitted):
        found = fitted[0].predict()
        hours = np.arange(400, 424)
        for k in range(2):
            truth = 20 + 5 * np.sin(2 * np.pi * (hours + 3 * k) / 24)
            assert np.abs(found["median"].to_numpy()[24 * k : 24 * k + 24] - truth).mean() < 0.6

    @pytest.mark.parametrize("form", ["wide", "series", "csv", "gz", "parquet", "index"])
    def test_other_forms_of_the_same_data_give_the_same_forecast(self, fitted, form, tmp_path):
        model, frame = fitted
        wide = frame.pivot(index="ds", columns="unique_id", values="y")
        if form == "series":
            data, rows = wide["s0"], slice(0, 24)
        else:
            rows = slice(None)
            path = tmp_path / f"data.{ {'gz': 'csv.gz'}.get(form, form) }"
            if form in ("csv", "gz"):
                frame.to_csv(path, index=False)
            elif form == "parquet":
                frame.to_parquet(path)
            data = {"wide": wide, "index": frame.set_index("ds")}.get(form, path)
        found = model.predict(data)
        expected = model.predict()
        np.testing.assert_allclose(found["median"], expected["median"][rows])
        assert (found["ds"].to_numpy() == expected["ds"].to_numpy()[rows]).all()

    def test_a_series_that_is_new_to_the_model(self, fitted):
        new = hourly(1, rows=60, seed=5, first="2025-03-01").assign(unique_id="new")
        found = fitted[0].predict(new)
        assert set(found["unique_id"]) == {"new"}
        assert found["ds"].iloc[0] == pd.Timestamp("2025-03-03 12:00")
        assert found["median"].between(10, 30).all()

    def test_newest_first_and_shuffled_rows_change_nothing(self, fitted):
        model, frame = fitted
        found = model.predict(frame.sort_values(["unique_id", "ds"], ascending=[True, False]))
        np.testing.assert_allclose(found["median"], model.predict()["median"])

    def test_streaming_gives_what_one_call_gives(self, fitted):
        model, frame = fitted
        parts = list(model.stream(part for _, part in frame.groupby("unique_id")))
        np.testing.assert_allclose(pd.concat(parts)["mean"], model.predict()["mean"])

    def test_quantities_that_are_never_negative_have_no_negative_bounds(self):
        rng = np.random.default_rng(0)
        index = pd.date_range("2020-01-01", periods=300, freq="D")
        y = pd.Series(rng.gamma(0.5, 2.0, 300), index=index)
        found = Forecaster(7, members=0).fit(y).predict(level=[99])
        assert (found["lo-99"] >= 0).all()

    def test_a_negative_value_after_training_on_logarithms(self, fitted):
        _, frame = fitted
        model = Forecaster(6, members=0, transform="log", freq="h").fit(frame)
        low, high = (frame["y"].min(), frame["y"].max())
        new = frame.assign(y=frame["y"].where(frame.groupby("unique_id").cumcount() != 390, -1.0))
        assert model.predict(new)["median"].between(low - (high - low), high + (high - low)).all()

    def test_draws_of_a_network_give_an_epistemic_part(self, networked):
        model, _ = networked
        assert model.model.weights[-1] == 1.0
        found = model.predict()
        assert (found["epistemic_std"] > 0).all()
        pd.testing.assert_frame_equal(found, model.predict())


class TestTime:
    def test_daylight_saving_days_have_23_and_25_hours(self):
        frame = hourly(1, rows=400, first="2024-03-20", tz="Europe/Berlin")
        found = Forecaster(12, members=0).fit(frame[:270]).predict()
        expected = pd.date_range("2024-03-20", periods=282, freq="h", tz="Europe/Berlin")[270:]
        assert (pd.DatetimeIndex(found["ds"]) == expected).all()

    @pytest.mark.parametrize(
        ("freq", "names"), [
            ("D", ["D"]), ("B", ["B"]), ("W-WED", ["W-WED", "W"]), ("MS", ["MS"]), ("ME", ["ME", "M", "MS"]),
            ("QS", ["QS"]), ("QE", ["QE", "Q"]), ("QE-NOV", ["QE-NOV", "Q-NOV"]), ("YS", ["YS", "AS"]),
            ("YE", ["YE", "Y", "A"]), ("YE-FEB", ["YE-FEB"]), ("YE-JUN", ["YE-JUN", "A-JUN"]), ("BMS", ["BMS"]),
            ("BME", ["BME", "BM"]), ("BQE", ["BQE", "BQ"]), ("BQS", ["BQS"]), ("BYE", ["BYE", "BA"]), ("BYS", ["BYS"]),
            ("SME", ["SME", "SM"]), ("SMS", ["SMS"]), ("2MS", ["2MS"]), ("2W", ["2W"]), ("15min", ["15min", "15T"]),
            ("h", ["h", "H"]), ("2h", ["2h", "2H"]), ("s", ["s", "S"]), ("WOM-3FRI", ["WOM-3FRI"]),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("time", [0, 57_600])
    def test_stamps_continue_as_pandas_continues_them(self, freq, names, time):
        index = pd.date_range("2001-01-01", periods=64, freq=freq) + pd.Timedelta(seconds=time)
        y = pd.Series(np.sin(np.arange(60)) + np.arange(60) / 10 + 5, index=index[:60])
        for given in [*names, pd.tseries.frequencies.to_offset(freq)] + [None] * (freq != "WOM-3FRI"):
            model = Forecaster(4, given, members=0).fit(y)
            assert (pd.DatetimeIndex(model.history()["ds"]) == index[:60]).all(), given
            assert (pd.DatetimeIndex(model.predict()["ds"]) == index[60:]).all(), given

    def test_dates_that_follow_no_rule_are_refused_or_resampled(self):
        rng = np.random.default_rng(0)
        days = pd.DatetimeIndex(np.sort(rng.choice(pd.date_range("2001-01-01", "2010-12-31"), 2000, replace=False)))
        frame = pd.DataFrame({"ds": days, "y": rng.normal(10, 1, 2000)})
        for freq in ("MS", "ME", "BME", "QE", "W-WED", "SME", "B", "YE-JUN"):
            model = Forecaster(2, freq, members=0, resample="sum").fit(frame)
            stamps = pd.DatetimeIndex(model.history()["ds"])
            expected = pd.date_range(stamps[0], periods=len(stamps) + 2, freq=freq)
            assert (stamps == expected[:-2]).all()
            assert (pd.DatetimeIndex(model.predict()["ds"]) == expected[-2:]).all()
            assert model.history()["y"].sum() == pytest.approx(frame["y"].sum())
        thinned = frame.groupby(frame["ds"].dt.to_period("M")).head(1)
        with pytest.raises(UserError, match=r"the stamp .* in row 1 is off the grid of one month; set freq"):
            Forecaster(2, "MS", members=0).fit(thinned)
        with pytest.raises(
            UserError, match=r"the stamp 2001-01-13.* in row 6 is off the grid of one weekday; set freq"
        ):
            Forecaster(2, "B", members=0).fit(frame)

    def test_a_whole_number_axis(self):
        noise = np.random.default_rng(0).normal(0, 0.1, 100)
        frame = pd.DataFrame({"ds": np.arange(0, 500, 5), "y": np.arange(100) % 7 + noise})
        found = Forecaster(7, members=0).fit(frame).predict()
        assert found["ds"].tolist() == list(range(500, 535, 5))
        np.testing.assert_allclose(found["median"], np.arange(100, 107) % 7, atol=0.5)

    def test_irregular_stamps_are_resampled_by_option(self):
        rng = np.random.default_rng(0)
        stamps = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.sort(rng.uniform(0, 300 * 3600, 2000)), unit="s")
        frame = pd.DataFrame({"ds": stamps, "y": rng.normal(5, 1, 2000)})
        with pytest.raises(UserError, match=r"off the grid of one hour; set freq .*resample=\"mean\""):
            Forecaster(6, "h", members=0).fit(frame)
        model = Forecaster(6, "h", members=0, resample="mean").fit(frame)
        hours = frame.groupby(frame["ds"].dt.floor("h"))["y"].mean()
        np.testing.assert_allclose(model.panel.y[~np.isnan(model.panel.y)], hours)


class TestBacktest:
    def test_rows_and_scores(self, fitted):
        _, frame = fitted
        table = Forecaster(24, members=0).fit(frame).backtest(windows=3, step=24)
        assert len(table) == 3 * 2 * 24
        merged = table.merge(frame, on=["unique_id", "ds"])
        np.testing.assert_allclose(merged["y_x"], merged["y_y"])
        gap = (table["ds"] - table["cutoff"]) / pd.Timedelta(hours=1)
        np.testing.assert_allclose(gap, table["step"])
        found = scores(table)
        assert 0.5 < found["crps"].item() < 0.75  # the CRPS of N(0, 1) noise with known parameters is 0.564
        assert 0.7 < found["coverage-80"].item() < 0.95
        assert len(scores(table, by="step")) == 24

    def test_the_future_does_not_change_a_forecast(self, fitted):
        """Rows after a cutoff are changed; with the model refitted before it, forecasts stay the same."""
        _, frame = fitted
        other = frame.copy()
        late = other["ds"] >= pd.Timestamp("2024-01-01") + pd.Timedelta(hours=376)
        other.loc[late, "y"] = 1000.0
        tables = [Forecaster(24, members=0).fit(f).backtest(windows=1) for f in (frame, other)]
        np.testing.assert_allclose(tables[0]["hi-80"], tables[1]["hi-80"])
        assert (tables[0]["y"] != tables[1]["y"]).all()

    def test_widths_adapt_to_misses(self, fitted):
        model, _ = fitted
        wild = hourly(rows=1100, seed=9)
        wild["y"] += np.random.default_rng(1).normal(0, 4, len(wild)) * (wild.groupby("unique_id").cumcount() > 400)
        fixed, moving = (
            scores(model.backtest(wild, windows=28, step=24, adaptive=a).query("step > 0"))["coverage-80"].item()
            for a in (False, True)
        )
        assert fixed < moving

    def test_coverage_of_calibrated_intervals_on_new_series(self, fitted):
        new = hourly(series=40, rows=340, seed=3)
        table = fitted[0].backtest(new, windows=2, level=[90], adaptive=False)
        assert scores(table)["coverage-90"].item() == pytest.approx(0.9, abs=0.05)


class TestScaling:
    def test_one_series_whose_level_is_drawn_to_what_a_column_says(self):
        """Windows scaled one by one do not know their level."""
        rng, rows = np.random.default_rng(0), 3000
        wind, level = np.zeros(rows), np.zeros(rows)
        for i in range(1, rows):
            wind[i] = 0.98 * wind[i - 1] + rng.normal()
            level[i] = level[i - 1] + 0.05 * (3 * wind[i] - level[i - 1]) + rng.normal(0, 0.3)
        frame = pd.DataFrame(
            {"ds": pd.date_range("2024-01-01", periods=rows, freq="h"), "y": 100 + level, "wind": wind}
        )
        found = {}
        for scaling in ("auto", "standard"):
            model = Forecaster(24, "h", members=0, scaling=scaling).fit(frame[:2400])
            found[scaling] = scores(model.backtest(frame, windows=23, step=24, refit=False))["crps"].item()
        assert found["auto"] < 0.97 * found["standard"]

    def test_a_series_with_a_trend_is_scaled_window_by_window(self):
        frame = hourly(1, rows=900)
        frame["y"] += 0.05 * np.arange(900)
        model = Forecaster(12, members=0).fit(frame[:800])
        assert all(base.shape.scaling != "series" for base in model.model.bases)
        assert scores(model.backtest(frame, windows=8, refit=False))["crps"].item() < 0.8

    def test_a_window_far_from_the_series_is_scaled_by_itself(self):
        frame = hourly(1, rows=900)
        model = Forecaster(12, members=0).fit(frame)
        far = model.predict(frame.assign(y=frame["y"] * 1e4, unique_id="far"))
        assert far["median"].between(1e5, 3e5).all()
        assert (far["hi-80"] - far["lo-80"] > 5e3).all()


class TestUpdate:
    def test_new_rows_move_the_start(self, networked):
        _, frame = networked
        short = Forecaster(24, members=0).fit(frame[frame["ds"] < "2024-01-20"])
        weights = short.model.bases[0].linear.weights.copy()
        short.update(frame[frame["ds"] >= "2024-01-20"])
        assert (short.model.bases[0].linear.weights == weights).all()
        assert short.predict()["ds"].min() == frame["ds"].max() + pd.Timedelta(hours=1)

    def test_saved_and_loaded(self, networked, tmp_path):
        model, _ = networked
        model.save(tmp_path / "f")
        same = Forecaster.load(tmp_path / "f")
        pd.testing.assert_frame_equal(same.predict(), model.predict())
        pd.testing.assert_frame_equal(same.sample_paths(2, seed=1), model.sample_paths(2, seed=1))
        assert same.settings == model.settings
        (tmp_path / "f" / "forecaster.json").write_text("{}")
        with pytest.raises(UserError, match="damaged or of another version"):
            Forecaster.load(tmp_path / "f")


class TestMissing:
    def test_a_third_missing_in_stretches(self):
        frame = hourly(1, rows=900)
        rng = np.random.default_rng(0)
        for start in rng.integers(0, 860, 12):
            frame.loc[start : start + 30, "y"] = np.nan
        assert frame["y"].isna().mean() > 0.3
        table = Forecaster(24, members=0).fit(frame).backtest(windows=4, level=[90])
        found = scores(table)
        assert found["crps"].item() < 0.85
        assert 0.8 < found["coverage-90"].item() <= 1.0

    def test_missing_rows_and_missing_values_are_the_same(self):
        frame = hourly(1)
        frame.loc[50:80, "y"] = np.nan
        one, two = (Forecaster(24, members=0).fit(f).predict()["hi-95"] for f in (frame, frame.dropna()))
        np.testing.assert_allclose(one, two)


class TestCovariates:
    def frame(self):
        rng = np.random.default_rng(0)
        known, kind = rng.normal(size=600), rng.choice(["a", "b"], 600)
        y = 10 + 3 * known + 2 * (kind == "b") + rng.normal(0, 0.3, 600)
        return pd.DataFrame(
            {"ds": pd.date_range("2020-01-01", periods=600, freq="D"), "y": y, "known": known, "kind": kind}
        )

    def test_columns_known_ahead_are_used(self):
        frame = self.frame()
        model = Forecaster(7, members=0, future=["known", "kind"], season=7).fit(frame[:-7])
        found = model.predict(future=frame[-7:].drop(columns="y"))
        error = found["median"].to_numpy() - frame["y"].to_numpy()[-7:]
        assert np.abs(error).mean() < 1.2  # without the columns: about 2.5

    def test_columns_known_ahead_must_cover_the_horizon(self):
        frame = self.frame()
        model = Forecaster(7, members=0, future=["known"], past=[]).fit(frame[:-7])
        with pytest.raises(UserError, match="The model knows known ahead; give predict"):
            model.predict()
        with pytest.raises(UserError, match=r"Series 'series': future has no known at 2021-08-22 .* \(step 7 of 7\)"):
            model.predict(future=frame[-7:-1])

    def test_past_and_static_columns_are_found(self):
        frame = hourly().assign(wind=lambda f: f["y"].shift(1).fillna(0), region=lambda f: "r" + f["unique_id"])
        model = Forecaster(12, members=0).fit(frame)
        assert (model.columns.past, model.columns.static) == (("wind",), ("region",))
        assert len(model.predict()) == 24
        with pytest.raises(UserError, match="The frame has no column 'wind', which the model uses; add it"):
            model.predict(hourly())


def test_pictures(fitted):
    model, _ = fitted
    table = model.backtest(windows=2, quantiles=[0.25, 0.5, 0.75])
    made = [
        plots.fan_chart(model, "s1"),
        plots.calibration(table),
        plots.epistemic_share(table),
        plots.worst_series(table),
    ]
    assert all(png.startswith(b"\x89PNG") for png in made)
    with pytest.raises(UserError, match="There is no series 'x'; there are s0, s1"):
        plots.fan_chart(model, "x")


def test_shares_of_values_in_bins_of_their_forecasts():
    y = np.array([0.05, 0.15, 0.15, 0.95, np.nan])
    table = pd.DataFrame({"y": y, **{f"q-{q:g}": q for q in (0.1, 0.5)}})
    assert pit(table) == ([0.0, 0.1, 0.5, 1.0], [0.25, 0.5, 0.25])
    assert pit(table[["y"]]) == ([], [])


def _series(values, freq):
    return pd.Series(values, index=pd.date_range("2020-01-01", periods=len(values), freq=freq))


@pytest.mark.parametrize(("seed", "rows"), [(2, 80), (3, 50), (5, 60)])
def test_short_series_whose_covariance_is_all_but_singular(seed, rows):
    values = 50 + 10 * np.sin(2 * np.pi * np.arange(rows) / 24) + np.random.default_rng(seed).normal(size=rows)
    found = Forecaster(horizon=3, members=0).fit(_series(values, "D")).predict(level=[90])
    assert (found["hi-90"] > found["lo-90"]).all()
    assert found["mean"].between(30, 70).all()


@pytest.mark.parametrize("gap", [48, 100, 300])
def test_series_that_end_in_a_long_gap(gap):
    values = 50 + 10 * np.sin(2 * np.pi * np.arange(480) / 24) + np.random.default_rng(1).normal(size=480)
    values[480 - gap :] = np.nan
    model = Forecaster(horizon=24, members=0)
    if gap == 300:
        with pytest.raises(UserError, match="has 180 values in 480 steps, and none after 2020-01-08"):
            model.fit(_series(values, "h"))
    else:
        assert model.fit(_series(values, "h")).predict()["mean"].between(35, 65).all()


def test_series_that_hardly_move():
    values = 1e9 + np.random.default_rng(0).normal(size=60)
    with pytest.raises(UserError, match="less than a millionth"):
        Forecaster(horizon=6, members=0).fit(_series(values, "MS"))
