import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn import dynamic
from bayesrnn.errors import UserError
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language import scoring, streams
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.dynamic import DynamicEvaluation
from bayesrnn.lab.tasks.language.dynamic_metrics import OF_A_RULE, merged
from bayesrnn.lab.tasks.language.options import RMS_LR
from bayesrnn.lab.tasks.language.words import scored_words
from bayesrnn.lab.text import windows

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text_folder(long_text_folder):
    return long_text_folder


def task_of(name, text_folder, *overrides):
    recipe = override(load(name), ["hidden=6", "batch_size=3", "window=7", "init=0.8", *overrides])
    task = language.Language(recipe, str(text_folder), CPU)
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).eval())
    return task


def windowed(model, stream, window):
    """Perplexity by hand: every window on its own, from the zero state."""
    total = 0.0
    with torch.no_grad():
        for x, y in windows(stream, window):
            total += float(nn.functional.cross_entropy(model(x)[0].flatten(0, 1), y.flatten(), reduction="sum"))
    return math.exp(total / (len(stream) - 1))


@pytest.mark.parametrize("name", ["small-plain", "small-variational"])
def test_every_window_starts_from_zero_where_training_does(name, text_folder):
    task = task_of(name, text_folder)
    stream = task.streams.test
    expected = windowed(task.model, stream, 7)
    carried = language.perplexity(task.model, stream)
    assert abs(expected - carried) > 1e-3 * carried
    assert task.final()["test_perplexity"] == pytest.approx(expected, rel=1e-5)
    # the smallest rate: what is measured before each step is all but the trained model
    found = task.evaluate(samples=2, dynamic=True, dynamic_lr=1e-9, reversed_text=True, entropy_samples=2)
    assert found["test_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert found["test_perplexity_dynamic"] == pytest.approx(expected, rel=1e-4)
    on_reversed = scoring.scores(task.model, stream.flip(0), reset=7).entropy
    assert found["entropy_gap_mean"] == pytest.approx(on_reversed - found["test_entropy"], rel=1e-5)
    rms = task.evaluate(samples=0, dynamic=True, dynamic_lr=1e-9, dynamic_rule="rms")
    assert rms["test_perplexity_dynamic"] == pytest.approx(expected, rel=1e-4)
    assert found["dynamic_lr"] == rms["dynamic_lr"] == 1e-9


def test_each_rule_has_a_rate_of_its_own(text_folder):
    """The recipe's is for SGD; by the RMS rule it would be hundreds of times too large."""
    task = task_of("small-variational", text_folder)
    assert task.evaluate(dynamic=True)["dynamic_lr"] == task.recipe.evaluate.dynamic_lr
    assert task.evaluate(dynamic=True, dynamic_rule="rms")["dynamic_lr"] == RMS_LR


def test_draws_that_drop_words_have_figures_of_their_own(text_folder):
    """Under names that no table of the published protocol reads; each kind with its number of draws and its seed."""
    task = task_of("variational-tied-medium", text_folder, "word_dropout=0.4")
    usual = task.evaluate(samples=3, reversed_text=True, entropy_samples=2, seed=7)
    dropped = task.evaluate(samples=2, reversed_text=True, entropy_samples=4, seed=8, drop_words=True)
    assert (usual["samples"], usual["draws_seed"], usual["entropy_draws_seed"]) == (3, 7, 7)
    ends = ("samples", "draws_seed", "entropy_samples", "entropy_draws_seed")
    assert [dropped[f"{key}_words"] for key in ends] == [2, 8, 4, 8]
    of_draws = {f"{split}_perplexity_{kind}" for split in ("valid", "test") for kind in ("mc", "by_draws")}
    of_draws |= {"entropy_gap", "entropy_gap_1", "entropy_gaps", "reversed_entropy", "reversed_entropy_1"}
    of_draws |= {"test_calibration_error_mc", "test_deciles_mc", "test_mutual_information", *ends}
    assert usual.keys() - dropped.keys() == of_draws
    assert dropped.keys() - usual.keys() == {f"{key}_words" for key in of_draws}
    again = task.evaluate(samples=3, seed=7, drop_words=True)  # the very draws, but for the words
    assert again["test_perplexity_mc_words"] != pytest.approx(usual["test_perplexity_mc"], rel=1e-4)
    kept = merged(merged(usual, dropped), again)
    assert {key: kept[key] for key in usual} == {**usual, **{key: again[key] for key in usual.keys() & again.keys()}}
    assert (kept["samples_words"], kept["draws_seed_words"]) == (3, 7)
    assert [len(kept[f"{split}_perplexity_by_draws_words"]) for split in ("valid", "test")] == [3, 3]
    assert "valid_perplexity_mc" in kept


def test_draws_may_keep_all_weights(text_folder):
    """Weight dropout is off in draws and units are still dropped: the very draws of the model without the former."""
    task = task_of("awd-24m", text_folder, "embedding=6", "hidden=8", "keep_weights=false")
    usual = task.evaluate(samples=2, seed=3)
    found = task.evaluate(samples=2, seed=3, keep_weights=True, reversed_text=True, entropy_samples=2)
    assert found["samples_units"] == 2
    assert "samples" not in found
    assert found["test_perplexity_mc_units"] not in (usual["test_perplexity_mc"], usual["test_perplexity"])
    assert usual == task.evaluate(samples=2, seed=3)  # the rates are back
    for layer in task.model.modules():
        if isinstance(layer, br.LSTM):
            layer.weight_dropout = 0.0
    assert task.evaluate(samples=2, seed=3)["test_perplexity_mc"] == found["test_perplexity_mc_units"]


def test_a_recipe_may_keep_all_weights_in_draws(text_folder):
    """As with the option, under the usual names; other draws are those that are asked for."""
    settings = ["embedding=6", "hidden=8"]
    task = task_of("awd-24m", text_folder, *settings, "keep_weights=true")
    found = task.evaluate(samples=2, seed=3, reversed_text=True, entropy_samples=2)
    other = task_of("awd-24m", text_folder, *settings, "keep_weights=false")
    asked = {"reversed_text": True, "entropy_samples": 2, "keep_weights": True}
    kept = other.evaluate(samples=2, seed=3, **asked)
    assert found == {key.removesuffix("_units"): value for key, value in kept.items()}
    assert task.evaluate(samples=2, seed=3, noise="1") == other.evaluate(samples=2, seed=3, noise="1")
    words = task.evaluate(samples=2, seed=3, drop_words=True)["test_perplexity_mc_words"]
    assert words not in (found["test_perplexity_mc"], kept["test_perplexity_mc_units"])
    assert words != other.evaluate(samples=2, seed=3, drop_words=True)["test_perplexity_mc_words"]
    plain = task_of("awd-24m", text_folder, *settings, "keep_weights=true", "weight_dropout=0")
    assert "test_perplexity_mc" in plain.evaluate(samples=2, seed=3)


def test_words_are_scored_by_the_same_draws(text_folder):
    task = task_of("awd-24m", text_folder, "embedding=6", "hidden=8")
    stream = task.streams.test[:12]

    def scored(keep):
        words = scored_words(task.model, stream, ["w"] * 11, samples=3, seed=1, reset=None, keep_weights=keep)
        return [word.surprisal for word in words]

    both, kept = scored(False), scored(True)
    assert both != kept
    for layer in task.model.modules():
        if isinstance(layer, br.LSTM):
            layer.weight_dropout = 0.0
    assert scored(False) == kept


def test_noise_of_draws_is_scaled_by_the_best_factor_on_validation(text_folder):
    settings = ["embedding=6", "hidden=8", "softmaxes=2", "latent_dropout=0.4", "keep_weights=false"]
    task = task_of("awd-24m", text_folder, *settings)
    usual, options = task.evaluate(samples=2, seed=3), {"samples": 2, "seed": 3}
    found = task.evaluate(**options, noise="0.5,1", reversed_text=True, entropy_samples=2)
    tried = found["noise_tried"]
    assert tried["1"] == usual["valid_perplexity_mc"] != tried["0.5"]
    assert found["noise_scaled"] == min((1.0, 0.5), key=lambda factor: tried[f"{factor:g}"])
    half = task.evaluate(**options, noise="0.5")
    assert (half["valid_perplexity_mc_scaled"], half["noise_scaled"]) == (tried["0.5"], 0.5)
    assert "noise_tried" not in half
    assert task.evaluate(**options, noise="0.5")["test_perplexity_mc_scaled"] == half["test_perplexity_mc_scaled"]
    rates = ["word", "input", "between", "output", "weight"]
    halved = [f"{name}_dropout={getattr(task.recipe.model, f'{name}_dropout') / 2}" for name in rates]
    other = task_of("awd-24m", text_folder, *settings, "latent_dropout=0.2", *halved)
    other.model.load_state_dict(task.model.state_dict())
    expected = other.evaluate(**options)["test_perplexity_mc"]  # the model with these rates
    assert half["test_perplexity_mc_scaled"] == pytest.approx(expected, rel=1e-6)
    assert usual == task.evaluate(**options)  # the rates are back


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("awd-24m", {"samples": 0, "noise": "0.5"}, "--noise is for draws, and there are none"),
        (
            "awd-24m",
            {"samples": 2, "noise": "0.5", "drop_words": True},
            "--drop-words and --noise name different draws",
        ),
        ("awd-24m", {"samples": 2, "noise": "0.5,2"}, "--noise is 0.5,2; factors of dropout rates are above 0"),
        ("brnn-medium", {"samples": 2, "noise": "0.5"}, "--noise is for models with dropout per sequence"),
        ("awd-24m", {"samples": 0, "keep_weights": True}, "--keep-weights is for draws, and there are none"),
        ("awd-24m", {"samples": 2, "keep_weights": True, "drop_words": True}, "name different draws; run evaluate on"),
        ("brnn-medium", {"samples": 2, "keep_weights": True}, "--keep-weights is for models with weight dropout, and"),
        ("variational-tied-medium", {"samples": 0, "drop_words": True}, "--drop-words is for draws, and there are no"),
        ("brnn-medium", {"samples": 2, "drop_words": True}, "--drop-words is for models with word dropout, and this"),
        ("variational-tied-medium", {"entropy_samples": 4}, "--entropy-samples is for .*; add --reversed.$"),
        ("brnn-medium", {"dynamic_rule": "sgd"}, "are for dynamic evaluation; add --dynamic.$"),
        ("brnn-medium", {"dynamic_decay": "0"}, "are for dynamic evaluation; add --dynamic.$"),
        ("brnn-medium", {"dynamic": True, "dynamic_decay": ""}, "--dynamic-decay is ; it must be a number"),
        (
            "variational-tied-medium",
            {"samples": 0, "reversed_text": True, "entropy_samples": 0, "drop_words": True},
            "--drop-words is for draws, and there are none; add --samples",
        ),
    ],
)
def test_options_without_effect_are_refused(text_folder, name, options, message):
    with pytest.raises(UserError, match=message):
        task_of(name, text_folder).evaluate(**options)


