"""Types for users: `mypy --strict` passes on a program that uses the public names, and the program runs."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
USER = ROOT / "tests/typed/user.py"
WRONG = "import bayesrnn as br\nbr.predict(3, 4)\nbr.LSTM(1, 2, recurrent_dropout='much')\nx: int = br.kl\n"


def mypy(folder, *files):
    """Against the package alone, as in a user's project: none of this repository's settings."""
    (folder / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\ncache_dir = {ROOT / '.mypy_cache/user'}\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        str(folder / "mypy.ini"),
        "--follow-imports=silent",
    ]
    return subprocess.run([*command, *map(str, files)], cwd=folder, capture_output=True, text=True, check=False)


def test_the_package_says_that_it_has_types():
    assert (ROOT / "src/bayesrnn/py.typed").is_file()


@pytest.mark.slow
def test_a_users_program_passes_strict_checks_and_mistakes_do_not(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "wrong.py").write_text(WRONG)
    done = mypy(tmp_path, USER, "wrong.py")
    errors = [line.split(":")[:2] for line in done.stdout.splitlines() if "error:" in line]
    assert errors == [["wrong.py", "2"], ["wrong.py", "3"], ["wrong.py", "4"]], done.stdout + done.stderr


def test_a_users_program_runs(tmp_path, capsys):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        runpy.run_path(str(USER))["main"](tmp_path / "saved")
    assert "There is no folder" in capsys.readouterr().out
