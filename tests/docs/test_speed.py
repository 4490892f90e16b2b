import json

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.runs.record import Record
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
    assert lines[0] == "| training step | 650 units, batch 20, tf32 | 1500 units, batch 20, bf16 |"
    assert lines[2:6] == [
        f"| torch.nn without dropout | 3.00 ms, {3.1 / 3:.2f}x | 4.00 ms, 1.00x |",
        "| torch.nn with dropout | 3.10 ms, 1.00x | 4.00 ms, 1.00x |",
        f"| ours, no noise | 1.50 ms, {2 / (3 / 3.1):.2f}x | – |",
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
    assert lines[2] == "| ours, no noise | 1.50 ms |"
    assert lines[-1].startswith("Every step") is graph


def test_rows_that_are_no_graphs_are_named(tmp_path):
    rows = [training("plain", 3.0, 1.5), training("haste", 3.0, 6.0, graph=False)]
    write(tmp_path, RECORDS[0], [training("torch.nn with dropout", 3.0, 3.0), *rows])
    lines = BLOCKS["gpu-speed"](tmp_path).splitlines()
    assert "| haste | 6.00 ms, 0.50x |" in lines
    assert lines[-1].startswith("Every step is one CUDA graph, but for haste. Written")


def test_dynamic_evaluation_and_pairs_of_paths_have_a_line_each(tmp_path):
    write(tmp_path, RECORDS[0], [training("plain", 3.0, 1.5)])
    for folder, name, values in (
        ("dynamic", "awd-24m", {"milliseconds_graph": 1.0, "milliseconds_eager": 4.5, "times_as_fast": 4.5,
                                "windows": 10, "window": 5, "test_words": 50_000}),
        ("same-training", "brnn-200", {"pairs": 8, **{f"{split}_{end}": value for split in ("valid", "train")
                                       for end, value in (("percent", 0.1), ("low", -0.4), ("high", 0.6))}}),
        ("same-training", "one", {"pairs": 1}),
    ):  # fmt: skip
        (tmp_path / folder).mkdir(exist_ok=True)
        note = f"{name}: perplexities"
        record = Record(recipe="brnn-medium" if folder != "dynamic" else name, data="ptb", metrics=values, note=note)
        record.write(tmp_path / folder / f"{name}.json")
    lines = BLOCKS["gpu-speed"](tmp_path).splitlines()
    (dynamic,) = (line for line in lines if "Dynamic evaluation" in line)
    assert dynamic.endswith("(4.5 times as long). For ptb's test text that is 10 s and 45 s.")
    (pairs,) = (line for line in lines if "pairs of runs" in line)
    assert "brnn-200, 8 pairs of runs: +0.10% in validation, 95% interval -0.40% to +0.60%" in pairs


def test_the_verdict_has_the_range_of_every_kind(tmp_path):
    assert BLOCKS["gpu-verdict"](tmp_path) == ""
    for name, tied, bayes in ((RECORDS[0], 2.0, 3.0), (RECORDS[1], 2.5, 2.9)):
        rows = [training("torch.nn with dropout", 3.0, 3.0, name), training("variational, tied", 3.0, tied, name)]
        write(tmp_path, name, [*rows, training("Bayes by Backprop", 3.0, bayes, name)])
    text = BLOCKS["gpu-verdict"](tmp_path)
    assert "or faster.**" in text
    assert text.endswith("dropout with tied masks, 1.20x to 1.50x; Bayes by Backprop, 1.00x to 1.03x.")
    rows = [training("torch.nn with dropout", 3.0, 3.0), training("variational, tied", 3.0, 4.0)]
    write(tmp_path, RECORDS[2], [*rows, training("Bayes by Backprop", 3.0, 3.0)])
    assert "or faster, except at some sizes with variational dropout with tied masks.**" in BLOCKS["gpu-verdict"](
        tmp_path
    )
    write(tmp_path, RECORDS[3], [training("torch.nn with dropout", 3.0, 3.0), training("sharpened", 3.0, 6.0)])
    assert "tied masks; with posterior sharpening it is slower at every size.**" in BLOCKS["gpu-verdict"](tmp_path)


def test_many_draws_are_told_once_for_all_batches(tmp_path):
    draws = {"kind": "variational, tied", "hidden": 650, "draws": 100, "milliseconds": 10.0, "passes": 3.0}
    for name in RECORDS[:3]:
        write(tmp_path, name, [training("plain", 3.0, 1.5, title=name)], [draws])
    assert BLOCKS["gpu-speed"](tmp_path).count("100 draws") == 1


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
