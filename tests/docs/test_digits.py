"""Tables, sentences and pictures of digit runs, from made-up records."""

import json
import math
import random
import re
from pathlib import Path

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab import recipes
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.digits.measures import ANGLES, FRACTIONS
from docs.build import digits, digits_plots

KINDS = ("uniform noise", "letters")


def made_up(name, seed, *, epochs=40, speed=1.0):
    source = random.Random(f"{name}{seed}")
    curve = [1.3 + 8 / (1 + speed * e) + 0.05 * source.random() for e in range(epochs)]
    metrics = {
        "best_epoch": epochs,
        "valid_error": min(curve),
        "test_error": min(curve),
        "test_nll": 0.05,
        "test_calibration_error": 0.01,
    }
    random_weights = name not in ("digits-lenet", "digits-mlp-plain")
    area = {"entropy_auroc": 0.9, "mean_entropy": 1.0}
    metrics["unfamiliar"] = [{"kind": k, **area, "mutual_information_auroc": None} for k in KINDS]
    if random_weights:
        metrics |= {"valid_error_mc": 0.5, "test_error_mc": 0.55 + 0.02 * seed, "samples": 50, "test_nll_mc": 0.03}
        metrics["test_calibration_error_mc"] = 0.005
        metrics["unfamiliar_mc"] = [{"kind": k, **area, "mutual_information_auroc": 0.95} for k in KINDS]
    draws = range(8 if random_weights else 1)
    metrics["turning"] = [
        {"angle": a, "logits": [[math.cos(a / 50 - c) * 5 + source.gauss(0, 1) for c in range(10)] for _ in draws]}
        for a in ANGLES
    ]
    if "bbb" in name:
        metrics["pruning"] = [{"fraction": f, "test_error": 1.3 / (1.0001 - f) ** 0.5} for f in FRACTIONS]
    return {
        "seed": seed,
        "device": "cpu (here)",
        "versions": {"torch": "2"},
        "recipe": name,
        "settings": {"train": {**vars(recipes.load(name).train), "epochs": 40}} if seed == 2 else {},
        "curves": {"test_error": curve, "valid_error": curve},
        "metrics": metrics,
    }


@pytest.fixture
def results(tmp_path):
    for name in digits.NAMES:
        (tmp_path / name).mkdir()
        for seed in (1, 2):
            record = made_up(name, seed, speed=2.0 if name == digits.SHARPENED else 1.0)
            (tmp_path / name / f"{seed}.json").write_text(json.dumps(record))
    compared(tmp_path, sharpened_speed=2.0)
    (tmp_path / "digits-sharpening-search").mkdir()
    tried = made_up(digits.SHARPENED, 1, speed=1.0)
    (tmp_path / "digits-sharpening-search/a.json").write_text(json.dumps(tried))
    (tmp_path / "digits-search").mkdir()
    for file, seed in (("a", 1), ("b", 2)):
        (tmp_path / f"digits-search/{file}.json").write_text(json.dumps(made_up(digits.PLAIN, seed, speed=float(seed))))
    return tmp_path


def compared(folder, sharpened_speed):
    for pair in digits.PAIRS:
        for name, speed in ((digits.PLAIN, 1.0), (digits.SHARPENED, sharpened_speed)):
            (folder / pair / name).mkdir(parents=True, exist_ok=True)
            for seed in (1, 2):
                record = json.dumps(made_up(name, seed, speed=speed, epochs=25))
                (folder / pair / name / f"{seed}.json").write_text(record)


def test_every_recipe_has_a_name_and_every_name_a_recipe():
    assert set(digits.NAMES) == {n for n in recipes.names() if recipes.load(n).task == "digits"}


def test_without_records(tmp_path):
    assert digits_plots.figures(tmp_path) == {}
    for block in digits.BLOCKS.values():
        assert block(tmp_path) == digits.NO_RECORD


def test_blocks(results):
    main = digits.block(results)
    row = next(line for line in main.splitlines() if line.startswith("| Bayes by Backprop, MLP 400 |"))
    assert "| 1.36 |" in row
    assert "| 0.58 ± 0.01 |" in row
    assert "| LeNet | – |" in main  # no paper figure
    assert "Not as in the recipes: train.epochs=40." in main
    assert "MC is below the standard error in 2 of 2 seeds (0.58% against" in main
    assert "Sharpening" not in main
    pictures = digits_plots.figures(results)
    for name, block in digits.BLOCKS.items():
        text = block(results)
        assert text != digits.NO_RECORD
        if "![" in text:
            assert re.search(r"\(figures/(\S+)\)", text)[1] in pictures, name
    assert "0.950 ± 0.000" in digits.BLOCKS["digits-unfamiliar"](results)


def test_the_search_is_on_validation_best_first(results):
    rows = [row.split(" | ") for row in digits.BLOCKS["digits-search"](results).splitlines()[2:]]
    assert [row[1] for row in rows] == ["train.epochs=40", "nothing"]
    assert float(rows[0][3]) < float(rows[1][3])
    (results / "digits-search/c.json").write_text("[]")
    with pytest.raises(UserError, match=r"c\.json is not the record of a digits run"):
        digits.search_block(results)


