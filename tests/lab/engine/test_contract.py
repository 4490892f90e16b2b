"""A mistake in a task of one's own is one line that names the class, the method and what to do."""

import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.tasks.base import TASKS, Task


def _broken(base, **members):
    return type("Mine", (base,), members)


def _with_init(base, change):
    def init(self, recipe, data, device):
        base.__init__(self, recipe, data, device)
        change(self)

    return _broken(base, __init__=init)


MISTAKES = {
    "no super().__init__": (
        lambda base: _broken(base, __init__=lambda self, recipe, data, device: None),
        r"Mine.__init__ does not set recipe; call super\(\).__init__\(recipe, data, device\) first",
    ),
    "no steps": (
        lambda base: _with_init(base, lambda self: delattr(self, "steps")),
        "Mine.__init__ does not set steps; set self.steps to the steps of an epoch",
    ),
    "no module": (
        lambda base: _broken(base, build=staticmethod(lambda recipe, files: None)),
        "Mine.build must return a torch.nn.Module; it returned None",
    ),
    "attach without super": (
        lambda base: _broken(base, attach=lambda self, model: None),
        r"Mine.attach does not keep the model; call super\(\).attach\(model\) in it",
    ),
    "the loss alone": (
        lambda base: _broken(base, objective=lambda self, batch, state: base.objective(self, batch, state)[0]),
        r"Mine.objective must return \(loss, terms, state\).*; it returned a Tensor",
    ),
    "a pair": (
        lambda base: _broken(base, objective=lambda self, batch, state: base.objective(self, batch, state)[:2]),
        r"it returned \(a Tensor, a Terms\)",
    ),
    "another metric": (
        lambda base: _broken(base, metric="valid_mse"),
        r"Mine.validate must return a dict with 'valid_mse' \(Mine.metric\); it returned \['valid_rmse'",
    ),
    "a tensor": (
        lambda base: _broken(base, validate=lambda self: {"valid_rmse": torch.zeros(())}),
        r"Mine.validate must return numbers; valid_rmse is a Tensor, so take float\(...\) of it",
    ),
    "a number": (
        lambda base: _broken(base, validate=lambda self: 0.5),
        "Mine.validate must return a dict of metrics; it returned a float",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(line_recipe, tmp_path, monkeypatch, name):
    change, message = MISTAKES[name]
    monkeypatch.setitem(TASKS, "line", change(TASKS["line"]))
    with pytest.raises(UserError, match=message):
        launch(str(line_recipe), out=tmp_path / "run", reporter=Silent(), device="cpu", overrides=["train.epochs=1"])


def test_a_task_without_sections(line_recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "line", type("Mine", (Task,), {}))
    with pytest.raises(UserError, match=r"The task line \(Mine\) has no `sections`"):
        launch(str(line_recipe), out=tmp_path / "run", reporter=Silent(), device="cpu")
