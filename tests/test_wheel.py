"""The wheel holds the library and the lab alone, and the library needs nothing but torch and numpy."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 1_500_000  # bytes
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def requirements(*names):
    """These distributions and all that they require here, optional parts aside."""
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop()
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue
        if one.metadata["Name"] not in found:
            found[one.metadata["Name"]] = one
            waiting += [re.split(r"[^\w.-]", line)[0] for line in one.requires or [] if "extra ==" not in line]
    return found.values()


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A folder of packages with the wheel, torch and numpy, and what these two require."""
    folder = tmp_path_factory.mktemp("bare")
    zipfile.ZipFile(wheel).extractall(folder)
    for one in requirements("torch", "numpy"):
        for top in {Path(file).parts[0] for file in one.files or [] if not str(file).startswith("..")}:
            link = folder / top
            if top != "__pycache__" and not link.exists():
                link.symlink_to(one.locate_file(top))
    return folder


def run(bare, code):
    program = f"import sys; sys.path.insert(0, {str(bare)!r})\n{code}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)


def test_the_wheel_holds_neither_records_nor_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"bayesrnn"}
    assert not [name for name in names if "results/" in name or "docs/" in name or "test" in Path(name).name]
    assert any(name.endswith("recipes/brnn-medium.yaml") for name in names)
    assert wheel.stat().st_size < LARGEST


def test_the_environment_is_bare(bare):
    for name in ("typer", "pydantic", "pandas", "torchmetrics", "safetensors", "rich", "yaml"):
        assert run(bare, f"import {name}").returncode, name


@pytest.mark.slow
def test_the_readme_example_runs_with_torch_and_numpy_alone(bare):
    code = "\n".join(PYTHON.findall((ROOT / "README.md").read_text("utf-8")))
    assert "br.predict" in code
    done = run(bare, code + "\nassert not [m for m in sys.modules if m.startswith('bayesrnn.lab')]")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_public_name_is_there_with_torch_and_numpy_alone(bare):
    done = run(bare, "import bayesrnn as br\nfor name in br.__all__: getattr(br, name)")
    assert done.returncode == 0, done.stderr


def test_the_command_says_what_to_install(bare):
    done = run(bare, "sys.argv = ['bayesrnn']\nimport runpy; runpy.run_module('bayesrnn', run_name='__main__')")
    assert done.returncode != 0
    assert done.stderr == "bayesrnn: the command needs more packages (no module typer); pip install 'bayesrnn[lab]'.\n"
