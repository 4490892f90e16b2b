"""Tables and pictures of the language page, from records."""

import json

import pytest
import torch

from bayesrnn.lab import recipes
from bayesrnn.lab.runs.record import Record
from bayesrnn.lab.tasks.language.pruning_plot import picture
from docs.build import language, pruning


def pruned(folder, stem, *, seed=1, rises=(0.0, 0.002, 0.008, 0.04, 0.3), changed=None):
    (folder / "pruning").mkdir(exist_ok=True)
    curve = [
        {"fraction": f, "valid_perplexity": 80 * (1 + rise), "rise": rise}
        for f, rise in zip((0.0, 0.5, 0.7, 0.8, 0.9), rises, strict=True)
    ]
    record = {"recipe": "brnn-medium", "seed": seed, "curve": curve}
    if changed is not None:
        record["settings"] = {"train": {**vars(recipes.load("brnn-medium").train), **changed}}
    (folder / "pruning" / f"{stem}.json").write_text(json.dumps(record))


def lines(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


def test_several_pruning_records_of_one_recipe(tmp_path):
    pruned(tmp_path, "brnn-medium-1")
    pruned(tmp_path, "brnn-medium-long-1", changed={"epochs": 120}, rises=(0.0, 0.0, 0.001, 0.009, 0.05))
    pruned(tmp_path, "brnn-medium-2", seed=2)
    head, *rows = lines(pruning.table(tmp_path))
    assert head[2:] == ["50% removed", "70% removed", "80% removed", "90% removed", "up to +1%"]
    assert rows == [
        ["brnn-medium, seed 1", "80.00", "+0.2%", "+0.8%", "+4.0%", "+30.0%", "70% removed"],
        ["brnn-medium, seed 2", "80.00", "+0.2%", "+0.8%", "+4.0%", "+30.0%", "70% removed"],
        ["brnn-medium (train.epochs=120), seed 1", "80.00", "+0.0%", "+0.1%", "+0.9%", "+5.0%", "80% removed"],
    ]
    assert pruning.figures(tmp_path)["ptb-pruning.png"].startswith(b"\x89PNG")


def test_curves_of_what_was_trained_again(tmp_path):
    pruned(tmp_path, "brnn-medium-1")
    file = tmp_path / "pruning" / "brnn-medium-1.json"
    points = ((0.0, -0.004), (0.8, 0.006), (0.9, 0.02))
    again = [{"fraction": f, "valid_perplexity": 80 * (1 + rise), "rise": rise} for f, rise in points]
    record = json.loads(file.read_text()) | {"retrained": {"epochs": 6, "lr": 0.1, "curve": again}}
    file.write_text(json.dumps(record))
    rows = lines(pruning.table(tmp_path))[1:]
    assert rows[1:] == [
        [
            "brnn-medium, seed 1, trained again for 6 epochs from rate 0.1",
            "79.68",
            "–",
            "–",
            "+0.6%",
            "+2.0%",
            "80% removed",
        ]
    ]
    assert pruning.figures(tmp_path)["ptb-pruning.png"].startswith(b"\x89PNG")
    for steps, way in ((1, "from rate 0.1"), (3, "from rate 0.1, removed in 3 steps")):
        file.write_text(json.dumps(record | {"retrained": {**record["retrained"], "steps": steps}}))
        assert lines(pruning.table(tmp_path))[2][0] == f"brnn-medium, seed 1, trained again for 6 epochs {way}"
    file.write_text(json.dumps(record | {"retrained": {**record["retrained"], "sigma": 0.5}}))
    assert lines(pruning.table(tmp_path))[2][0].endswith("from rate 0.1, sigma held, 50% of it on what is gone")
    assert len(pruning.curves(tmp_path, earlier=False)) == 2
    record["retrained"]["curve"] = [{"fraction": 0.9, "valid_perplexity": 90.0, "rise": 0.1}]
    file.write_text(json.dumps(record))
    assert lines(pruning.table(tmp_path))[2][1:] == ["–", "–", "–", "–", "+10.0%", "–"]
    assert list(pruning.curves(tmp_path, earlier=False)) == ["brnn-medium, seed 1"]


def test_a_share_that_reads_like_another(tmp_path):
    pruned(tmp_path, "a")
    file = tmp_path / "pruning" / "a.json"
    record = json.loads(file.read_text())
    record["curve"].insert(4, {"fraction": 0.8000001, "valid_perplexity": 99.0, "rise": 0.2})
    file.write_text(json.dumps(record))
    assert lines(pruning.table(tmp_path))[1][2:6] == ["+0.2%", "+0.8%", "+4.0%", "+30.0%"]


def test_records_that_say_the_same_are_told_apart_by_their_files(tmp_path):
    pruned(tmp_path, "a")
    pruned(tmp_path, "b", rises=(0.0, 0.1, 0.2, 0.3, 0.4))
    assert [name for name, _ in pruning.load(tmp_path)] == ["brnn-medium, seed 1, a", "brnn-medium, seed 1, b"]
    pruned(tmp_path, "b")  # the same curve: one run, whose weights were trained again in two ways
    for name, lr in (("a", 0.1), ("b", 0.5)):
        file = tmp_path / "pruning" / f"{name}.json"
        again = {"epochs": 6, "lr": lr, "curve": [{"fraction": 0.8, "valid_perplexity": 90.0, "rise": lr}]}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"retrained": again}))
    assert [row[0] for row in lines(pruning.table(tmp_path))[1:]] == [
        "brnn-medium, seed 1",
        "brnn-medium, seed 1, trained again for 6 epochs from rate 0.1",
        "brnn-medium, seed 1, trained again for 6 epochs from rate 0.5",
    ]
    for k in range(9):  # more than there are colours
        pruned(tmp_path, f"more-{k}", seed=k + 2)
    assert len(pruning.load(tmp_path)) == 11
    assert pruning.figures(tmp_path)["ptb-pruning.png"].startswith(b"\x89PNG")


