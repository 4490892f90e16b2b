"""Conformal intervals: coverage by simulation with stated power, drifting data, torch and numpy, refusals."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import bayesrnn as br

torch.set_num_threads(1)


@dataclass
class Said:
    """What some predictor of somebody else returns."""

    mean: torch.Tensor
    width: torch.Tensor | float = 1.0

    def interval(self, level):
        return self.mean - self.width, self.mean + self.width


def half_right(x):
    """A predictor of y = 2 x + noise that is off by half of x, and whose intervals are of the wrong width."""
    return Said(1.5 * x, 0.3 + 0.1 * abs(x))


def data(n, seed, noise=1.0):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, generator=source, dtype=torch.float64)
    return x, 2 * x + noise * (0.2 + x.abs()) * torch.randn(n, generator=source, dtype=torch.float64)


@pytest.mark.parametrize("method", ["split", "cqr", "adaptive"])
@pytest.mark.parametrize(("level", "n"), [(0.9, 9), (0.9, 99), (0.8, 50), (0.95, 200)])
def test_coverage_of_exchangeable_data_is_what_is_promised(method, level, n):
    """It is ceil((n + 1) level) / (n + 1) on average. Over 400 calibration sets with 50 new values each, the mean's
    standard error is below 0.0075 (which is checked), so a coverage off by 0.05 would be found with a power above 99%.
    """
    covered = []
    for trial in range(400):
        x, y = data(n + 50, trial)
        c = br.Conformal(half_right, level=level, method=method).calibrate(x[:n], y[:n])
        low, high = c.interval(x[n:])
        covered.append(float(((y[n:] >= low) & (y[n:] <= high)).double().mean()))
    error = np.std(covered) / math.sqrt(len(covered))
    assert error < 0.0075
    expected = math.ceil((n + 1) * level - 1e-9) / (n + 1)
    assert abs(np.mean(covered) - expected) < 4 * error


def overconfident(x):
    """A classifier whose labels come from softer probabilities."""
    return Said((3 * x).softmax(-1))


@pytest.mark.parametrize(("level", "n"), [(0.9, 9), (0.8, 50), (0.95, 200)])
def test_sets_of_classes_cover_as_promised(level, n):
    """Measured as above: 400 calibration sets, 50 new labels each."""
    covered, sizes = [], []
    for trial in range(400):
        source = torch.Generator().manual_seed(trial)
        x = torch.randn(n + 50, 4, generator=source, dtype=torch.float64)
        y = torch.multinomial(x.softmax(-1), 1, generator=source)[:, 0]
        c = br.Conformal(overconfident, level=level, method="lac").calibrate(x[:n], y[:n])
        inside = c.sets(x[n:])
        covered.append(float(inside.gather(1, y[n:, None]).double().mean()))
        sizes.append(float(inside.double().sum(1).mean()))
    error = np.std(covered) / math.sqrt(len(covered))
    assert error < 0.0075
    assert abs(np.mean(covered) - math.ceil((n + 1) * level - 1e-9) / (n + 1)) < 4 * error
    assert np.mean(sizes) < 4  # not by naming every class


def test_the_set_of_classes_by_hand_and_per_column():
    p = torch.tensor([[[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]]]).expand(4, 2, 3)  # (N, T, K): every step by itself
    y = torch.tensor([[0, 2]]).expand(4, 2)
    c = br.Conformal(lambda x: Said(p[: len(x)]), level=0.8, method="lac").calibrate(torch.zeros(4), y)
    assert c.sets(torch.zeros(1)).tolist() == [[[True, False, False], [False, False, True]]]
    found = c.calibrate(torch.zeros(4), y.clone().index_put_((torch.tensor(0), torch.tensor(0)), torch.tensor(1)))
    assert found.sets(np.zeros(1)).tolist() == [[[True, True, False], [False, False, True]]]


def drifting(seed, steps=4000):
    """Noise that grows tenfold, and a slope that is left behind."""
    source = np.random.default_rng(seed)
    x = source.standard_normal(steps + 200)
    scale = np.concatenate([np.ones(200), np.linspace(1, 10, steps)])
    return x, 2 * x + scale * source.standard_normal(steps + 200)


def test_adaptive_intervals_cover_drifting_data_and_split_ones_do_not():
    """Over 4,000 steps misses are within (1 + gamma) / (gamma T) = 0.025 of 10%, whatever the data."""
    x, y = drifting(0)
    fixed = br.Conformal(half_right, level=0.9).calibrate(x[:200], y[:200])
    low, high = fixed.interval(x[200:])
    assert float(((y[200:] >= low) & (y[200:] <= high)).mean()) < 0.6
    adaptive = br.Conformal(half_right, level=0.9, method="adaptive").calibrate(x[:200], y[:200])
    held, widths = [], []
    for t in range(200, len(x)):
        low, high = adaptive.interval(x[t : t + 1])
        held.append(bool(low[0] <= y[t] <= high[0]))
        widths.append(float(high[0] - low[0]))
        adaptive.update(y[t : t + 1])
    assert abs(np.mean(held) - 0.9) <= 1.01 / (0.01 * 4000)
    assert abs(np.mean(held[-1000:]) - 0.9) < 0.04  # also at the end, where it matters
    assert np.median(widths[-500:]) > 4 * np.median(widths[:100])


def test_the_step_of_the_adaptive_method_by_hand():
    c = br.Conformal(lambda x: Said(x), level=0.8, method="adaptive", gamma=0.1)
    c.calibrate(torch.zeros(9), torch.arange(1.0, 10.0))
    low, high = c.interval(torch.zeros(1))
    assert (float(low), float(high)) == (-8.0, 8.0)  # the 8th of 9 scores
    c.update(torch.tensor([20.0]))  # missed: alpha from 0.2 to 0.2 + 0.1 (0.2 - 1) = 0.12; scores are 2, ..., 9, 20
    low, high = c.interval(torch.zeros(1))
    assert float(high) == 20.0  # ceil(10 * 0.88) = 9th
    c.update(torch.tensor([25.0]))
    assert float(c.interval(torch.zeros(1))[1]) == math.inf  # alpha is 0.04, and ceil(9.6) = 10 are not there


def test_cqr_moves_the_predictor_s_own_ends():
    """Scores are all but one -0.5: intervals that were too wide become narrower by that."""
    c = br.Conformal(lambda x: Said(x, 1.0), level=0.9, method="cqr").calibrate(torch.zeros(20), torch.full((20,), 0.5))
    low, high = c.interval(torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(low, torch.tensor([2.5, 3.5]).double())
    torch.testing.assert_close(high, torch.tensor([3.5, 4.5]).double())


def test_columns_are_calibrated_by_themselves():
    source = torch.Generator().manual_seed(0)
    y = torch.randn(500, 2, generator=source) * torch.tensor([1.0, 10.0])
    c = br.Conformal(lambda x: Said(torch.zeros(len(x), 2)), level=0.9).calibrate(y, y)
    low, high = c.interval(torch.zeros(3, 2))
    assert low.shape == (3, 2)
    assert float(high[0, 1] / high[0, 0]) == pytest.approx(10, rel=0.3)


def test_around_predict_and_numpy():
    torch.manual_seed(0)
    model, likelihood = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2)), br.StudentT(df=4)
    x, y = data(400, 0)
    x, y = x.float().unsqueeze(1), y.float()

    def said(rows):
        return br.predict(model, torch.as_tensor(rows), samples=4, seed=0, likelihood=likelihood)

    for method in ("split", "cqr", "adaptive"):
        c = br.Conformal(said, level=0.9, method=method).calibrate(x[:200], y[:200])
        low, high = c.interval(x[200:])
        assert isinstance(low, torch.Tensor)
        assert float(((y[200:] >= low) & (y[200:] <= high)).double().mean()) == pytest.approx(0.9, abs=0.1)
        array = br.Conformal(said, level=0.9, method=method).calibrate(x[:200].numpy(), y[:200].numpy())
        ends = array.interval(x[200:].numpy())
        assert isinstance(ends[0], np.ndarray)
        np.testing.assert_allclose(ends[0], low.numpy())
        np.testing.assert_allclose(ends[1], high.numpy())


@pytest.mark.parametrize(("level", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_too_few_rows_are_refused_with_the_number_that_is_needed(level, needed):
    c = br.Conformal(lambda x: Said(x), level=level)
    if needed > 1:
        with pytest.raises(ValueError, match=f"needs at least {needed} calibration rows, got {needed - 1}"):
            c.calibrate(torch.zeros(needed - 1), torch.zeros(needed - 1))
    c.calibrate(torch.zeros(needed), torch.ones(needed))
    assert bool(c.interval(torch.zeros(1))[1].isfinite())


def test_what_is_refused():
    for options, words in (
        ({"level": 90}, "level must be between 0 and 1"),
        ({"method": "jackknife"}, "method must be one of split, cqr, adaptive"),
        ({"gamma": 0}, "gamma must be between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=words):
            br.Conformal(half_right, **options)
    with pytest.raises(TypeError, match="predict_fn must be a function"):
        br.Conformal(3)
    c = br.Conformal(lambda x: Said(x))
    with pytest.raises(RuntimeError, match="call calibrate"):
        c.interval(torch.zeros(3))
    with pytest.raises(ValueError, match=r"y must have the predicted mean's shape \(20,\), got \(20, 1\)"):
        c.calibrate(torch.zeros(20), torch.zeros(20, 1))
    with pytest.raises(ValueError, match="y has NaN"):
        c.calibrate(torch.zeros(20), torch.full((20,), math.nan))
    c.calibrate(torch.zeros(20), torch.zeros(20))
    with pytest.raises(RuntimeError, match='update is for method="adaptive"'):
        c.update(torch.zeros(20))
    a = br.Conformal(lambda x: Said(x), method="adaptive").calibrate(torch.zeros(20), torch.zeros(20))
    with pytest.raises(RuntimeError, match="call interval"):
        a.update(torch.zeros(1))


def test_a_classifier_is_pointed_to_its_method():
    x, y = torch.randn(20, 3), torch.zeros(20, dtype=torch.long)
    with pytest.raises(ValueError, match='for a classifier use method="lac"'):
        br.Conformal(overconfident).calibrate(x, y)
    c = br.Conformal(overconfident, method="lac")
    with pytest.raises(RuntimeError, match="call calibrate"):
        c.sets(x)
    c.calibrate(x, y)
    with pytest.raises(RuntimeError, match=r"call sets\(x\)"):
        c.interval(x)
    with pytest.raises(RuntimeError, match=r"call interval\(x\)"):
        br.Conformal(half_right).sets(x)
    with pytest.raises(ValueError, match=r"whole class numbers of shape \(20,\), got torch.float32 \(20,\)"):
        c.calibrate(x, y.float())
    with pytest.raises(ValueError, match="class numbers from 0 to 2, got 0 to 3"):
        c.calibrate(x, torch.arange(20) % 4)


def test_a_predictor_without_a_mean_is_refused():
    pandas = pytest.importorskip("pandas")
    for made in (pandas.DataFrame({"mean": [1.0]}), (1.0, 2.0)):
        with pytest.raises(TypeError, match=r"predict_fn must return a br\.Prediction"):
            br.Conformal(lambda x, made=made: made).calibrate(torch.zeros(20), torch.zeros(20))


def test_sets_need_probabilities():
    c = br.Conformal(lambda x: Said(torch.randn(len(x), 3)), method="lac")
    with pytest.raises(ValueError, match="needs class probabilities"):
        c.calibrate(torch.zeros(30), torch.randint(3, (30,)))


def test_what_a_predictor_lacks_is_said():
    x, y = data(50, 3)
    with pytest.raises(ValueError, match="predict_fn returned NaN: leave out the rows"):
        br.Conformal(lambda x: Said(torch.where(x > 1, math.nan, x))).calibrate(x, y)
    with pytest.raises(TypeError, match=r'needs .interval\(level\), which Bare lacks: use "split"'):
        br.Conformal(lambda x: Bare(x), method="cqr").calibrate(x, y)


@dataclass
class Bare:
    mean: torch.Tensor


@dataclass
class Constant:
    mean: torch.Tensor

    def interval(self, level):
        return -1.0, 1.0


def test_targets_as_people_have_them():
    pandas = pytest.importorskip("pandas")
    x, y = data(50, 3)
    low, high = br.Conformal(half_right).calibrate(x, y).interval(x)
    for same in (pandas.Series(y.numpy(), index=range(7, 57)), y.tolist()):
        torch.testing.assert_close(br.Conformal(half_right).calibrate(x, same).interval(x), (low, high))
    low, high = br.Conformal(Constant, method="cqr").calibrate(x, y).interval(x[:3])
    assert low.shape == high.shape == (3,)


@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray])
@pytest.mark.parametrize("method", ["split", "adaptive", "cqr"])
def test_plain_functions(form, method):
    """A point forecast, or a pair (low, high), as a tensor or an array: the same as from an object."""

    def plain(x):
        said = half_right(x)
        return said.interval(0.9) if method == "cqr" else said.mean

    x, y = (form(part.numpy()) for part in data(60, 0))
    expected, found = (br.Conformal(f, method=method).calibrate(x[:50], y[:50]).interval(x[50:])
                       for f in (half_right, plain))  # fmt: skip
    for a, b in zip(expected, found, strict=True):
        assert type(b) is type(x)
        np.testing.assert_array_equal(a, b)


def test_an_interval_alone_has_its_middle_as_mean():
    x, y = data(60, 0)
    c = br.Conformal(lambda x: (x - 1, x + 3)).calibrate(x[:50], y[:50])
    low, high = c.interval(x[50:])
    torch.testing.assert_close((low + high) / 2, x[50:] + 1)


def test_missing_values_of_an_update_are_skipped():
    x, y = (part.reshape(-1, 2) for part in data(400, 0))
    whole, holed = (br.Conformal(half_right, method="adaptive").calibrate(x[:100], y[:100]) for _ in range(2))
    some = torch.arange(100) % 3 > 0
    for c, rows, values in ((whole, x[100:][some], y[100:][some]),
                            (holed, x[100:], torch.where(some[:, None], y[100:], math.nan))):  # fmt: skip
        c.interval(rows)
        c.update(values)
    assert not some.all()
    torch.testing.assert_close(whole._alpha, holed._alpha)
    for a, b in zip(whole.interval(x[:5]), holed.interval(x[:5]), strict=True):
        torch.testing.assert_close(a, b)
    values = y[100:101].clone()
    values[0, 0] = math.nan  # one column alone
    before = holed.interval(x[100:101])
    holed.update(values)
    after = holed.interval(x[100:101])
    torch.testing.assert_close(after[0][:, 0], before[0][:, 0])
    with pytest.raises(ValueError, match="infinite"):
        holed.update(torch.full((1, 2), math.inf).double())