def test_settings_of_sharpening_beside_plain_runs_of_the_same_seeds(results):
    (results / "digits-sharpening-search/a.json").unlink()
    for name, file in ((digits.PLAIN, f"{digits.PLAIN}/2"), (digits.SHARPENED, "digits-sharpening-search/tried")):
        record = made_up(name, 2, speed=1.0)
        record["curves"]["valid_error"] = [90.0, *[2.0 if name == digits.PLAIN else 2.5] * 19, 70.0]
        settings = {"posterior": {**vars(recipes.load(name).posterior), "sigma0": 0.001}}
        record["settings"] = settings if name == digits.SHARPENED else {}
        (results / f"{file}.json").write_text(json.dumps(record))
    assert digits.BLOCKS["digits-sharpening-search"](results).splitlines()[2:] == [
        "| plain | 2.000 |",
        "| sharpened, posterior.sigma0=0.001 | 2.500 |",
    ]


def test_the_page_has_a_place_for_every_block():
    text = (Path(__file__).resolve().parents[2] / "docs/digits.md").read_text("utf-8")
    assert set(re.findall(r"<!-- results:([\w-]+) -->", text)) == set(digits.BLOCKS)


def test_first_epochs():
    assert digits.first_epoch([5.0, 3.0, 2.0, 2.5], 3.0) == 2
    assert digits.first_epoch([5.0, 3.0, 2.0, 2.5], 2.4) == 3
    assert digits.first_epoch([5.0], 1.0) is None


def test_levels_count_only_where_all_runs_got():
    def runs(plain, sharpened):
        return {
            digits.PLAIN: [Record(curves={"test_error": c}) for c in plain],
            digits.SHARPENED: [Record(curves={"test_error": c}) for c in sharpened],
        }

    rows = digits.levels_reached(runs([[6, 4.5, 2.9], [4.9, 3.5, 2.8]], [[4, 2.9, 2], [6, 2.4, 2]]))
    assert rows == [  # 7% and more: all of them in the first epoch
        {"level": 5.0, digits.PLAIN: 1.5, digits.SHARPENED: 1.5},
        {"level": 4.0, digits.PLAIN: 2.5, digits.SHARPENED: 1.5},
        {"level": 3.0, digits.PLAIN: 3.0, digits.SHARPENED: 2.0},
    ]
    assert digits.levels_reached({}) == []


@pytest.mark.parametrize(("speed", "said"), [(2.0, "never later"), (0.5, "LATER at")])
def test_what_is_said_of_sharpening(results, speed, said):
    compared(results, speed)
    text = digits.BLOCKS["digits-sharpening"](results)
    assert said in text
    earlier, levels = re.search(r"earlier at (\d+) of them", text)[1], re.search(r"reaches the (\d+) levels", text)[1]
    assert (int(earlier) > 0.8 * int(levels)) == (speed > 1)
    assert text.count("| 25 | 2 |") == 2, "epochs and seeds of both"


def test_every_tenth_of_a_percent_is_looked_at_on_both_splits_and_for_long_pairs_alone():
    def run(test, valid):
        return Record(curves={"test_error": test, "valid_error": valid})

    plain = [run([4.0, 3.0, 2.0, 1.5], [4.0, 3.0]), run([4.0, 3.0], [4.0, 3.0])]
    sharpened = [run([3.5, 3.1, 2.4, 1.5], [3.0, 3.0]), run([4.0, 2.9], [3.0, 3.0])]
    said = digits.tenths_findings({digits.PLAIN: plain, digits.SHARPENED: sharpened})
    test = "the 10 levels from 3.9% to 3% test error LATER at 3%, earlier at 5 of them."
    valid = "the 10 levels from 3.9% to 3% validation error never later, earlier at 10 of them."
    alone = "the 25 levels from 3.9% to 1.5% test error LATER at 3%, 2.3%, 2.2%, 2.1%, 2%, earlier at 5 of them."
    assert said == [
        f"At every tenth of a percent: {test}",
        f"At every tenth of a percent: {valid}",
        f"The 1 pair of 4 epochs alone: {alone}",
    ]
    assert len(digits.tenths_findings({digits.PLAIN: plain[:1], digits.SHARPENED: sharpened[:1]})) == 2


def test_a_seed_of_the_search_is_named(results):
    assert re.search(r"MLP 400: seed 1, [\d.]+%, is of the search on validation", digits.block(results))
    for file in (results / "digits-search").iterdir():
        file.unlink()
    assert "of the search" not in digits.block(results)


def test_sharpening_alone_is_compared_with_nothing(results):
    for file in (results / digits.PAIRS[0] / digits.PLAIN).iterdir():
        file.unlink()
    assert digits.BLOCKS["digits-sharpening"](results) == digits.NO_RECORD
    made = digits_plots.figures(results)
    assert "digits-sharpening.png" not in made
    assert "digits-sharpening-noisy.png" in made, "the other comparison has its own"


def test_pictures(results, tmp_path):
    paths = digits_plots.write_figures(results, tmp_path / "figures")
    assert [p.name for p in paths] == [
        "digits-errors.png", "digits-pruning.png", "digits-turning.png", "digits-sharpening.png",
        "digits-sharpening-noisy.png",
    ]  # fmt: skip
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)


def test_a_file_that_is_no_record(results):
    (results / "digits-lenet" / "3.json").write_text('{"metrics": {}}')
    with pytest.raises(UserError, match=r"3\.json is not the record of a digits run"):
        digits.load(results)