def test_a_pruning_record_without_settings_is_named_after_its_run(tmp_path):
    """Found by seed and by the perplexity that its curve begins with."""
    pruned(tmp_path, "a")
    (tmp_path / "brnn-medium").mkdir()
    train = {**vars(recipes.load("brnn-medium").train), "epochs": 61}
    for stem, seed, valid in (("1", 1, 79.0), ("2", 2, 80.0), ("61", 1, 80.00001)):
        epochs = {"epochs": 61 if stem == "61" else 9}
        record = {"recipe": "brnn-medium", "seed": seed, "settings": {"train": {**train, **epochs}}}
        text = json.dumps(record | {"metrics": {"valid_perplexity": valid}})
        (tmp_path / "brnn-medium" / f"{stem}.json").write_text(text)
    assert [name for name, _ in pruning.load(tmp_path)] == ["brnn-medium (train.epochs=61), seed 1"]


def test_records_with_the_recipe_s_own_settings_come_first(tmp_path):
    (tmp_path / "brnn-medium").mkdir()
    for stem, seed, changed, gap in (("a", 1, {"epochs": 9}, 0.6), ("b", 2, {}, 0.7), ("c", 1, {}, None)):
        metrics = {} if gap is None else {"entropy_gap_mean": gap}
        train = {**vars(recipes.load("brnn-medium").train), **changed}
        record = {"recipe": "brnn-medium", "seed": seed, "settings": {"train": train}, "metrics": metrics}
        record["curves"] = {"valid_perplexity": [90.0, 80.0]}
        (tmp_path / "brnn-medium" / f"{stem}.json").write_text(json.dumps(record))
    found = language.load(tmp_path)["brnn-medium"]
    assert [(r.seed, r.setting("train.epochs")) for r in found] == [(1, 60), (2, 60), (1, 9)]
    assert language._gaps({"brnn-medium": found}) == {
        "brnn-medium, seed 2": [found[1]],
        "brnn-medium (train.epochs=9), seed 1": [found[2]],
    }
    found[0] = found[0].model_copy(update={"metrics": {"entropy_gap_mean": 0.8}})
    assert next(iter(language._gaps({"brnn-medium": found}))) == "brnn-medium, mean of 2 seeds, and each"


