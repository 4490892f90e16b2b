"""Pruning by signal-to-noise: exactly the lowest |mean| / sigma go, and stay gone."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bayesrnn as br
from bayesrnn import kernels, pruning


def posterior(seed=0, **kwargs):
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LSTM(5, 4))
    return br.BayesByBackprop(module, init_sigma=(0.01, 0.5), **kwargs)


def flat(by_name):
    return torch.cat([v.detach().flatten() for v in by_name.values()])


def test_signal_to_noise_is_mean_over_sigma():
    q = posterior()
    ratios = br.signal_to_noise(q)
    assert list(ratios) == [n for n, _, _ in q.named_posteriors()]
    for name, mean, sigma in q.named_posteriors():
        torch.testing.assert_close(ratios[name], (mean.abs() / sigma).detach())
        assert not ratios[name].requires_grad
    sharpened = br.signal_to_noise(br.PosteriorSharpening(q))
    assert all(torch.equal(sharpened[n], ratios[n]) for n in ratios)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.87, 1.0])
def test_global_pruning_removes_the_lowest_everywhere(fraction):
    q = posterior()
    before, means = flat(br.signal_to_noise(q)), flat(q.means)
    report = br.prune(q, fraction)
    count = int(fraction * before.numel() + 0.5)
    gone = torch.zeros(before.numel(), dtype=torch.bool)
    gone[before.argsort()[:count]] = True
    after = flat(q.means)
    assert torch.equal(after == 0, gone)
    assert torch.equal(after[~gone], means[~gone])
    assert report.removed == count
    assert report.total == before.numel()
    assert report.threshold == pytest.approx(float(before[gone].max()) if count else 0.0)
    assert sum(t.removed for t in report.tensors) == count
    assert sum(t.total for t in report.tensors) == report.total
    for tensor in report.tensors:
        assert tensor.removed == int((q.means[tensor.name] == 0).sum())
        assert tensor.total == q.means[tensor.name].numel()
        assert tensor.fraction == tensor.removed / tensor.total


@pytest.mark.parametrize("fraction", [0.25, 0.5, 0.8])
def test_pruning_per_tensor_removes_the_fraction_of_each(fraction):
    q = posterior()
    before = br.signal_to_noise(q)
    report = br.prune(q, fraction, per_tensor=True)
    for tensor in report.tensors:
        count = int(fraction * tensor.total + 0.5)
        assert tensor.removed == count
        kept = before[tensor.name][q.means[tensor.name] != 0]
        gone = before[tensor.name][q.means[tensor.name] == 0]
        assert float(gone.max()) <= float(kept.min())


@settings(max_examples=30, deadline=None)
@given(fraction=st.floats(0, 1), per_tensor=st.booleans())
def test_the_count_is_exact_also_with_ties(fraction, per_tensor):
    linear = nn.Linear(7, 3)
    with torch.no_grad():
        linear.weight.fill_(0.5)
        linear.bias.fill_(0.5)
    q = br.BayesByBackprop(linear, init_sigma=0.1)
    report = br.prune(q, fraction, per_tensor=per_tensor)
    if per_tensor:
        assert [t.removed for t in report.tensors] == [int(fraction * 21 + 0.5), int(fraction * 3 + 0.5)]
    else:
        assert report.removed == int(fraction * 24 + 0.5)


def test_pruned_weights_are_zero_in_the_mean_and_next_to_nothing_in_every_draw():
    q = posterior()
    br.prune(q, 0.6)
    masks = {n: m == 0 for n, m in q.means.items()}
    seen = []

    def look(module, *_):
        seen.append({n: p.detach().clone() for n, p in module._parameters.items()})

    q.module[0].register_forward_hook(look)
    for _ in range(5):
        q(torch.randn(3, 2, 6))
    for drawn in seen:
        assert float(drawn["weight"][masks["0.weight"]].abs().max()) < 1e-15
        assert bool((drawn["weight"][~masks["0.weight"]] != q.module[0].weight[~masks["0.weight"]]).all())
    plain = q.mean_module()
    assert not plain[0].weight[masks["0.weight"]].any()
    assert all(torch.isfinite(br.kl(q)) for _ in range(2))


def test_pruning_again_goes_on_from_where_it_was():
    q, once = posterior(), posterior()
    br.prune(q, 0.3)
    assert br.prune(q, 0.3).removed == br.prune(once, 0.3).removed
    assert torch.equal(flat(q.means), flat(once.means))  # the same fraction again changes nothing
    br.prune(q, 0.7)
    br.prune(once, 0.7)
    assert torch.equal(flat(q.means), flat(once.means))
    assert int((flat(q.means) == 0).sum()) == int(0.7 * flat(q.means).numel() + 0.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_pruning_again_in_every_dtype(dtype):
    torch.manual_seed(0)
    q = br.BayesByBackprop(nn.Linear(12, 9).to(dtype), init_sigma=(0.01, 0.5))
    br.prune(q, 0.3)
    first = flat(q.means).clone()
    assert br.prune(q, 0.3).threshold == 0
    assert torch.equal(flat(q.means), first)
    report = br.prune(q, 0.5)
    assert int((flat(q.means) == 0).sum()) == report.removed == 59  # of 117
    with kernels.force("reference"), br.draw(q, seed=0):
        gone, x = q.means["weight"] == 0, torch.eye(12, dtype=dtype)
        weight = (q(x) - q(torch.zeros_like(x))).T
        assert torch.isfinite(br.kl(q))
    assert float(weight.detach()[gone].abs().max()) < 1e-2 * float(weight.detach().abs().max())


def test_a_sigma_that_is_zero_and_a_ratio_that_is_nan():
    q = br.BayesByBackprop(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        q.means["weight"].copy_(torch.tensor([[0.0, 3.0], [0.1, torch.nan]]))
        q.posterior.rho["weight"].copy_(torch.tensor([[-1e4, -1e4], [0.0, 0.0]]))  # in the first row sigma is 0
    ratios = br.signal_to_noise(q)["weight"]
    assert float(ratios[0, 0]) == 0
    assert float(ratios[0, 1]) > 1e38
    report = br.prune(q, 0.5)
    assert q.means["weight"].tolist() == [[0.0, 3.0], [pytest.approx(0.1), 0.0]]
    assert report.threshold == 0


def test_excluded_parameters_are_not_touched_and_a_copy_keeps_the_original():
    q = posterior(exclude="0.*")
    kept, bias = copy.deepcopy(q), q.module[0].bias.detach().clone()
    report = br.prune(q, 1.0)
    assert torch.equal(q.module[0].bias, bias)
    assert {t.name for t in report.tensors} == set(q.means)
    assert flat(kept.means).any()
    assert not flat(q.means).any()


def test_tied_weights_are_pruned_in_both_places():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

    q = br.BayesByBackprop(Tied())
    assert br.prune(q, 0.5).total == 36
    assert int((q.module.head.weight == 0).sum()) == 18


def test_the_kl_after_pruning_is_not_the_old_one():
    q = posterior()
    q(torch.randn(3, 2, 6))
    before = br.kl(q)
    br.prune(q, 0.5)
    assert not torch.allclose(br.kl(q), before)


@pytest.mark.parametrize("total", [1, 7, 1000, 123_457])
def test_a_share_has_no_more_digits_than_it_needs(total):
    from bayesrnn.pruning import count_of, share_of

    for share in (0.0, 0.5, 0.8, 0.85, 0.999, 1.0):
        count = count_of(share, total)
        assert count_of(share_of(count, total), total) == count
        assert len(repr(share_of(count, total))) <= len(repr(share))
    assert share_of(98_766, 123_457) == 0.8


def test_report_reads_as_a_table():
    lines = str(br.prune(posterior(), 0.5)).splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("0.weight")
    assert lines[-1].startswith("all")
    assert "106 of          211    50.2%" in lines[-1]


def test_arguments_are_checked():
    q = posterior()
    for fraction in (-0.1, 1.1, 80, True, "half", float("nan")):
        with pytest.raises(ValueError, match=r"fraction must be a number in \[0, 1\]"):
            br.prune(q, fraction)
    for fraction in (np.float32(0.5), np.float16(0.5), np.float64(0.5)):
        report = br.prune(posterior(), fraction)
        assert report == br.prune(posterior(), 0.5)
        assert type(report.fraction) is float
    for wrong in (nn.Linear(2, 2), br.LSTM(2, 2, input_dropout=0.1)):
        with pytest.raises(TypeError, match="signal-to-noise needs a br"):
            br.signal_to_noise(wrong)
        with pytest.raises(TypeError, match="signal-to-noise needs a br"):
            br.prune(wrong, 0.5)


@pytest.mark.parametrize("sharpened", [False, True])
def test_removing_by_masks_is_what_pruning_does(sharpened):
    pruned = posterior()
    br.prune(pruned, 0.6)
    q = br.PosteriorSharpening(posterior()) if sharpened else posterior()
    before = {name: mean.detach().clone() for name, mean in pruning.gaussian_of(q).means.items()}
    name = next(iter(before))
    pruning.remove(q, {name: pruning.removed(pruned)[name]})
    found = pruning.removed(q)
    assert torch.equal(found.pop(name), pruning.removed(pruned)[name])
    assert not any(mask.any() for mask in found.values())
    assert all(torch.equal(pruning.gaussian_of(q).means[key], before[key]) for key in found)
    pruning.remove(q, pruning.removed(pruned))
    inner = pruning.gaussian_of(q)
    assert all(torch.equal(a, b) for a, b in zip(inner.parameters(), pruned.parameters(), strict=True))


@pytest.mark.parametrize("sharpened", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_part_of_sigma(dtype, sharpened):
    """Also of sigmas far below and above one; means, and what is not named, stay to the bit."""
    q, tolerance = posterior().to(dtype), {torch.float16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    with torch.no_grad():
        q.posterior.rho["0.weight"].copy_(torch.linspace(pruning.gone_rho(dtype), 30, 30).view(5, 6))
    before, means = copy.deepcopy(q), {name: mean.detach().clone() for name, mean in q.means.items()}
    masks = {
        name: torch.arange(mean.numel()).view_as(mean) % 3 > 0 for name, mean in means.items() if "bias" not in name
    }
    pruning.scale_sigma(br.PosteriorSharpening(q) if sharpened else q, masks, 0.5)
    for name, mean in q.means.items():
        mask, rho, old = masks.get(name, torch.zeros_like(mean) > 0), q.posterior.rho[name], before.posterior.rho[name]
        assert torch.equal(mean, means[name])
        assert torch.equal(rho[~mask], old[~mask])
        sigma, wanted = (torch.nn.functional.softplus(r[mask].detach().double()) for r in (rho, old))
        torch.testing.assert_close(sigma, wanted / 2, rtol=tolerance, atol=0)
