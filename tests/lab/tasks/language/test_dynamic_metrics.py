"""Figures of evaluations, one after another, in one record."""

import pytest

from bayesrnn.lab.tasks.language.dynamic_metrics import merged

SGD = {"lr": 0.1, "decay": 0.0, "clip": 5.0, "valid_perplexity": 73.8, "test_perplexity": 71.0, "tried": {"0.1": 73.8}}
RMS = {"lr": 2e-4, "decay": 0.0, "clip": None, "valid_perplexity": 73.5, "test_perplexity": 71.5}


def dynamic(rule, figures, **others):
    """What one evaluation finds."""
    names = {"valid_perplexity": "valid_perplexity_dynamic", "test_perplexity": "test_perplexity_dynamic"}
    flat = {names.get(name, f"dynamic_{name}"): value for name, value in figures.items()}
    return {**flat, "dynamic_rule": rule, "dynamic_by_rule": {rule: figures}, **others}


def flat(metrics):
    return {key: value for key, value in metrics.items() if key != "dynamic_by_rule"}


def test_the_rule_that_is_best_on_validation_counts():
    """Though it is worse on test; and whichever was measured last."""
    for first, last in ((("sgd", SGD), ("rms", RMS)), (("rms", RMS), ("sgd", SGD))):
        found = merged(dynamic(*first, entropy_gap=0.6), dynamic(*last))
        assert found == dynamic("rms", RMS, dynamic_by_rule={"sgd": SGD, "rms": RMS}, entropy_gap=0.6)
    better = {**SGD, "valid_perplexity": 73.4, "test_perplexity": 72.0}
    found = merged(found, dynamic("sgd", better))  # of a rule its newest
    assert found == dynamic("sgd", better, dynamic_by_rule={"sgd": better, "rms": RMS}, entropy_gap=0.6)
    assert merged(found, {"entropy_gap": 0.7}) == {**found, "entropy_gap": 0.7}


def test_a_record_of_an_earlier_version_has_its_rule():
    """Its figures are kept as that rule's, or as SGD's where it says none."""
    old = flat(dynamic("sgd", SGD))
    both = dynamic("rms", RMS, dynamic_by_rule={"sgd": SGD, "rms": RMS})
    assert merged(old, dynamic("rms", RMS)) == both
    del old["dynamic_rule"]
    assert merged(old, dynamic("rms", RMS)) == both
    assert merged(flat(dynamic("rms", RMS)), dynamic("sgd", SGD)) == both
    worse = {**RMS, "valid_perplexity": 80.0}
    assert merged(old, dynamic("rms", worse)) == dynamic("sgd", SGD, dynamic_by_rule={"sgd": SGD, "rms": worse})
    assert merged(old, {"temperature": 1.1}) == {**old, "temperature": 1.1}
    assert merged({}, {"temperature": 1.1}) == {"temperature": 1.1}
    drawn = {"samples": 50, "draws_seed": 1, "test_rmse_mc": 0.5, "noise": 0.2, "best_epoch": 3}  # of sentiment
    assert merged(drawn, {"samples": 0, "noise": 0.3}) == {"samples": 0, "noise": 0.3, "best_epoch": 3}


@pytest.mark.parametrize("odd", [[], "sgd", {"sgd": 3}, {"sgd": {"valid_perplexity": None}}, None])
def test_odd_figures_by_rule_do_not_stand_in_the_way(odd):
    found = merged({"dynamic_by_rule": odd}, dynamic("rms", RMS))
    assert flat(found) == flat(dynamic("rms", RMS))
    assert found["dynamic_by_rule"]["rms"] == RMS


def test_a_bound_goes_with_its_rule():
    """The names without a rule are all of one rule, though another one has figures that this one lacks."""
    bounded = {**SGD, "valid_perplexity_bound": 73.6, "test_perplexity_bound": 70.8}
    names = {"valid_perplexity_dynamic_bound": 73.6, "test_perplexity_dynamic_bound": 70.8}
    found = merged({}, {**dynamic("sgd", SGD), **names, "dynamic_by_rule": {"sgd": bounded}})
    assert {key: found[key] for key in names} == names
    found = merged(found, dynamic("rms", RMS))
    assert not names.keys() & found.keys()
    assert found["dynamic_by_rule"] == {"sgd": bounded, "rms": RMS}
