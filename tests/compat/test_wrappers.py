"""The KL, draws and objective behind other people's wrappers: compile, data parallelism, sharding, Fabric, proxies."""

from __future__ import annotations

import copy
import io
import pickle
import time
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import bayesrnn as br

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # read by the compiler
    pytest.mark.filterwarnings("ignore:.*barrier.*"),
    pytest.mark.filterwarnings("ignore:.*CUDA.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@contextmanager
def one_process(tmp_path):
    """A process group of one, on loopback."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        # torch frees the group under the interpreter's lock and joins its thread, which may still want that lock.
        time.sleep(0.2)
        dist.destroy_process_group()


class Proxy(nn.Module):
    """Forwards every attribute that it lacks, as many wrappers do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Posing(Proxy):
    """Says that it is what it wraps."""

    @property
    def __class__(self):
        return type(self._modules["inner"])


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.parts = inner, nn.ModuleList([nn.Sequential(inner), inner])

    def forward(self, *args):
        return self.first(*args)


def fabric(q):
    lightning = pytest.importorskip("lightning_fabric")
    return lightning.Fabric(accelerator="cpu", devices=1).setup(q)


WRAPPERS = {
    "compiled": lambda q: torch.compile(q, backend="eager"),
    "compiled twice": lambda q: torch.compile(nn.Sequential(torch.compile(q, backend="eager")), backend="eager"),
    "aot": lambda q: torch.compile(q, backend="aot_eager"),
    "fabric": fabric,
    "data parallel": nn.DataParallel,
    "proxy": Proxy,
    "proxies": lambda q: Proxy(Proxy(nn.Sequential(Proxy(q)))),
    "posing": Posing,
    "twice": Twice,
    "averaged": AveragedModel,
}
MODELS = {
    "gaussian": lambda: br.BayesByBackprop(nn.Linear(4, 3), prior=br.Normal(0.5), init_sigma=0.1),
    "mixture": lambda: br.BayesByBackprop(nn.Linear(4, 3), prior=br.ScaleMixture(0.5, 1.0, 0.1), init_sigma=0.1),
    "dropconnect": lambda: br.DropConnect(nn.Linear(4, 3), 0.3),
    "sharpened": lambda: br.PosteriorSharpening(br.BayesByBackprop(nn.Linear(4, 3), init_sigma=0.1)),
    "dropout": lambda: nn.Sequential(br.LSTM(4, 3, input_dropout=0.2, recurrent_dropout=0.3)),
}


def kl(model):
    with br.draw(model, seed=0):  # an estimated KL is that of the draw
        return br.kl(model).detach()


def gradients(model):
    model.zero_grad()
    with br.draw(model, seed=0):
        br.kl(model).backward()
    return {id(p): p.grad.clone() for p in model.parameters() if p.grad is not None}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ["gaussian", "dropconnect", "dropout"])
def test_the_kl_is_counted_once_behind_every_wrapper(kind, wrapper):
    q = MODELS[kind]()
    wrapped = WRAPPERS[wrapper](q)
    torch.testing.assert_close(kl(wrapped), kl(q), rtol=0, atol=0)
    if wrapper != "averaged":  # which holds a copy
        alone, behind = gradients(q), gradients(wrapped)
        assert alone.keys() == behind.keys()
        assert all(torch.equal(alone[key], behind[key]) for key in alone)


@pytest.mark.parametrize("wrapper", ["compiled", "proxy", "fabric", "twice"])
def test_the_sharpening_kl_is_counted_once(wrapper):
    torch.manual_seed(0)
    s, x, y = MODELS["sharpened"](), torch.randn(5, 4), torch.randint(3, (5,))
    wrapped = WRAPPERS[wrapper](s)
    elbo = br.ELBO(wrapped, br.Categorical(), num_data=100)
    terms, _ = elbo.evaluate(lambda: s(x), y)
    torch.testing.assert_close(terms.sharpening, s.sharpening_kl(), rtol=0, atol=0)
    assert float(terms.sharpening.detach()) > 0


@pytest.mark.parametrize("kind", MODELS)
def test_distributed_data_parallel(kind, tmp_path):
    x = torch.randn(6, 5, 4)
    with one_process(tmp_path):
        q = MODELS[kind]()
        expected = kl(q)
        ddp = nn.parallel.DistributedDataParallel(q)
        torch.testing.assert_close(br.kl(ddp).detach() if kind != "mixture" else kl(q), expected)
        out = ddp(x)
        out = out[0] if isinstance(out, tuple) else out
        terms = br.ELBO(ddp, br.Categorical(), num_data=50)(out, torch.zeros(6, 5, dtype=torch.long))
        terms.loss.backward()
        torch.testing.assert_close(terms.loss, terms.nll / 30 + terms.kl / 50)
        assert all(p.grad is not None for p in q.parameters() if kind != "sharpened")


