import json
import math
import random
import shutil

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.tasks.base import is_random
from bayesrnn.lab.tasks.sentiment import regression, reviews
from bayesrnn.lab.tasks.sentiment import task as sentiment
from bayesrnn.lab.tasks.sentiment.settings import Model
from bayesrnn.lab.tasks.sentiment.task import RatingModel, Sentiment, by_review

VARIANTS = ("plain", "naive", "variational", "bbb")
SMALL = [
    "model.embedding=12", "model.hidden=10", "data.batch_size=16", "data.length=20", "train.epochs=3", "train.lr=0.01",
    "evaluate.samples=8", "evaluate.epoch_samples=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up reviews in the real layout: the rating is the share of good words."""
    source, place = random.Random(0), tmp_path_factory.mktemp("reviews")
    for author in reviews.AUTHORS:
        texts, ratings = [], []
        for _ in range(40):
            rating = source.choice([0.1, 0.3, 0.5, 0.7, 0.9])
            words = ["good" if source.random() < rating else "bad" for _ in range(source.randrange(12, 34))]
            texts.append(" ".join(f"{w}{source.randrange(3)}" for w in words) + " \n")
            ratings.append(f"{rating}\n")
        (place / author).mkdir()
        (place / author / f"subj.{author}").write_text("".join(texts), "latin-1")
        (place / author / f"rating.{author}").write_text("".join(ratings))
    return str(place)


class Quiet:
    def __init__(self):
        self.lines = []

    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs):
        self.lines.append(line)


def recipe(name, *more):
    return recipes.override(recipes.load(name), [*SMALL, *more])


def task_of(folder, name="sentiment-lstm-variational", *more):
    torch.manual_seed(0)
    made = Sentiment(recipe(name, *more), folder, torch.device("cpu"))
    made.attach(made.build(made.recipe, made.files()))
    return made


def test_every_review_and_rating_is_in_the_digest(folder, tmp_path):
    digest = task_of(folder).digest()
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert task_of(str(copy)).digest() == digest
    author = reviews.AUTHORS[-1]
    for kind in ("subj", "rating"):
        name = f"{author}/{kind}.{author}"
        lines = (copy / name).read_text().splitlines()
        for row in (0, 39):
            changed = list(lines)
            changed[row] = "0.2" if kind == "rating" else " ".join(reversed(lines[row].split()))
            (copy / name).write_text("\n".join(changed) + "\n")
            assert task_of(str(copy)).digest() != digest
        (copy / name).write_text("\n".join(lines) + "\n")


