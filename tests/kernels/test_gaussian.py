"""Diagonal Gaussian weights: the fused version against the plain one, and buffers that are never shared."""

import copy
import math
import pickle
import threading

import pytest
import torch
from torch import nn

import bayesrnn as br
from bayesrnn.kernels.gaussian import fused, reference
from bayesrnn.kernels.gaussian.pool import Pool

# around the block of elements that is worked on at a time, and odd shapes
SHAPES = [(1,), (7,), (3, 5), (2, 3, 4), (fused._BLOCK - 1,), (fused._BLOCK,), (fused._BLOCK + 3,), (3, fused._BLOCK)]


def problem(shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    means = [normal(s).requires_grad_() for s in shapes]
    rhos = [(normal(s) - 2).requires_grad_() for s in shapes]
    return means, rhos, [normal(s) for s in shapes], [normal(s) for s in shapes]


def objective(weights, sums, cotangents):
    return sum((w.sin() * c).sum() for w, c in zip(weights, cotangents, strict=True)) + 0.3 * sums[0] - 1.7 * sums[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_fused_equals_reference_in_values_and_gradients(shape):
    means, rhos, noise, cotangents = problem([shape, (4,)])
    expected, expected_sums = reference.sample(means, rhos, noise)
    wanted = torch.autograd.grad(objective(expected, expected_sums, cotangents), [*means, *rhos])
    weights, sums = fused.sample(means, rhos, noise, pool=Pool())
    found = torch.autograd.grad(objective(weights, sums, cotangents), [*means, *rhos])
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(sums, expected_sums)
    torch.testing.assert_close(found, wanted)


def test_fused_gradients_match_finite_differences():
    means, rhos, noise, _ = problem([(3, 2), (4,)])

    def f(*params):
        weights, sums = fused.sample(params[:2], params[2:], noise, pool=Pool())
        return (*weights, sums)

    assert torch.autograd.gradcheck(f, (*means, *rhos))


def test_gradients_where_only_some_outputs_are_used():
    means, rhos, noise, cotangents = problem([(5,), (6,)])
    weights, sums = fused.sample(means, rhos, noise, pool=Pool())
    plain, plain_sums = reference.sample(means, rhos, noise)
    for a, b in [((weights[0] * cotangents[0]).sum(), (plain[0] * cotangents[0]).sum()), (sums[0], plain_sums[0])]:
        found = torch.autograd.grad(a, [*means, *rhos], allow_unused=True, retain_graph=True)
        wanted = torch.autograd.grad(b, [*means, *rhos], allow_unused=True, retain_graph=True)
        for x, y, like in zip(found, wanted, [*means, *rhos], strict=True):
            zero = torch.zeros_like(like)
            torch.testing.assert_close(zero if x is None else x, zero if y is None else y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [-1e4, -200.0, -80.0, -20.0, 0.0, 20.0, 200.0])
def test_extreme_sigmas_give_finite_values_and_the_right_slope(rho, dtype):
    mean = torch.zeros(3, dtype=dtype, requires_grad=True)
    raw = torch.full((3,), rho, dtype=dtype, requires_grad=True)
    (weight,), sums = fused.sample([mean], [raw], [torch.ones(3, dtype=dtype)], pool=Pool())
    (slope,) = torch.autograd.grad(sums[0], raw)
    assert torch.isfinite(weight).all()
    assert torch.isfinite(sums).all()
    # d log softplus / d rho = sigmoid / softplus, which tends to 1 as rho -> -inf
    exact = 1.0 if rho < -30 else 1 / (1 + math.exp(-rho)) / (math.log1p(math.exp(rho)) if rho < 30 else rho)
    torch.testing.assert_close(slope, torch.full_like(slope, exact), rtol=1e-5, atol=0)


@pytest.mark.parametrize("layout", ["transposed", "channels_last"])
def test_parameters_in_any_memory_layout(layout):
    shape = (3, 4) if layout == "transposed" else (2, 3, 4, 5)
    base = torch.randn(shape, dtype=torch.float64)
    base = base.t() if layout == "transposed" else base.contiguous(memory_format=torch.channels_last)
    mean, rho = base.clone().requires_grad_(), (base - 1).requires_grad_()
    noise = [torch.randn(mean.shape, dtype=torch.float64)]
    (a,), _ = fused.sample([mean], [rho], noise, pool=Pool())
    (b,), _ = reference.sample([mean], [rho], noise)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(
        torch.autograd.grad(a.square().sum(), [mean, rho]), torch.autograd.grad(b.square().sum(), [mean, rho])
    )


def test_a_second_backward_through_the_same_draw_gives_the_same_gradient():
    means, rhos, noise, cotangents = problem([(300,)])
    weights, sums = fused.sample(means, rhos, noise, pool=Pool())
    loss = objective(weights, sums, cotangents)
    first = [g.clone() for g in torch.autograd.grad(loss, [*means, *rhos], retain_graph=True)]
    again = torch.autograd.grad(loss, [*means, *rhos])
    torch.testing.assert_close(list(again), first)


def test_double_backward_is_refused():
    means, rhos, noise, _ = problem([(3,)])
    (weight,), _ = fused.sample(means, rhos, noise, pool=Pool())
    (g,) = torch.autograd.grad(weight.square().sum(), rhos, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_parameters_changed_between_draw_and_backward_are_noticed():
    q = br.BayesByBackprop(nn.Linear(3, 2))
    loss = q(torch.ones(1, 3)).sum()
    with torch.no_grad():
        q.posterior.rho["weight"].add_(0.1)
    with pytest.raises(RuntimeError, match="changed between the draw and its backward"):
        loss.backward()


def test_noise_is_standard_normal_and_independent_across_blocks():
    # 1.3e6 numbers in three blocks: the mean's standard error is 9e-4, the variance's 1.2e-3. Limits at 5 standard
    # errors: a true run fails with probability < 2e-6 each; a shift or scale error of 1% is caught with power > 0.999.
    buffers = [torch.empty(fused._NOISE_BLOCK + 7), torch.empty(fused._NOISE_BLOCK * 3 // 2)]
    fused.normal_noise(buffers, torch.Generator().manual_seed(1))
    x = torch.cat(buffers)
    n = x.numel()
    assert abs(float(x.mean())) < 5 / math.sqrt(n)
    assert abs(float(x.var()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((x**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    block = fused._NOISE_BLOCK
    correlation = float((buffers[0][:block] * buffers[1][:block]).mean())
    assert abs(correlation) < 5 / math.sqrt(block)


def test_noise_depends_on_the_generator_alone_not_on_the_number_of_threads(monkeypatch):
    def make(threads):
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        buffers = [torch.empty(fused._NOISE_BLOCK * 2 + 5), torch.empty(11)]
        fused.normal_noise(buffers, torch.Generator().manual_seed(3))
        return buffers

    for a, b in zip(make(1), make(3), strict=True):
        assert torch.equal(a, b)


def test_noise_follows_torch_manual_seed():
    def make():
        torch.manual_seed(5)
        out = [torch.empty(100)]
        fused.normal_noise(out, None)
        return out[0]

    a, b = make(), make()
    assert torch.equal(a, b)
    fused.normal_noise([a], None)
    assert not torch.equal(a, b)


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