def test_the_entropy_gap_alone_may_drop_words(text_folder):
    task = task_of("variational-tied-medium", text_folder)
    found = task.evaluate(samples=0, reversed_text=True, entropy_samples=2, drop_words=True)
    assert "entropy_gap_words" in found
    assert task.evaluate(samples=0, reversed_text=True)["entropy_samples"] == 10


def test_the_state_is_carried_where_training_does(text_folder):
    task = task_of("unregularised-medium", text_folder)
    found = task.evaluate(samples=0)
    assert found["test_perplexity"] == pytest.approx(language.perplexity(task.model, task.streams.test), rel=1e-5)
    assert streams.reset_of(task.recipe) is None


@pytest.mark.parametrize("name", ["small-variational", "brnn-medium"])
def test_draws_forget_as_well(name, text_folder, monkeypatch):
    task = task_of(name, text_folder, "carry_state=false")
    stream = task.streams.test[:40]
    monkeypatch.setattr(scoring, "_NUMBERS", 14 * 2 * 3)  # pieces of three words within the windows of seven
    short = scoring.monte_carlo_perplexities(task.model, stream, samples=2, seed=3, reset=7)[2]
    monkeypatch.setattr(scoring, "_NUMBERS", 1 << 20)
    assert scoring.monte_carlo_perplexities(task.model, stream, samples=2, seed=3, reset=7)[2] == pytest.approx(
        short, rel=1e-5
    )
    assert scoring.monte_carlo_perplexities(task.model, stream, samples=2, seed=3)[2] != pytest.approx(short, rel=1e-4)
    starts = [fresh for _, _, fresh in scoring.pieces(stream, 3, 7)]
    assert starts == [True, False, False] * 5 + [True, False]  # 39 words: five windows of seven, one of four
    assert [fresh for _, _, fresh in scoring.pieces(stream, 30, None)] == [True, False]


