"""Windows and their scaling: nothing of the future or of other parts leaks in, and forecasts come back as levels."""

import math

import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.forecasting.autoregression import carried, gather, linear, ridge_weights, season_of
from bayesrnn.forecasting.series import mauna_loa
from bayesrnn.lab.tasks.forecast.frames import Cut, Frame, _blocks, _linear_error, choose_lag


def values(n=120, columns=2, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.rand(n, 1, columns, generator=source, dtype=torch.float64).cumsum(0) + 1


def cut_of(n=120, **changes):
    return Cut.of(n, **{"valid": 0.2, "test": 0.2, "window": 6, "horizon": 3, **changes})


def test_parts_follow_each_other():
    cut = cut_of()
    assert (cut.train, cut.valid, cut.length) == (72, 96, 120)
    parts = {p: cut.origins(p, first=5, horizon=3) for p in ("train", "valid", "test")}
    assert parts["train"] == range(5, 69)  # the last forecasts steps 69 to 71
    assert parts["valid"] == range(71, 93)  # the first knows step 71 and forecasts 72
    assert parts["test"] == range(95, 117)


@pytest.mark.parametrize(
    ("n", "changes", "words"),
    [
        (120, {"test": 0.5, "valid": 0.2}, "The test part (50%) is longer than the training part (30%)"),
        (120, {"test": 0.6, "valid": 0.6}, "The test part (60%) is longer than the training part (0%)"),
        (
            30,
            {},
            "too short: its train part has 18 of 30 steps, and 28 are needed for a window of 6 and a horizon of 3",
        ),
        (100, {"valid": 0.05, "test": 0.1}, "too short: its valid part has 5 of 100 steps, and 7 are needed"),
    ],
)
def test_series_that_are_too_short(n, changes, words):
    with pytest.raises(UserError) as error:
        cut_of(n, **changes)
    assert words in str(error.value)


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
@pytest.mark.parametrize("log", [False, True])
def test_targets_come_back_as_levels(lag, log):
    """known + spread * scaled target is the level itself; known needs nothing beyond the origin."""
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=lag, log=log)
    origins = torch.arange(frame.first, 117)
    scaled = frame.targets(series, origins)
    levels = frame.known(series, origins) + scaled * torch.tensor(frame.target_spread, dtype=torch.float64)
    true = series[:, 0, 0].log() if log else series[:, 0, 0]
    for h in (1, 2, 3):
        torch.testing.assert_close(levels[:, h - 1], true[origins + h])
    changed = series.clone()
    changed[101:] = 50.0
    torch.testing.assert_close(frame.known(changed, torch.tensor([100])), frame.known(series, torch.tensor([100])))


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_the_end_of_series_side_by_side(lag):
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=lag)
    other = values(seed=1)
    both = frame.known_at_end(torch.cat([series, other], 1))
    torch.testing.assert_close(both[0], frame.known(series, torch.tensor([119]))[0])
    torch.testing.assert_close(both[1], frame.known(other, torch.tensor([119]))[0])


def test_a_season_is_longer_or_shorter_than_the_horizon():
    """Lag 2, 3 steps ahead of t: differences from t - 1, t, t - 1."""
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=2)
    known = frame.known(series, torch.tensor([50]))[0] - torch.tensor(frame.target_center, dtype=torch.float64)
    torch.testing.assert_close(known, series[[49, 50, 49], 0, 0])


@pytest.mark.parametrize("lag", [0, 3])
def test_windows_end_at_their_origin(lag):
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=lag)
    x = frame.windows(series, torch.tensor([20, 40]))
    assert x.shape == (6, 2, 2)
    raw = series[:, 0] if lag == 0 else series[lag:, 0] - series[:-lag, 0]
    mean, spread = (torch.tensor(s, dtype=torch.float64) for s in (frame.center, frame.spread))
    torch.testing.assert_close(x[:, 1], (raw[40 - lag - 5 : 40 - lag + 1] - mean) / spread)
    changed = series.clone()
    changed[41:] = 99.0
    torch.testing.assert_close(frame.windows(changed, torch.tensor([20, 40])), x)


def test_scales_are_those_of_the_training_part():
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=1)
    train = torch.arange(frame.first, 69)
    for tensor in (frame.targets(series, train),):
        torch.testing.assert_close(tensor.mean(0), torch.zeros(3).double(), atol=1e-9, rtol=0)
        torch.testing.assert_close(tensor.std(0, correction=0), torch.ones(3).double())
    changed = series.clone()
    changed[72:] *= 7
    assert Frame.fit(changed, cut, window=6, horizon=3, lag=1) == frame


def test_the_unknown_future_is_nan():
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3)
    assert frame.targets(series, torch.tensor([116, 117, 119])).isnan().tolist() == [
        [False, False, False], [False, False, True], [True, True, True],
    ]  # fmt: skip


