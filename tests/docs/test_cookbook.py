"""The cookbook: notebooks run in a kernel, and the script for several GPUs on two processes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COOKBOOK = ROOT / "docs/cookbook"
NOTEBOOKS = sorted(COOKBOOK.glob("*.ipynb"))


def test_twelve_pages_five_of_them_notebooks():
    assert len(NOTEBOOKS) == 5
    assert len(list(COOKBOOK.iterdir())) == 12


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_are_committed_without_outputs(page):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(page, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
    assert notebook.cells[0].source.startswith("# ")
    drawn = [cell for cell in notebook.cells if cell.cell_type == "code" and "plt.show()" in cell.source]
    assert all(cell.metadata["mystnb"]["image"]["alt"] for cell in drawn)


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks: importing torch takes longer than most of them."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    client = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=300)
    with client.setup_kernel():
        yield client


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the packages around the kernel
@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_notebooks_run(kernel, page, tmp_path):
    """Each with an empty namespace, in an empty folder."""
    nbformat = pytest.importorskip("nbformat")
    kernel.nb = notebook = nbformat.read(page, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {tmp_path}"))
    kernel.reset_execution_trackers()
    for number, cell in enumerate(notebook.cells):
        kernel.execute_cell(cell, number)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))


@pytest.mark.slow
def test_the_script_for_several_gpus_runs_on_two_processes(tmp_path):
    text = (COOKBOOK / "several-gpus.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    nll = re.fullmatch(r"2 processes, nll per target (-?\d+\.\d{3})\n", done.stdout)
    assert nll
    assert float(nll.group(1)) < 1.5
    assert (tmp_path / "model/model.safetensors").is_file()
