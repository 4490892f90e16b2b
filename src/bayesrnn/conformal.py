"""Conformal prediction: intervals, or sets of classes, that cover at a stated rate around any predictor."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_METHODS = ("split", "cqr", "adaptive", "lac")


class Conformal:
    r"""Intervals or sets that contain `level` of new values, whatever the model, from errors on held-out data.

    With scores :math:`s_1, \dots, s_n` on calibration data, the interval at a new x contains all y whose score is at
    most the :math:`\lceil (n + 1) \cdot level \rceil`-th smallest of them. If calibration and new data are
    exchangeable, it contains y with a probability of at least `level`; without ties between scores, of at most
    `level` + 1 / (n + 1) (Vovk et al. 2005).

    - ``"split"``: :math:`s = |y - mean(x)|`, so all intervals are equally wide.
    - ``"cqr"``: :math:`s = \max(low(x) - y, y - high(x))`: the predictor's own interval, widened or narrowed by one
      amount everywhere (conformalised quantile regression, arXiv 1905.03222, Eq. 6 to 8).
    - ``"adaptive"``: the scores of ``"split"``, and after each observed value
      :math:`\alpha_{t+1} = \alpha_t + \gamma (\alpha - err_t)`, with :math:`err_t` 1 where the interval missed and
      :math:`\alpha = 1 - level` (Gibbs and Candes, arXiv 2106.00170, Eq. 2). The share of misses over T steps is within
      :math:`(1 + \gamma) / (\gamma T)` of :math:`\alpha` also where the data drift; intervals may be infinite on the
      way. The newest scores replace the oldest.
    - ``"lac"``, for classifiers: :math:`s = 1 - p(y | x)`. `sets` returns every class that is probable enough (Sadinle
      et al., arXiv 1609.00451).

    Args:
        predict_fn: from x to a `br.Prediction`, or to anything with `.mean` and (cqr) `.interval(level)`. It may also
            return the point forecast as a tensor or an array, or an interval as a pair (low, high), whose middle is the
            mean then.
        level: the share of new values that the intervals or sets contain.
        method: "split", "cqr" or "adaptive" for regression, "lac" for classification.
        gamma: step size of "adaptive".

    Shapes: y and the ends of intervals (N, ...) as the predicted mean has them. "lac": classes y (N, ...), predicted
    probabilities and sets (N, ..., K). Every column is calibrated by itself. Torch tensors in, tensors out; numpy
    arrays in, arrays out.

    Example::

        def predict(x):
            return br.predict(model, x, likelihood=likelihood)

        c = br.Conformal(predict, level=0.9, method="cqr")
        c.calibrate(x_held_out, y_held_out)
        low, high = c.interval(x_new)
    """

    def __init__(
        self, predict_fn: Callable[[Any], Any], level: float = 0.9, method: str = "split", *, gamma: float = 0.01
    ) -> None:
        if not callable(predict_fn):
            raise TypeError(f"predict_fn must be a function from x to a prediction, got {type(predict_fn).__name__}")
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level!r}")
        if method not in _METHODS:
            raise ValueError(f"method must be one of {', '.join(_METHODS)}, got {method!r}")
        if not 0 < gamma < 1:
            raise ValueError(f"gamma must be between 0 and 1, got {gamma!r}")
        self.predict_fn, self.level, self.method, self.gamma = predict_fn, level, method, gamma
        self._scores: deque[Tensor] = deque()
        self._alpha: Tensor | None = None
        self._asked: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def needed(self) -> int:
        """The fewest calibration rows that can guarantee the level."""
        return math.ceil(self.level / (1 - self.level) - 1e-9)

    def calibrate(self, x: Any, y: Any) -> Conformal:
        """Take the scores of these rows, in place of all before; they must not have been trained on."""
        centre, low, high = self._predicted(x)
        if self.method == "lac":
            scores = 1 - centre.gather(-1, _classes(y, centre)[..., None])[..., 0]
        else:
            scores = self._score(self._target(y, centre), centre, low, high)
        if len(scores) < self.needed:
            raise ValueError(f"level {self.level:g} needs at least {self.needed} calibration rows, got {len(scores)}")
        self._scores = deque(scores, maxlen=len(scores) if self.method == "adaptive" else None)
        self._alpha, self._asked = torch.full_like(scores[0], 1 - self.level), None
        return self

    def interval(self, x: Any) -> tuple[Any, Any]:
        """(low, high) for each row of x."""
        if self.method == "lac":
            raise RuntimeError('method="lac" is for classes: call sets(x), or choose another method for numbers')
        reach = self._reach()
        centre, low, high = self._predicted(x)
        base = (low, high) if self.method == "cqr" else (centre, centre)
        ends = torch.minimum(base[0] - reach, base[1] + reach), torch.maximum(base[0] - reach, base[1] + reach)
        self._asked = centre, *ends
        if isinstance(x, np.ndarray):
            return ends[0].cpu().numpy(), ends[1].cpu().numpy()
        return ends

    def sets(self, x: Any) -> Any:
        """For method "lac": True for each class (N, ..., K) in the prediction set; a set can be empty."""
        if self.method != "lac":
            raise RuntimeError(f'sets is for classifiers with method="lac"; with {self.method!r} call interval(x)')
        reach = self._reach()
        inside = 1 - self._predicted(x)[0] <= reach[..., None]
        return inside.cpu().numpy() if isinstance(x, np.ndarray) else inside

    def update(self, y: Any) -> None:
        """Report the observed values (N, ...) of the rows of the last call of `interval`, in their order. Values that
        are NaN are missing, and skipped."""
        if self.method != "adaptive":
            raise RuntimeError(f'update is for method="adaptive"; with {self.method!r} calibrate again')
        if self._asked is None or self._alpha is None:
            raise RuntimeError("there is no interval to compare with: call interval(x), then update(y), once each")
        centre, low, high = self._asked
        for value, middle, a, b in zip(self._target(y, centre, missing=True), centre, low, high, strict=True):
            known = ~value.isnan()
            missed = ((value < a) | (value > b)).to(self._alpha)
            self._alpha = self._alpha + self.gamma * (1 - self.level - missed) * known
            self._append((value - middle).abs(), known)
        self._asked = None

    def _append(self, score: Tensor, known: Tensor) -> None:
        """Add the newest scores; a column whose value is missing keeps those it has, the oldest as the newest."""
        if bool(known.any()):
            self._scores.append(torch.where(known, score, self._scores[0]))

    def _predicted(self, x: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, and for "cqr" the ends of the predictor's own interval, in float64."""
        found = self.predict_fn(x)
        mean, pair = getattr(found, "mean", None), None
        if isinstance(found, tuple) and len(found) == 2 and all(isinstance(end, (Tensor, np.ndarray)) for end in found):
            pair = _tensor(found[0]), _tensor(found[1])
            mean = (pair[0] + pair[1]) / 2
        elif isinstance(found, (Tensor, np.ndarray)):
            mean = found
        if mean is None or callable(mean):
            raise TypeError(
                "predict_fn must return a br.Prediction, an object with .mean, a tensor or an array, or a pair (low, "
                f"high), got {type(found).__name__}"
            )
        centre = _tensor(mean)
        if self.method == "lac" and not _probabilities(centre):
            raise ValueError(
                'method="lac" needs class probabilities as predicted means: use likelihood=br.Categorical()'
            )
        low, high = centre, centre
        if self.method == "cqr":
            interval = getattr(found, "interval", None)
            if pair is None and not callable(interval):
                raise TypeError(
                    f'method="cqr" needs .interval(level), which {type(found).__name__} lacks: use "split", or return '
                    "a pair (low, high)"
                )
            ends = pair or interval(self.level)  # type: ignore[misc]
            low, high = (_tensor(end).to(centre.device).expand_as(centre) for end in ends)
        if bool((centre.isnan() | low.isnan() | high.isnan()).any()):
            raise ValueError("predict_fn returned NaN: leave out the rows of x for which it cannot predict")
        return centre, low, high

    def _target(self, y: Any, centre: Tensor, *, missing: bool = False) -> Tensor:
        target = _tensor(y).to(centre.device)
        if centre.ndim and target.shape == centre.shape[:-1]:
            raise ValueError(
                f"y {tuple(target.shape)} lacks the last axis of the predicted mean {tuple(centre.shape)}: for a "
                f'classifier use method="lac", for regression pass y.unsqueeze(-1)'
            )
        if target.shape != centre.shape:
            raise ValueError(f"y must have the predicted mean's shape {tuple(centre.shape)}, got {tuple(target.shape)}")
        if not bool((torch.isfinite(target) | (target.isnan() & missing)).all()):
            raise ValueError("y has NaN or infinite values: leave these rows out")
        return target

    def _score(self, y: Tensor, centre: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return torch.maximum(low - y, y - high) if self.method == "cqr" else (y - centre).abs()

    def _reach(self) -> Tensor:
        """The score up to which values are inside, for each column."""
        if self._alpha is None:
            raise RuntimeError(
                "there are no scores yet: call calibrate(x, y) first, with rows that were not trained on"
            )
        return self._quantile(1 - self._alpha)

    def _quantile(self, level: Tensor) -> Tensor:
        """The ceil((n + 1) level)-th smallest score of each column; infinite if there are too few scores."""
        scores = torch.stack(tuple(self._scores)).sort(0).values
        rank = torch.ceil((len(scores) + 1) * level - 1e-9).long()
        found = scores.gather(0, (rank - 1).clamp(0, len(scores) - 1).unsqueeze(0))[0]
        found = torch.where(rank > len(scores), math.inf, found)
        return torch.where(rank < 1, torch.zeros_like(found), found)


def _tensor(values: Any) -> Tensor:
    return _plain(values).detach().double()


def _plain(values: Any) -> Tensor:
    """A tensor of what may be a tensor, an array, a list or a column of pandas."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.array(values))


def _classes(y: Any, probabilities: Tensor) -> Tensor:
    """Class numbers, checked against the predicted probabilities (N, ..., K)."""
    found, count = _plain(y), probabilities.shape[-1]
    if found.shape != probabilities.shape[:-1] or found.is_floating_point():
        shape = tuple(probabilities.shape[:-1])
        raise ValueError(f"y must have whole class numbers of shape {shape}, got {found.dtype} {tuple(found.shape)}")
    least, most = (int(found.min()), int(found.max())) if found.numel() else (0, 0)
    if least < 0 or most >= count:
        raise ValueError(f"y must have class numbers from 0 to {count - 1}, got {least} to {most}")
    return found.long().to(probabilities.device)


def _probabilities(x: Tensor) -> bool:
    return x.ndim > 1 and not bool((x < 0).any()) and bool(((x.sum(-1) - 1).abs() < 0.02).all())
