"""Which weights become random, where drawn weights go, what is refused, and a posterior of one's own."""

import copy
import io
import pickle
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Laplace, kl_divergence
from torch.utils.checkpoint import checkpoint

import bayesrnn as br


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.rnn = nn.LSTM(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def names(q):
    return [name for name, _, _ in q.named_posteriors()]


def test_names_are_the_modules_own_in_its_order():
    module = nn.Sequential(nn.Linear(3, 4), nn.LSTM(4, 2, num_layers=2, bidirectional=True))
    q = br.BayesByBackprop(module, init_sigma=0.03)
    assert names(q) == [n for n, _ in module.named_parameters()]
    for (_, mean, sigma), parameter in zip(q.named_posteriors(), module.parameters(), strict=True):
        assert torch.equal(mean, parameter)
        torch.testing.assert_close(sigma, torch.full_like(parameter, 0.03))


def test_tied_weights_are_one_weight_in_both_places():
    q = br.BayesByBackprop(Tied(), init_sigma=0.5)
    assert Counter(names(q))["embed.weight"] == 1
    assert "head.weight" not in names(q)
    seen = []

    def hook(module, *_):
        seen.append(module.weight)

    q.module.embed.register_forward_hook(hook)
    q.module.head.register_forward_hook(hook)
    q(torch.zeros(3, 2, dtype=torch.long))
    assert seen[0] is seen[1]
    assert not torch.equal(seen[0], q.module.embed.weight)
    assert q.module.head.weight is q.module.embed.weight


@pytest.mark.parametrize("pattern", ["embed.weight", "head.weight", ["embed.weight", "head.weight"]])
def test_excluding_one_name_of_a_tied_weight_excludes_the_weight(pattern):
    q = br.BayesByBackprop(Tied(), init_sigma=0.5, exclude=pattern)
    assert "embed.weight" not in names(q)
    assert "head.weight" not in names(q)
    assert "head.bias" in names(q)


@pytest.mark.parametrize("pattern", ["embed.weight", "head.weight"])
def test_including_one_name_of_a_tied_weight_includes_the_weight(pattern):
    q = br.BayesByBackprop(Tied(), init_sigma=0.5, include=pattern)
    assert names(q) == [pattern]
    with q.placed({pattern: torch.zeros(7, 4)}):
        assert not q.module.embed.weight.any()
        assert not q.module.head.weight.any()


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (None, None, {"0.weight", "0.bias", "1.weight", "1.bias"}),
        ("0.*", None, {"0.weight", "0.bias"}),
        (None, "*.bias", {"0.weight", "1.weight"}),
        ("*.weight", "1.*", {"0.weight"}),
        (["0.bias", "1.bias"], None, {"0.bias", "1.bias"}),
    ],
)
def test_include_and_exclude_by_pattern(include, exclude, expected):
    q = br.BayesByBackprop(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), include=include, exclude=exclude)
    assert set(names(q)) == expected
    ordinary = {n for n, _ in q.module.named_parameters()} - expected
    q(torch.ones(1, 2)).sum().backward()
    assert all(q.module.get_parameter(n).grad is not None for n in ordinary)


def test_frozen_parameters_are_left_alone_unless_named():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    q = br.BayesByBackprop(module)
    assert names(q) == ["1.weight", "1.bias"]
    assert not q.module[0].weight.requires_grad
    assert names(br.BayesByBackprop(module, include="0.weight")) == ["0.weight"]


def test_the_given_module_is_copied_and_left_as_it_was():
    module = Tied()
    before = copy.deepcopy(module.state_dict())
    q = br.BayesByBackprop(module, init_sigma=0.5)
    optimiser = torch.optim.SGD(q.parameters(), lr=0.1)
    (q(torch.zeros(3, 2, dtype=torch.long)).sum() + br.kl(q)).backward()
    optimiser.step()
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert not any(k.startswith("_bayesrnn") for m in module.modules() for k in m.__dict__)


def test_weights_go_back_to_their_places_also_after_an_error():
    q = br.BayesByBackprop(nn.Sequential(nn.LSTM(3, 2)), init_sigma=0.5)
    lstm, parameters = q.module[0], dict(q.module[0].named_parameters())
    with pytest.raises((RuntimeError, ValueError)):
        q(torch.ones(2, 1, 9))
    assert dict(lstm.named_parameters()) == parameters
    assert all(a is b for a, b in zip(lstm._flat_weights, parameters.values(), strict=True))


