import json

import pytest

from bayesrnn.errors import UserError
from docs.build.speed import BLOCKS, RECORDS


def training(kind, plain, took, title="medium (650 units), batch 20", **more):
    sizes = {"hidden": 650, "batch": 20, "title": title, "graph": True}
    times = {"plain_milliseconds": plain, "milliseconds": took, "ratio": plain / took} if took else {"failed": "red"}
    return {"kind": kind, **sizes, **times, **more}


def write(folder, name, rows, prediction=(), precision="tf32"):
    record = {
        "device": "cuda (GPU)", "versions": {"torch": "2.11", "bayesrnn": "0.1"}, "precision": precision,
        "training": rows, "prediction": list(prediction),
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(record))


def test_no_record_no_table(tmp_path):
    assert BLOCKS["gpu-speed"](tmp_path) == ""


def test_the_table_has_a_column_for_each_record_and_ratios_to_dropout(tmp_path):
    draws = {"kind": "variational, tied", "hidden": 650, "draws": 100, "milliseconds": 28.34, "passes": 14.23}
    # the machine was half as fast while sharpening was measured: 2 ms there are 1 ms
    rows = [training("torch.nn with dropout", 3.0, 3.1), training("plain", 3.0, 1.5), training("sharpened", 6.0, 2.0)]
    write(tmp_path, RECORDS[0], rows, [draws])
    large = "large (1500 units), batch 20"
    rows = [training("torch.nn with dropout", 4, 4, large), training("plain", 4, None, large)]
    write(tmp_path, RECORDS[4], rows, precision="bf16")
    lines = BLOCKS["gpu-speed"](tmp_path).splitlines()
    assert lines[0] == (
        "| training step, T = 35 | medium (650 units), batch 20, tf32 | large (1500 units), batch 20, bf16 |"
    )
    assert lines[2:5] == [
        "| torch.nn with dropout | 3.10 ms, 1.00x | 4.00 ms, 1.00x |",
        f"| plain | 1.50 ms, {2 / (3 / 3.1):.2f}x | – |",
        f"| sharpened | 2.00 ms, {3 / (3 / 3.1):.2f}x | – |",
    ]
    assert "100 draws, variational, tied, 650 units, one sequence, tf32: 28.3 ms, as long as 14.2 passes" in lines[-3]
    assert lines[-1].startswith(
        "Every step is one CUDA graph. Written by `bayesrnn bench --out` for the sizes 650x20 ("
    )


@pytest.mark.parametrize("graph", [True, False])
def test_without_a_base_there_are_no_ratios_and_eager_steps_are_not_called_graphs(tmp_path, graph):
    write(tmp_path, RECORDS[0], [training("plain", 3.0, 1.5, graph=graph)])
    lines = BLOCKS["gpu-speed"](tmp_path).splitlines()
    assert lines[2] == "| plain | 1.50 ms |"
    assert lines[-1].startswith("Every step") is graph


def record(folder, name, *, train, valid, seed=1, mc=None, overrides=()):
    metrics = {"valid_perplexity": valid, "test_perplexity": valid - 1, "test_perplexity_mc": mc}
    run = {"recipe": "small", "seed": seed, "overrides": list(overrides), "metrics": metrics}
    path = folder / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**run, "curves": {"train_perplexity": [99.0, train]}}))


