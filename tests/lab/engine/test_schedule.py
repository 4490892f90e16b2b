import pytest
import torch

from bayesrnn.errors import UserError
from bayesrnn.lab.engine import schedule
from bayesrnn.lab.engine.step import Step
from bayesrnn.lab.recipes import load, override
from bayesrnn.lab.recipes.schema import Train
from bayesrnn.lab.tasks.language.task import Language


def test_the_rate_falls_along_half_a_cosine():
    settings = Train(epochs=10, lr=2.0, cosine_from=5)
    rates = [schedule.rate(settings, epoch) for epoch in range(1, 12)]
    assert rates[:5] == [2.0] * 5
    assert rates[7] == pytest.approx(1.0)  # half of the way
    assert rates[10] == pytest.approx(0.0)
    assert [a + b for a, b in zip(rates[5:8], rates[9:6:-1], strict=True)] == pytest.approx([2.0] * 3)
    assert schedule.rate(Train(lr=2.0, decay=0.5, decay_after=2), 4) == 0.5


def trigger_of_the_paper(values, patience):
    """Epochs that are averaged, by the loop of arXiv 1708.02182, algorithm 1."""
    logs, averaged = [], []
    triggered = False
    for value in values:
        averaged.append(triggered)
        if not triggered and len(logs) > patience and value > min(logs[:-patience]):
            triggered = True
        logs.append(value)
    return averaged


@pytest.mark.parametrize("patience", [1, 2, 5])
def test_averaging_starts_where_validation_has_stopped_to_improve(patience):
    values = (
        3 * 0.9 ** torch.arange(60.0) + 0.05 * torch.randn(60, generator=torch.Generator().manual_seed(0))
    ).tolist()
    settings = Train(average_stall=patience)
    found = [schedule.averages(settings, values[: epoch - 1], epoch) for epoch in range(1, 61)]
    assert found == trigger_of_the_paper(values, patience)
    assert any(found)
    assert not schedule.averages(settings, [5.0, 4.0, 3.0, 2.0], 5)


def test_either_trigger_starts_averaging():
    both = Train(average_from=7, average_stall=2)
    falling = [1 / epoch for epoch in range(1, 20)]
    assert [schedule.averages(both, falling[: epoch - 1], epoch) for epoch in (6, 7)] == [False, True]
    assert schedule.averages(both, [1.0, 1.0, 1.0, 2.0], 5)


def test_keys_of_averaging_need_its_start():
    with pytest.raises(UserError, match="average_restarts needs"):
        Train(average_restarts=(3,))


def test_restart_continues_from_the_average(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" ".join(f"w{k * k % 11}" for k in range(90)))
    recipe = override(load("unregularised-medium"), ["hidden=6", "batch_size=3", "window=5", "average_from=1"])
    task = Language(recipe, str(tmp_path), torch.device("cpu"))
    torch.manual_seed(0)
    task.attach(task.build(recipe, task.files()).train())
    step = Step(task, recipe.train)
    before = [p.detach().clone() for p in step.params]
    step.restart_average()  # nothing is averaged yet
    assert all(map(torch.equal, before, step.params))
    step.averaging.fill_(1.0)
    seen = []
    for _ in range(3):
        step()
        seen.append([p.detach().clone() for p in step.params])
    means = [torch.stack(each).mean(0) for each in zip(*seen, strict=True)]
    step.restart_average()
    torch.testing.assert_close(step.params, means, check_layout=False)
    step()
    with step.averaged_weights():
        torch.testing.assert_close(step.params, [p.detach() for p in step.params])
    torch.testing.assert_close(step.moments["average"], [p.detach() for p in step.params])
    assert not step.has_average or float(step.moments["averaged"][0]) == 1