class Wrapped(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


class FullyShardedDataParallel(Wrapped):
    """Found by its name: torch's own needs a process group."""


class DistributedDataParallel(Wrapped):
    """As above."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_refuses_what_it_cannot_convert():
    linear = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"Bayesian already"):
        br.BayesByBackprop(nn.Sequential(br.BayesByBackprop(linear)))
    with pytest.raises(TypeError, match=r"Bayesian already"):
        br.BayesByBackprop(br.PosteriorSharpening(br.BayesByBackprop(linear)))
    for made in (FullyShardedDataParallel(linear), DistributedDataParallel(linear), nn.DataParallel(linear)):
        with pytest.raises(TypeError, match="wrap the module inside it first"):
            br.BayesByBackprop(made)
    with pytest.raises(TypeError, match="OptimizedModule"):
        br.BayesByBackprop(nn.Sequential(torch.compile(linear)))
    with pytest.raises(TypeError, match="lazy parameters"):
        br.BayesByBackprop(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(TypeError, match="TorchScript"):
        br.BayesByBackprop(torch.jit.script(linear))
    with pytest.raises(TypeError, match=r"module '0' is TorchScript"):
        br.BayesByBackprop(nn.Sequential(torch.jit.script(linear)))
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got list"):
        br.BayesByBackprop([linear])
    with pytest.raises(TypeError, match="complex64"):
        br.BayesByBackprop(nn.Linear(2, 2, dtype=torch.complex64))


def test_refuses_when_nothing_is_left():
    with pytest.raises(ValueError, match="no trainable parameter"):
        br.BayesByBackprop(nn.ReLU())
    with pytest.raises(ValueError, match="no trainable parameter"):
        br.BayesByBackprop(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match="no trainable parameter"):
        br.BayesByBackprop(nn.Linear(2, 2), exclude="*")


def test_a_pattern_without_a_match_is_an_error_with_a_hint():
    module = nn.Sequential()
    module.add_module("encoder", nn.LSTM(2, 3))
    with pytest.raises(
        ValueError, match=r"no parameter matches 'encoder.weight_hh_0'; did you mean 'encoder.weight_hh_l0'"
    ):
        br.BayesByBackprop(module, include="encoder.weight_hh_0")
    with pytest.raises(ValueError, match=r"no parameter matches 'head.bias'"):
        br.BayesByBackprop(module, exclude=["*bias*", "head.bias"])


def test_parameters_of_mixed_dtype_are_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="share one dtype and device"):
        br.BayesByBackprop(module)
    assert names(br.BayesByBackprop(module, include="0.*")) == ["0.weight", "0.bias"]


@pytest.mark.parametrize("name", ["items", "named", "rho", "posterior", "mean", "weights"])
def test_any_name_of_a_submodule_will_do(name):
    module = nn.Module()
    module.add_module(name, nn.Linear(2, 2))
    assert names(br.BayesByBackprop(module)) == [f"{name}.weight", f"{name}.bias"]


def test_parameter_lists_and_parametrised_weights():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.all = nn.ParameterList([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))])
            self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))

        def forward(self, x):
            return self.linear(x * self.all[0] + self.all[1])

    q = br.BayesByBackprop(Listed(), init_sigma=0.5)
    assert {"all.0", "all.1", "linear.parametrizations.weight.original0"} <= set(names(q))
    assert not torch.equal(q(torch.ones(2)), q(torch.ones(2)))


def test_mean_module_is_a_plain_copy_at_the_means():
    q = br.BayesByBackprop(Tied(), init_sigma=0.5)
    plain = q.mean_module()
    assert type(plain) is Tied
    assert plain.head.weight is plain.embed.weight
    x = torch.arange(6).view(3, 2)
    torch.testing.assert_close(plain(x), q.eval()(x))
    with torch.no_grad():
        plain.embed.weight.zero_()
    assert q.module.embed.weight.any()
    with br.draw(q):
        inside = q.train().mean_module()
    torch.testing.assert_close(inside(x), q.eval()(x))


@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy", "save"])
def test_round_trips_give_the_same_draws(how):
    make = lambda: br.BayesByBackprop(Tied(), prior=br.ScaleMixture(0.5, 1.0, 0.1), init_sigma=(0.1, 0.5))  # noqa: E731
    q, x = make(), torch.arange(6).view(3, 2)
    q(x)  # with a draw still current
    if how == "state_dict":
        other = make()
        other.load_state_dict(q.state_dict())
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(q))
    elif how == "deepcopy":
        other = copy.deepcopy(q)
    else:
        file = io.BytesIO()
        torch.save(q, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    for model in (q, other):
        assert model.module.head.weight is model.module.embed.weight
    with br.draw(q, seed=1), br.draw(other, seed=1):
        torch.testing.assert_close(q(x), other(x))
        torch.testing.assert_close(br.kl(q), br.kl(other))
    with torch.no_grad():  # and nothing is shared
        for parameter in other.parameters():
            parameter.zero_()
    assert q.module.embed.weight.any()


def test_state_dict_keys_read_like_the_module():
    keys = set(br.BayesByBackprop(nn.LSTM(2, 3)).state_dict())
    assert "module.weight_hh_l0" in keys
    assert "posterior.rho.weight_hh_l0" in keys
    assert len(keys) == 8


class LaplacePosterior(nn.Module):
    """A posterior that is not in the library: Laplace weights, Laplace prior, closed-form KL."""

    def __init__(self, weights):
        super().__init__()
        self.log_scale = nn.ParameterList([nn.Parameter(torch.full_like(w.mean, -3.0)) for w in weights])
        self.names = [w.name for w in weights]

    def noise(self, generator):
        uniform = [torch.rand(s.shape, generator=generator) - 0.5 for s in self.log_scale]
        return [-u.sign() * torch.log1p(-2 * u.abs()) for u in uniform]

    def weights(self, means, noise):
        return {n: means[n] + s.exp() * e for n, s, e in zip(self.names, self.log_scale, noise, strict=True)}

    def kl(self, means, noise):
        terms = (kl_divergence(Laplace(means[n], s.exp()), Laplace(torch.zeros_like(s), torch.ones_like(s)))
                 for n, s in zip(self.names, self.log_scale, strict=True))  # fmt: skip
        return sum(term.sum() for term in terms)


def test_a_posterior_of_ones_own():
    torch.manual_seed(0)
    q = br.Bayesian(nn.LSTM(3, 4), LaplacePosterior, exclude="bias_*")
    x = torch.randn(5, 2, 3)
    with br.draw(q, seed=1):
        first = q(x)[0]
        again = q(x)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, q(x)[0])
    torch.testing.assert_close(q.eval()(x)[0], q.mean_module()(x)[0])
    expected = sum(
        kl_divergence(Laplace(q.means[n], s.exp()), Laplace(0.0, 1.0)).sum()
        for n, s in zip(q.posterior.names, q.posterior.log_scale, strict=True)
    )
    torch.testing.assert_close(br.kl(q), expected)
    terms = br.ELBO(q, br.Gaussian(), num_data=100)(q.train()(x), torch.zeros(5, 2, 4))
    terms.loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in q.posterior.parameters())
    assert br.predict(q, x, samples=3, seed=0, likelihood=br.Gaussian()).samples.shape == (3, 5, 2, 4)


def test_functional_use_of_weights_inside_forward():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 3))

        def forward(self, x):
            return F.linear(x, self.w)

    q = br.BayesByBackprop(Functional(), init_sigma=0.5)
    assert not torch.equal(q(torch.ones(3)), q(torch.ones(3)))
    assert torch.equal(q.eval()(torch.ones(3)), torch.full((2,), 3.0))


class Checkpointed(nn.Module):
    def __init__(self, reentrant=False):
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 2), reentrant

    def forward(self, x):
        return checkpoint(lambda v: self.b(self.a(v).tanh()), x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_inside_is_refused(reentrant):
    q = br.BayesByBackprop(Checkpointed(reentrant), init_sigma=0.5)
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"around the whole Bayesian module"):
        q(x)
    before = q.module.a.weight
    assert q.means["a.weight"] is before  # the means are back in place
    assert br.predict(q, x, samples=3).samples.shape == (3, 3, 2)  # nothing is differentiated there
    q.eval()(x).sum().backward()  # the mean needs nothing put in place
    assert q.module.a.weight.grad.abs().sum() > 0


def test_reentrant_checkpointing_elsewhere_is_left_alone():
    module, x = Checkpointed(reentrant=True), torch.randn(3, 4, requires_grad=True)
    q = br.BayesByBackprop(nn.Linear(2, 2))
    q(module(x)).sum().backward()  # beside a Bayesian module
    assert module.a.weight.grad.abs().sum() > 0
    frozen = br.BayesByBackprop(Checkpointed(reentrant=True), init_sigma=0.5)
    with torch.no_grad():
        assert frozen(x).shape == (3, 2)  # nothing is differentiated
    with pytest.raises(RuntimeError, match="around the whole Bayesian module"):
        checkpoint(frozen, x, use_reentrant=True).sum().backward()  # one inside another


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("seed", [None, 1])
def test_activation_checkpointing_around_the_whole_module(seed, reentrant):
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LSTM(4, 2))
    q, x = br.BayesByBackprop(module, init_sigma=0.5), torch.randn(5, 3, 4, requires_grad=True)
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        q.zero_grad()
        with nullcontext() if seed is None else br.draw(q, seed=seed):
            out = checkpoint(q, x, use_reentrant=reentrant)[0] if again else q(x)[0]
            out.square().sum().backward()
            found.append([p.grad for p in q.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_saved_tensors_may_be_moved_around_the_whole_module():
    q, x = br.BayesByBackprop(Checkpointed().a, init_sigma=0.5), torch.randn(3, 4)
    with torch.autograd.graph.save_on_cpu(), br.draw(q, seed=0):
        q(x).sum().backward()
    assert q.module.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["type", "half", "float", "_leaves"])
def test_parts_named_as_something_of_every_module(name):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self._modules[name] = nn.Linear(3, 2)  # as `self.type = …` does

        def forward(self, x):
            return self._modules[name](x)

    q, x = br.BayesByBackprop(Named(), init_sigma=0.5), torch.randn(4, 3)
    assert f"posterior.rho.{name}.weight" in q.state_dict()
    with br.draw(q, seed=0):
        q(x).sum().backward()
    assert all(p.grad is not None for p in q.parameters())
    again = copy.deepcopy(q).double()
    again.load_state_dict(q.state_dict())
    assert {p.dtype for p in again.parameters()} == {torch.float64}