def test_pairs_of_runs_with_their_means_and_the_mean_difference(tmp_path):
    record(tmp_path, "small/1", train=50, valid=82, mc=70)  # the default way, a row of a published table
    record(tmp_path, "same-training/small-step-by-step-1", train=51, valid=80)
    record(tmp_path, "same-training/small-one-launch-2", train=54, valid=86, seed=2)
    record(tmp_path, "same-training/small-step-by-step-2", train=51, valid=88, seed=2)
    assert BLOCKS["alike"](tmp_path).splitlines()[2:] == [
        "| small, 2 epochs | 1 | one launch | 50.00 | 82.00 | 81.00 | – | 70.00 |",
        "| small, 2 epochs | 1 | step by step | 51.00 | 80.00 | 79.00 | – | – |",
        "| small, 2 epochs | 2 | one launch | 54.00 | 86.00 | 85.00 | – | – |",
        "| small, 2 epochs | 2 | step by step | 51.00 | 88.00 | 87.00 | – | – |",
        "| small, 2 epochs | mean ± sd | one launch | 52.00 ± 2.83 | 84.00 ± 2.83 | 83.00 ± 2.83 | – | – |",
        "| small, 2 epochs | mean ± sd | step by step | 51.00 ± 0.00 | 84.00 ± 5.66 | 83.00 ± 5.66 | – | – |",
        "| small, 2 epochs | mean ± standard error | one launch minus step by step "
        "| +1.00 ± 2.00 | +0.00 ± 2.00 | +0.00 ± 2.00 | – | – |",
        "| small, 2 epochs | least to most | one launch minus step by step "
        "| -2.0% to +5.9% | -2.3% to +2.5% | -2.3% to +2.5% | – | – |",
    ]


def test_one_pair_has_no_standard_error_and_no_pairs_no_rows(tmp_path):
    assert BLOCKS["alike"](tmp_path).count("\n") == 2
    record(tmp_path, "small/1", train=50, valid=82)
    record(tmp_path, "same-training/small-step-by-step-1", train=51, valid=80)
    rows = BLOCKS["alike"](tmp_path).splitlines()[2:]
    assert len(rows) == 2
    assert "| 1 | step by step | 51.00 | 80.00 | 79.00 |" in rows[-1]


def test_runs_with_other_settings_are_no_pair(tmp_path):
    record(tmp_path, "small/1", train=50, valid=82)
    record(tmp_path, "same-training/small-step-by-step-1", train=51, valid=80, overrides=["train.lr=2"])
    with pytest.raises(UserError, match=r"small-step-by-step-1\.json differ in recipe, seed or settings"):
        BLOCKS["alike"](tmp_path)


def test_layers_have_a_row_each_and_a_column_for_every_way(tmp_path):
    assert BLOCKS["gpu-layers"](tmp_path) == ""
    line = {"cell": "LSTM", "hidden": 650, "batch": 20, "error": 3.6e-4, "cudnn_milliseconds": 1.372}
    layers = [
        {**line, "masks": "tied", "path": "one launch", "milliseconds": 0.498},
        {**line, "masks": "tied", "path": "step by step", "milliseconds": 1.407},
        {**line, "batch": 256, "masks": "tied", "path": "step by step", "milliseconds": 2.829},
    ]
    about = {"commit": "abc", "device": "GPU", "versions": {"torch": "2.11"}, "precision": "tf32", "steps": 35}
    (tmp_path / "gpu-layers.json").write_text(json.dumps({**about, "layers": layers}))
    lines = BLOCKS["gpu-layers"](tmp_path).splitlines()
    assert lines[0].endswith("| cuDNN | tied masks, one launch | tied masks, step by step |")
    assert lines[2:4] == [
        "| LSTM, 650 units, batch 20 | 1.37 | 0.50 | 1.41 |",
        "| LSTM, 650 units, batch 256 | 1.37 | – | 2.83 |",
    ]
    assert "at most 4e-04" in lines[-1]
    other = [{**line, "cell": "GRU", "masks": "tied", "path": "one launch", "milliseconds": 0.46}]
    (tmp_path / "gpu-layers-gru.json").write_text(json.dumps({**about, "commit": "def", "layers": other}))
    lines = BLOCKS["gpu-layers"](tmp_path).splitlines()
    assert lines[2].startswith("| LSTM, 650 units, batch 20 |")
    assert lines[4] == "| GRU, 650 units, batch 20 | 1.37 | 0.46 | – |"
    assert "LSTMs at commit abc (GPU, torch 2.11, tf32); GRUs at commit def" in lines[-1]
    (tmp_path / "gpu-layers-gru.json").write_text(json.dumps({**about, "steps": 2, "layers": other}))
    with pytest.raises(UserError, match="different numbers of steps"):
        BLOCKS["gpu-layers"](tmp_path)


