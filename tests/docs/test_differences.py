import json

import pytest

from bayesrnn.lab import recipes
from docs.build.differences import QUESTIONS, differences, first_fall


def write(folder, run, *, seed=1, size="small", epochs=20, **metrics):
    (folder / "differences").mkdir(exist_ok=True)
    record = {"run": run, "size": size, "epochs": epochs, "seed": seed, "metrics": metrics}
    record |= {"device": "cuda (X)", "versions": {"torch": "2.11"}}
    (folder / "differences" / f"{run}-{size}-{seed}.json").write_text(json.dumps(record))


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


def test_choices_beside_the_recipes(tmp_path):
    write(tmp_path, "brnn", valid_perplexity=100.0, test_perplexity=97.0)
    write(tmp_path, "brnn-per-weight", valid_perplexity=110.0, test_perplexity=105.0)
    write(tmp_path, "brnn-clip-data", diverged="The loss is not a number.")
    text = differences(tmp_path)
    assert text.startswith("2 x 200 units:\n\n| question |")
    assert rows(text)[1:] == [
        ["scale mixture: an indicator for", "a unit's outgoing weights", "100.00", "97.00", "–", "20", "1"],
        ["", "every weight", "110.00", "105.00", "+10.0%", "20", "1"],
        ["clipped is the gradient of", "-log p and KL", "100.00", "97.00", "–", "20", "1"],
        ["", "-log p alone", "diverged", "diverged", "–", "20", "1"],
    ]
    assert text.endswith("Written by `python benchmarks/differences.py` (cuda (X), torch 2.11).")


def test_other_figures_of_one_run(tmp_path):
    figures = {"": (90.0, 88.0), "_mc": (80.0, 78.0), "_mc_words": (82.0, 79.0), "_mc_window": (81.0, 77.0)}
    metrics = {}
    for more, (valid, test) in figures.items():
        metrics |= {f"valid_perplexity{more}": valid, f"test_perplexity{more}": test}
    write(tmp_path, "variational", **metrics)
    found = {(row[1], row[2], row[4]) for row in rows(differences(tmp_path))[1:]}
    assert found == {
        ("in every pass", "80.00", "–"),
        ("in every window", "81.00", "+1.2%"),
        ("never: the mean", "90.00", "+12.5%"),
        ("kept", "80.00", "–"),
        ("dropped", "82.00", "+2.5%"),
    }


def test_seeds_and_sizes(tmp_path):
    for seed, value in ((1, 100.0), (2, 102.0), (3, 101.0)):
        write(tmp_path, "brnn", seed=seed, valid_perplexity=value, test_perplexity=value)
    write(tmp_path, "brnn-per-weight", valid_perplexity=101.0, test_perplexity=101.0)
    for run in ("brnn", "brnn-per-weight"):
        write(tmp_path, run, size="medium", epochs=39, valid_perplexity=80.0, test_perplexity=80.0)
    text = differences(tmp_path)
    small, medium = text.split("2 x 650 units:")
    assert rows(small)[1][2:] == ["101.00 ± 1.00", "101.00 ± 1.00", "–", "20", "3"]
    assert rows(small)[2][4] == "+0.0%"
    assert rows(medium)[1][2:] == ["80.00", "80.00", "–", "39", "1"]


def test_records_of_other_texts_are_left_out(tmp_path):
    write(tmp_path, "brnn", valid_perplexity=100.0, test_perplexity=95.0)
    write(tmp_path, "brnn-per-weight", valid_perplexity=110.0, test_perplexity=105.0)
    before = differences(tmp_path)
    write(tmp_path, "brnn", seed=2, valid_perplexity=10.0, test_perplexity=9.0)
    file = tmp_path / "differences" / "brnn-small-2.json"
    assert differences(tmp_path) != before
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": "docs"}))
    assert differences(tmp_path) == before


def test_the_lua_count(tmp_path):
    write(tmp_path, "brnn", valid_perplexity=100.0, test_perplexity=97.0)
    exact = {"words": 73760, "windows": 105, "divided_by": 3687 / 35, "exponent": 105 * 35 / 3687}
    write(tmp_path, "lua-count", epochs=0, **exact)
    text = differences(tmp_path)
    assert "73,760 validation words in 20 rows are 105 whole windows of 35" in text
    assert "divided by 105.34. It prints 77.9 where the perplexity is 79.0." in text


def test_without_records(tmp_path):
    assert len(rows(differences(tmp_path))) == 1  # the head, which the generator says in words


def test_every_run_of_the_table_exists():
    import importlib.util
    import sys
    from pathlib import Path

    file = Path(__file__).resolve().parents[2] / "benchmarks/differences.py"
    spec = importlib.util.spec_from_file_location("differences_runs", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    asked = {choice.run for question in QUESTIONS for choice in question.choices}
    assert asked == set(module.VARIANTS)
    for question in QUESTIONS:
        assert len({(c.run, c.figure) for c in question.choices}) == len(question.choices) > 1
    for figure in ("_mc", "_mc_window", "_mc_words"):
        assert all(module.VARIANTS[c.run].monte_carlo for q in QUESTIONS for c in q.choices if c.figure == figure)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.text)
def test_labels_are_short_enough_for_a_table(question):
    assert len(question.text) < 40
    assert all(len(choice.label) < 40 for choice in question.choices)


def run_of(folder, stem, *, valid, seed=1, changed=None, data="ptb"):
    (folder / "zaremba-medium").mkdir(exist_ok=True)
    train = {**vars(recipes.load("zaremba-medium").train), **(changed or {})}
    record = {"recipe": "zaremba-medium", "seed": seed, "data": data, "settings": {"train": train}}
    record |= {"metrics": {"valid_perplexity": valid, "test_perplexity": valid - 3}}
    record |= {"device": "cuda (X)", "versions": {"torch": "2.11"}}
    (folder / "zaremba-medium" / f"{stem}.json").write_text(json.dumps(record))


def test_runs_that_differ_in_the_first_fall_alone(tmp_path):
    run_of(tmp_path, "1", valid=86.0)
    assert len(rows(first_fall(tmp_path))) == 1  # one choice is no comparison
    own = recipes.load("zaremba-medium").train.decay_after
    run_of(tmp_path, "after-6-1", valid=87.0, changed={"decay_after": 6})
    run_of(tmp_path, "after-6-2", valid=87.2, seed=2, changed={"decay_after": 6})
    run_of(tmp_path, "other", valid=50.0, changed={"decay_after": 6, "clip": 1.0})
    run_of(tmp_path, "other-text", valid=40.0, changed={"decay_after": 6}, data="docs")
    text = first_fall(tmp_path)
    assert own == 7
    assert rows(text)[1:] == [
        ["7", "86.00", "83.00", "–", "1"],
        ["6", "87.10 ± 0.14", "84.10 ± 0.14", "+1.3%", "2"],
    ]
    assert text.endswith("zaremba-medium, 39 epochs (cuda (X), torch 2.11).")
