"""scikit-learn estimators: recurrent networks that say how sure they are, on rows that are sequences.

Needs scikit-learn, which nothing else of the library does.

    from bayesrnn.sklearn import BayesianRNNRegressor

    model = BayesianRNNRegressor(steps=24).fit(X, y)           # a row of X is 24 steps, of one or more features each
    mean, std = model.predict(X_new, return_std=True)
    low, high = model.predict_interval(X_new, level=0.95)

`BayesianForecaster` is for rows of one series in time order.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.checks import is_number, is_whole
from bayesrnn.likelihoods import GaussianHeads

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

    from bayesrnn.forecasting.estimator import BayesianForecaster
except ImportError as error:  # pragma: no cover
    raise ImportError("bayesrnn.sklearn needs scikit-learn 1.6 or newer: pip install scikit-learn") from error

__all__ = ["BayesianForecaster", "BayesianRNNClassifier", "BayesianRNNRegressor"]

_CELLS: dict[str, Any] = {"lstm": br.LSTM, "gru": br.GRU, "rnn": br.RNN}
_CHOICES = {
    "posterior": ("variational", "bayes_by_backprop", "plain"),
    "cell": tuple(_CELLS),
    "layout": ("step", "feature"),
    "noise": ("constant", "varying"),
}
_COUNTS = ("hidden_size", "num_layers", "epochs", "batch_size", "samples")
_SIZES = ("prior_sigma", "learning_rate")
_LARGEST, _SMALLEST = 1e300, 1e-305  # of float64, with room for what is computed from them
_BLOCK = 4096  # rows in one call of the network

_PARAMETERS = """
    Args:
        steps: how many steps a row is; its number of columns must be a multiple of it. None: every column is a step.
        layout: what lies together in a row: "step", all features of step 1, then of step 2, …; or "feature", all steps
            of feature 1, then of feature 2, ….
        posterior: what is random: "variational" (dropout masks, one per sequence), "bayes_by_backprop" (a Gaussian for
            every weight), or "plain" (nothing; then there is no epistemic uncertainty).
        cell: "lstm", "gru" or "rnn".
        hidden_size: units of a recurrent layer. The output layer reads its last step.
        num_layers: recurrent layers.
        noise: of a regressor's data: "constant", one standard deviation per output; or "varying", one per row and
            output, predicted by the network. A classifier has none.
        dropout: rate of the recurrent connections and of what the output layer sees, for "variational".
        prior_sigma: standard deviation of the weights' prior; of dropout, 1 / length scale.
        epochs: passes over the training rows.
        batch_size: rows in one step of training.
        learning_rate: of Adam.
        samples: draws of the weights for a prediction.
        device: "cpu", "cuda", ….
        random_state: seed of weights, order, noise and draws; a number gives the same model and predictions each time.
"""


def _standard(values: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the columns (n, F), float64; the latter is 1 where all values are the same.

    They are taken of values over a power of two: squares of very large or small values are not in float64.
    """
    peak = values.abs().amax(0)
    if bool((peak > _LARGEST).any()):
        raise ValueError(
            f"{name} has values up to {float(peak.max()):.2g}, and at most {_LARGEST:g} is worked with: divide it"
        )
    unit = torch.from_numpy(np.ldexp(1.0, np.frexp(peak.numpy())[1]))  # exact; 1 for zeros
    mean, spread = (values / unit).mean(0) * unit, (values / unit).std(0, correction=0) * unit
    varies = values.amax(0) > values.amin(0)
    if bool((varies & (spread < _SMALLEST)).any()):
        least = float(spread[varies].min())
        raise ValueError(
            f"{name} has a column with standard deviation {least:.2g}, and at least {_SMALLEST:g} is worked with: "
            "multiply it"
        )
    return mean, torch.where(varies, spread, torch.ones_like(spread))


class _Noise(br.Gaussian):
    """A Gaussian with a standard deviation of its own, learnt, for each of several outputs (the last axis)."""

    def __init__(self, outputs: int) -> None:
        super().__init__(0.5)
        self.log_sigma = nn.Parameter(self.log_sigma.detach().repeat(outputs))

    def nll(self, output: Tensor, target: Tensor) -> Tensor:
        scaled = (target - output) / self.sigma
        constant = len(target) * (self.log_sigma + 0.5 * math.log(2 * math.pi)).sum()
        return 0.5 * scaled.square().sum() + constant