def test_the_bound_without_a_step_forgets_too(text_folder):
    task = task_of("brnn-sharpened-medium", text_folder, "carry_state=false", "init_eta=0")
    stream = task.streams.test
    expected = windowed(task.model, stream, 7)
    found = scoring.sharpened_perplexity(task.model, stream, window=7, carry_state=False)
    assert found == pytest.approx(expected, rel=1e-5)
    assert task.evaluate(samples=0)["bound_streams"] == 3


@pytest.mark.parametrize("carry_state", [True, False])
@pytest.mark.parametrize("rule", ["sgd", "rms"])
def test_the_bound_of_dynamic_evaluation(text_folder, rule, carry_state):
    """Without a step it is the bound on one stream; with one it is of the rate that validation chose."""
    task = task_of("brnn-sharpened-medium", text_folder, f"carry_state={carry_state}", "init_eta=1e-3", "init=0.4")
    keys = [f"{split}_perplexity_dynamic_bound" for split in ("valid", "test")]
    still = task.evaluate(samples=0, dynamic=True, dynamic_rule=rule, dynamic_lr=0)
    for key, stream in zip(keys, (task.streams.valid, task.streams.test), strict=True):
        window = 35 if carry_state else 7
        bound = scoring.sharpened_perplexity(task.model, stream, window=window, carry_state=carry_state)
        assert still[key] == pytest.approx(bound, rel=1e-5)
        assert still[key] != pytest.approx(still[key.removesuffix("_bound")], rel=1e-5)
    rates = "0,0.05" if rule == "sgd" else "0,1e-3"
    found = task.evaluate(samples=0, dynamic=True, dynamic_rule=rule, dynamic_lr=rates)
    assert found["dynamic_lr"] > 0
    alone = task.evaluate(samples=0, dynamic=True, dynamic_rule=rule, dynamic_lr=found["dynamic_lr"])
    for key in keys:
        assert found[key] == alone[key] == found["dynamic_by_rule"][rule][key.replace("_dynamic", "")]
        assert found[key] < still[key]
    assert not any("bound" in key for key in task_of("brnn-medium", text_folder).evaluate(dynamic=True))


