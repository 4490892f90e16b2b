"""The public names, and how little it costs to import them."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import bayesrnn as br

NAMES = """
    RNN GRU LSTM Embedding SequenceDropout BayesByBackprop PosteriorSharpening Normal ScaleMixture Categorical Gaussian
    StudentT NegativeBinomial Quantiles Mixture Conformal ELBO kl draw mean predict Prediction
    dynamic_evaluation entropy_gap signal_to_noise prune
""".split()


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_promised_names(name):
    assert name in br.__all__
    assert callable(getattr(br, name))


@pytest.mark.parametrize("name", br.__all__)
def test_every_public_name_resolves(name):
    assert getattr(br, name) is getattr(br, name)
    assert name in dir(br)


@pytest.mark.parametrize("name", [n for n in br.__all__ if not n.startswith("_")])
def test_every_public_name_is_documented(name):
    assert inspect.getdoc(getattr(br, name))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'bayesrnn' has no attribute 'LTSM'"):
        br.LTSM


def test_importing_the_package_does_not_import_torch():
    heavy = "torch", "numpy", "matplotlib", "torchmetrics", "rich", "typer"
    code = f"import sys, bayesrnn; print([m for m in {heavy!r} if m in sys.modules])"
    assert in_a_new_process(code) == "[]"


def test_names_come_on_first_use_and_by_from_import():
    code = "from bayesrnn import LSTM, draw; import bayesrnn; print(bayesrnn.LSTM is LSTM, bayesrnn.draw is draw)"
    assert in_a_new_process(code) == "True True"


def test_star_import():
    assert in_a_new_process("from bayesrnn import *; print(LSTM.__name__, ELBO.__name__)") == "LSTM ELBO"


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "Embedding"])
def test_layers_are_torch_s_layers(name):
    assert issubclass(getattr(br, name), getattr(torch.nn, name))


def test_the_version_is_a_version():
    assert br.__version__[0].isdigit()
