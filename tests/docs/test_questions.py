"""Questions of new readers: the words they search for are on the page that answers."""

from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
QUESTIONS = [
    ("How do I get a 90% interval for my GRU classifier's probability?", "guide/prediction.md", "interval Classifiers"),
    ("Can I use batch_first packed input?", "guide/your-lstm.md", "batch_first pack_sequence variable length"),
    ("Why is my KL so large?", "guide/kl.md", "so large"),
    ("What is num_data for sequences?", "guide/kl.md", "num_data sequences"),
    ("How do I anneal the KL?", "guide/kl.md", "annealing warm-up"),
    ("Why is my loss NaN?", "troubleshooting.md", "NaN"),
    ("How do I carry the hidden state over windows?", "guide/training-loops.md", "hidden state windows detach GRU"),
    ("Which learning rate for means and sigmas?", "guide/training-loops.md", "learning rate sigmas"),
    ("How do I resume?", "guide/training-loops.md", "resume"),
    ("How do I resume a run of the command?", "guide/runs.md", "--resume"),
    ("How do I mask padded targets?", "guide/likelihoods.md", "mask padding"),
    ("Which likelihood for binary and multi-label targets?", "guide/likelihoods.md", "binary multi-label"),
    ("How do I write a custom likelihood?", "guide/likelihoods.md", "custom likelihood"),
    ("How do I write a custom posterior?", "cookbook/new-posterior.md", "custom posterior"),
    ("How do I add a task?", "cookbook/new-task.md", "task"),
    ("How many samples do I need?", "guide/prediction.md", "how many draws samples"),
    ("Does MC dropout work with my plain model?", "guide/prediction.md", "MC dropout plain"),
    ("How do I check calibration?", "guide/calibration.md", "calibration_error reliability"),
    ("How do I get conformal intervals?", "guide/calibration.md", "Conformal"),
    ("How do I abstain?", "cookbook/abstaining.ipynb", "abstain"),
    ("How do I choose what to label?", "cookbook/active-learning.ipynb", "label"),
    ("How do I start from a pretrained model?", "guide/your-lstm.md", "pretrained checkpoints"),
    ("Can I get uncertainty from a trained model?", "guide/your-lstm.md", "trained Conformal init_sigma"),
    ("Which of my series is forecast worst?", "guide/forecasting.md", "worst scores(walk, by="),
    ("What does a sweep print?", "guide/runs.md", "sweep.json Best:"),
    ("How do I save and load?", "guide/after-training.md", "br.save br.load"),
    ("How do I prune?", "guide/after-training.md", "prune"),
    ("How do I export to ONNX?", "guide/after-training.md", "ONNX"),
    ("How do I train with DDP?", "cookbook/several-gpus.md", "DDP"),
    ("How do I use Lightning?", "cookbook/lightning.md", "Lightning"),
    ("How do I use scikit-learn?", "cookbook/scikit-learn.md", "scikit-learn"),
    ("How do I forecast with covariates that are known ahead?", "guide/forecasting.md", "covariates known ahead"),
    ("What if my series has gaps?", "guide/forecasting.md", "gaps missing"),
    ("How do I search hyperparameters?", "guide/runs.md", "hyperparameters sweep"),
    ("How do I explore a run on a server?", "guide/explore.md", "server ssh"),
    ("Are draws reproducible?", "guide/draws.md", "reproducible seed"),
    ("How do I cite it?", "index.md", "cite"),
    ("Which licence does it have?", "index.md", "License"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "page", "words"), QUESTIONS, ids=[question for question, _, _ in QUESTIONS])
def test_the_page_has_the_readers_words(question, page, words):
    text = (DOCS / page).read_text("utf-8").lower()
    assert not [word for word in words.lower().split() if word not in text]
