"""A first Bayes-by-Backprop model learns: the defaults, from a few hundred sequences to a million targets."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bayesrnn as br


class Classifier(nn.Module):
    """A bidirectional LSTM over packed sequences."""

    def __init__(self, hidden=16):
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, hidden, bidirectional=True), nn.Linear(2 * hidden, 3)

    def forward(self, x):
        _, (h, _) = self.rnn(x)
        return self.head(torch.cat([h[0], h[1]], -1))


def waves(count, seed):
    """Noisy waves of three frequencies, which are the classes; 6 to 12 steps long."""
    source = torch.Generator().manual_seed(seed)
    xs, ys = [], torch.randint(3, (count,), generator=source)
    for y in ys:
        t = torch.arange(int(torch.randint(6, 13, (1,), generator=source)))
        angle = (0.4, 0.9, 1.4)[y] * t + 6.28 * torch.rand(1, generator=source)
        x = torch.stack([angle.sin(), angle.cos()], 1)
        xs.append(x + 0.2 * torch.randn(x.shape, generator=source))
    return xs, ys


def accuracy(count, *, epochs, num_data=None, prior=None, lr=0.01, **options):
    torch.manual_seed(0)
    xs, ys = waves(count, 1)
    test, truth = waves(200, 2)
    q = br.BayesByBackprop(Classifier(), prior=prior)
    elbo = br.ELBO(q, br.Categorical(), num_data=num_data or count, **options)
    optimizer = torch.optim.Adam(q.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.randperm(count).split(32):
            batch = pack_sequence([xs[i] for i in rows], enforce_sorted=False)
            optimizer.zero_grad()
            elbo(q(batch), ys[rows]).loss.backward()
            optimizer.step()
    with torch.no_grad():
        return float((q.eval()(pack_sequence(test, enforce_sorted=False)).argmax(-1) == truth).float().mean())


@pytest.mark.parametrize("num_data", [500, 5_000, 50_000, 1_000_000])
def test_the_defaults_learn_at_every_size(num_data):
    """500 sequences, alone and as if they were part of more data: then the KL has a smaller share."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accuracy(500, epochs=20, num_data=num_data) > 0.8


def test_a_narrow_prior_on_small_data_is_warned_about_with_the_remedy():
    with pytest.warns(UserWarning, match=r"the KL outweighs the data.*br\.Normal\(1\.0\).*warmup"):
        assert accuracy(500, epochs=15, prior=br.Normal(0.1)) < 0.5


def test_a_warm_up_lets_a_narrower_prior_learn():
    assert accuracy(500, epochs=25, prior=br.Normal(0.3), warmup=250) > 0.8


class LanguageModel(nn.Module):
    def __init__(self, words=12, hidden=16):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(words, hidden), nn.LSTM(hidden, hidden), nn.Linear(hidden, words)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("words", [1_000, 1_000_000])
def test_a_language_model_of_a_markov_chain_learns_with_the_defaults(words, seed):
    """Between the entropy of the words and that of the chain, most of the way. `words` counts in the KL alone."""
    torch.manual_seed(seed)
    chain = (3 * torch.randn(12, 12)).softmax(-1)
    text = [torch.zeros(64, dtype=torch.long)]
    for _ in range(47):
        text.append(torch.multinomial(chain[text[-1]], 1)[:, 0])
    train, test = torch.stack(text).split(48, dim=1)
    q = br.BayesByBackprop(LanguageModel())
    elbo, optimizer = br.ELBO(q, br.Categorical(), num_data=words), torch.optim.Adam(q.parameters(), lr=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(150):
            window = train[16 * (k % 3) :][:16]
            optimizer.zero_grad()
            elbo(q(window[:-1]), window[1:]).loss.backward()
            optimizer.step()
    with torch.no_grad():
        nll = nn.functional.cross_entropy(q.eval()(test[:-1]).flatten(0, 1), test[1:].flatten())
    common = torch.matrix_power(chain, 50)[0]
    most, least = torch.special.entr(common).sum(), (common[:, None] * torch.special.entr(chain)).sum()
    assert (most - nll) / (most - least) > 0.5
