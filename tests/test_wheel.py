"""The wheel holds the library and the lab alone, and the library needs nothing but torch and numpy."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from torch import nn

import bayesrnn as br
from tests import release

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_the_description_has_no_links_into_the_repository(wheel):
    assert "links" in release.check_description(wheel)


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """A folder of packages with the wheel, torch and numpy, and what these two require."""
    folder = tmp_path_factory.mktemp("bare")
    zipfile.ZipFile(wheel).extractall(folder)
    release.link(folder, "torch", "numpy")
    return folder


def run(bare, code):
    program = f"import sys; sys.path.insert(0, {str(bare)!r})\n{code}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)


def test_the_wheel_holds_neither_records_nor_tests(wheel):
    assert release.check_wheel(wheel).endswith("bytes")


def test_a_wheel_with_tests_or_without_types_is_refused(tmp_path):
    for number, name in enumerate(("tests/test_a.py", "bayesrnn/results/a.json", "bayesrnn/a.py")):
        with zipfile.ZipFile(tmp_path / f"{number}.whl", "w") as archive:
            archive.writestr(name, "")
        with pytest.raises(release.Failed, match=r"lacks \['bayesrnn/py.typed'"):
            release.check_wheel(tmp_path / f"{number}.whl")


def test_versions_that_differ_are_refused(tmp_path, monkeypatch):
    assert release.check_versions().startswith(br.__version__)
    for name in ("CHANGELOG.md", "CITATION.cff", "README.md", "src/bayesrnn/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CITATION.cff").write_text("version: 9.9.9\n")
    with pytest.raises(release.Failed, match=r"CITATION.cff is of version 9.9.9, the package of"):
        release.check_versions()


def test_the_wheel_names_what_it_requires(wheel):
    assert sorted(release.wheel_requirements(wheel)) == ["numpy", "torch"]
    assert {"torch", "typer", "safetensors"} <= set(release.wheel_requirements(wheel, "lab"))
    assert "optuna" not in release.wheel_requirements(wheel, "lab")


def test_the_environment_is_bare(bare):
    for name in ("typer", "pydantic", "pandas", "torchmetrics", "safetensors", "rich", "yaml"):
        assert run(bare, f"import {name}").returncode, name


@pytest.mark.slow
def test_the_readme_example_runs_with_torch_and_numpy_alone(bare):
    code = "\n".join(release.PYTHON.findall((ROOT / "README.md").read_text("utf-8")))
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


def test_a_model_of_the_lab_says_what_to_install(bare, tmp_path):
    br.save(nn.Linear(3, 2), tmp_path / "m", builder="lab")
    done = run(bare, f"import bayesrnn as br\nbr.load({str(tmp_path / 'm')!r})")
    assert done.returncode
    line = done.stderr.splitlines()[-1]
    assert re.search(r"UserError: .*/m needs \w+ to build its module; pip install 'bayesrnn\[lab\]'$", line), line
