"""Diagonal Gaussian weights in torch operations, their noise, and buffers that are never shared."""

import copy
import math
import pickle
import threading

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.kernels.cpu import memory
from bayesrnn.kernels.cpu.memory import Pool
from bayesrnn.kernels.gaussian import noise as noises
from bayesrnn.kernels.gaussian import reference, sampling
from bayesrnn.kernels.gaussian.plan import DrawSpec, KernelPrior


def problem(shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    means = [normal(s).requires_grad_() for s in shapes]
    rhos = [(normal(s) - 2).requires_grad_() for s in shapes]
    return means, rhos, [normal(s) for s in shapes], [normal(s) for s in shapes]


def objective(sample, cotangents):
    total = sum((w.sin() * c).sum() for w, c in zip(sample.weights, cotangents, strict=True))
    total = total + 0.3 * sample.log_sigma - 1.7 * sample.sigma_squared
    return total + sum((s.sqrt() * torch.arange(1, s.numel() + 1).view(s.shape)).sum() for s in sample.squares)


def leaves(sample):
    return [*sample.weights, sample.log_sigma, sample.sigma_squared, *sample.squares]


@pytest.mark.parametrize("groups", [None, [1, None], [0, None]])
def test_gradients_match_finite_differences(groups):
    means, rhos, noise, _ = problem([(3, 2), (4,)])

    def f(*params):
        return tuple(leaves(reference.sample(params[:2], params[2:], noise, groups)))

    assert torch.autograd.gradcheck(f, (*means, *rhos))


def test_without_sums_the_weights_are_the_same():
    means, rhos, noise, _ = problem([(5, 3), (6,)])
    a, b = (reference.sample(means, rhos, noise, sums=s) for s in (True, False))
    torch.testing.assert_close(a.weights, b.weights)


def test_sums_of_many_small_sigmas_in_float32_are_those_of_float64():
    means, rhos, noise, _ = problem([(301, 257)], torch.float32)
    for shift in (0.0, -15.0, -30.0):
        moved = [r.detach() + shift for r in rhos]
        found = reference.sample(means, moved, noise, [1])
        exact = reference.sample(*([t.detach().double() for t in ts] for ts in (means, moved, noise)), [1])
        for a, b in zip(leaves(found), leaves(exact), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [-1e4, -200.0, -80.0, -20.0, 0.0, 20.0, 200.0])
def test_extreme_sigmas_give_finite_values_and_the_right_slope(rho, dtype):
    mean = torch.zeros(3, dtype=dtype, requires_grad=True)
    raw = torch.full((3,), rho, dtype=dtype, requires_grad=True)
    sample = reference.sample([mean], [raw], [torch.ones(3, dtype=dtype)])
    (slope,) = torch.autograd.grad(sample.log_sigma, raw)
    assert all(torch.isfinite(part).all() for part in leaves(sample))
    # d log softplus / d rho = sigmoid / softplus, which tends to 1 as rho -> -inf
    exact = 1.0 if rho < -30 else 1 / (1 + math.exp(-rho)) / (math.log1p(math.exp(rho)) if rho < 30 else rho)
    torch.testing.assert_close(slope, torch.full_like(slope, exact), rtol=1e-5, atol=0)


def test_parameters_without_elements_are_harmless():
    means, rhos, noise, _ = problem([(4, 0), (0, 3), (2, 2)])
    sample = reference.sample(means, rhos, noise, [1, 0, 1])
    torch.testing.assert_close(sample.weights[2], means[2] + torch.nn.functional.softplus(rhos[2]) * noise[2])
    assert torch.isfinite(objective(sample, noise))


@pytest.mark.parametrize("changed", ["posterior.rho.weight", "module.weight"])
def test_parameters_changed_between_draw_and_backward_are_noticed(changed):
    q = br.BayesByBackprop(nn.Linear(3, 2), br.ScaleMixture(0.5, 1.0, 0.1))
    loss = q(torch.ones(1, 3)).sum() + br.kl(q)
    with torch.no_grad():
        q.get_parameter(changed).add_(0.1)
    with pytest.raises(RuntimeError, match="changed between the draw and its backward"):
        loss.backward()


def made_noise(shapes, generator):
    """Standard normal tensors of these shapes, by the path that this device has for them."""
    nothing = (None,) * len(shapes)
    names, device = tuple(map(str, range(len(shapes)))), torch.device("cpu")
    spec = DrawSpec(names, shapes, nothing, nothing, torch.float32, device, KernelPrior("none"))
    made = sampling.noise(torch.empty(0), lambda: spec, generator, pool=Pool())
    return made.tensors(spec) if isinstance(made, sampling.Seeded) else made


@pytest.mark.parametrize("compile", ["0", "1"])
def test_noise_is_standard_normal_and_independent_across_blocks(compile, monkeypatch):
    monkeypatch.setenv("BAYESRNN_COMPILE", compile)
    # 1.3e6 numbers in three blocks: the mean's standard error is 9e-4, the variance's 1.2e-3. Limits at 5 standard
    # errors: a true run fails with probability < 2e-6 each; a shift or scale error of 1% is caught with power > 0.999.
    shapes = (noises._NOISE_BLOCK + 7,), (noises._NOISE_BLOCK * 3 // 2,)
    buffers = made_noise(shapes, torch.Generator().manual_seed(1))
    x = torch.cat(buffers)
    n = x.numel()
    assert abs(float(x.mean())) < 5 / math.sqrt(n)
    assert abs(float(x.var()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((x**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    block = noises._NOISE_BLOCK
    correlation = float((buffers[0][:block] * buffers[1][:block]).mean())
    assert abs(correlation) < 5 / math.sqrt(block)


@pytest.mark.parametrize("compile", ["0", "1"])
def test_noise_depends_on_the_generator_alone_not_on_the_number_of_threads(compile, monkeypatch):
    monkeypatch.setenv("BAYESRNN_COMPILE", compile)

    def make(threads):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return made_noise(((noises._NOISE_BLOCK * 2 + 5,), (11,)), torch.Generator().manual_seed(3))

    for a, b in zip(make(1), make(3), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("compile", ["0", "1"])
def test_noise_follows_torch_manual_seed(compile, monkeypatch):
    monkeypatch.setenv("BAYESRNN_COMPILE", compile)

    def make():
        torch.manual_seed(5)
        return made_noise(((100,),), None)[0]

    a, b = make(), make()
    assert torch.equal(a, b)
    assert not torch.equal(made_noise(((100,),), None)[0], b)


@pytest.fixture
def pools_small_memory(monkeypatch):
    """Small memory too, which is otherwise made anew."""
    monkeypatch.setattr(memory, "_SMALL", 0)


@pytest.mark.usefixtures("pools_small_memory")
def test_pool_hands_memory_out_again_only_when_nobody_holds_it():
    pool, like = Pool(), torch.empty(())
    first = pool.take((4, 5), like)
    pointer = first.data_ptr()
    second = pool.take((4, 5), like)
    assert second.data_ptr() != pointer
    part = first[1]  # a view keeps the memory
    del first
    assert pool.take((20,), like).data_ptr() not in (pointer, second.data_ptr())
    del part
    assert pool.take((20,), like).data_ptr() == pointer
    array = pool.take((20,), like).numpy()  # so does an array
    array[:] = 3
    others = [pool.take((20,), like).fill_(0) for _ in range(4)]
    assert (array == 3).all()
    assert len({o.data_ptr() for o in others} | {second.data_ptr()}) == 5


def test_pool_keeps_dtypes_and_sizes_apart():
    pool = Pool()
    a = pool.take((3,), torch.empty((), dtype=torch.float64))
    assert a.dtype == torch.float64
    del a
    assert pool.take((3,), torch.empty(())).dtype == torch.float32
    assert pool.take((2, 0), torch.empty(())).shape == (2, 0)


@pytest.mark.usefixtures("pools_small_memory")
def test_pool_is_not_copied_or_saved_with_its_buffers():
    pool = Pool()
    pool.take((1000,), torch.empty(()))
    assert copy.deepcopy(pool)._buffers == []
    assert pickle.loads(pickle.dumps(pool))._buffers == []
    pool.clear()
    assert pool._buffers == []


def test_pool_in_inference_mode_leaves_no_inference_tensors_behind():
    q = br.BayesByBackprop(nn.Linear(4, 3))
    with torch.inference_mode():
        q(torch.ones(2, 4))
    q(torch.ones(2, 4)).sum().backward()
    assert torch.isfinite(q.posterior.rho["weight"].grad).all()


@pytest.mark.usefixtures("pools_small_memory")
def test_pool_under_threads_never_gives_one_buffer_to_two():
    pool, like, clashes = Pool(), torch.empty(()), []

    def work(k):
        for _ in range(300):
            mine = pool.take((64,), like).fill_(k)
            yours = pool.take((64,), like).fill_(-k)
            if not (bool((mine == k).all()) and bool((yours == -k).all())):
                clashes.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert clashes == []


def gradients_with_fresh_memory(q, seeds, x):
    """The summed gradient over draws, each on a copy of q that has never reused a buffer."""
    total = None
    for seed in seeds:
        one = copy.deepcopy(q)
        with br.draw(one, seed=seed):
            (one(x).square().sum() + br.kl(one)).backward()
        grads = [p.grad for p in one.parameters()]
        total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
    return total


@pytest.mark.parametrize("prior", [br.Normal(0.3), br.ScaleMixture(0.5, 1.0, 0.1)])
def test_accumulated_gradients_and_draws_alive_together_are_right(prior):
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)), prior=prior).double()
    x, seeds = torch.randn(3, 6, dtype=torch.float64), [1, 2, 3, 4]
    wanted = gradients_with_fresh_memory(q, seeds, x)

    for seed in seeds:  # one after the other, accumulating
        with br.draw(q, seed=seed):
            (q(x).square().sum() + br.kl(q)).backward()
    torch.testing.assert_close([p.grad for p in q.parameters()], wanted)

    q.zero_grad()
    losses = []
    for seed in seeds:  # all alive at once, backward at the end in another order
        with br.draw(q, seed=seed):
            losses.append(q(x).square().sum() + br.kl(q))
    for loss in reversed(losses):
        loss.backward()
    torch.testing.assert_close([p.grad for p in q.parameters()], wanted)

    q.zero_grad(set_to_none=False)
    for seed in seeds:  # into gradient tensors that are there already, with predictions in between
        with br.draw(q, seed=seed):
            loss = q(x).square().sum() + br.kl(q)
        with torch.no_grad():
            q(x)
        copy.deepcopy(q)
        loss.backward()
    torch.testing.assert_close([p.grad for p in q.parameters()], wanted)
