"""The estimators behave as scikit-learn's own, and their uncertainty means what it says."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from bayesrnn.sklearn import BayesianRNNClassifier, BayesianRNNRegressor

QUICK = {"hidden_size": 16, "samples": 8, "learning_rate": 0.02, "random_state": 0}
ESTIMATORS = {
    "regressor": BayesianRNNRegressor(epochs=40, **QUICK),
    "varying": BayesianRNNRegressor(epochs=100, noise="varying", **QUICK),
    "classifier": BayesianRNNClassifier(epochs=25, **QUICK),
}
# These ask for a good score or for every class among the predictions; the others are about the interface.
LEARNING = ("check_regressors_train", "check_classifiers_train", "check_classifiers_classes")
APART = "check_array_api_input"  # asks for an environment variable that must be set before scipy is imported


def checks():
    for name, estimator in ESTIMATORS.items():
        for number, (made, check) in enumerate(estimator_checks_generator(estimator)):
            asked = check.func.__name__
            if asked not in LEARNING:
                made = clone(made).set_params(epochs=2, hidden_size=4, samples=2)
            if asked != APART:
                yield pytest.param(made, check, id=f"{name}-{number}-{asked}")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_the_check_that_needs_an_environment_variable():
    code = f"""
from sklearn.utils.estimator_checks import estimator_checks_generator
from bayesrnn.sklearn import BayesianRNNClassifier, BayesianRNNRegressor
done = 0
for kind in (BayesianRNNRegressor, BayesianRNNClassifier):
    for estimator, check in estimator_checks_generator(kind(epochs=2, hidden_size=4, samples=2, random_state=0)):
        if check.func.__name__ == {APART!r}:
            check(estimator)
            done += 1
