import importlib.metadata
import math

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab import registry
from bayesrnn.lab.recipes.schema import PosteriorSettings
from bayesrnn.lab.tasks import base
from bayesrnn.lab.tasks.base import TASKS, Minibatches, Task, posterior, recipe_elbo, task_class


def positions(count):
    return [torch.tensor(k) for k in range(count)]


@pytest.mark.parametrize(("last", "steps"), [("drop", 3), ("wrap", 4)])
def test_an_epoch_of_minibatches_has_every_example_once(last, steps):
    x = torch.arange(14)
    batches = Minibatches(x, 10 * x, batch_size=4, last=last)
    assert batches.steps == steps
    orders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        batches.shuffle()
        drawn = [batches(p) for p in positions(steps)]
        assert all(a.shape == (4,) and torch.equal(10 * a, b) for a, b in drawn)
        flat = torch.cat([a for a, _ in drawn]).tolist()
        orders.append(flat)
        if last == "drop":
            assert len(set(flat)) == 12
        else:
            assert set(flat) == set(range(14))
            assert flat[14:] == flat[:2]  # the gap is filled with the first of the order
    assert orders[0] != orders[1]
    torch.manual_seed(0)
    batches.shuffle()
    assert torch.cat([batches(p)[0] for p in positions(steps)]).tolist() == orders[0]


def test_minibatches_of_more_than_there_is():
    assert Minibatches(torch.arange(3), batch_size=7, last="wrap")(torch.tensor(0))[0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(UserError, match="training data have 3 examples, fewer than one batch of 7"):
        Minibatches(torch.arange(3), batch_size=7)
    with pytest.raises(ValueError, match="different numbers"):
        Minibatches(torch.arange(3), torch.arange(4), batch_size=1)
    with pytest.raises(ValueError, match="drop or wrap"):
        Minibatches(torch.arange(3), batch_size=1, last="keep")


class TestPosterior:
    def test_none_is_the_module_itself(self):
        plain = nn.Linear(3, 2)
        assert posterior(plain, PosteriorSettings()) is plain

    @pytest.mark.parametrize("prior", ["mixture", "normal"])
    def test_first_sigmas_are_fractions_of_the_priors(self, prior):
        plain = nn.Sequential()
        plain.rnn, plain.head = nn.LSTM(3, 4), nn.Linear(4, 2)
        settings = PosteriorSettings(kind="bayes_by_backprop", prior=prior, log_sigma1=-1.5)
        q = posterior(plain, settings, recurrent="rnn.*", exclude="head.bias")
        mixed = math.sqrt(0.25 * math.exp(-3) + 0.75 * math.exp(-14))
        sigma = mixed if prior == "mixture" else math.exp(-1.5)
        found = {name: s.detach() / sigma for name, _, s in q.named_posteriors()}
        assert "head.bias" not in found
        assert 0.249 <= found["rnn.weight_hh_l0"].min() <= found["rnn.weight_hh_l0"].max() <= 0.501
        assert 0.499 <= found["head.weight"].min() <= found["head.weight"].max() <= 1.001

    def test_sharpened(self):
        q = posterior(nn.Linear(3, 2), PosteriorSettings(kind="sharpened", sigma0=0.3, init_eta=0.5))
        assert isinstance(q, br.PosteriorSharpening)
        assert q.sigma0 == 0.3
        assert float(q.eta["weight"].detach().max()) == 0.5


class TestObjective:
    @pytest.mark.parametrize("kind", ["none", "bayes_by_backprop", "sharpened"])
    def test_is_the_bound_per_target(self, kind):
        torch.manual_seed(0)
        model = posterior(nn.Linear(3, 4), PosteriorSettings(kind=kind)).train()
        elbo = recipe_elbo(model, br.Categorical(), PosteriorSettings(kind=kind), num_data=100)
        x, y = torch.randn(6, 3), torch.randint(4, (6,))
        terms, output = elbo.evaluate(lambda: (model(x), "state"), y)
        assert output[1] == "state"
        nll = nn.functional.cross_entropy(output[0], y, reduction="sum")
        torch.testing.assert_close(terms.nll, nll)
        torch.testing.assert_close(terms.loss, (nll + terms.sharpening) / 6 + terms.kl / 100)
        assert (float(terms.kl.detach()) != 0) == (kind != "none")
        assert (float(terms.sharpening.detach()) > 0) == (kind == "sharpened")

    def test_dropout_without_a_posterior_has_no_kl(self):
        model = nn.Sequential(br.SequenceDropout(0.5), nn.Linear(3, 4)).train()
        elbo = recipe_elbo(model, br.Categorical(), PosteriorSettings(kind="none"), num_data=100)
        x, y = torch.randn(2, 6, 3), torch.randint(4, (2, 6))
        assert float(elbo.evaluate(lambda: model(x), y)[0].kl) == 0

    def test_both_passes_of_sharpening_see_one_draw(self):
        torch.manual_seed(0)
        model = posterior(nn.Linear(3, 4), PosteriorSettings(kind="sharpened", sigma0=1e-9, init_eta=0.0)).train()
        elbo = recipe_elbo(model, br.Categorical(), PosteriorSettings(kind="sharpened"), num_data=100)
        x, y, outputs = torch.randn(6, 3), torch.randint(4, (6,)), []

        def run():
            outputs.append(model(x))
            return outputs[-1]

        elbo.evaluate(run, y)
        torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)


def test_the_digest_of_a_task_with_nothing_of_its_own():
    class Small(Task):
        def __init__(self, train, valid, test, files):
            self.minibatches = Minibatches(train, batch_size=2)
            self.valid, self.test, self._files = (valid, valid[:0]), test, files
            self.counts = torch.rand(5)  # not data

        def files(self):
            return self._files

    def digest(train=(1, 2), valid=(3.0,), test=(True,), files=b"a"):
        return Small(torch.tensor(train), torch.tensor(valid), torch.tensor(test), {"a": files}).digest()

    assert digest() == digest()
    others = [
        digest(train=(1, 3)),
        digest(valid=(-3.0,)),
        digest(test=(False,)),
        digest(files=b"b"),
        digest(train=(1, 2, 0)),
        digest(train=(1.0, 2.0)),
        digest(train=((1,), (2,))),
    ]
    assert len({digest(), *others}) == 8
    assert Task(None, None, None).digest()


def test_tasks_by_name(monkeypatch):
    from bayesrnn.lab.tasks.language.task import Language

    assert task_class("language") is Language
    with pytest.raises(UserError, match=r"There is no task x; there are captioning, .*language, "):
        task_class("x")

    class Mine(Task):
        metric = "valid_x"

    monkeypatch.setitem(TASKS, "mine", Mine)
    assert task_class("mine") is Mine


@pytest.mark.usefixtures("new_packages")
def test_tasks_of_other_packages(monkeypatch):
    entry = importlib.metadata.EntryPoint("theirs", "bayesrnn.lab.tasks.base:Task", "bayesrnn.tasks")
    asked = []

    def entry_points(**selection):
        asked.append(selection)
        return [entry]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    assert task_class("theirs") is Task
    assert asked == [{"group": "bayesrnn.tasks"}]


def test_evaluating_restores_the_mode():
    model = nn.Dropout(0.5)
    for mode in (True, False):
        model.train(mode)
        with base.evaluating(model):
            assert not model.training
        assert model.training is mode