def test_series_side_by_side():
    """features of (n, B, F) are those of every series alone."""
    series, cut = values(), cut_of()
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=2, log=True)
    other = values(seed=1)
    both = frame.features(torch.cat([series, other], 1))
    torch.testing.assert_close(both[:, 1:], frame.features(other))


def test_a_frame_is_written_and_read():
    frame = Frame.fit(values(), cut_of(), window=6, horizon=3, lag=2, log=True)
    import json

    assert Frame.of(json.loads(json.dumps(frame.settings()))) == frame


def test_what_a_frame_refuses():
    flat = torch.ones(120, 1, 1, dtype=torch.float64)
    with pytest.raises(UserError, match="The training part of the series is constant"):
        Frame.fit(flat, cut_of(), window=6, horizon=3)
    with pytest.raises(UserError, match=r"changes by so little that its variance is 0 .* multiply its values"):
        Frame.fit(values() * 1e-299, cut_of(), window=6, horizon=3)
    with pytest.raises(
        UserError, match=r"data.log needs values of at least 0, and the series has 120 values below, down to -1; omit"
    ):
        Frame.fit(flat - 2, cut_of(), window=6, horizon=3, log=True)
    with pytest.raises(UserError, match="12 training windows with differences at lag 52, and 20 are needed"):
        Frame.fit(values(), cut_of(), window=6, horizon=3, lag=52)
    steady = values()
    steady[:, :, 1] = 4.0
    assert Frame.fit(steady, cut_of(), window=6, horizon=3).spread[1] == 1.0


def test_logarithms_take_zeros_as_half_of_the_smallest_value_above():
    some = values()
    some[5, 0, 0] = 0.0
    frame = Frame.fit(some, cut_of(), window=6, horizon=3, log=True)
    levels = frame.levels(some)[:, 0].exp()
    assert levels[5] == pytest.approx(float(some[some[..., 0] > 0][..., 0].min()) / 2)
    assert levels[6] == pytest.approx(float(some[6, 0, 0]))


def test_gathered_windows():
    features = torch.arange(10.0).unsqueeze(1)
    assert gather(features, torch.tensor([3, 9]), 3)[..., 0].tolist() == [[1, 7], [2, 8], [3, 9]]


def test_the_season():
    steps, cut = torch.arange(200, dtype=torch.float64), Cut(140, 170, 200)
    wave = torch.sin(2 * math.pi * steps / 11) + 0.05 * steps
    assert season_of(wave, cut.train, (1,)) == 11  # found under a trend
    assert season_of(wave, cut.train, (12,)) == 12  # as the dates say
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert season_of(noise, cut.train, (1,)) == 1
    assert season_of(2 * steps, cut.train, (1,)) == 1
    assert season_of(torch.ones(200, dtype=torch.float64), cut.train, (1,)) == 1


def test_the_lag_that_a_linear_model_likes():
    """A random walk is best forecast from its last value, noise about a mean from nothing."""
    source = torch.Generator().manual_seed(0)
    noise = torch.randn(400, 1, 1, generator=source, dtype=torch.float64)
    cut = Cut.of(400, valid=0.2, test=0.2, window=6, horizon=3)
    options = {"window": 6, "horizon": 3, "log": False}
    assert choose_lag(noise.cumsum(0) * 5 + torch.arange(400).double().view(-1, 1, 1), cut, (0, 1), **options) == 1
    assert choose_lag(noise, cut, (0, 1), **options) == 0
    assert choose_lag(noise, cut, (0, 300), **options) == 0  # a season that is too long is left aside


def test_one_block_does_not_decide_on_the_lag():
    """Of carbon dioxide up to 1995 levels happen to forecast the validation part best; over all blocks they do not."""
    series = torch.from_numpy(mauna_loa().values).unsqueeze(1)[:447]
    cut = Cut.of(447, valid=0.15, test=0.15, window=24, horizon=6)
    options = {"window": 24, "horizon": 6, "log": False}
    frames = {lag: Frame.fit(series, cut, lag=lag, **options) for lag in (0, 1, 12)}
    alone = {lag: _linear_error(series, cut, frame, 1.0) for lag, frame in frames.items()}
    assert min(alone, key=lambda lag: alone[lag]) == 0
    assert choose_lag(series, cut, (0, 1, 12), **options) == 12
    series[cut.valid :] = 0.0
    assert choose_lag(series, cut, (0, 1, 12), **options) == 12  # the test part is not looked at


def test_a_short_series_is_judged_by_its_validation_part():
    chosen = set()
    for seed in range(4):
        source = torch.Generator().manual_seed(seed)
        short = torch.randn(60, 1, 1, generator=source, dtype=torch.float64).cumsum(0)
        cut, options = Cut(40, 50, 60), {"window": 4, "horizon": 5, "log": False}
        assert _blocks(cut, 5) == []
        alone = {lag: _linear_error(short, cut, Frame.fit(short, cut, lag=lag, **options), 1.0) for lag in (0, 1)}
        best = min(alone, key=lambda lag: alone[lag])
        assert choose_lag(short, cut, (0, 1), **options) == best
        chosen.add(best)
    assert chosen == {0, 1}