@pytest.mark.parametrize("kind", ["gaussian", "mixture", "dropconnect"])
def test_fully_sharded(kind, tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    with one_process(tmp_path):
        q = MODELS[kind]()
        plain, expected = copy.deepcopy(q), kl(q)
        fully_shard(q, mesh=init_device_mesh("cpu", (1,)))
        torch.testing.assert_close(kl(q), expected)
        found = []
        for model in (plain, q):
            torch.manual_seed(3)
            terms = br.ELBO(model, br.Categorical(), num_data=50)(model(x), y)
            terms.loss.backward()
            grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
            found.append((terms.loss.detach(), *grads))
        torch.testing.assert_close(*found)


def test_replicas_of_data_parallel_are_refused_by_name():
    replica = MODELS["gaussian"]()._replicate_for_data_parallel()
    with pytest.raises(RuntimeError, match=r"nn\.DataParallel.*use DistributedDataParallel"):
        replica(torch.randn(2, 4))


@pytest.mark.parametrize("wrapper", ["compiled", "aot", "proxy"])
def test_a_linear_model_learns_its_posterior_behind_a_wrapper(wrapper):
    """With y = x w + noise of known sigma, the best sigma of q is 1 / sqrt(1 / s^2 + sum x^2 / noise^2)."""
    torch.manual_seed(0)
    x = torch.randn(30, 1)
    y = 0.7 * x + 0.5 * torch.randn(30, 1)
    q = br.BayesByBackprop(nn.Linear(1, 1, bias=False), prior=br.Normal(1.0), init_sigma=0.3)
    model = WRAPPERS[wrapper](q)
    elbo = br.ELBO(model, br.Gaussian(0.5, learn=False), num_data=30)
    precision = 1 + float(x.square().sum()) / 0.25
    with torch.no_grad():  # at the optimum the mean gradient over draws is 0
        q.module.weight.fill_(float((x * y).sum()) / 0.25 / precision)
        sigma = torch.tensor(precision).rsqrt()
        q.posterior.rho["weight"].fill_(float(torch.log(torch.expm1(sigma))))
    total = torch.zeros(2)
    for _ in range(300):
        q.zero_grad()
        elbo(model(x), y).loss.backward()
        total += torch.stack([q.posterior.rho["weight"].grad.sum(), q.module.weight.grad.sum()]) / 300
    slope = (torch.sigmoid(q.posterior.rho["weight"]) / sigma / 30).item()  # of -log sigma / N
    assert abs(total[0]) < 0.25 * slope
    assert abs(total[1]) < 0.1


@pytest.mark.parametrize("wrapper", ["compiled", "fabric", "data parallel", "averaged"])
def test_pruning_and_means_look_behind_wrappers(wrapper):
    q = MODELS["gaussian"]()
    wrapped = WRAPPERS[wrapper](q)
    assert set(br.signal_to_noise(wrapped)) == {"weight", "bias"}
    assert br.prune(wrapped, 0.5).removed == 8  # of 15
    exported = br.to_torch(wrapped)
    assert type(exported) is nn.Linear
    stream = torch.randn(8, 2, 4)
    found = br.dynamic_evaluation(wrapped, stream, torch.zeros(8, 2, dtype=torch.long), window=4)
    assert type(found.model) is nn.Linear


def test_pruning_something_else_is_refused_in_one_line():
    with pytest.raises(TypeError, match=r"signal-to-noise needs a br\.BayesByBackprop, got Linear"):
        br.prune(torch.compile(nn.Linear(2, 2), backend="eager"), 0.5)


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor


def test_dicts_and_dataclasses_are_refused_with_their_entries():
    q, y = MODELS["gaussian"](), torch.zeros(2, dtype=torch.long)
    elbo = br.ELBO(q, br.Categorical(), num_data=10)
    out = q(torch.randn(2, 4))
    with pytest.raises(TypeError, match=r"got dict: pass one of its tensors \(output\['logits'\], output\['aux'\]\)"):
        elbo({"logits": out, "aux": out}, y)
    with pytest.raises(TypeError, match=r"got Output: pass one of its tensors \(output\.logits, output\.hidden\)"):
        elbo(Output(out, out), y)
    with pytest.raises(TypeError, match="the target must be a tensor"):
        elbo(out, [])
    elbo(Output(out, out).logits, y)


@pytest.mark.parametrize("how", ["vector", "data", "fill", "assign", "swap", "copy"])
@pytest.mark.parametrize("prior", [br.Normal(0.5), br.ScaleMixture(0.5, 1.0, 0.1)])
@pytest.mark.parametrize("size", [6, 300])
def test_the_kl_follows_parameters_changed_by_whatever_means(how, prior, size):
    q, x = br.BayesByBackprop(nn.Linear(size, size), prior=prior, init_sigma=0.1), torch.randn(3, size)
    with br.draw(q, seed=0):
        q(x)
        before = br.kl(q)
        rho = q.posterior.rho["weight"]
        if how == "vector":
            vector = nn.utils.parameters_to_vector(q.parameters()) * 0.5
            nn.utils.vector_to_parameters(vector.detach(), q.parameters())
        elif how == "data":
            rho.data = rho.data - 1
        elif how == "fill":
            rho.data.fill_(-1.5)
        elif how == "assign":
            q.load_state_dict({k: v * 0.5 for k, v in q.state_dict().items()}, assign=True)
        elif how == "swap":
            q.module.weight.data.copy_(q.module.weight.data.flip(0) * 2)
        else:
            q.module.weight.data[0, 0] = 7.0
        found = br.kl(q)
        assert not torch.equal(found, before)
        fresh = copy.deepcopy(q)
    with br.draw(fresh, seed=0):
        torch.testing.assert_close(found, br.kl(fresh), rtol=1e-6, atol=0)


def test_a_replaced_part_is_refused_not_half_random():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head, self.extra = nn.Linear(4, 4), nn.Linear(4, 2), nn.Identity()

        def forward(self, x):
            return self.extra(self.head(self.body(x)))

    def made():
        return br.BayesByBackprop(Net(), exclude="*.bias")

    x = torch.randn(3, 4)
    q = made()
    q.module.head = nn.Linear(4, 2)
    for call in (lambda: q(x), lambda: br.kl(q), lambda: copy.deepcopy(q)(x), lambda: br.predict(q, x, samples=2)):
        with pytest.raises(RuntimeError, match=r"'head\.weight' was added, replaced or re-parametrised after"):
            call()
    q = made()
    q.module.extra = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match=r"'extra\.weight' was added"):
        q(x)
    q = made()
    q.module.extra = nn.Tanh()  # without parameters: welcome
    assert q(x).abs().max() < 1
    q = made()
    nn.utils.parametrizations.weight_norm(q.module.head)
    with pytest.raises(RuntimeError, match=r"head.*after BayesByBackprop wrapped the module"):
        q(x)
    q = made()
    nn.utils.prune.l1_unstructured(q.module.head, "weight", amount=0.5)
    with pytest.raises(RuntimeError, match=r"'head\.weight' of the Bayesian module is gone: pruning"):
        q(x)