def test_a_bound_beyond_all_numbers_is_left_out(text_folder):
    """The rate of learning is not to blame, and what is sound is kept."""
    task = task_of("brnn-sharpened-medium", text_folder, "init_eta=1e3")
    said = []
    found = task.evaluate(samples=0, dynamic=True, dynamic_lr=1e-3, say=said.append)
    assert not any("perplexity_bound" in key or "dynamic_bound" in key for key in found)
    assert found["test_perplexity_dynamic"] > 0
    assert sum("the bound is larger than any number" in text for text in said) == 4
    task = task_of("brnn-sharpened-medium", text_folder, "init_eta=0.02")  # large, but a number
    found = task.evaluate(samples=0, dynamic=True, dynamic_lr=1e-3)
    assert found["test_perplexity_dynamic_bound"] > len(task.streams.vocabulary)


def test_a_rule_that_the_data_do_not_allow_is_known_before_the_rest(text_folder):
    task, said = task_of("brnn-medium", text_folder), []
    task.streams = dataclasses.replace(task.streams, on_disk=True)
    with pytest.raises(UserError, match="rms needs the training text in memory; name its folder with --data"):
        task.evaluate(samples=2, dynamic=True, dynamic_rule="rms", say=said.append)
    assert said == []


def test_how_many_streams_the_bound_had(text_folder):
    task = task_of("brnn-sharpened-medium", text_folder, "batch_size=20", "window=23")
    fewest = min(len(task.streams.valid), len(task.streams.test)) // 24
    assert fewest < 20
    assert task.evaluate(samples=0)["bound_streams"] == fewest


