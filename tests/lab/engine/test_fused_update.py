"""The fused update of a step makes the same step as torch's operations; on a CPU with the kernel's plain version."""

import pytest
import torch
from torch.testing import assert_close

from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.tasks.language import task as language

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])]
CASES = {
    "plain": ("unregularised-medium", ["clip=0.05"]),
    "decay": ("unregularised-medium", ["clip=null", "weight_decay=1e-2"]),
    "averaged": ("brnn-medium", ["clip=0.05", "average_from=1"]),
    "sharpened": ("brnn-sharpened-medium", ["clip=0.05", "eta_clip=1e-3"]),
    "sharpened, not clipped": ("brnn-sharpened-medium", ["clip=5"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("text")
    words = torch.randint(10, (120,), generator=torch.Generator().manual_seed(1)).tolist()
    for split in ("train", "valid", "test"):
        (path / f"{split}.txt").write_text(" ".join(f"w{word}" for word in words))
    return str(path)


def steps(folder, name, overrides, device, *, fused, count=4):
    """Parameters, rates of sharpening and totals after a few steps, and how far the rates have gone."""
    given = dict(o.split("=") for o in overrides)
    eta_clip = float(given.pop("eta_clip", 0.1))
    settings = [f"{k}={v}" for k, v in given.items()]
    recipe = override(load(name), ["hidden=6", "batch_size=3", "window=5", "precision=fp32", *settings])
    task = language.Language(recipe, folder, torch.device(device))
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).to(device).train())
    step = Step(task, recipe.train, eta_clip=eta_clip, graph=False)
    assert step.fused is (device == "cuda")
    step.fused = fused
    step.lr.fill_(0.5)
    step.averaging.fill_(1.0)
    before = [eta.detach().clone() for eta in step.etas]
    torch.manual_seed(1)
    for _ in range(count):
        step()
    moved = [(new.detach() - old).norm() for old, new in zip(before, step.etas, strict=True)]
    average = step.moments.get("average", [])
    kept = [p.detach().clone() for p in [*step.params, *step.etas, *average]]
    return kept, step.read_totals(), float(torch.stack(moved).norm()) if moved else None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_a_fused_step_is_the_step(case, device, folder):
    name, overrides = CASES[case]
    ours, totals, moved = steps(folder, name, overrides, device, fused=True)
    theirs, wanted, also_moved = steps(folder, name, overrides, device, fused=False)
    assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert totals == pytest.approx(wanted, rel=1e-4)
    assert moved == (None if also_moved is None else pytest.approx(also_moved, rel=1e-3))
    assert moved is None or moved > 0