@pytest.mark.parametrize("kind", ["gaussian", "mixture", "dropconnect", "sharpened"])
def test_copies_pickles_and_averages_draw_alike(kind):
    q, x = MODELS[kind](), torch.randn(3, 4)
    buffer = io.BytesIO()
    torch.save(q, buffer)
    buffer.seek(0)
    averaged = AveragedModel(q, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averaged.update_parameters(q)
    copies = [copy.deepcopy(q), pickle.loads(pickle.dumps(q)), torch.load(buffer, weights_only=False), averaged.module]
    loaded = MODELS[kind]()
    loaded.load_state_dict(q.state_dict(), assign=True)
    for made in [*copies, loaded]:
        with br.draw(q, seed=1), br.draw(made, seed=1):
            assert torch.equal(q(x), made(x))
            torch.testing.assert_close(br.kl(q), br.kl(made))


def test_meta_and_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        q = br.BayesByBackprop(nn.Linear(4, 3))
    assert q(torch.empty(2, 4, device="meta")).shape == (2, 3)
    assert br.kl(q).device.type == "meta"
    q = br.BayesByBackprop(nn.Linear(4, 3))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert q(torch.empty(2, 4)).shape == (2, 3)
    assert torch.isfinite(br.kl(q))


def test_a_part_added_to_dropconnect_is_refused():
    q = br.DropConnect(nn.Sequential(nn.Linear(4, 3)))
    q.module.append(nn.Linear(3, 3))
    for call in (lambda: q(torch.randn(2, 4)), lambda: br.kl(q)):
        with pytest.raises(RuntimeError, match=r"'1\.weight' was added"):
            call()


def test_sharded_parts_are_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with one_process(tmp_path):
        q = br.BayesByBackprop(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
        fully_shard(q.module[0], mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(RuntimeError, match=r"fully_shard was applied to a part"):
            q(torch.randn(2, 4))


def test_what_is_no_module_is_refused_by_name():
    def function(x):
        return x

    for call in (br.kl, lambda f: br.draw(f).__enter__(), lambda f: br.mean(f).__enter__(), lambda f: br.predict(f, 1)):
        with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
            call(function)
