import math
import shutil

import numpy as np
import pytest
import torch

import bayesrnn as br
from bayesrnn.draws import Draw
from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.modules import module_of_draw
from bayesrnn.lab.tasks.captioning import search as caption_search
from bayesrnn.lab.tasks.captioning.model import Captioner
from bayesrnn.lab.tasks.captioning.settings import Model
from bayesrnn.lab.tasks.captioning.task import PADDING, Captioning, captioner_of, split_of
from bayesrnn.lab.text import EOS, Vocabulary, noise_of_draws

F, V, H = 7, 11, 6
NAMES = ("caption-dropout", "caption-variational", "caption-bbb", "caption-bbb-masks")
VARIATIONAL = {
    "image_dropout": 0.3,
    "word_dropout": 0.2,
    "input_dropout": 0.4,
    "recurrent_dropout": 0.3,
    "output_dropout": 0.4,
}


def captioner(**rates):
    torch.manual_seed(1)
    model = Captioner(F, V, Model(hidden=H, init=0.5, **{"image_scale": 1.0, **rates}))
    model.set_scale(torch.randn(50, F) * 3 + 1)
    return model


def bayesian(model=None):
    prior = br.ScaleMixture(0.25, 0.5, 0.01)
    return br.BayesByBackprop(model or captioner(), prior=prior, init_sigma=0.2, exclude="decoder.bias")


@pytest.fixture
def inputs():
    torch.manual_seed(2)
    return torch.randint(0, V, (5, 3)), torch.randn(3, F)


class TestCaptioner:
    @pytest.mark.parametrize("rates", [{}, VARIATIONAL, {"step_dropout": 0.5, "image_dropout": 0.5}])
    def test_word_by_word_is_the_same_as_at_once(self, inputs, rates):
        tokens, features = inputs
        model = captioner(**rates).eval()
        whole, (h, c) = model(tokens, features=features)
        assert whole.shape == (5, 3, V)
        one, state = model(tokens[:1], features=features)
        parts = [one]
        for t in range(1, 5):
            one, state = model(tokens[t : t + 1], state)
            parts.append(one)
        torch.testing.assert_close(torch.cat(parts), whole)
        torch.testing.assert_close(state, (h, c))

    def test_under_one_draw_too(self, inputs):
        tokens, features = inputs
        model = captioner(**VARIATIONAL)
        with br.draw(model, seed=3):
            whole, _ = model(tokens, features=features)
            one, state = model(tokens[:2], features=features)
            two, _ = model(tokens[2:], state)
        torch.testing.assert_close(torch.cat([one, two]), whole)
        with br.draw(model, seed=4):
            assert not torch.allclose(model(tokens, features=features)[0], whole)

    def test_the_image_is_the_first_input(self, inputs):
        """By hand, with torch's own layers."""
        tokens, features = inputs
        model = captioner()
        image = model.image((features - model.shift) * model.scale)
        outputs, _ = model.rnn(torch.cat([image.unsqueeze(0), model.embed(tokens)]))
        torch.testing.assert_close(model(tokens, features=features)[0], model.decoder(outputs[1:]))

    def test_scaled_features_are_centred_and_of_the_length_asked_for(self):
        features = torch.randn(400, F) * torch.tensor([1.0, 5.0, 0.1, 2.0, 30.0, 1.0, 1.0]) + 4
        features[:, 5] = 2.5
        model = captioner(image_scale=3.0)
        model.set_scale(features)
        scaled = (features - model.shift) * model.scale
        torch.testing.assert_close(scaled.mean(0), torch.zeros(F), atol=1e-5, rtol=0)
        expected = torch.full((F,), 9 / F)
        expected[5] = 0.0
        torch.testing.assert_close(scaled.square().mean(0), expected, atol=1e-5, rtol=1e-3)
        assert torch.isfinite(scaled).all()

    def test_every_rate_makes_noise_of_its_own(self, inputs):
        tokens, features = inputs
        for rate in (*VARIATIONAL, "step_dropout"):
            model = captioner(**{rate: 0.5})
            outputs = [model(tokens, features=features)[0] for _ in range(4)]
            assert any(not torch.allclose(outputs[0], other) for other in outputs[1:]), rate
            model.eval()
            assert torch.equal(model(tokens, features=features)[0], model(tokens, features=features)[0]), rate

    def test_groups_of_the_prior(self):
        """One mixture indicator per feature, per word, per unit: as the released code has them."""
        q = bayesian()
        dims = q.posterior._group_dims
        assert (dims["image.weight"], dims["embed.weight"], dims["rnn.weight_hh_l0"]) == (1, 0, 1)
        assert "decoder.bias" not in dims


