import io

from rich.console import Console

from bayesrnn.lab.console import lines
from bayesrnn.lab.engine.progress import Progress


def test_the_time_left_includes_validation(monkeypatch):
    """4 epochs of 60 s with 10 s of validation each: after the first one 3:30 are left."""
    console, now = Console(file=io.StringIO(), width=200), [0.0]
    monkeypatch.setattr(lines.time, "monotonic", lambda: now[0])
    told = lines.Lines(console)
    told.step(Progress(1, 4, 9, 9, "words", 50.0, 180.0, {}))
    now[0] = 10.0
    told.epoch({"epoch": 1, "lr": 0.1, "valid_rmse": 1.5, "words_per_second": 50.0, "seconds": 60.0}, 4)
    assert console.file.getvalue() == "epoch 1/4: lr 0.1, RMSE 1.5 validation, 50 words/s, 3:30 left\n"
