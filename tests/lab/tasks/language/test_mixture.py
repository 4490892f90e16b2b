"""The mixture of softmaxes and the Mogrifier against their papers' equations, and both in whole runs."""

import math

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.language.mixture import MixtureOfSoftmaxes, TargetLogs, mixture
from bayesrnn.lab.tasks.language.model import LanguageModel, zero_state
from bayesrnn.lab.tasks.language.mogrifier import MogrifierLSTM, run_steps
from bayesrnn.lab.tasks.language.settings import Model
from bayesrnn.nn.masks import LayerNoise

CPU = torch.device("cpu")
BOTH = {"embedding": 5, "layers": 2, "units": (7, 6), "tied": True, "softmaxes": 3, "mogrifier": 3, "mogrifier_rank": 2}
NOISE = {"latent_dropout": 0.3, "input_dropout": 0.2, "recurrent_dropout": 0.2, "output_dropout": 0.2}


@pytest.fixture
def folder(tmp_path):
    words = torch.randint(10, (130,), generator=torch.Generator().manual_seed(1)).tolist()
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" ".join(f"w{word}" for word in words))
    return str(tmp_path)


def gradients(loss, parameters):
    return torch.autograd.grad(loss, list(parameters), allow_unused=True)


def test_mixture_is_that_of_the_paper():
    torch.manual_seed(0)
    module, decoder = MixtureOfSoftmaxes(6, 5, 3).double(), nn.Linear(5, 11).double()
    hidden = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    weights = [hidden, *module.parameters(), *decoder.parameters()]
    total = 0
    for k, (v, b) in enumerate(zip(module.latent.weight.chunk(3), module.latent.bias.chunk(3), strict=True)):
        latent = torch.tanh(hidden @ v.t() + b)
        share = (hidden @ module.prior.weight.t()).softmax(-1)[..., k, None]
        total = total + share * (latent @ decoder.weight.t() + decoder.bias).softmax(-1)
    found = module(hidden, decoder)
    torch.testing.assert_close(found, total.log())
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4, 2, dtype=torch.float64))
    directions = torch.randn_like(found)
    for ours, naive in zip(
        gradients((found * directions).sum(), weights),
        gradients((total.log() * directions).sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(ours, naive)
    with torch.no_grad():
        torch.testing.assert_close(module(hidden, decoder), found)
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in ((3, 2, 4), (5, 4), (5,), (3, 2))]
    assert torch.autograd.gradgradcheck(mixture, inputs)


@pytest.mark.parametrize("few", [1 << 24, 0])
def test_log_probabilities_of_targets_are_those_of_the_mixture(monkeypatch, few):
    """Values and gradients, at once and in pieces of three rows; words that do not count have no gradient."""
    monkeypatch.setattr("bayesrnn.kernels.decoder.loop._FEW", few)
    monkeypatch.setattr("bayesrnn.kernels.decoder.loop._ROWS", 3)
    torch.manual_seed(0)
    module, decoder = MixtureOfSoftmaxes(6, 5, 3).double(), nn.Linear(5, 11).double()
    hidden = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (4, 2))
    targets[1, 0] = -100
    weights = [hidden, *module.parameters(), *decoder.parameters()]
    likelihood, whole = TargetLogs(), br.Categorical()
    ours = likelihood.nll(module(hidden, decoder, targets), targets)
    naive = whole.nll(module(hidden, decoder), targets)
    torch.testing.assert_close(ours, naive)
    torch.testing.assert_close(gradients(ours, weights), gradients(naive, weights))
    assert likelihood.count(targets) == whole.count(targets) == 7


def test_mixture_is_the_same_at_once_and_one_by_one(monkeypatch):
    torch.manual_seed(0)
    inputs = [torch.randn(size, dtype=torch.float64) for size in ((3, 2, 4), (5, 4), (5,), (3, 2))]
    found = mixture(*inputs)
    monkeypatch.setattr("bayesrnn.lab.tasks.language.mixture._AT_ONCE", 0)
    torch.testing.assert_close(mixture(*inputs), found)


def test_mixture_far_from_zero():
    latent = torch.full((2, 3, 1), 100.0, requires_grad=True)
    found = mixture(latent, torch.tensor([[1.0], [-1.0]]), torch.zeros(2), torch.full((2, 3), -math.log(3)))
    torch.testing.assert_close(found, torch.tensor([[0.0, -200.0]] * 2), atol=1e-4, rtol=0)
    (gradient,) = torch.autograd.grad(found[:, 1].sum(), latent)
    torch.testing.assert_close(gradient.sum(1), torch.full((2, 1), -2.0), rtol=1e-3, atol=0)


