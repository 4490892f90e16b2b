"""bayesrnn: recurrent networks that know what they don't know, at the speed of plain ones.

Names are imported on first use, so that `import bayesrnn` (and `bayesrnn --help`) does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bayesrnn._version import __version__

if TYPE_CHECKING:
    from bayesrnn import dynamic, kernels, uncertainty
    from bayesrnn.conformal import Conformal
    from bayesrnn.draws import draw, mean
    from bayesrnn.dynamic import dynamic_evaluation
    from bayesrnn.elbo import ELBO, kl
    from bayesrnn.export import to_torch
    from bayesrnn.likelihoods import Categorical, Gaussian, Mixture, NegativeBinomial, Quantiles, StudentT
    from bayesrnn.nn import GRU, LSTM, RNN, Dropout, Embedding, SequenceDropout
    from bayesrnn.posteriors import BayesByBackprop, Bayesian, DropConnect, Posterior, PosteriorSharpening
    from bayesrnn.prediction.montecarlo import predict
    from bayesrnn.prediction.result import Prediction
    from bayesrnn.priors import Normal, ScaleMixture
    from bayesrnn.pruning import prune, signal_to_noise
    from bayesrnn.saving import load, save
    from bayesrnn.uncertainty import entropy_gap

_HOME = {
    "ELBO": "elbo",
    "kl": "elbo",
    "draw": "draws",
    "mean": "draws",
    "dynamic_evaluation": "dynamic",
    "Categorical": "likelihoods",
    "Gaussian": "likelihoods",
    "Mixture": "likelihoods",
    "NegativeBinomial": "likelihoods",
    "Quantiles": "likelihoods",
    "StudentT": "likelihoods",
    "Conformal": "conformal",
    "GRU": "nn",
    "LSTM": "nn",
    "RNN": "nn",
    "Embedding": "nn",
    "Dropout": "nn",
    "SequenceDropout": "nn",
    "BayesByBackprop": "posteriors",
    "Bayesian": "posteriors",
    "DropConnect": "posteriors",
    "Posterior": "posteriors",
    "PosteriorSharpening": "posteriors",
    "Prediction": "prediction.result",
    "Normal": "priors",
    "ScaleMixture": "priors",
    "predict": "prediction.montecarlo",
    "prune": "pruning",
    "signal_to_noise": "pruning",
    "entropy_gap": "uncertainty",
    "to_torch": "export",
    "load": "saving",
    "save": "saving",
}
_MODULES = ("dynamic", "kernels", "uncertainty")

__all__ = [
    "ELBO",
    "GRU",
    "LSTM",
    "RNN",
    "BayesByBackprop",
    "Bayesian",
    "Categorical",
    "Conformal",
    "DropConnect",
    "Dropout",
    "Embedding",
    "Gaussian",
    "Mixture",
    "NegativeBinomial",
    "Normal",
    "Posterior",
    "PosteriorSharpening",
    "Prediction",
    "Quantiles",
    "ScaleMixture",
    "SequenceDropout",
    "StudentT",
    "__version__",
    "draw",
    "dynamic",
    "dynamic_evaluation",
    "entropy_gap",
    "kernels",
    "kl",
    "load",
    "mean",
    "predict",
    "prune",
    "save",
    "signal_to_noise",
    "uncertainty",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bayesrnn.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"bayesrnn.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'bayesrnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
