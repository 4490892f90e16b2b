import io

from rich.console import Console

from bayesrnn.lab.cli.progress import reporter


def shown(*, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with reporter(console, {"a": "model A", "b": "model B"}) as told:
        for epoch in range(1, 11):
            told("a", epoch, 10, 20.0 + epoch)
            if epoch == 9 and terminal:
                assert "starting" in console.file.getvalue()
    return console.file.getvalue()


def test_bars_in_a_terminal():
    text = shown(terminal=True)
    assert "model A" in text
    assert "model B" in text
    assert "predicting unseen text" in text


def test_plain_lines_elsewhere():
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 6
    assert lines[0] == "model A: epoch 1/10, validation perplexity 21.0"
    assert lines[-1] == "model A: epoch 10/10, validation perplexity 30.0"
    assert "\x1b" not in "".join(lines)