def test_records_of_other_texts_are_left_out(tmp_path):
    """The pages are of Penn Treebank."""
    (tmp_path / "brnn-medium").mkdir()
    for stem, data in (("1", "docs"), ("2", "ptb"), ("3", None)):
        record = {"recipe": "brnn-medium", "seed": int(stem), "data": data, "metrics": {}, "curves": {}}
        (tmp_path / "brnn-medium" / f"{stem}.json").write_text(json.dumps(record))
        pruned(tmp_path, stem, seed=int(stem))
        file = tmp_path / "pruning" / f"{stem}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "data": data}))
    assert [record.seed for record in language.load(tmp_path)["brnn-medium"]] == [2, 3]
    assert [name for name, _ in pruning.load(tmp_path)] == ["brnn-medium, seed 2", "brnn-medium, seed 3"]


def test_a_grid_of_a_sweep(tmp_path):
    space = {"model.recurrent_dropout": [0.0, 0.25], "model.word_dropout": [0.0, 0.5]}
    trials = [
        {"settings": dict(zip(space, pair, strict=True)), "value": value, "state": "complete" if value else "fail"}
        for pair, value in (((0.0, 0.0), 130.0), ((0.25, 0.0), 110.0), ((0.0, 0.5), 120.5), ((0.25, 0.5), None))
    ]
    record = {
        "recipe": "small-variational", "seed": 1, "space": space, "trials": trials, "best": trials[1],
        "settings": {"train": {"epochs": 20}}, "device": "cuda (X)", "versions": {"torch": "2.11"},
    }  # fmt: skip
    (tmp_path / "grid").mkdir()
    assert language.grid(tmp_path) == ""
    assert language.figures(tmp_path) == {}
    (tmp_path / "grid" / "small.json").write_text(json.dumps(record))
    text = language.grid(tmp_path)
    assert "(figures/ptb-grid-small.png)" in text
    assert "20 epochs, seed 1: 110.00 with model.recurrent_dropout 0.25, model.word_dropout 0; 130.00 at worst" in text
    assert language.figures(tmp_path)["ptb-grid-small.png"].startswith(b"\x89PNG")