def vocabulary():
    return Vocabulary("a a b b c c".split() + [EOS] * 9)


class TestSplit:
    def test_words_and_the_end_count_and_nothing_else(self):
        words = vocabulary()
        references = {"x": [["a", "b"], ["c", "q", "a", "b"]], "y": [["c"]]}
        split = split_of(references, torch.zeros(2, F), words)
        end = int(words.encode([EOS]))
        ids = {w: int(words.encode([w])) for w in "abc"}
        assert split.images.tolist() == [0, 0, 1]
        assert split.targets.tolist() == [
            [ids["a"], ids["b"], end, PADDING, PADDING],
            [ids["c"], 0, ids["a"], ids["b"], end],
            [ids["c"], end, PADDING, PADDING, PADDING],
        ]
        assert split.tokens[1].tolist() == [end, ids["c"], 0, ids["a"], ids["b"]]
        assert split.tokens[0, :3].tolist() == [end, ids["a"], ids["b"]]
        assert split.words == 3 + 5 + 2

    def test_longer_captions_are_cut_without_an_end(self):
        words = vocabulary()
        references = {"x": [["a", "b", "c", "a"], ["b", "a"]]}
        split = split_of(references, torch.zeros(1, F), words, max_words=2)
        end = int(words.encode([EOS]))
        assert words.decode(split.targets[0]) == ["a", "b", "c"]
        assert words.decode(split.targets[1]) == ["b", "a", EOS]
        assert split.tokens[:, 0].tolist() == [end, end]

    @pytest.mark.parametrize("kind", ["none", "bayes_by_backprop"])
    def test_padding_changes_neither_loss_nor_gradient(self, kind):
        """Other words under the padding, or more padding: the same loss, the same gradients."""
        model = captioner() if kind == "none" else bayesian()
        features = torch.randn(2, F)
        tokens = torch.tensor([[1, 2, 3, 4], [1, 5, 6, 7]]).t()
        targets = torch.tensor([[2, 3, 4, 8], [5, PADDING, PADDING, PADDING]]).t()
        likelihood = br.Categorical(PADDING)

        def loss(tokens, targets):
            with br.draw(model, seed=1):
                logits, _ = model(tokens, features=features)
            value = likelihood.nll(logits, targets) / likelihood.count(targets)
            return value, torch.autograd.grad(value, list(model.parameters()), allow_unused=True)

        before, gradient = loss(tokens, targets)
        other = tokens.clone()
        other[1:, 1] = torch.tensor([9, 9, 9])
        longer = torch.cat([other, torch.full((2, 2), 10)]), torch.cat([targets, torch.full((2, 2), PADDING)])
        for changed in ((other, targets), longer):
            after, changed_gradient = loss(*changed)
            torch.testing.assert_close(after, before)
            torch.testing.assert_close(changed_gradient, gradient)


def task_of(name, folder, *overrides):
    recipe = recipes.override(recipes.load(name), ["hidden=16", "batch_size=8", *overrides])
    task = Captioning(recipe, str(folder), torch.device("cpu"))
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()))
    return task


def test_every_caption_and_feature_is_in_the_digest(writable, tmp_path):
    digest = task_of("caption-dropout", writable).digest()
    copy = shutil.copytree(writable, tmp_path / "copy")
    assert task_of("caption-dropout", copy).digest() == digest
    captions, features = copy / "Flickr8k.token.txt", copy / "features_f16.npy"
    lines, rows = captions.read_text().splitlines(), np.load(features)
    for row in (0, -1):  # of a picture to train on, and of one to test with
        changed = rows.copy()
        changed[row, 0] += 1
        np.save(features, changed)
        assert task_of("caption-dropout", copy).digest() != digest
        np.save(features, rows)
        captions.write_text("\n".join([*lines[:row], lines[row] + " indeed", *lines[row:][1:]]) + "\n")
        assert task_of("caption-dropout", copy).digest() != digest
        captions.write_text("\n".join(lines) + "\n")
    assert task_of("caption-dropout", copy).digest() == digest