class _Network(nn.Module):
    """Sequences (T, B, F) to outputs (B, outputs), read at the last step; if ``varying``, (B, outputs, 2): with the log
    of a standard deviation."""

    def __init__(
        self, cell: str, inputs: int, hidden: int, layers: int, outputs: int, dropout: float, varying: bool
    ) -> None:
        super().__init__()
        self.rnn = _CELLS[cell](inputs, hidden, layers, recurrent_dropout=dropout)
        self.drop = br.SequenceDropout(dropout)
        self.head = nn.Linear(hidden, outputs)
        self.spread = nn.Linear(hidden, outputs) if varying else None

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.rnn(x)
        last = self.drop(hidden[-1:])[0]
        if self.spread is None:
            return self.head(last)
        return torch.stack([self.head(last), 6 * torch.tanh(self.spread(last) / 6)], -1)  # e^-6 to e^6

    def share_draws(self) -> None:
        """From now on a draw has one set of masks for all rows, so that a row's prediction is its own."""
        self.rnn.rates = replace(self.rnn.rates, share="batch")
        self.drop.share = "batch"


class _Estimator(BaseEstimator):
    """What regressor and classifier share."""

    def __init__(
        self,
        *,
        steps: int | None = None,
        layout: str = "step",
        posterior: str = "variational",
        cell: str = "lstm",
        noise: str = "constant",
        hidden_size: int = 32,
        num_layers: int = 1,
        dropout: float = 0.1,
        prior_sigma: float = 1.0,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 0.005,
        samples: int = 50,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.steps = steps
        self.layout = layout
        self.posterior = posterior
        self.cell = cell
        self.noise = noise
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.dropout = dropout
        self.prior_sigma = prior_sigma
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.samples = samples
        self.device = device
        self.random_state = random_state

    def _check_parameters(self, columns: int) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name in (*_COUNTS, *(["steps"] if self.steps is not None else [])):
            if not is_whole(value := getattr(self, name)) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in _SIZES:
            if not is_number(value := getattr(self, name)) or not value > 0:
                raise ValueError(f"{name} must be a number above 0, got {value!r}")
        if not is_number(self.dropout) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number of at least 0 and below 1, got {self.dropout!r}")
        if self.steps is not None and columns % self.steps:
            raise ValueError(
                f"a row of {columns} columns cannot be {self.steps} steps: the number of columns must be a multiple of "
                "steps"
            )

    def _sequences(self, rows: np.ndarray) -> Tensor:
        """(T, B, F) of the rows."""
        steps = self.steps or rows.shape[1]
        x = torch.tensor(np.asarray(rows, dtype=np.float64))
        if self.layout == "step":
            return x.unflatten(1, (steps, -1)).transpose(0, 1)
        return x.unflatten(1, (-1, steps)).permute(2, 0, 1)

    def _fit(self, rows: np.ndarray, target: Tensor, outputs: int, likelihood: Any) -> None:
        """Train on a target that fits the likelihood; sets what a fitted estimator has."""
        self._check_parameters(rows.shape[1])
        x = self._sequences(rows)
        self.input_mean_, self.input_scale_ = _standard(x.flatten(0, 1), "X")
        x = ((x - self.input_mean_) / self.input_scale_).float().to(self.device)
        target = target.to(self.device)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        on_cuda = torch.device(self.device).type == "cuda"
        with torch.random.fork_rng([self.device] if on_cuda else []), torch.enable_grad():
            torch.manual_seed(self.seed_)
            network, model = self._network(x.shape[2], outputs, isinstance(likelihood, GaussianHeads))
            self._train(br.ELBO(
                model, likelihood.to(self.device), num_data=target.numel(), length_scale=1 / self.prior_sigma,
            ), x, target)  # fmt: skip
        network.share_draws()
        self.model_ = model.double().eval()  # so that a row's prediction does not depend on its neighbours' rounding
        self.likelihood_ = likelihood.double()

    def _network(self, inputs: int, outputs: int, varying: bool) -> tuple[_Network, nn.Module]:
        rate = self.dropout if self.posterior == "variational" else 0.0
        network = _Network(self.cell, inputs, self.hidden_size, self.num_layers, outputs, rate, varying)
        if self.posterior != "bayes_by_backprop":
            return network, network.to(self.device)
        prior = br.Normal(self.prior_sigma)
        q = br.BayesByBackprop(network, prior=prior, init_sigma=0.05 * self.prior_sigma)
        return network, q.to(self.device)

    def _train(self, elbo: br.ELBO, x: Tensor, target: Tensor) -> None:
        optimizer = torch.optim.Adam(elbo.parameters(), lr=self.learning_rate)
        elbo.train()
        for _ in range(self.epochs):
            for rows in torch.randperm(len(target)).split(self.batch_size):
                rows = rows.to(self.device)
                loss = elbo(elbo.model(x[:, rows]), target[rows]).loss
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(elbo.parameters(), 1.0)
                optimizer.step()

    def _predictions(self, rows: Any) -> list[br.Prediction]:
        """One prediction per block of rows, all with the same draws."""
        check_is_fitted(self)
        rows = validate_data(self, rows, reset=False)
        x = ((self._sequences(rows) - self.input_mean_) / self.input_scale_).to(self.device)
        if not bool(torch.isfinite(x).all()):
            raise ValueError("X has values too far from those of fit: divided by their spread they exceed float64")
        random = self.posterior == "bayes_by_backprop" or (self.posterior == "variational" and self.dropout > 0)
        count = self.samples if random else 1
        return [
            br.predict(self.model_, block, samples=count, seed=self.seed_, likelihood=self.likelihood_, batch_dim=1)
            for block in x.split(_BLOCK, 1)
        ]


class BayesianRNNRegressor(RegressorMixin, _Estimator):
    __doc__ = f"""A recurrent network for rows that are sequences, with a predictive standard deviation.

    The noise of the data, one standard deviation per output or one per row and output, is learnt with the weights.
    Inputs and targets are standardised inside, inputs feature by feature over all steps.
    {_PARAMETERS}
    ``y`` has shape (n,) or (n, outputs).
    """

    def fit(self, X: Any, y: Any) -> BayesianRNNRegressor:
        """Learn from rows X (n, columns) and targets y (n,) or (n, outputs)."""
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
        if len(X) < 2:
            raise ValueError(f"a regressor needs at least 2 samples to learn from, got {len(X)} sample")
        target = torch.tensor(np.asarray(y, dtype=np.float64)).reshape(len(X), -1)
        self.single_ = np.ndim(y) == 1
        self.target_mean_, self.target_scale_ = _standard(target, "y")
        scaled = ((target - self.target_mean_) / self.target_scale_).float()
        self._fit(X, scaled, target.shape[1], GaussianHeads() if self.noise == "varying" else _Noise(target.shape[1]))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the prediction; with ``return_std`` also its standard deviation, both kinds of uncertainty in it.

        Shapes as those of y.
        """
        found = self._predictions(X)
        mean = self._array(torch.cat([p.mean for p in found])) + self._shaped(self.target_mean_)
        if not return_std:
            return mean
        return mean, self._array(torch.cat([p.variance.sqrt() for p in found]))

    def predict_uncertainty(self, X: Any) -> tuple[Any, Any]:
        """(aleatoric, epistemic): standard deviations of the noise, and of the mean under draws of the weights."""
        found = self._predictions(X)
        noise, model = (torch.cat([getattr(p, k).sqrt() for p in found]) for k in ("aleatoric", "epistemic"))
        return self._array(noise), self._array(model)

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Any, Any]:
        """(low, high) that hold ``level`` of the predictive distribution."""
        ends = zip(*(p.interval(level) for p in self._predictions(X)), strict=True)
        low, high = (self._array(torch.cat(end)) + self._shaped(self.target_mean_) for end in ends)
        return low, high

    def _array(self, scaled: Tensor) -> Any:
        """In the unit and shape of y, the mean not added."""
        return self._shaped(scaled.cpu() * self.target_scale_)

    def _shaped(self, values: Tensor) -> Any:
        return values.squeeze(-1).numpy() if self.single_ else values.numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.non_deterministic = self.random_state is None
        return tags


class BayesianRNNClassifier(ClassifierMixin, _Estimator):
    __doc__ = f"""A recurrent network for rows that are sequences, with probabilities averaged over draws.

    Inputs are standardised inside, feature by feature over all steps.
    {_PARAMETERS}
    """

    def fit(self, X: Any, y: Any) -> BayesianRNNClassifier:
        """Learn from rows X (n, columns) and classes y (n,), numbers or names."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs samples of at least 2 classes, got 1 class: {self.classes_[0]}")
        self._fit(X, torch.tensor(index, dtype=torch.long), len(self.classes_), br.Categorical())
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes), averaged over draws of the weights."""
        return torch.cat([p.mean for p in self._predictions(X)]).cpu().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The class with the highest probability."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def predict_uncertainty(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """(aleatoric, epistemic) in nats: expected entropy, and mutual information with the weights."""
        found = self._predictions(X)
        noise, model = (torch.cat([getattr(p, k) for p in found]).cpu().numpy() for k in ("aleatoric", "epistemic"))
        return noise, model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags
