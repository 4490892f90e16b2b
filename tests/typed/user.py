"""A user's program, checked by `mypy --strict`: public names in the ways that people use them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn import export
from bayesrnn.errors import UserError
from bayesrnn.posteriors.base import HasSigma, RandomWeights, Weight


class Tagger(nn.Module):
    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.embed = br.Embedding(words, 8, word_dropout=0.1, batch_first=True)
        self.rnn = br.LSTM(8, 16, num_layers=2, batch_first=True, input_dropout=0.1, recurrent_dropout=0.1)
        self.drop = br.SequenceDropout(0.2, batch_first=True)
        self.head = nn.Linear(16, classes)

    def forward(self, words: Tensor) -> Tensor:
        out, (h, c) = self.rnn(self.embed(words))
        assert h.shape == c.shape
        logits: Tensor = self.head(self.drop(out))
        return logits


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int = 2) -> list[float]:
    elbo = br.ELBO(model, br.Categorical(ignore_index=-1), num_data=y.numel(), kl_weight=1.0, warmup=10)
    optimiser = torch.optim.Adam(elbo.parameters(), lr=1e-3)
    losses: list[float] = []
    for _ in range(steps):
        terms = elbo(model(x), y)
        optimiser.zero_grad()
        terms.loss.backward()
        optimiser.step()
        losses.append(terms.loss.item() + terms.kl.item() + terms.nll.item())
    return losses


def report(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, float]:
    p: br.Prediction = br.predict(model, x, samples=4, seed=0, likelihood=br.Categorical())
    low, high = p.interval(0.9)
    parts: Sequence[Tensor] = (p.mean, p.entropy, p.aleatoric, p.epistemic, p.mutual_information, p.samples)
    assert all(part.isfinite().all() for part in parts)
    wrong = (p.mean.argmax(-1) != 0).float()
    curve = br.uncertainty.risk_coverage(p.entropy.flatten(), wrong.flatten())
    return low, high, curve.risk_at(0.5) + curve.area


def regression() -> float:
    x, y = torch.randn(60, 3), torch.randn(60, 1)
    prior: br.Normal | br.ScaleMixture = br.ScaleMixture(pi=0.25, sigma1=1.0, sigma2=0.01)
    model = br.BayesByBackprop(nn.Linear(3, 2), prior=prior, init_sigma=0.02, exclude="bias")
    likelihoods = (br.StudentT(df=4), br.StudentT(), br.Mixture(br.Gaussian, components=1), br.NegativeBinomial())
    likelihood = likelihoods[0]

    def predict(rows: Tensor) -> br.Prediction:
        return br.predict(model, rows, samples=4, seed=1, likelihood=likelihood)

    conformal = br.Conformal(predict, level=0.8, method="cqr")
    conformal.calibrate(x[:40], y[:40, 0])
    low, high = conformal.interval(x[40:])
    return br.uncertainty.interval_coverage(low, high, y[40:, 0])


def shipped(model: br.BayesByBackprop, folder: Path, x: Tensor) -> nn.Module:
    assert isinstance(model, HasSigma | RandomWeights)
    for name, mean, sigma in model.named_posteriors():
        assert mean.shape == sigma.shape, name
    with br.draw(model, seed=1), torch.no_grad():
        assert torch.equal(model(x), model(x))
    with br.mean(model):
        model(x)
    removed: int = br.prune(model, 0.3).removed
    ratios = br.signal_to_noise(model)
    assert removed > 0, ratios
    saved: Path = br.save(model, folder)
    try:
        br.load(folder / "none", model)
    except UserError as error:
        print(str(error))
    same: nn.Module = br.load(saved, model)
    print(br.kernels.explain(same), br.kl(same).item(), br.__version__)
    export.to_exported(model.eval(), (x,))
    return br.to_torch(model)


class OneSigma(nn.Module):
    """A posterior of one's own."""

    def __init__(self, weights: Sequence[Weight]) -> None:
        super().__init__()
        self.shapes = {weight.name: weight.mean.shape for weight in weights}

    def noise(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {name: torch.randn(shape, generator=generator) for name, shape in self.shapes.items()}

    def weights(self, means: dict[str, Tensor], noise: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: means[name] + 0.1 * noise[name] for name in self.shapes}

    def kl(self, means: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        return torch.stack([0.5 * mean.square().sum() for mean in means.values()]).sum()


def main(folder: Path) -> None:
    words, tags = torch.randint(20, (4, 7)), torch.randint(3, (4, 7))
    plain = Tagger(20, 3)
    for model in (plain, br.BayesByBackprop(plain), br.DropConnect(plain, p=0.2), br.Bayesian(plain, OneSigma)):
        train(model, words, tags)
        report(model, words)
    gru, rnn = br.GRU(3, 4, recurrent_dropout=0.1), br.RNN(3, 4, nonlinearity="relu")
    for layer in (gru, rnn):
        out, state = layer(torch.randn(5, 2, 3))
        assert out.shape[-1] == state.shape[-1]
    regression()
    shipped(br.BayesByBackprop(plain), folder, words)


if __name__ == "__main__":
    main(Path("saved"))