class TestTask:
    @pytest.mark.parametrize("name", NAMES)
    def test_one_step(self, pictures, name):
        task = task_of(name, pictures)
        task.start_epoch(1)
        features, tokens, targets, _ = batch = task.batch(torch.tensor(2))
        assert features.shape == (8, 24)
        assert tokens.shape == targets.shape == (task.splits["train"].tokens.shape[1], 8)
        loss, terms, state = task.objective(batch, ())
        assert state == ()
        loss.backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in task.model.parameters())
        counted = int((targets != PADDING).sum())
        expected = terms.nll / counted + task.recipe.model.kl_weight * terms.kl / task.splits["train"].words
        torch.testing.assert_close(loss, task.words_per_caption * expected, rtol=1e-4, atol=0)
        assert bool(terms.kl > 0) == ("bbb" in name)

    def test_the_objective_is_a_bound_per_caption(self, pictures):
        """Over an epoch: mean loss x captions = -log p of all words + KL, where batches have as many words each."""
        task = task_of("caption-bbb", pictures, "batch_size=480")
        loss, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
        torch.testing.assert_close(loss * 480, terms.nll + terms.kl, rtol=1e-5, atol=0)

    def test_a_weighted_kl(self, pictures):
        task = task_of("caption-bbb", pictures, "batch_size=480", "kl_weight=0.1")
        loss, terms, _ = task.objective(task.batch(torch.tensor(0)), ())
        torch.testing.assert_close(loss * 480, terms.nll + 0.1 * terms.kl, rtol=1e-3, atol=0)
        assert float(terms.kl.detach()) > 0.1 * float(terms.nll.detach()), "or the weight would not be seen"

    @pytest.mark.parametrize("name", ["caption-dropout", "caption-bbb"])
    def test_tied_weights_are_counted_once(self, pictures, name):
        apart, tied = (task_of(name, pictures, f"tied={b}").model for b in ("false", "true"))
        plain = captioner_of(tied)
        each = 2 if name == "caption-bbb" else 1  # a mean and a rho
        difference = sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in tied.parameters())
        assert difference == each * plain.embed.weight.numel()
        if name == "caption-bbb":
            assert "decoder.weight" not in {n for n, _, _ in tied.named_posteriors()}
        tokens = torch.tensor([[0], [1]])
        logits, _ = tied.eval()(tokens, features=torch.zeros(1, 24))
        hidden, _ = plain.rnn(torch.cat([plain.image(-plain.shift * plain.scale)[None, None], plain.embed(tokens)]))
        torch.testing.assert_close(logits, hidden[1:] @ plain.embed.weight.t() + plain.decoder.bias)

    def test_an_image_layer_outside_the_posterior(self, pictures):
        inside, outside = (task_of("caption-bbb", pictures, f"bayesian_image={b}").model for b in ("true", "false"))
        assert {n for n, _, _ in inside.named_posteriors()} - {n for n, _, _ in outside.named_posteriors()} == {
            "image.weight",
            "image.bias",
        }

    def test_features_follow_the_captions(self, pictures):
        task = task_of("caption-dropout", pictures)
        task.start_epoch(1)
        rows = task.minibatches.order[3]
        features, tokens, *_ = task.batch(torch.tensor(3))
        part = task.splits["train"]
        for b, row in enumerate(rows.tolist()):
            name = part.names[int(part.images[row])]
            k = row - [int(i) for i in part.images].index(int(part.images[row]))
            caption = task.references.train[name][k]
            assert task.vocabulary.decode(tokens[1 : len(caption) + 1, b]) == caption
            assert torch.equal(features[b], part.features[int(part.images[row])])

    @pytest.mark.parametrize("name", NAMES)
    def test_perplexity_by_hand(self, pictures, name):
        task = task_of(name, pictures)
        task.model.eval()
        total, count = 0.0, 0
        with torch.no_grad():
            for row, captions in enumerate(task.references.valid.values()):
                for caption in captions:
                    ids = task.vocabulary.encode([EOS, *caption, EOS])
                    logits, _ = task.model(ids[:-1].unsqueeze(1), features=task.splits["valid"].features[row : row + 1])
                    total += float(torch.nn.functional.cross_entropy(logits[:, 0], ids[1:], reduction="sum"))
                    count += len(ids) - 1
        assert task.perplexity("valid") == pytest.approx(math.exp(total / count), rel=1e-5)
        assert task.validate() == {"valid_perplexity": task.perplexity("valid")}

    def test_long_captions_are_scored_whole(self, pictures):
        short, long = (task_of("caption-dropout", pictures, f"data.max_words={n}") for n in (4, 20))
        assert short.splits["train"].tokens.shape[1] == 5
        assert short.splits["valid"].words == long.splits["valid"].words

    def test_monte_carlo_perplexity_averages_probabilities(self, pictures):
        task = task_of("caption-bbb", pictures)
        task.model.eval()
        part = task.splits["test"]
        probabilities = []
        for seed in caption_search.seeds(3, 5):
            with br.draw(task.model, seed=seed), torch.no_grad():
                logits, _ = task.model(part.tokens.t(), features=part.features[part.images])
            probabilities.append(logits.softmax(-1).gather(-1, part.targets.t().clamp_min(0).unsqueeze(-1)))
        logs = torch.stack(probabilities).mean(0).squeeze(-1).log()[part.targets.t() != PADDING]
        expected = math.exp(-float(logs.mean()))
        assert task.perplexity("test", samples=3, seed=5) == pytest.approx(expected, rel=1e-5)

    def test_drawn_weights_and_masks_are_one_draw(self, pictures):
        """What a search finds under a draw has the probability that this draw, weights and masks, gives it at once."""
        task = task_of("caption-bbb-masks", pictures, "init=0.5")
        model, part = task.model.eval(), task.splits["test"]
        options = {"end": task.end, "vocabulary": len(task.vocabulary), "beam": 1, "max_words": 5}
        with noise_of_draws(model), torch.no_grad():
            said = caption_search.find_captions(model, part.features, **options, held=[7])
            other = caption_search.find_captions(model, part.features, **options, held=[8])
            one = module_of_draw(model, Draw(7))
            words = torch.full((6, len(said)), task.end)
            for i, found in enumerate(said):
                words[: len(found.words), i] = torch.tensor(found.words)
            with caption_search.holding(one, Draw(7)):
                logits, _ = one(torch.cat([torch.full_like(words[:1], task.end), words[:-1]]), features=part.features)
        logs = logits.log_softmax(-1).gather(-1, words.unsqueeze(-1)).squeeze(-1)
        expected = [float(logs[: len(found.words) + 1, i].sum()) for i, found in enumerate(said)]
        assert [found.log_probability for found in said] == pytest.approx(expected, rel=1e-4)
        assert [found.words for found in said] != [found.words for found in other]

    def test_chunks_change_nothing(self, pictures, monkeypatch):
        task = task_of("caption-bbb", pictures)
        task.model.eval()
        whole = [task.perplexity("test", samples=s) for s in (0, 2)]
        monkeypatch.setattr(caption_search, "_NUMBERS", 1000)
        assert [task.perplexity("test", samples=s) for s in (0, 2)] == pytest.approx(whole, rel=1e-5)

    def test_the_scale_is_taken_from_train_once_and_then_kept(self, pictures):
        task = task_of("caption-bbb", pictures)
        inner = captioner_of(task.model)
        rows = task.splits["train"].features
        torch.testing.assert_close(inner.shift, rows.mean(0))
        inner.scale.fill_(0.5)
        task.attach(task.model)
        assert torch.equal(inner.scale, torch.full_like(inner.scale, 0.5)), "a trained model keeps its own"

    def test_only_what_is_random_has_draws(self, pictures):
        plain = ["image_dropout=0", "step_dropout=0"]
        assert not task_of("caption-dropout", pictures, *plain).random
        assert all(task_of(name, pictures).random for name in NAMES)

    def test_no_data(self):
        recipe = recipes.load("caption-dropout")
        with pytest.raises(UserError, match="name a Flickr8k or COCO folder with --data"):
            Captioning(recipe, None, torch.device("cpu"))

    def test_too_few_captions_for_a_vocabulary(self, writable):
        recipe = recipes.override(recipes.load("caption-dropout"), ["min_count=19", "batch_size=2"])
        with pytest.raises(UserError, match="min_count"):
            Captioning(recipe, str(writable), torch.device("cpu"))


