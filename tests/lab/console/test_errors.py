import pytest
import typer
from typer.testing import CliRunner

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line


def run(error):
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    @one_line
    def command() -> None:
        raise error

    return CliRunner().invoke(app, [])


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("a file is wrong"), 2, "bayesrnn: a file is wrong\n"),
        (UserError("named \x1b[31mred\nand more"), 2, "bayesrnn: named  [31mred and more\n"),
        (MemoryError(), 2, "bayesrnn: there is not enough memory (MemoryError);"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2\nmore"),
            2,
            "not enough memory (CUDA out of memory.",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 2, "use a smaller model"),
        (
            RuntimeError(
                "[alloc.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried to allocate 320000000000 bytes"
            ),
            2,
            "bayesrnn: there is not enough memory (320.0 GB asked for at once); use a smaller model",
        ),
        (KeyboardInterrupt(), 130, "bayesrnn: interrupted.\n"),
        (typer.Exit(7), 7, ""),
    ],
)
def test_one_line_and_a_status(error, status, said):
    result = run(error)
    assert result.exit_code == status
    assert said in result.stderr
    assert result.stderr.count("\n") <= 1
    assert "\x1b" not in result.stderr


def test_other_errors_are_bugs_and_stay_visible():
    result = run(RuntimeError("shape mismatch"))
    assert isinstance(result.exception, RuntimeError)