def test_the_rate_of_dynamic_evaluation_is_chosen_on_validation(text_folder):
    task = task_of("unregularised-medium", text_folder)
    found = task.evaluate(samples=0, dynamic=True, dynamic_lr="0,0.05,1e9")
    alone = {lr: task.evaluate(samples=0, dynamic=True, dynamic_lr=lr) for lr in (0.0, 0.05)}
    tried = {float(lr): value for lr, value in found["dynamic_tried"].items()}
    assert tried[0.0] == pytest.approx(found["valid_perplexity"], rel=1e-5)
    best = min(tried, key=tried.get)
    assert best == found["dynamic_lr"] != 1e9
    for key in ("valid_perplexity_dynamic", "test_perplexity_dynamic"):
        assert found[key] == pytest.approx(alone[best][key], rel=1e-6)


@pytest.mark.parametrize("rule", ["sgd", "rms"])
def test_rate_and_decay_are_chosen_on_validation_alone(text_folder, rule):
    """First the rate with the first decay, then the decay with that rate; other test text changes neither."""
    task = task_of("unregularised-medium", text_folder)
    scale = 1.0 if rule == "sgd" else 0.01
    rates, decays = [0.0, 0.05 * scale, 0.2 * scale], [0.0, 0.01, 0.3]
    settings = {"samples": 0, "dynamic": True, "dynamic_rule": rule}
    said = []
    found = task.evaluate(
        **settings, dynamic_lr=",".join(map(str, rates)), dynamic_decay=",".join(map(str, decays)), say=said.append
    )
    alone = {
        (lr, decay): task.evaluate(**settings, dynamic_lr=lr, dynamic_decay=decay)["valid_perplexity_dynamic"]
        for lr in rates for decay in decays
    }  # fmt: skip
    lr = min(rates, key=lambda rate: alone[rate, 0.0])
    tried = {pair: alone[pair] for pair in [*((rate, 0.0) for rate in rates), *((lr, decay) for decay in decays)]}
    names = {f"{r:g}" + (f", decay {d:g}" if d else ""): value for (r, d), value in tried.items()}
    assert found["dynamic_tried"] == pytest.approx(names, rel=1e-6)
    assert (found["dynamic_lr"], found["dynamic_decay"]) == min(tried, key=tried.get)
    assert sum(text.startswith("dynamic evaluation on valid") for text in said) == 5
    assert sum(text.startswith("dynamic evaluation on test") for text in said) == 1
    task.streams = dataclasses.replace(task.streams, test=task.streams.test.flip(0))
    again = task.evaluate(**settings, dynamic_lr=",".join(map(str, rates)), dynamic_decay=",".join(map(str, decays)))
    assert again["dynamic_tried"] == pytest.approx(found["dynamic_tried"], rel=1e-6)
    assert again["test_perplexity_dynamic"] != found["test_perplexity_dynamic"]


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan"), "0.1,x"])
def test_a_decay_that_is_none(text_folder, decay):
    with pytest.raises(UserError, match=r"--dynamic-decay is .*; it must be a number of at least 0 and below 1, or"):
        task_of("unregularised-medium", text_folder).evaluate(samples=0, dynamic=True, dynamic_decay=decay)