def test_ridge_is_least_squares_where_nothing_is_penalised():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(4, 50, 2, generator=source, dtype=torch.float64)
    true = torch.randn(9, 3, generator=source, dtype=torch.float64)
    torch.testing.assert_close(ridge_weights(x, linear(x, true), 0.0), true)
    rows = torch.cat([x.transpose(0, 1).flatten(1), torch.ones(50, 1).double()], 1)
    y = torch.randn(50, 3, generator=source, dtype=torch.float64)
    weights = ridge_weights(x, y, 2.0)
    torch.testing.assert_close(rows.T @ (rows @ weights - y) + 2.0 * weights, torch.zeros(9, 3).double())


def gappy(n=160, seed=0, share=0.3):
    """Two columns of which a share is missing in stretches, target and covariate at different steps."""
    series, source = values(n, 2, seed), torch.Generator().manual_seed(seed)
    for column in (0, 1):
        missing = (torch.rand(n // 8, generator=source) < share).repeat_interleave(8)
        missing[:8] = False
        series[: len(missing), 0, column] = series[: len(missing), 0, column].masked_fill(missing, math.nan)
    return series


@pytest.mark.parametrize("lag", [0, 1, 5])
@pytest.mark.parametrize("log", [False, True])
def test_missing_values_are_masked_and_nothing_looks_ahead(lag, log):
    series, cut = gappy(), cut_of(160)
    frame = Frame.fit(series, cut, window=6, horizon=3, lag=lag, log=log)
    assert frame.masked
    origins = torch.arange(frame.first, 157)
    x, y = frame.windows(series, origins), frame.targets(series, origins)
    assert x.shape == (6, len(origins), 4)
    assert bool(x.isfinite().all())
    missing = gather(series[:, 0].isnan().double(), origins, 6)
    torch.testing.assert_close(x[..., 2:], missing)
    assert not x[..., :2][missing.bool()].any()  # the scaled mean
    target = series[:, 0, 0]
    torch.testing.assert_close(y.isnan(), target[origins.unsqueeze(1) + torch.arange(1, 4)].isnan())
    future = series.clone()
    future[101:] = 77.0
    for made in (frame.windows, frame.known):
        torch.testing.assert_close(made(future, torch.tensor([80, 100])), made(series, torch.tensor([80, 100])))
    train = y[origins < 96 - 3]
    assert float(train.nanmean().abs()) < 0.3


def test_scales_are_those_of_values_that_are_known():
    series, cut = gappy(), cut_of(160)
    frame = Frame.fit(series, cut, window=6, horizon=3)
    known = series[:96, 0, 0][~series[:96, 0, 0].isnan()]
    assert frame.center[0] == pytest.approx(float(known.mean()))
    assert frame.spread[0] == pytest.approx(float(known.std(correction=0)))
    with pytest.raises(
        UserError, match=r"Only \d+ training windows of \d+ have a value to forecast, and 20 are needed"
    ):
        Frame.fit(series.where(torch.arange(160).view(-1, 1, 1) % 90 < 10, math.nan), cut, window=6, horizon=3)


def test_the_last_value_known_is_carried():
    nan = math.nan
    levels = torch.tensor([1.0, 2.0, 3.0, nan, nan, 6.0, nan, nan, nan]).double()
    assert carried(levels, 1).tolist() == [1, 2, 3, 3, 3, 6, 6, 6, 6]
    assert carried(levels, 3).tolist() == [1, 2, 3, 1, 2, 6, 1, 2, 6]
    assert carried(levels[:3], 3) is not None


def test_the_season_of_days_is_a_week_or_a_year():
    source = torch.Generator().manual_seed(0)
    steps = torch.arange(1200, dtype=torch.float64)
    noise = 0.3 * torch.randn(1200, generator=source, dtype=torch.float64)
    year, week = torch.sin(2 * math.pi * steps / 365.25), torch.sin(2 * math.pi * steps / 7)
    cut = Cut(840, 1020, 1200)
    assert season_of(year + noise, cut.train, (7, 365)) == 365
    assert season_of(week + noise, cut.train, (7, 365)) == 7
    assert season_of(3 * week + year + noise, cut.train, (7, 365)) == 7
    assert season_of(year + noise, 500, (7, 365)) == 7  # less than two years to learn from


def test_the_lag_of_a_series_with_gaps():
    series = gappy(400).cumsum(0).nan_to_num()  # a random walk with drift
    series[50:90:3, 0, 0] = math.nan
    cut = Cut.of(400, valid=0.2, test=0.2, window=6, horizon=3)
    assert choose_lag(series, cut, (0, 1), window=6, horizon=3, log=False) == 1