print(done)
"""
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    if found.stdout.strip() == "0" and tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
        pytest.skip("this scikit-learn has no such check")
    assert found.stdout.strip() == "2", found.stderr


def waves(n=160, steps=10, seed=0):
    """Rows that are a rising or falling line with noise, and the slope."""
    source = np.random.default_rng(seed)
    slope = source.uniform(-1, 1, n)
    rows = slope[:, None] * np.linspace(-1, 1, steps) + 0.1 * source.standard_normal((n, steps))
    return rows, slope


@pytest.mark.parametrize("posterior", ["variational", "bayes_by_backprop", "plain"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_a_regressor_learns(posterior, cell):
    X, y = waves()
    model = BayesianRNNRegressor(posterior=posterior, cell=cell, epochs=25, **QUICK).fit(X, y)
    fresh, slope = waves(seed=1)
    assert model.score(fresh, slope) > 0.8


def test_a_classifier_learns_and_its_probabilities_add_up():
    X, slope = waves()
    y = np.where(slope > 0, "up", "down")
    model = BayesianRNNClassifier(epochs=20, **QUICK).fit(X, y)
    fresh, other = waves(seed=1)
    probabilities = model.predict_proba(fresh)
    assert model.score(fresh, np.where(other > 0, "up", "down")) > 0.9
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert list(model.classes_) == ["down", "up"]
    assert set(model.predict(fresh)) == {"down", "up"}
    noise, weights = model.predict_uncertainty(fresh)
    entropy = -(probabilities * np.log(probabilities)).sum(1)
    np.testing.assert_allclose(noise + weights, entropy, atol=1e-9)
    flat = np.abs(other) < 0.1
    assert noise[flat].mean() > noise[~flat].mean()  # a line that neither rises nor falls is ambiguous


def test_the_standard_deviation_and_the_interval():
    """Two parts add up, the interval is about the mean, and 95% of 400 new targets lie in it (binomial, ± 4 sd)."""
    source = np.random.default_rng(0)
    X = source.standard_normal((400, 6))
    y = X[:, -1] + 0.5 * source.standard_normal(400)
    model = BayesianRNNRegressor(epochs=15, **{**QUICK, "samples": 30}).fit(X, y)
    fresh = source.standard_normal((400, 6))
    targets = fresh[:, -1] + 0.5 * source.standard_normal(400)
    mean, std = model.predict(fresh, return_std=True)
    noise, weights = model.predict_uncertainty(fresh)
    np.testing.assert_allclose(std**2, noise**2 + weights**2)
    np.testing.assert_array_equal(model.predict(fresh), mean)
    assert noise[0] == pytest.approx(0.5, rel=0.2)
    low, high = model.predict_interval(fresh, level=0.95)
    assert np.all((low < mean) & (mean < high))
    covered = np.mean((targets >= low) & (targets <= high))
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400) + 0.01


def test_draws_disagree_more_on_rows_unlike_those_seen():
    X, y = waves()
    model = BayesianRNNRegressor(epochs=25, dropout=0.2, **{**QUICK, "samples": 40}).fit(X, y)
    known, far = model.predict_uncertainty(X)[1], model.predict_uncertainty(5 * X)[1]
    assert far.mean() > 1.5 * known.mean()
    plain = BayesianRNNRegressor(posterior="plain", epochs=2, **QUICK).fit(X, y)
    assert not plain.predict_uncertainty(X)[1].any()


def test_how_a_row_is_a_sequence():
    """Both layouts of the same sequences are the same model."""
    source = np.random.default_rng(0)
    sequences = source.standard_normal((60, 5, 3))  # rows, steps, features
    y = sequences[:, -1, 0]
    by_step, by_feature = sequences.reshape(60, 15), sequences.transpose(0, 2, 1).reshape(60, 15)
    one = BayesianRNNRegressor(steps=5, epochs=3, **QUICK).fit(by_step, y)
    other = BayesianRNNRegressor(steps=5, layout="feature", epochs=3, **QUICK).fit(by_feature, y)
    np.testing.assert_allclose(one.predict(by_step), other.predict(by_feature))
    assert one.model_.rnn.input_size == 3
    assert BayesianRNNRegressor(epochs=1, **QUICK).fit(by_step, y).model_.rnn.input_size == 1


def test_several_targets():
    X, y = waves()
    both = np.column_stack([y, 10 - 3 * y])
    model = BayesianRNNRegressor(epochs=20, **QUICK).fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (160, 2)
    assert model.score(X, both) > 0.8
    assert std[0, 1] == pytest.approx(3 * std[0, 0], rel=0.5)  # in the unit of each target


def test_a_seed_is_a_model_and_leaves_torch_alone():
    X, y = waves(60)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, again = (BayesianRNNRegressor(epochs=2, **QUICK).fit(X, y).predict(X) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    other = BayesianRNNRegressor(epochs=2, **{**QUICK, "random_state": 1}).fit(X, y)
    assert np.abs(other.predict(X) - one).max() > 1e-6
    assert torch.equal(torch.get_rng_state(), state)
    free = BayesianRNNRegressor(epochs=1, hidden_size=4, samples=2).fit(X, y)
    np.testing.assert_array_equal(free.predict(X), free.predict(X))  # the draws belong to the fitted model


def test_pickled_and_cloned():
    X, y = waves(60)
    model = BayesianRNNRegressor(epochs=2, posterior="bayes_by_backprop", **QUICK).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    assert clone(model).get_params() == model.get_params()


def test_pipelines_and_searches():
    X, y = waves(60)
    pipe = make_pipeline(StandardScaler(), BayesianRNNRegressor(epochs=2, **QUICK))
    assert len(cross_val_score(pipe, X, y, cv=3)) == 3
    search = GridSearchCV(BayesianRNNRegressor(epochs=1, **QUICK), {"dropout": [0.0, 0.3]}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"dropout"}


def test_many_rows_in_blocks(monkeypatch):
    X, y = waves(60)
    model = BayesianRNNRegressor(epochs=2, **QUICK).fit(X, y)
    whole, std = model.predict(X, return_std=True)
    monkeypatch.setattr("bayesrnn.sklearn._BLOCK", 7)
    parts, other = model.predict(X, return_std=True)
    np.testing.assert_allclose(parts, whole)
    np.testing.assert_allclose(other, std)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 3}, "a row of 10 columns cannot be 3 steps"),
        ({"posterior": "laplace"}, "posterior must be one of variational, bayes_by_backprop, plain, got 'laplace'"),
        ({"cell": "LSTM"}, "cell must be one of lstm, gru, rnn"),
        ({"layout": "time"}, "layout must be one of step, feature"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"hidden_size": 2.5}, "hidden_size must be a whole number"),
        ({"prior_sigma": 0.0}, "prior_sigma must be a number above 0"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1"),
        ({"epochs": "a"}, "epochs must be a whole number of at least 1, got 'a'"),
        ({"batch_size": None}, "batch_size must be a whole number"),
        ({"dropout": None}, "dropout must be a number"),
        ({"learning_rate": "fast"}, "learning_rate must be a number above 0"),
        ({"steps": 1.5}, "steps must be a whole number"),
    ],
)
def test_what_is_refused(settings, words):
    X, y = waves(20)
    with pytest.raises(ValueError, match=words):
        BayesianRNNRegressor(**{**QUICK, **settings}).fit(X, y)


@pytest.mark.parametrize("size", [2.0**660, 2.0**-1000, 1e200, 1e-300])
def test_targets_and_inputs_of_any_size(size):
    """The unit does not matter: with a power of two not a bit changes, otherwise the inputs' and targets' last ones."""
    X, y = waves(60)
    settings = {**QUICK, "epochs": 2}
    model = BayesianRNNRegressor(**settings).fit(X, y)
    same = {"rtol": 0 if np.frexp(size)[0] == 0.5 else 1e-3}
    for rows, unit in ((X, size), (X * size, 1.0), (X * size, size)):
        other = BayesianRNNRegressor(**settings).fit(rows, y * unit)
        for one, two in (
            (model.predict(X, return_std=True), other.predict(rows, return_std=True)),
            (model.predict_interval(X), other.predict_interval(rows)),
            (model.predict_uncertainty(X), other.predict_uncertainty(rows)),
        ):
            np.testing.assert_allclose(np.stack(two) / unit, np.stack(one), **same)


def test_a_column_of_one_value_stays_at_zero():
    """Its mean is off by a rounding, which must not be taken for its spread."""
    X, y = waves(60)
    rows = np.stack([X, np.full_like(X, 0.1)], -1).reshape(60, -1)
    model = BayesianRNNRegressor(steps=10, epochs=1, **QUICK).fit(rows, y)
    assert model.input_scale_[1] == 1
    assert abs(model.input_mean_[1] - 0.1) < 1e-15
    assert BayesianRNNRegressor(epochs=1, **QUICK).fit(X, np.full(60, 0.1)).target_scale_ == 1


@pytest.mark.parametrize("kind", [BayesianRNNRegressor, BayesianRNNClassifier])
def test_sizes_that_float64_cannot_work_with_are_refused(kind):
    X, y = waves(20)
    y = np.sign(y)
    with pytest.raises(
        ValueError, match=r"^X has values up to 1\.\de\+305, and at most 1e\+300 is worked with: divide it$"
    ):
        kind(epochs=1, **QUICK).fit(X * 1e305, y)
    with pytest.raises(
        ValueError, match=r"^X has a column with standard deviation 6e-309, and at least 1e-305 is worked"
    ):
        kind(epochs=1, **QUICK).fit(X / np.std(X) * 6e-309, y)
    model = kind(epochs=1, **QUICK).fit(X * 1e-200, y)
    with pytest.raises(ValueError, match=r"^X has values too far from those of fit"):
        model.predict(X * 1e200)


def test_targets_that_float64_cannot_work_with_are_refused():
    X, y = waves(20)
    both = np.column_stack([y, np.abs(y)])
    for far, words in ((1.7e308, "^y has values up to"), (1e-308, "^y has a column with standard deviation")):
        with pytest.raises(ValueError, match=words):
            BayesianRNNRegressor(epochs=1, **QUICK).fit(X, both * [1, far])


def test_too_little_to_learn_from():
    with pytest.raises(ValueError, match="at least 2 samples to learn from, got 1 sample"):
        BayesianRNNRegressor(**QUICK).fit([[1.0, 2.0]], [1.0])
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class: a"):
        BayesianRNNClassifier(**QUICK).fit([[1.0, 2.0], [2.0, 3.0]], ["a", "a"])


def test_each_output_has_its_own_noise():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4))
    y = rows[:, -1:] + rng.normal(size=(400, 2)) * [0.05, 2.0]
    model = BayesianRNNRegressor(epochs=40, hidden_size=8, dropout=0.05, learning_rate=0.02, random_state=0).fit(
        rows, y
    )
    noise, _ = model.predict_uncertainty(rows[:5])
    assert noise.shape == (5, 2)
    np.testing.assert_allclose(noise[0, 1], 2.0, rtol=0.15)
    assert noise[0, 0] < 0.5  # one noise for both would be above 1


@pytest.mark.parametrize("posterior", ["variational", "bayes_by_backprop", "plain"])
def test_noise_that_varies_with_the_row(posterior):
    """Rows of two kinds: the noise of the first output is three times as large for one, of the second a third."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    X[:, 3] = rng.choice([-1.0, 1.0], 400)
    sizes = np.where(X[:, 3:4] > 0, [1.5, 0.5], [0.5, 1.5])
    y = X[:, :1] + sizes * rng.normal(size=(400, 2))
    settings = {"steps": 3, "epochs": 60, "hidden_size": 16, "learning_rate": 0.01, "samples": 8, "random_state": 0}
    model = BayesianRNNRegressor(noise="varying", posterior=posterior, **settings).fit(X, y)
    noise, _ = model.predict_uncertainty(X)
    high, low = noise[X[:, 3] > 0].mean(0), noise[X[:, 3] < 0].mean(0)
    assert high[0] > 1.8 * low[0]
    assert low[1] > 1.8 * high[1]
    np.testing.assert_allclose([high[0], low[1]], 1.5, rtol=0.3)
    ends = model.predict_interval(X, level=0.9)
    covered = ((ends[0] <= y) & (y <= ends[1])).mean()
    assert 0.8 < covered < 0.97
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (400, 2)
    same = BayesianRNNRegressor(posterior=posterior, **settings).fit(X, y).predict_uncertainty(X)[0]
    np.testing.assert_allclose(same, same[:1].repeat(400, 0))