@pytest.mark.parametrize("rates", ["0.1,", "fast", "-1", "0.1,inf"])
def test_rates_that_are_none(text_folder, rates):
    with pytest.raises(UserError, match=r"--dynamic-lr is .*; it must be a finite number of at least 0, or several"):
        task_of("unregularised-medium", text_folder).evaluate(samples=0, dynamic=True, dynamic_lr=rates)


DIVERGING = {"sgd": ("1e30", "1e38"), "rms": ("1e25", "1e38")}
"""A loss that is finite and too large to be the log of a perplexity; and one that is not finite."""


@pytest.mark.parametrize("rate", [0, 1])
@pytest.mark.parametrize("rule", DIVERGING)
def test_dynamic_evaluation_that_diverges_is_no_figure(text_folder, rule, rate):
    task = task_of("unregularised-medium", text_folder, "clip=null")
    settings = {"samples": 0, "dynamic": True, "dynamic_rule": rule}
    lr = DIVERGING[rule][rate]
    named = f"{float(lr):g}".replace("+", r"\+")
    with pytest.raises(
        UserError, match=rf"^Dynamic evaluation diverged on valid with rate {named}: lower --dynamic-lr"
    ):
        task.evaluate(**settings, dynamic_lr=lr)
    said = []
    found = task.evaluate(**settings, dynamic_lr=f"{lr},1e-4", say=said.append)
    assert found["dynamic_lr"] == 1e-4
    assert list(found["dynamic_tried"]) == ["0.0001"]
    assert found["dynamic_diverged"] == [f"{float(lr):g}"]
    assert f"it diverged with rate {float(lr):g}, which is left out" in said
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("init", ["0.05", "0.8"])
def test_worse_than_all_words_being_equally_likely_has_diverged(text_folder, init):
    """However finite its perplexity is: that of rate 3 has 20 digits. A model that is worse untaught is measured."""
    task = task_of("unregularised-medium", text_folder, "clip=null", f"init={init}")
    vocabulary = len(task.streams.vocabulary)
    settings = {"samples": 0, "dynamic": True}
    untaught = task.evaluate(**settings, dynamic_lr="0")
    assert (untaught["valid_perplexity"] > vocabulary) is (init == "0.8")
    assert untaught["valid_perplexity_dynamic"] == pytest.approx(untaught["valid_perplexity"], rel=1e-5)
    with pytest.raises(UserError, match=r"^Dynamic evaluation diverged on valid with rate 3: lower"):
        task.evaluate(**settings, dynamic_lr="3")
    found = task.evaluate(**settings, dynamic_lr="3,1,0.1")
    assert found["dynamic_diverged"] == ["3", "1"]
    assert list(found["dynamic_tried"]) == ["0.1"]


@pytest.mark.parametrize(("perplexity", "limit"), [(80.0, 1e4), (1e4, 2e4), (3e4, 6e4)])
def test_what_no_learning_may_end_above(perplexity, limit):
    task = SimpleNamespace(recipe=load("small-plain"), streams=SimpleNamespace(vocabulary=range(10_000)))
    found = DynamicEvaluation(task, "sgd", [0.1], [0.0], {"valid": perplexity}, print)
    assert found.limit("valid") == limit


def test_a_rate_that_diverges_on_the_test_text_alone(text_folder, monkeypatch):
    task = task_of("unregularised-medium", text_folder)
    real = dynamic.dynamic_evaluation

    def evaluated(model, inputs, targets, **options):
        found = real(model, inputs, targets, **options)
        short = len(inputs) == len(task.streams.test) - 1
        return dataclasses.replace(found, nll=1e3 * found.count) if short else found

    task.streams = dataclasses.replace(task.streams, test=task.streams.test[:-5])
    monkeypatch.setattr(dynamic, "dynamic_evaluation", evaluated)
    with pytest.raises(UserError, match=r"diverged on test with rate 0\.05: lower"):
        task.evaluate(samples=0, dynamic=True, dynamic_lr="0.05")