def test_runs_whose_rate_differs_in_a_late_digit_stand_beside_the_recipes_own(tmp_path):
    assert BLOCKS["chance"](tmp_path) == ""

    def write_run(name, lr, losses, kernel=None):
        curves = {"train_perplexity": losses, "valid_perplexity": [loss + 2 for loss in losses]}
        settings = {"model": {"hidden": 650}, "train": {"lr": lr}}
        made = {"recipe": "small", "seed": 1, "kernel": kernel, "settings": settings, "curves": curves, "metrics": {}}
        path = tmp_path / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(made))

    write_run("chance/b", 1.0, [60, 51], "triton")
    write_run("chance/a", 1.000001, [60, 52])
    assert BLOCKS["chance"](tmp_path).splitlines()[2:] == [
        "| small, 2 epochs | 1 | one launch | 1.000001 | 52.00 | 54.00 |",
        "| small, 2 epochs | 1 | cuDNN | 1.000000 | 51.00 | 53.00 |",
    ]
    write_run("small/1", 1.0, [60, 50, 40])  # whole: its second epoch counts
    assert (
        BLOCKS["chance"](tmp_path).splitlines()[2] == "| small, 2 epochs | 1 | one launch | 1.000000 | 50.00 | 52.00 |"
    )


def test_errors_of_gradients_by_path(tmp_path):
    assert BLOCKS["gradients"](tmp_path) == ""
    (tmp_path / "gradients").mkdir()
    found = {"one launch": {"one_window": 4e-4, "summed": 2e-4, "along": 1.6e-5}}
    valid = {"exact": 142.3142, "one launch": 142.3146}
    record = {"recipe": "small", "epochs": 3, "windows": 200, "paths": found, "valid_perplexity": valid}
    record["recurrent"] = {"one launch": {"one_window": 5e-4, "summed": 1e-4, "along": -2e-6}}
    (tmp_path / "gradients/small.json").write_text(json.dumps(record))
    lines = BLOCKS["gradients"](tmp_path).splitlines()
    assert lines[2:] == [
        "| small, 3 epochs, 200 windows | exact | – | – | – | 142.3142 |",
        "| small, 3 epochs, 200 windows | one launch | 4.0e-04 | 2.0e-04 | +1.6e-05 | 142.3146 |",
        "| small, 3 epochs, 200 windows, recurrent weights alone | one launch | 5.0e-04 | 1.0e-04 | -2.0e-06 | – |",
    ]
    record["paths"], record["valid_perplexity"] = {**found, "cuDNN": found["one launch"]}, {**valid, "cuDNN": 142.3145}
    (tmp_path / "gradients/small-cudnn.json").write_text(json.dumps(record))
    assert BLOCKS["gradients"](tmp_path).splitlines()[5:] == [  # and nothing twice
        "| small, 3 epochs, 200 windows | cuDNN | 4.0e-04 | 2.0e-04 | +1.6e-05 | 142.3145 |"
    ]


def test_many_draws_are_told_once_for_all_batches(tmp_path):
    draws = {"kind": "variational, tied", "hidden": 650, "draws": 100, "milliseconds": 10.0, "passes": 3.0}
    for name in RECORDS[:3]:
        write(tmp_path, name, [training("plain", 3.0, 1.5, title=name)], [draws])
    assert BLOCKS["gpu-speed"](tmp_path).count("100 draws") == 1


def test_a_record_s_name_says_what_ran_in_place_of_one_launch(tmp_path):
    record(tmp_path, "small/1", train=50, valid=82)
    record(tmp_path, "same-training/small-step-by-step-1", train=51, valid=80)
    assert "| 1 | step by step |" in BLOCKS["alike"](tmp_path)
    record(tmp_path, "same-training/small-cudnn-1", train=52, valid=81)
    rows = BLOCKS["alike"](tmp_path).splitlines()[2:]
    assert [row.split(" | ")[2] for row in rows] == ["one launch", "cuDNN", "one launch", "step by step"]
