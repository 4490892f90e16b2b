"""The digit networks, their objective, and whole runs of the recipes on a small made-up set of digits."""

import json
import math
import shutil
import struct

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from typer.testing import CliRunner

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.cli import app
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.tasks.digits import task as digits
from bayesrnn.lab.tasks.digits.images import FILES

RECIPES = [name for name in recipes.names() if recipes.load(name).task == "digits"]
SMALL = ["hidden=8", "data.valid=40", "batch_size=16", "epochs=2"]
CPU = torch.device("cpu")


class Quiet:
    def __init__(self):
        self.lines = []

    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs):
        self.lines.append(line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten kinds of blots, with noise: 200 to train on and validate, 60 to test."""
    where = tmp_path_factory.mktemp("digits")
    generator = torch.Generator().manual_seed(0)
    kinds = F.interpolate(torch.rand(1, 10, 7, 7, generator=generator), 28)[0] * 180
    for split, count in (("train", 200), ("test", 60)):
        labels = torch.randint(10, (count,), generator=generator)
        images = kinds[labels] + 75 * torch.rand(count, 28, 28, generator=generator)
        for part, entries in ((f"{split}_images", images), (f"{split}_labels", labels)):
            header = struct.pack(f">BBBB{entries.ndim}I", 0, 0, 8, entries.ndim, *entries.shape)
            (where / FILES[part][0]).write_bytes(header + entries.to(torch.uint8).numpy().tobytes())
    return where


def task_of(folder, name="digits-mlp-plain", *overrides):
    task = digits.Digits(recipes.override(recipes.load(name), [*SMALL, *overrides]), str(folder), CPU)
    torch.manual_seed(0)
    task.attach(task.build(task.recipe, {}).train())
    return task


def test_every_image_and_label_is_in_the_digest(folder, tmp_path):
    digest = task_of(folder).digest()
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert task_of(copy).digest() == digest
    for name, _ in FILES.values():
        for at in (20, -1):  # of the first entries, which are trained on, and of the last, which validate
            data = bytearray((folder / name).read_bytes())
            data[at] = (data[at] + 1) % 10
            (copy / name).write_bytes(data)
            assert task_of(copy).digest() != digest
        shutil.copy(folder / name, copy / name)


class TestNetworks:
    def test_lenet_is_the_published_network(self):
        model = digits.LeNet()
        assert sum(p.numel() for p in model.parameters()) == 431_080
        x = torch.randn(3, 1, 28, 28)
        h = F.max_pool2d(F.conv2d(x, model.conv1.weight, model.conv1.bias), 2)
        h = F.max_pool2d(F.conv2d(h, model.conv2.weight, model.conv2.bias), 2)
        h = F.relu(h.flatten(1) @ model.inner.weight.T + model.inner.bias)
        assert_close(model(x), h @ model.out.weight.T + model.out.bias)
        for layer, inputs in ((model.conv1, 25), (model.conv2, 500), (model.inner, 800), (model.out, 500)):
            bound = math.sqrt(3 / inputs)
            largest = float(layer.weight.detach().abs().max())
            assert 0.95 * bound < largest <= bound
            assert not layer.bias.any()

    @pytest.mark.parametrize("noise", ["bernoulli", "gaussian"])
    def test_noise_of_lenet_comes_before_pooling_and_after_relu(self, noise):
        model, x = digits.LeNet(30, dropout=0.3, conv_dropout=0.5, noise=noise), torch.randn(3, 1, 28, 28)
        with br.draw(model, seed=1) as held:
            drawn = model(x)
        masks = {key.partition(".")[0]: mask for key, mask in held._held.items()}
        assert {k: tuple(m.shape) for k, m in masks.items()} == {
            "drop1": (3, 20, 24, 24), "drop2": (3, 50, 8, 8), "drop": (3, 30),
        }  # fmt: skip
        h = F.max_pool2d(model.conv1(x) * masks["drop1"], 2)
        h = F.max_pool2d(model.conv2(h) * masks["drop2"], 2)
        h = F.relu(model.inner(h.flatten(1))) * masks["drop"]
        assert_close(drawn, model.out(h))

    def test_the_mlp(self):
        model, x = digits.MLP(), torch.randn(3, 1, 28, 28)
        assert sum(p.numel() for p in model.parameters()) == 478_410
        h = F.relu(model.hidden[1](F.relu(model.hidden[0](x.flatten(1)))))
        assert_close(model(x), model.out(h))
        noisy = digits.MLP(6, 3, dropout=0.5, input_dropout=0.2)
        with br.draw(noisy, seed=1) as held:
            noisy(x)
        assert {k: tuple(m.shape) for k, m in held._held.items()} == {
            "drop_in.units": (3, 784), "drops.0.units": (3, 6), "drops.1.units": (3, 6), "drops.2.units": (3, 6),
        }  # fmt: skip


class TestObjective:
    def test_without_a_posterior_it_is_the_mean_cross_entropy(self, folder):
        task = task_of(folder)
        images, labels, _ = batch = task.batch(torch.tensor(2))
        loss, terms, state = task.objective(batch, ())
        assert state == ()
        assert_close(loss, F.cross_entropy(task.model(images.unsqueeze(1) / 126), labels))
        assert_close(terms.nll, loss * 16)

    def test_the_kl_counts_once_per_epoch(self, folder):
        task = task_of(folder, "digits-bbb-400", "kl_weight=1")
        assert (task.steps, task.batch_size) == (10, 16)
        for position in range(task.steps):
            loss, terms, _ = task.objective(task.batch(torch.tensor(position)), ())
            assert_close(loss, terms.nll / 16 + terms.kl / (16 * 10))

    @pytest.mark.parametrize("weighting", ["uniform", "geometric"])
    def test_a_weighted_kl(self, folder, weighting):
        task = task_of(folder, "digits-bbb-400", "kl_weight=0.25", f"kl_weighting={weighting}")
        share = 1 / 10 if weighting == "uniform" else float(digits.kl_share(torch.tensor(2), 10))
        loss, terms, _ = task.objective(task.batch(torch.tensor(2)), ())
        assert_close(loss, (terms.nll + 0.25 * share * terms.kl) / 16)

    def test_of_a_sharpened_posterior_the_weight_is_on_the_first_level_only(self, folder):
        task = task_of(folder, "digits-bbb-sharpened-400", "kl_weight=0.25")
        loss, terms, _ = task.objective(task.batch(torch.tensor(2)), ())
        assert float(terms.sharpening) > 0
        assert_close(loss, (terms.nll + terms.sharpening + 0.25 * terms.kl / 10) / 16)

    @pytest.mark.parametrize("name", ["digits-bbb-400", "digits-bbb-sharpened-400"])
    def test_geometric_shares_of_the_kl(self, folder, name):
        shares = torch.stack([digits.kl_share(torch.tensor(i), 10) for i in range(10)])
        assert_close(shares.sum(), torch.tensor(1.0))
        assert_close(shares[:-1] / shares[1:], torch.full((9,), 2.0))
        assert_close(digits.kl_share(torch.tensor(0), 781), torch.tensor(0.5))
        assert float(digits.kl_share(torch.tensor(780), 781)) == 0.0  # too small for a float, not NaN
        task = task_of(folder, name, "kl_weighting=geometric", "kl_weight=1")
        for position in (0, 3):
            loss, terms, _ = task.objective(task.batch(torch.tensor(position)), ())
            expected = terms.nll + terms.sharpening + shares[position] * terms.kl
            assert_close(loss, expected / 16)
            assert_close(terms.loss, loss)

    def test_a_batch_is_16_images_of_the_shuffled_training_set(self, folder):
        task = task_of(folder)
        seen = [task.batch(torch.tensor(i))[0] for i in range(task.steps)]
        torch.manual_seed(3)
        task.start_epoch(1)
        shuffled = [task.batch(torch.tensor(i))[0] for i in range(task.steps)]
        assert not torch.equal(torch.cat(seen), torch.cat(shuffled))
        as_sets = [{bytes(image.flatten().tolist()) for image in torch.cat(some)} for some in (seen, shuffled)]
        assert as_sets[0] == as_sets[1]
        assert len(as_sets[0]) == 160
        assert not {bytes(image.flatten().tolist()) for image in task.valid[0]} & as_sets[0]


class TestSharpening:
    """Posterior sharpening is not for sequences only."""

    def sharpened(self, module):
        torch.manual_seed(1)
        q = br.BayesByBackprop(module.double(), br.ScaleMixture(0.5, 1.0, 0.02, group="weight"), init_sigma=0.05)
        s = br.PosteriorSharpening(q, 0.03, init_eta=0.01)
        x, y = torch.rand(4, 1, 28, 28, dtype=torch.float64), torch.tensor([0, 3, 9, 3])
        return s, x, y, lambda: br.Categorical().nll(s(x), y)

    @pytest.mark.parametrize("make", [lambda: digits.MLP(7), lambda: digits.LeNet(9)])
    def test_theta_is_a_step_from_phi(self, make):
        s, x, y, nll = self.sharpened(make())
        with br.draw(s, seed=2):
            with s.sharpen(nll):
                theta = {n: w.detach().clone() for n, w in s._placed.items()}
                sharp, drawn = s.sharpening_kl(), s(x)
            noise = s.q._current
        phi = s.q.posterior.weights(s.q.means, noise)
        module = s.q.mean_module()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(phi[name])
        F.cross_entropy(module(x), y, reduction="sum").backward()
        step = {n: 0.01 * p.grad for n, p in module.named_parameters()}
        assert_close(sharp, sum(v.square().sum() for v in step.values()) / (2 * 0.03**2))
        rest = torch.cat([(theta[n] - phi[n] + step[n]).flatten() for n in step]).detach() / 0.03
        # thousands of numbers: a sigma0 wrong by 15 % is found with power > 0.9999
        assert abs(float(rest.square().mean()) - 1) < 5 * math.sqrt(2 / rest.numel())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(theta[name])
        assert_close(drawn, module(x))

    def test_gradients_against_finite_differences(self):
        s, x, y, nll = self.sharpened(digits.MLP(5, 1))
        elbo = br.ELBO(s, br.Categorical(), num_data=100)

        def loss():
            with br.draw(s, seed=4), s.sharpen(nll):
                return elbo(s(x), y).loss

        s.zero_grad()
        loss().backward()
        with br.draw(s, seed=4), s.sharpen(nll):
            g = {n: (s.q.posterior.weights(s.q.means, s.q._current)[n] - w) for n, w in s._placed.items()}
        assert any(v.abs().max() > 0 for v in g.values())
        for name in ("hidden.0.weight", "out.weight", "out.bias"):  # eta: g does not depend on it
            eta = s.eta[name]
            place = int(eta.grad.abs().flatten().argmax())
            flat, kept, ends = eta.data.view(-1), float(eta.data.view(-1)[place]), []
            for step in (1e-6, -1e-6):
                flat[place] = kept + step
                ends.append(float(loss().detach()))
            flat[place] = kept
            expected = (ends[0] - ends[1]) / 2e-6
            assert abs(expected - float(eta.grad.view(-1)[place])) < 1e-6 * max(abs(expected), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_and_is_evaluated(name, folder, tmp_path):
    told = Quiet()
    changes = [*SMALL, "epochs=1", "evaluate.samples=3"]
    record = launch(name, out=tmp_path / "r", reporter=told, data=str(folder), overrides=changes, device="cpu")
    assert record.metrics["valid_error"] == told.lines[0]["valid_error"]
    assert {"train_nll", "valid_error", "valid_nll", "test_error", "test_nll"} <= record.curves.keys()
    task = open_run(tmp_path / "r", CPU).task(None, CPU)
    found = json.loads(json.dumps(task.evaluate()))
    random = name not in ("digits-lenet", "digits-mlp-plain")
    assert task.random == random
    assert found.get("samples") == (3 if random else None)
    assert found["test_error"] == record.metrics["test_error"]
    for suffix in ("", "_mc") if random else ("",):
        assert all(f"{split}_{key}{suffix}" in found for split in ("valid", "test") for key in ("error", "nll"))
        assert 0 <= found[f"test_calibration_error{suffix}"] <= 1
        assert len(found[f"unfamiliar{suffix}"]) == 5
    assert ("test_error_mc" in found) == random
    assert ("pruning" in found) == ("bbb" in name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("digits-mlp-dropout", ["lr=0.004"]),
        ("digits-lenet-all-gaussian", ["lr=0.02", "epochs=12"]),
        ("digits-lenet-dropconnect", ["lr=0.02", "weight_dropout=0.1", "epochs=7"]),
        # the narrow part of the published prior has no place among 160 images
        ("digits-bbb-400", ["lr=0.01", "log_sigma2=-0.5"]),
        ("digits-bbb-sharpened-400", ["lr=0.01", "log_sigma2=-0.5"]),
    ],
)
def test_they_learn(name, changes, folder, tmp_path):
    told = Quiet()
    changes = [*SMALL, "hidden=60", "data.scale=250", "epochs=15", *changes]
    launch(name, out=tmp_path / "r", reporter=told, data=str(folder), device="cpu", overrides=changes)
    assert told.lines[-1]["train_nll"] < 0.7 * told.lines[0]["train_nll"]
    assert min(line["valid_error"] for line in told.lines) < 20  # chance: 90


def test_a_killed_run_goes_on_as_if_nothing_had_happened(folder, tmp_path):
    def run(out, reporter, **kwargs):
        changes = [*SMALL, "log_sigma2=-2"]
        return launch(
            "digits-bbb-400", out=out, reporter=reporter, data=str(folder), overrides=changes, device="cpu", **kwargs
        )

    class Stop(Quiet):
        def epoch(self, line, epochs):
            raise KeyboardInterrupt

    whole = run(tmp_path / "a", Quiet())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "b", Stop())
    again = run(tmp_path / "b", Quiet(), resume=True)
    assert again.curves == whole.curves


@pytest.mark.parametrize("units", [400, 800, 1200])
def test_sharpened_and_plain_recipes_differ_in_nothing_else(units):
    plain, sharpened = (recipes.flatten(recipes.load(f"digits-bbb-{n}{units}")) for n in ("", "sharpened-"))
    assert plain["model.hidden"] == sharpened["model.hidden"] == units
    differ = {key for key in plain if plain[key] != sharpened[key]}
    sharpening = {"posterior.kind", "posterior.sigma0", "posterior.init_eta"}
    assert sharpening <= differ <= {"description", "paper.source", "paper.row", "paper.test_error", *sharpening}


@pytest.mark.parametrize("kind", ["", "sharpened-"])
def test_recipes_of_three_widths_differ_in_nothing_else(kind):
    sizes = [recipes.load(f"digits-bbb-{kind}{n}").model_dump() for n in (400, 800, 1200)]
    for values in sizes:
        del values["description"], values["paper"], values["model"]["hidden"]
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.parametrize("name", [n for n in RECIPES if "lenet" in n])
def test_the_published_optimisation(name):
    recipe = recipes.load(name)
    t, d = recipe.train, recipe.data
    assert (t.optimizer, t.lr, t.momentum, t.l2, t.clip, t.weight_decay) == ("sgd", 0.01, 0.9, 5e-4, None, 0)
    assert (t.inverse_gamma, t.inverse_power, t.decay) == (1e-4, 0.75, 1.0)
    assert (d.batch_size, d.scale, d.valid) == (64, 256, 10_000)
    assert (recipe.model.kind, recipe.model.hidden) == ("lenet", 500)


def test_the_commands(folder, tmp_path):
    out = str(tmp_path / "r")
    runner = CliRunner()
    done = runner.invoke(
        app, ["train", "digits-mlp-dropout", *SMALL, "--data", str(folder), "--out", out, "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["evaluate", out, "--samples", "2", "--seed", "5", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "test_error_mc" in done.output
    record = json.loads((tmp_path / "r" / "record.json").read_text())
    assert record["metrics"]["test_error_mc"] >= 0
    assert (record["metrics"]["samples"], record["metrics"]["draws_seed"]) == (2, 5)


def test_eta_is_learnt_by_sgd_and_constant_under_adam():
    for optimizer, learnt in (("sgd", True), ("adam", False)):
        recipe = recipes.override(recipes.load("digits-bbb-sharpened-400"), [f"optimizer={optimizer}", "hidden=4"])
        model = digits.Digits.build(recipe, {})
        assert all(p.requires_grad == learnt for p in model.eta.parameters())
        assert all(p.requires_grad for p in model.q.parameters())


def test_refusals(folder):
    recipe = recipes.load("digits-mlp-plain")
    with pytest.raises(UserError, match="Digits need --data, a folder with the four idx files"):
        digits.Digits(recipe, None, CPU)
    with pytest.raises(UserError, match="Of 200 training images, 10,000 for validation leave 0, fewer than one batch"):
        digits.Digits(recipe, str(folder), CPU)
    both = recipes.override(recipes.load("digits-bbb-400"), ["weight_dropout=0.5"])
    with pytest.raises(UserError, match="weight_dropout is a posterior of its own"):
        digits.Digits.build(both, {})
    with pytest.raises(UserError, match=r"model\.noise is 'poisson'; it must be one of bernoulli, gaussian"):
        recipes.override(recipe, ["noise=poisson"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", RECIPES)
def test_a_step_is_one_graph_on_a_gpu(name, folder, tmp_path):
    told = Quiet()
    changes = [*SMALL, "log_sigma2=-2", "evaluate.samples=3"]
    record = launch(name, out=tmp_path / "r", reporter=told, data=str(folder), overrides=changes, device="cuda")
    assert record.cuda_graph
    assert told.lines[0]["train_nll"] != told.lines[1]["train_nll"]  # replayed on new images with new noise
    cuda = torch.device("cuda")
    found = open_run(tmp_path / "r", cuda).task(None, cuda).evaluate()
    again = open_run(tmp_path / "r", CPU).task(None, CPU).evaluate()
    assert abs(found["test_nll"] - again["test_nll"]) < 0.01 * max(again["test_nll"], 1.0)
