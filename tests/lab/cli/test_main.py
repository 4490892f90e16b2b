import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bayesrnn._version import __version__
from bayesrnn.errors import UserError
from bayesrnn.lab.cli import app
from bayesrnn.lab.console.errors import one_line


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"bayesrnn {__version__}\n"


@pytest.mark.parametrize("words", ["train", "sweep", "reproduce"])
def test_a_command_without_its_arguments(words):
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def test_help_of_the_module_names_the_command():
    command = [sys.executable, "-m", "bayesrnn", "train", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Usage: bayesrnn train" in result.stdout


def test_help_names_the_subcommands():
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "quickstart" in result.stdout


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_quick_answers_import_nothing_heavy(option):
    code = (
        "import sys; sys.argv = ['bayesrnn', sys.argv[1]]\n"
        "from bayesrnn.lab.cli import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'numpy', 'matplotlib', 'pydantic', 'pandas'} & set(sys.modules)"
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


def test_an_interrupt_while_the_command_is_imported_is_one_line(tmp_path):
    """Ctrl-C at the moment at which `typer` is imported, before any subcommand is known."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from bayesrnn.lab.__main__ import main\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "bayesrnn: interrupted.\n")


def test_an_interrupt_before_a_subcommand_begins_is_one_line():
    """While typer reads the words, where it ends without one."""
    code = (
        "import typer.core; from bayesrnn.lab.cli import main\n"
        "def interrupt(*args, **kwargs): raise KeyboardInterrupt\n"
        "typer.core.TyperGroup.parse_args = interrupt\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "bayesrnn: interrupted.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("words", ["recipes", "train --help"])
def test_an_output_that_is_full_is_one_line(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "bayesrnn", *words.split()]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "bayesrnn: the output cannot be written (No space left on device); send it elsewhere.\n"


def test_numpy_is_imported_before_torch():
    """Imported by torch's own code, it loses an interrupt that comes meanwhile, and the command goes on."""
    code = (
        "import os, sys; from typer.testing import CliRunner; from bayesrnn.lab.cli import app\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': os._exit(0 if 'numpy' in sys.modules else 1)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "CliRunner().invoke(app, ['train', 'small-plain', '--data', '/nowhere'])\n"
        "os._exit(2)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_is_the_command():
    result = subprocess.run([sys.executable, "-m", "bayesrnn", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"bayesrnn {__version__}\n"


def test_an_output_without_a_place_for_a_letter_ends_no_command():
    result = subprocess.run(
        [sys.executable, "-m", "bayesrnn", "recipes"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"zaremba-medium" in result.stdout


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("train brnn-medium --epochs 5", "train.epochs=5"),
        ("train brnn-medium --epochs=5", "train.epochs=5"),
        ("train brnn-medium --batch-size 7 --out x", "data.batch_size=7"),
        ("train digits-lenet --conv-dropout .5", "model.conv_dropout=.5"),
        ("train brnn-medium --learning-rate 2", "train.lr=2"),
        ("train brnn-medium --epoch", "train.epochs=VALUE"),
        ("sweep brnn-medium --hidden 3 --grid lr=1,2", "model.hidden=3"),
    ],
)
def test_an_unknown_option_names_the_setting_it_may_mean(words, setting):
    option = next(word for word in words.split()[2:] if word.startswith("--")).partition("=")[0]
    result = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"No such option: {option}. Did you mean --set {setting}?" in result.stderr


def test_a_slip_of_an_option_is_still_one():
    result = CliRunner().invoke(app, ["train", "brnn-medium", "--sed", "3"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "--seed" in result.stderr
    assert "--set " not in result.stderr


def test_a_setting_by_option_is_checked_as_one_by_word(text_folder, tmp_path):
    words = ["train", "small-plain", "--data", text_folder, "batch_size=4", "--set", "train.epochs=x"]
    result = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "r")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "train.epochs must be a whole number, got 'x'" in result.stderr


def test_no_help_names_two_defaults():
    for name, command in typer.main.get_command(app).commands.items():
        for option in command.params:
            if "Default:" in (getattr(option, "help", None) or ""):
                assert option.default is None or not option.show_default, f"{name} {option.name}"
