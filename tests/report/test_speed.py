import json

import pytest

from bayesrnn.report.speed import BLOCKS, RECORDS


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
