import io

from rich.console import Console

from bayesrnn.lab.cli.progress import reporter
from bayesrnn.lab.tasks.language.loop import Epoch


def shown(*, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with reporter(console, {"a": "model A", "b": "model B"}, epochs=10, steps=2) as progress:
        for number in range(1, 11):
            for step in (1, 2):
                progress.step("a", number, step)
            progress.epoch("a", Epoch(number=number, objective=1, train=20.0 + number, valid=30, lr=0.1, seconds=1))
    return console.file.getvalue()


def test_bars_in_a_terminal():
    text = shown(terminal=True)
    assert "model A" in text
    assert "epoch 10/10  train 30.0  valid 30.0" in text
    assert "waiting" in text


def test_plain_lines_elsewhere():
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 5
    assert lines[-1] == "model A: epoch 10/10, perplexity 30.0 train, 30.0 validation"
    assert "\x1b" not in "".join(lines)