class TestModel:
    @pytest.mark.parametrize("cell", ["lstm", "gru"])
    def test_without_noise_it_is_torch(self, cell):
        tokens = torch.randint(50, (9, 4))
        torch.manual_seed(1)
        plain = RatingModel(50, Model(cell=cell, embedding=6, hidden=5))
        noisy = RatingModel(50, Model(cell=cell, embedding=6, hidden=5, word_dropout=0.5, recurrent_dropout=0.5))
        noisy.load_state_dict(plain.state_dict())
        embedded = nn.functional.embedding(tokens, plain.embed.weight)
        expected = plain.head(plain.rnn(embedded)[0][-1])
        assert expected.shape == (4, 1)
        assert torch.allclose(plain(tokens), expected)
        assert torch.allclose(noisy.eval()(tokens), expected, atol=1e-6)

    def test_initial_weights(self):
        torch.manual_seed(0)
        model = RatingModel(2000, Model(cell="lstm", embedding=30, hidden=40), 100).requires_grad_(False)
        assert model.embed.weight.abs().max() <= 0.05
        assert model.embed.weight[reviews.PAD].abs().max() > 0  # the padding's own row
        assert 0.9 * 40**-0.5 < model.rnn.weight_hh_l0.abs().max() <= 40**-0.5
        for gate in model.rnn.weight_ih_l0.split(40):
            assert 0.9 * math.sqrt(6 / 70) < gate.abs().max() <= math.sqrt(6 / 70)
        enter, forget, *others = model.rnn.bias_ih_l0.split(40)
        assert torch.equal(enter, -forget)
        assert torch.cat([*others, model.rnn.bias_hh_l0]).abs().max() == 0
        steps = forget.exp()  # uniform from 1 to 99: 40 of them have a mean within 5 standard errors, 4.5 each, of 50
        assert 1 <= steps.min() < steps.max() <= 99
        assert abs(float(steps.mean()) - 50) < 22.5

    def test_initial_memory_of_the_gru(self):
        """With its update gate at log(n) a GRU keeps 1 - 1/(n + 1) of its state in a step."""
        torch.manual_seed(0)
        model = RatingModel(9, Model(cell="gru", embedding=3, hidden=4), 50)
        reset, update, new = model.rnn.bias_ih_l0.split(4)
        assert torch.cat([reset, new, model.rnn.bias_hh_l0]).abs().max() == 0
        for parameter in (model.rnn.weight_ih_l0, model.rnn.weight_hh_l0):
            parameter.data.zero_()
        before = torch.randn(1, 1, 4)
        _, after = model.rnn(torch.zeros(1, 1, 3), before)
        n = update.exp()
        assert torch.allclose(after[0, 0], before[0, 0] * (1 - 1 / (n + 1)), atol=1e-6)

    def test_padding_is_a_word_type_of_its_own(self):
        torch.manual_seed(0)
        model = RatingModel(9, Model(embedding=6, hidden=5))
        real = torch.tensor([[3, 4], [5, 6]])
        padded = torch.cat([torch.full((4, 2), reviews.PAD), real])
        before = model(padded)
        with torch.no_grad():
            model.embed.weight[reviews.PAD] += 1.0
        assert not torch.allclose(model(padded), before)
        model(padded).sum().backward()
        assert model.embed.weight.grad[reviews.PAD].abs().sum() > 0

    def test_naive_masks_are_new_at_every_step(self):
        model = RatingModel(4, Model(embedding=64, hidden=5, step_dropout=0.5)).train()
        seen = []
        model.rnn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model(torch.full((6, 2), 3))
        kept = seen[0] != 0
        assert not (kept[0] == kept[1]).all()
        assert 0.3 < kept.float().mean() < 0.7
        assert not hasattr(model.rnn, "rates")  # torch's own layer: no recurrent noise

    def test_variational_masks_are_held(self):
        model = RatingModel(4, Model(embedding=64, hidden=5, word_dropout=0.3, output_dropout=0.5)).train()
        seen = []
        model.rnn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model(torch.full((6, 40), 3))
        gone = (seen[0] == 0).all(-1)  # (T, B)
        assert (gone == gone[0]).all()
        assert 0 < gone.float().mean() < 1