def naive_mogrifier(layer, x, h, c, *, z_x, z_h, w_hh, rounds):
    outputs = []
    for step in x * z_x:
        old, h = step, h * z_h
        for k in range(rounds):
            matrix = torch.eye(h.shape[-1] if k % 2 == 0 else x.shape[-1], dtype=x.dtype)
            for part in layer.rounds[k]:
                matrix = part.weight @ matrix
            if k % 2 == 0:
                old = 2 * torch.sigmoid(h @ matrix.t()) * old
            else:
                h = 2 * torch.sigmoid(old @ matrix.t()) * h
        gates = old @ layer.weight_ih_l0.t() + h @ w_hh.t() + layer.bias_ih_l0 + layer.bias_hh_l0
        i, f, g, o = gates.split(layer.hidden_size, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


@pytest.mark.parametrize(("rounds", "rank"), [(0, None), (1, None), (4, None), (5, 2)])
@pytest.mark.parametrize("rates", [{}, {"input_dropout": 0.3, "recurrent_dropout": 0.3, "weight_dropout": 0.3}])
def test_mogrifier_is_that_of_the_paper(rounds, rank, rates):
    torch.manual_seed(0)
    layer = MogrifierLSTM(5, 7, rounds=rounds, rank=rank, **rates).double()
    x = torch.randn(6, 3, 5, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(1, 3, 7, dtype=torch.float64, requires_grad=True) for _ in "hc")
    with br.draw(layer, seed=3):
        out, after = layer(x, state)
        noise = layer._sample_noise(x, br.draws.source(layer))["_l0"]
        one = torch.ones((), dtype=torch.float64)
        z_x, z_h = (one if z is None else z for z in (noise.z_x, noise.z_h))
        naive, h, c = naive_mogrifier(
            layer, x, *(s[0] for s in state), z_x=z_x, z_h=z_h, w_hh=noise.w_hh, rounds=rounds
        )
    assert (z_x.shape, z_h.shape) == (((3, 5), (3, 7)) if rates else ((), ()))  # one mask per sequence for all steps
    torch.testing.assert_close(out, naive)
    torch.testing.assert_close(after, (h.unsqueeze(0), c.unsqueeze(0)))
    wanted, directions = [x, *state, *layer.parameters()], torch.randn_like(out)
    ours = gradients((out * directions).sum() + after[1].sum(), wanted)
    torch.testing.assert_close(ours, gradients((naive * directions).sum() + c.sum(), wanted))
    if not rounds and not rates:
        plain = nn.LSTM(5, 7).double()
        plain.load_state_dict(layer.state_dict())
        torch.testing.assert_close(plain(x, state)[0], out)


def test_cell_dropout_of_a_mogrifier_is_that_of_the_layer():
    layer = MogrifierLSTM(5, 7, rounds=0, cell_dropout=0.4)
    other = br.LSTM(5, 7, cell_dropout=0.4)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(6, 3, 5)
    with br.draw(layer, seed=1), br.draw(other, seed=1):
        torch.testing.assert_close(layer(x), other(x))
    assert br.kernels.explain(layer).endswith("(MogrifierLSTM): torch operations, step by step.")


def test_steps_of_a_mogrifier_compile_into_one_graph():
    layer, x, h = MogrifierLSTM(3, 4, rounds=2), torch.randn(3, 2, 3), torch.zeros(2, 4)
    rounds = [[part.weight for part in parts] for parts in layer.rounds]
    noise = LayerNoise(layer.weight_ih_l0, layer.weight_hh_l0, z_x=torch.ones(2, 3))
    compiled = torch.compile(run_steps, backend="eager", fullgraph=True)
    with torch.no_grad():
        out, _, _ = compiled(x, h, h, layer.bias_ih_l0 + layer.bias_hh_l0, rounds, noise)
    torch.testing.assert_close(out, layer(x)[0])


def test_draws_hold_one_mask_per_sequence():
    torch.manual_seed(0)
    model = LanguageModel(11, Model(**BOTH, **NOISE)).eval()
    x = torch.randint(11, (6, 4))
    with br.draw(model, seed=1):
        whole, _ = model(x)
        first, state = model(x[:2])
        torch.testing.assert_close(torch.cat([first, model(x[2:], state)[0]]), whole)  # the same masks at every step
        same = model(x[:, :1].expand(-1, 4))[0]
        assert not torch.equal(same[:, 0], same[:, 1])  # but not in every sequence
    mean, drawn = model(x)[0], br.predict(model, x, samples=3, seed=1, likelihood=br.Categorical())
    assert not torch.allclose(drawn.mean, mean.exp())
    torch.testing.assert_close(drawn.mean.sum(-1), torch.ones(6, 4))
    torch.testing.assert_close(model(x, zero_state(Model(**BOTH), 4, CPU))[0], mean)


def test_latent_noise_is_part_of_the_mixture():
    model = LanguageModel(11, Model(hidden=6, softmaxes=3, latent_dropout=0.5)).train()
    x = torch.randint(11, (3, 2))
    assert not torch.equal(model(x)[0], model(x)[0])
    assert isinstance(model.rnn, nn.LSTM)
    assert LanguageModel(11, Model(hidden=6)).mixture is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"units": (3, 4)}, "has 2 widths, and there are 3 layers"),
        ({"tied": True, "embedding": 5, "units": (7, 7, 6)}, "the embedding is 5 wide and the last layer 6"),
        ({"latent_dropout": 0.1}, "set model.softmaxes above 1"),
        ({"mogrifier_rank": 3}, "set model.mogrifier, their rounds"),
        ({"mogrifier": 2, "tied_masks": False}, "set model.tied_masks=true"),
        ({"mogrifier": 2, "step_dropout": 0.1}, "use model.between_dropout in its place"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Model(layers=3, **settings)


SETTINGS = [
    "model.embedding=5", "model.layers=2", "model.units=[7,6]", "model.softmaxes=3", "model.mogrifier=3",
    "model.mogrifier_rank=2", "model.latent_dropout=0.1", "data.batch_size=3", "data.window=4", "train.epochs=2",
    "train.lr=0.5", "evaluate.dynamic_window=4",
]  # fmt: skip


def train(folder, out, *more, **options):
    settings = [*SETTINGS, "train.average_restarts=[]", *more]
    return launch("awd-24m", out=out, reporter=Silent(), data=folder, overrides=settings, seed=1, **options)


@pytest.mark.parametrize("kind", ["none", "bayes_by_backprop", "sharpened"])
def test_runs_are_trained_and_evaluated(kind, folder, tmp_path):
    quiet = [f"model.{name}_dropout=0" for name in ("latent", "word", "input", "between", "output", "weight")]
    record = train(folder, tmp_path / "run", f"posterior.kind={kind}", *(quiet if kind == "bayes_by_backprop" else []))
    run = open_run(tmp_path / "run", CPU)
    if kind != "none":
        model = run.model if kind == "bayes_by_backprop" else run.model.q
        random = {name for name, _, _ in model.named_posteriors()}
        assert {"mixture.latent.weight", "mixture.prior.weight", "rnn.1.rounds.2.1.weight"} <= random
    metrics = run.task(folder, CPU).evaluate(samples=3, dynamic=True, temperature=True, reversed_text=True)
    assert metrics["test_perplexity"] == pytest.approx(record.metrics["test_perplexity"], rel=1e-4)
    assert 1 < metrics["test_perplexity_mc"] < 20
    if kind == "bayes_by_backprop":  # every random matrix has noise of its own in a draw
        torch.manual_seed(0)
        output, _ = run.model.train()(torch.randint(10, (4, 2)))
        sigmas = [p for name, p in run.model.named_parameters() if "rho" in name or "sigma" in name]
        assert len(sigmas) == len(random)
        assert all(bool(g.any()) for g in torch.autograd.grad(output.square().sum(), sigmas))
    assert metrics["test_perplexity_dynamic"] != metrics["test_perplexity"]


def test_a_mogrifier_is_exported_to_a_folder_alone(folder, tmp_path):
    train(folder, tmp_path / "run")
    result = CliRunner().invoke(app, ["export", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert result.output.strip().endswith(
        "rnn.0 (MogrifierLSTM) has no plain form in torch.nn; use --hub, which writes a folder for br.load."
    )
    assert CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--hub", str(tmp_path / "hub")]).exit_code == 0
    x = torch.randint(10, (3, 2))
    with torch.no_grad():
        torch.testing.assert_close(br.load(tmp_path / "hub").eval()(x)[0], open_run(tmp_path / "run", CPU).model(x)[0])


def test_resumed_run_is_the_same_to_the_bit(folder, tmp_path):
    whole = train(folder, tmp_path / "whole")
    stopped = []

    class Stop(Silent):
        def epoch(self, line, epochs):
            stopped.append(line["epoch"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(
            "awd-24m", out=tmp_path / "again", reporter=Stop(), data=folder, seed=1,
            overrides=[*SETTINGS, "train.average_restarts=[]"],
        )  # fmt: skip
    assert stopped == [1]
    resumed = launch(None, out=tmp_path / "again", reporter=Silent(), data=folder, resume=True)
    assert resumed.metrics["test_perplexity"] == whole.metrics["test_perplexity"]
