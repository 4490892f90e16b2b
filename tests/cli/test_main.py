import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from bayesrnn._version import __version__
from bayesrnn.cli import app
from bayesrnn.cli.errors import one_line
from bayesrnn.errors import UserError


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"bayesrnn {__version__}\n"


def test_help_names_the_subcommands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "quickstart" in result.stdout


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_quick_answers_import_nothing_heavy(option):
    code = (
        "import sys; sys.argv = ['bayesrnn', sys.argv[1]]\n"
        "from bayesrnn.cli import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("It is so; do that."), 2, "bayesrnn: It is so; do that.\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_are_one_line(error, status, line):
    small = typer.Typer()

    @small.command()
    @one_line
    def fail(times: int = 1) -> None:
        raise error

    result = CliRunner().invoke(small, ["--times", "2"])
    assert result.exit_code == status
    assert line in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