def test_a_grid_of_single_runs(tmp_path):
    """The settings that differ are the grid's; the best on validation is framed."""
    folder = tmp_path / "grid" / "small"
    folder.mkdir(parents=True)
    for (recurrent, words), value in {
        (0.0, 0.0): 130.0,
        (0.25, 0.0): 110.0,
        (0.0, 0.5): 120.5,
        (0.25, 0.5): 140.0,
    }.items():
        record = {
            "recipe": "small-variational", "seed": 1, "device": "cuda (X)", "versions": {"torch": "2.11"},
            "settings": {
                "model": {"hidden": 200, "recurrent_dropout": recurrent, "word_dropout": words}, "train": {"epochs": 20}
            },
            "metrics": {"valid_perplexity": value},
        }  # fmt: skip
        (folder / f"{recurrent}-{words}.json").write_text(json.dumps(record))
    found = language._grids(tmp_path)["small"]
    assert found.space == {"model.recurrent_dropout": [0.0, 0.25], "model.word_dropout": [0.0, 0.5]}
    text = language.grid(tmp_path)
    assert "20 epochs, seed 1: 110.00 with model.recurrent_dropout 0.25, model.word_dropout 0; 140.00 at worst" in text
    assert language.figures(tmp_path)["ptb-grid-small.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("curve", [None, [0.63, 0.65, 0.66]])
def test_entropy_gaps_of_old_and_new_records(tmp_path, curve):
    metrics = {"entropy_gap_mean": 0.61, "entropy_gap_1": 0.63, "entropy_gap": 0.66, "entropy_samples": 3}
    expected = [(0, 0.61), (1, 0.63), (3, 0.66)]
    if curve:
        metrics["entropy_gaps"] = curve
        expected = [(0, 0.61), (1, 0.63), (2, 0.65), (3, 0.66)]
    assert language._gap_points(Record(metrics=metrics)) == expected
    (tmp_path / "brnn-medium").mkdir()
    record = {"recipe": "brnn-medium", "seed": 1, "metrics": metrics, "curves": {"valid_perplexity": [90.0, 80.0]}}
    (tmp_path / "brnn-medium" / "1.json").write_text(json.dumps(record))
    alone = language.figures(tmp_path)
    assert set(alone) == {"ptb-curves.png", "ptb-entropy-gap.png"}
    higher = {**record, "seed": 2, "metrics": {"entropy_gap_mean": 0.81, "entropy_gap_1": 0.83}}  # of fewer draws
    (tmp_path / "brnn-medium" / "2.json").write_text(json.dumps(higher))
    assert language.figures(tmp_path)["ptb-entropy-gap.png"] != alone["ptb-entropy-gap.png"]
    assert language._gap_points(Record(metrics={"entropy_gap_mean": 0.5})) == [(0, 0.5)]


def test_the_small_models_have_a_picture_of_their_own(tmp_path):
    assert language.overfitting(tmp_path) == ""
    for name, valid in (("small-plain", [150.0, 130.0, 160.0]), ("small-variational", [160.0, 140.0, 120.0])):
        (tmp_path / name).mkdir()
        curves = {"valid_perplexity": valid, "train_perplexity": [200.0, 90.0, 40.0]}
        record = {"recipe": name, "seed": 1, "metrics": {}, "curves": curves}
        (tmp_path / name / "1.json").write_text(json.dumps(record))
    text = language.overfitting(tmp_path)
    assert (
        "small-plain: 130.0 validation at best, in epoch 2, and 160.0 after epoch 3, where training is at 40.0" in text
    )
    assert "small-variational: 120.0 validation at best, in epoch 3, and 120.0 after epoch 3" in text
    assert "(figures/ptb-overfitting.png)" in text
    assert set(language.figures(tmp_path)) == {"ptb-overfitting.png"}
    assert set(language._small({name: [{}] for name in recipes.names()})) == {
        "small-plain", "small-variational", "small-zaremba"
    }  # fmt: skip


@pytest.mark.parametrize(("values", "label"), [((58.7, 58.5), ""), ((80.0, 3000.0), " (log scale)")])
def test_a_run_s_own_pruning_picture(values, label, monkeypatch):
    """Plain numbers on the axis, whether it spans a percent or a factor of forty."""
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: saved.append(figure))
    rows = [{"fraction": k / 2, "valid_perplexity": value} for k, value in enumerate(values)]
    picture(rows, {"rnn.weight_ih_l0": torch.ones(8, 3, dtype=torch.bool), "embed.weight": torch.ones(2, 2)})
    curve, *cells = saved[0].axes
    saved[0].canvas.draw()
    assert curve.get_ylabel() == f"validation perplexity{label}"
    shown = [t.get_text() for t in curve.get_yticklabels()]
    assert len(shown) >= 3
    assert all(float(text.replace(",", "")) > 0 for text in shown)
    assert [cell.get_title() for cell in cells] == ["weight_ih_l0"]
    assert curve.get_legend() is None
    picture(rows, {}, [{"fraction": 0.5, "valid_perplexity": values[0]}])
    (curve,) = saved[1].axes
    assert [t.get_text() for t in curve.get_legend().get_texts()] == ["removed", "removed, the rest trained again"]