@pytest.mark.parametrize("weight", [1e5, float("nan")])
def test_a_model_that_is_far_off_has_no_perplexity(text_folder, weight):
    """Not its rate is to blame."""
    task = task_of("unregularised-medium", text_folder)
    with torch.no_grad():
        task.model.decoder.weight.mul_(weight)
    with pytest.raises(UserError, match=r"^valid_\w+ is (inf|nan): the model is too far off"):
        task.evaluate(samples=0, dynamic=True)


def test_the_temperature_is_chosen_on_validation_alone(text_folder):
    task = task_of("unregularised-medium", text_folder)
    plain = task.evaluate(samples=0)
    said = []
    found = task.evaluate(samples=0, temperature=True, say=said.append)
    names = {
        "temperature", "valid_perplexity_tempered", "test_perplexity_tempered", "test_calibration_error_tempered",
        "test_entropy_tempered", "test_deciles_tempered",
    }  # fmt: skip
    assert found.keys() - plain.keys() == names
    assert {key: found[key] for key in plain} == plain
    around = [factor * found["temperature"] for factor in (0.99, 1.0, 1.01)]
    near = {T: scoring.scores(task.model, task.streams.valid, temperature=T).perplexity for T in around}
    assert min(near, key=near.get) == found["temperature"]
    assert found["valid_perplexity_tempered"] == near[found["temperature"]] < found["valid_perplexity"]
    test = scoring.scores(task.model, task.streams.test, temperature=found["temperature"])
    assert (test.perplexity, test.calibration_error, test.entropy) == (
        found["test_perplexity_tempered"], found["test_calibration_error_tempered"], found["test_entropy_tempered"]
    )  # fmt: skip
    assert not any("range" in text for text in said)
    task.streams = dataclasses.replace(task.streams, test=task.streams.test.flip(0))
    other = task.evaluate(samples=0, temperature=True)
    assert other["temperature"] == found["temperature"]
    assert other["test_perplexity_tempered"] != found["test_perplexity_tempered"]


def test_the_temperature_where_windows_start_from_zero(text_folder):
    task = task_of("small-plain", text_folder)
    found = task.evaluate(samples=0, temperature=True)
    expected = scoring.best_temperature(task.model, task.streams.valid, reset=7)
    assert found["temperature"] == expected != scoring.best_temperature(task.model, task.streams.valid)


def test_a_temperature_at_an_end_is_said(text_folder):
    task = task_of("unregularised-medium", text_folder)
    with torch.no_grad():
        task.model.decoder.weight.mul_(40)
    said = []
    assert task.evaluate(samples=0, temperature=True, say=said.append)["temperature"] == pytest.approx(10)
    assert "temperature 10 is an end of the range that is searched; the best one is beyond it" in said


def test_dynamic_evaluation_says_its_rule(text_folder):
    task = task_of("unregularised-medium", text_folder)
    settings = {"samples": 0, "dynamic": True}
    for rule, rates in (("sgd", "0,0.05"), ("rms", "1e-9")):
        found = task.evaluate(**settings, dynamic_rule=rule, dynamic_lr=rates)
        names = {"lr", "decay", "clip", "valid_perplexity", "test_perplexity"}
        (figures,) = found["dynamic_by_rule"].values()
        assert found["dynamic_by_rule"] == {rule: figures}
        assert figures.keys() == (names | {"tried", "diverged"} if rule == "sgd" else names)
        own = {key: value for key, value in found.items() if "dynamic" in key}
        shown = {key: figures[name] for key, name in OF_A_RULE.items() if name in figures}
        assert own == {**shown, "dynamic_rule": rule, "dynamic_by_rule": {rule: figures}}