class TestTask:
    def test_recipes_of_the_table(self):
        names = [n for n in recipes.names() if recipes.load(n).task == "sentiment"]
        assert names == sorted(f"sentiment-{c}-{v}" for c in ("lstm", "gru") for v in VARIANTS)
        for name in names:
            r = recipes.load(name)
            assert is_random(r) == ("plain" not in name)
            assert (r.train.optimizer, r.train.lr, r.train.clip) == ("adam", 1e-3, 10.0)
            assert (r.data.batch_size, r.data.length, r.data.split) == (128, 200, "review")
            assert (r.model.embedding, r.model.hidden) == (128, 128)
            assert r.train.patience is None

    def test_objective_is_the_squared_error(self, folder):
        task = task_of(folder, "sentiment-lstm-plain")
        tokens, ratings = batch = task.batch(torch.tensor(0))
        assert tokens.shape == (20, 16)
        with torch.no_grad():
            loss, terms, state = task.objective(batch, ())
            squared = nn.functional.mse_loss(task.model(tokens), ratings)
        assert state == ()
        assert float(loss) == pytest.approx(float(squared) + 0.5 * math.log(math.pi), rel=1e-5)
        figures = task.training({"nll": float(terms.nll), "kl": 0.0})
        assert figures["train_rmse"] == pytest.approx(task.sd * math.sqrt(float(squared)), rel=1e-5)

    def test_noise_of_the_likelihood_only_scales_the_error(self, folder):
        task = task_of(folder, "sentiment-lstm-plain", "model.noise=2.0")
        batch = task.batch(torch.tensor(0))
        with torch.no_grad():
            _, terms, _ = task.objective(batch, ())
            squared = nn.functional.mse_loss(task.model(batch[0]), batch[1])
        figures = task.training({"nll": float(terms.nll), "kl": 0.0})
        assert figures["train_rmse"] == pytest.approx(task.sd * math.sqrt(float(squared)), rel=1e-5)

    @pytest.mark.parametrize("weight", [1.0, 0.25])
    def test_kl_is_divided_by_the_pieces_trained_on(self, folder, weight):
        task = task_of(folder, "sentiment-gru-bbb", f"model.kl_weight={weight}")
        with torch.no_grad():
            loss, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
            expected = terms.nll / 16 + weight * terms.kl / len(task.parts.train)
            assert float(loss) == pytest.approx(float(expected), rel=1e-6)
            assert float(terms.kl) == pytest.approx(float(br.kl(task.model)), rel=1e-6)
        names = [name for name, _, _ in task.model.named_posteriors()]
        assert len(names) == 6  # the embedding, four of the GRU, the output's weight
        assert "head.bias" not in names

    def test_targets_are_standardised(self, folder):
        task = task_of(folder)
        _, targets = task.minibatches.data
        assert abs(float(targets.mean())) < 1e-6
        assert float(targets.std(correction=0)) == pytest.approx(1, rel=1e-5)

    def test_predictions_are_in_rating_units(self, folder):
        task = task_of(folder)
        task.model.eval()
        found = task.predictions(4)
        assert found.shape == (5, len(task.parts.valid) + len(task.parts.test))
        with torch.no_grad():
            tokens = torch.cat([task.parts.valid.tokens, task.parts.test.tokens], 1)
            expected = task.mean + task.sd * task.model(tokens)[:, 0]
        assert torch.allclose(found[0], expected)
        assert found[1:].std(0).min() > 0
        assert torch.equal(found, task.predictions(4))
        assert not torch.equal(found, task.predictions(4, seed=7))

    def test_how_the_work_is_cut_changes_no_mean(self, folder, monkeypatch):
        task = task_of(folder, "sentiment-lstm-bbb")
        task.model.eval()
        whole = task.predictions(2)
        monkeypatch.setattr(sentiment, "_TOKENS", {"cpu": 20 * 7})
        assert torch.allclose(task.predictions(2), whole, atol=1e-6)  # of Bayes by Backprop the draws too

    def test_measures_by_hand(self, folder):
        task = task_of(folder)
        n = len(task.parts.valid)
        torch.manual_seed(3)
        made = task.ratings + 0.1 * torch.randn(9, len(task.ratings))
        found = task.measures(made)
        error = (made[1:, n:].mean(0) - task.ratings[n:]).square().mean().sqrt()
        assert found["test_rmse_mc"] == pytest.approx(float(error), rel=1e-6)
        assert found["test_rmse"] == pytest.approx(float((made[0, n:] - task.ratings[n:]).square().mean().sqrt()))
        assert found["samples"] == 8
        assert [i["level"] for i in found["intervals"]] == [0.5, 0.8, 0.9, 0.95]
        changed = made.clone()
        changed[:, n:] = 0.5  # the noise is fitted on validation: nothing of the test part enters
        again = task.measures(changed)
        assert again["noise"] == found["noise"]
        assert found["valid_slope"] == pytest.approx(regression.slope(made[0, :n], task.ratings[:n]))
        assert found["test_slope_mc"] == pytest.approx(regression.slope(made[1:, n:].mean(0), task.ratings[n:]))
        assert again["test_slope"] is None

    def test_draws_of_the_last_epoch_serve_all_that_needs_them(self, folder, monkeypatch):
        task, asked = task_of(folder, "sentiment-lstm-variational", "evaluate.samples=4", "epoch_samples=2"), []
        task.model.eval()
        made = task.predictions
        monkeypatch.setattr(
            task, "predictions", lambda samples, seed=1: (asked.append(samples), made(samples, seed))[1]
        )
        task.epoch.fill_(task.recipe.train.epochs)
        found = task.validate()
        best = task.final()
        assert asked == [4, 0]  # no draw of the same weights again
        assert best["end"]["test_rmse_mc"] == best["test_rmse_mc"] != found["test_rmse_mc"]
        with torch.no_grad():
            task.model.head.bias.add_(1.0)
        assert task.final()["test_rmse_mc"] != best["test_rmse_mc"]
        assert asked[2:] == [0, 4]

    def test_evaluate_shows_the_coverage(self, folder):
        task = task_of(folder)
        task.model.eval()
        found = task.evaluate(samples=4, seed=2)
        assert (found["samples"], found["draws_seed"]) == (4, 2)
        assert [found[f"test_coverage_{level}"] for level in (50, 80, 90, 95)] == [
            i["coverage"] for i in found["intervals"]
        ]
        plain = task_of(folder, "sentiment-gru-plain").evaluate(samples=4)
        assert plain["samples"] == 0
        assert "draws_seed" not in plain

    def test_by_review(self):
        values, review = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([7, 7, 2])
        assert by_review(values, review).tolist() == [5.0, 2.0]

    def test_data_is_needed(self):
        with pytest.raises(UserError, match=r"name the folder with scale_data\.tar\.gz with --data"):
            Sentiment(recipe("sentiment-lstm-plain"), None, torch.device("cpu"))

    def test_files_hold_what_the_model_needs(self, folder):
        task = task_of(folder)
        about = json.loads(task.files()["words.json"])
        assert about["words"][:3] == ["<pad>", "<start>", "<unk>"]
        assert (about["mean"], about["sd"]) == (task.mean, task.sd)
        assert task.model.embed.num_embeddings == len(about["words"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run(variant, folder, tmp_path):
    name = f"sentiment-{'gru' if variant == 'naive' else 'lstm'}-{variant}"
    reporter = Quiet()
    record = launch(name, out=tmp_path / "run", reporter=reporter, data=folder, overrides=SMALL, device="cpu")
    losses = record.curves["loss"]
    assert losses[-1] < losses[0]
    curves, metrics = record.curves, record.metrics
    assert metrics["end"]["valid_rmse"] == pytest.approx(curves["valid_rmse"][-1], rel=1e-5)
    assert metrics["valid_rmse"] == pytest.approx(min(curves["valid_rmse"]), rel=1e-5)
    assert ("test_rmse_mc" in curves) == ("test_rmse_mc" in metrics) == (variant != "plain")
    assert metrics["samples"] == metrics["end"]["samples"] == (0 if variant == "plain" else 8)
    assert (metrics["uncertainty"] is None) == (variant == "plain")
    chunks = record.extra["chunks"]
    assert chunks["train"] > chunks["test"] > chunks["valid"]
    json.dumps(record.to_dict(), allow_nan=False)


def test_a_model_learns_what_there_is(folder, tmp_path):
    """The rating is the share of good words: far better than a constant within a few epochs."""
    more = ["train.epochs=15", "evaluate.epoch_samples=0"]
    record = launch(
        "sentiment-gru-plain",
        out=tmp_path / "run",
        reporter=Quiet(),
        data=folder,
        overrides=[*SMALL, *more],
        device="cpu",
    )
    assert record.metrics["test_rmse"] < 0.6 * record.extra["constant_rmse"]


def test_resumed_run_is_the_same(folder, tmp_path):
    """Stopped inside the last epoch, after a checkpoint there, with the figures of the end still to come."""

    class Stops(Quiet):
        def step(self, progress):
            if progress.epoch == 3:
                raise KeyboardInterrupt

    options = {"data": folder, "overrides": [*SMALL, "train.save_every=4"], "device": "cpu"}
    name = "sentiment-lstm-variational"
    whole = launch(name, out=tmp_path / "a", reporter=Quiet(), **options)
    with pytest.raises(KeyboardInterrupt):
        launch(name, out=tmp_path / "b", reporter=Stops(), **options)
    state = json.loads((tmp_path / "b" / "state.json").read_text())
    assert state["epoch"] == 3
    assert state["step"] > 0
    again = launch(name, out=tmp_path / "b", reporter=Quiet(), resume=True, **options)
    assert again.metrics["end"] == whole.metrics["end"]
    assert again.curves == whole.curves


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_on_a_gpu_one_step_is_one_graph(variant, cell, folder, tmp_path):
    """Initial weights and order are the CPU's; without noise the curves are too, but for the order of sums."""
    name, options = f"sentiment-{cell}-{variant}", {"data": folder, "overrides": [*SMALL, "train.precision=fp32"]}
    record = launch(name, out=tmp_path / "gpu", reporter=Quiet(), device="cuda", **options)
    assert record.cuda_graph
    assert record.curves["loss"][-1] < record.curves["loss"][0]
    assert record.metrics["end"]["valid_rmse"] == pytest.approx(record.curves["valid_rmse"][-1], rel=1e-3)
    if variant == "plain":
        here = launch(name, out=tmp_path / "cpu", reporter=Quiet(), device="cpu", **options)
        assert record.curves["test_rmse"] == pytest.approx(here.curves["test_rmse"], rel=0.02)