class TestDecoder:
    @pytest.mark.parametrize("kind", ["bayes", "tied", "sharpened"])
    def test_a_drawn_copy_is_the_draw(self, inputs, kind):
        tokens, features = inputs
        model = bayesian(captioner(tied=kind == "tied"))
        model = br.PosteriorSharpening(model) if kind == "sharpened" else model
        model.eval()
        with br.draw(getattr(model, "q", model), seed=8):
            expected, _ = model(tokens, features=features)
        copy = module_of_draw(model, Draw(8))
        assert copy is not model
        torch.testing.assert_close(copy(tokens, features=features)[0], expected)
        assert module_of_draw(model, None) is model

    def test_weights_and_units_of_a_draw_together(self, inputs):
        """Bayes by Backprop with dropout of units: the copy has drawn weights, and masks that are held word by word."""
        tokens, features = inputs
        model = bayesian(captioner(image_dropout=0.5, output_dropout=0.3)).eval()
        copy = module_of_draw(model, Draw(8))
        with caption_search.holding(copy, Draw(8)):
            one, state = copy(tokens[:2], features=features)
            two, _ = copy(tokens[2:], state)
        found = torch.cat([one, two])
        with caption_search.holding(copy, None):
            without, _ = copy(tokens, features=features)
        assert not torch.allclose(found, without)
        with br.draw(copy, seed=8):
            torch.testing.assert_close(copy(tokens, features=features)[0], found)

    def test_beams_of_an_image_share_its_noise(self):
        model = captioner(**VARIATIONAL).eval()
        features = torch.randn(1, F).expand(2, -1)
        step = caption_search.decoder(model, [Draw(3)], features, 3)
        words = torch.tensor([1, 1, 1, 1, 1, 1])
        logs, state = step(words, None)
        for _ in range(2):
            image = logs.view(2, 3, V)
            torch.testing.assert_close(image, image[:, :1].expand_as(image))
            assert not torch.allclose(image[0], image[1]), "another image, another mask"
            logs, state = step(words, state)

    def test_probabilities_are_averaged_not_logs(self, inputs):
        _, features = inputs
        q = bayesian().eval()
        words = torch.tensor([1, 2, 3])
        both = caption_search.decoder(q, [Draw(1), Draw(2)], features, 1)
        logs, states = both(words, None)
        again, _ = both(words, states)
        each = []
        for seed in (1, 2):
            one = caption_search.decoder(q, [Draw(seed)], features, 1)
            first, state = one(words, None)
            each.append((first.exp(), one(words, state)[0].exp()))
        torch.testing.assert_close(logs.exp(), (each[0][0] + each[1][0]) / 2)
        torch.testing.assert_close(again.exp(), (each[0][1] + each[1][1]) / 2)

    def test_word_uncertainty(self, inputs):
        """Against br.predict-like averages by hand; captions of different lengths in one batch."""
        _, features = inputs
        q = bayesian().eval()
        captions = [[1, 2, 3, 4], [5], [6, 7]]
        found = caption_search.word_uncertainty(q, features, captions, end=0, vocabulary=V, samples=4, seed=2)
        for i, caption in enumerate(captions):
            ids = torch.tensor([0, *caption, 0])
            draws = []
            for seed in caption_search.seeds(4, 2):
                with br.draw(q, seed=seed), torch.no_grad():
                    draws.append(q(ids[:-1].unsqueeze(1), features=features[i : i + 1])[0][:, 0].softmax(-1))
            p = torch.stack(draws)
            entropy = torch.special.entr(p.mean(0)).sum(-1)
            information = entropy - torch.special.entr(p).sum(-1).mean(0)
            right = p.mean(0).gather(-1, ids[1:].unsqueeze(-1)).squeeze(-1)
            expected = torch.stack([right, entropy, information], -1)
            assert len(found[i]) == len(caption) + 1
            torch.testing.assert_close(torch.tensor(found[i]), expected, rtol=1e-4, atol=1e-5)
            assert float(information.min()) > 0

    def test_the_mean_has_no_mutual_information(self, inputs):
        _, features = inputs
        found = caption_search.word_uncertainty(captioner().eval(), features, [[1], [2], [3]], end=0, vocabulary=V)
        assert all(information == pytest.approx(0, abs=1e-6) for words in found for _, _, information in words)
        assert all(entropy > 0 for words in found for _, entropy, _ in words)

    def test_chunks_change_nothing(self, monkeypatch):
        torch.manual_seed(3)
        features = torch.randn(9, F)
        q = bayesian().eval()

        def all_of_it():
            held = caption_search.seeds(2, 1)
            found = caption_search.find_captions(q, features, end=0, vocabulary=V, beam=3, max_words=6, held=held)
            ids = [one.words for one in found]
            return found, caption_search.word_uncertainty(q, features, ids, end=0, vocabulary=V, samples=2)

        whole, unsure = all_of_it()
        monkeypatch.setattr(caption_search, "_NUMBERS", 3 * V * 2)
        parts, unsure_parts = all_of_it()
        assert [one.words for one in parts] == [one.words for one in whole]
        for a, b in zip(unsure, unsure_parts, strict=True):
            torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-5)

    def test_the_first_caption_has_the_probability_it_says(self, inputs):
        _, features = inputs
        model = captioner().eval()
        for one, feature in zip(
            caption_search.find_captions(model, features, end=0, vocabulary=V, beam=4, max_words=5, length_penalty=0.6),
            features,
            strict=True,
        ):
            ids = torch.tensor([0, *one.words, 0])
            with torch.no_grad():
                logits, _ = model(ids[:-1].unsqueeze(1), features=feature.unsqueeze(0))
            expected = -float(torch.nn.functional.cross_entropy(logits[:, 0], ids[1:], reduction="sum"))
            assert one.log_probability == pytest.approx(expected, rel=1e-4)
            assert one.score == pytest.approx(expected / len(ids[1:]) ** 0.6, rel=1e-4)
