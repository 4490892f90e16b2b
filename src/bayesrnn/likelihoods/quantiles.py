"""Quantiles of mixtures, by a few steps of root finding on all entries at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_BLOCK = 1 << 16  # numbers in one block: it stays in the processor's cache
_ROOT_2 = math.sqrt(2)
_ROOT_2PI = math.sqrt(2 * math.pi)


def gaussian_mixture_quantile(means: Tensor, sigmas: Tensor, q: float, weights: Tensor | None = None) -> Tensor:
    r"""The x with :math:`\sum_k w_k \Phi((x - m_k) / s_k) = q`.

    Halley's method in single precision from the Gaussian of the same moments, inside the bracket
    :math:`[\min_k (m_k + z_q s_k), \max_k (m_k + z_q s_k)]`, then Newton's in double precision: usually four
    evaluations of the distribution function, where bisection takes sixty.

    Shapes: means, sigmas and weights (K, ...); None: all weights alike. Returns (...) in float64.
    """
    shape = means.shape[1:]
    parts = [p.double().expand_as(means).flatten(1) for p in (means, sigmas) + (() if weights is None else (weights,))]
    if q > 0.5:  # by symmetry: small probabilities are more exact than those near 1
        parts[0], q, sign = -parts[0], 1 - q, -1.0
    else:
        sign = 1.0
    blocks = [p.split(max(1, _BLOCK // len(means)), 1) for p in parts]
    found = [_solve_gaussian(*block, q=q) for block in zip(*blocks, strict=True)]
    return sign * (torch.cat(found) if found else parts[0].new_empty(0)).view(shape)


def _solve_gaussian(m: Tensor, s: Tensor, w: Tensor | None = None, *, q: float) -> Tensor:
    z = float(torch.special.ndtri(torch.tensor(q, dtype=torch.float64, device="cpu")))
    reach = torch.aminmax(torch.addcmul(m, s, s.new_tensor(z)), dim=0)
    if len(m) == 1:
        return reach.min
    w = m.new_full((1, 1), 1 / len(m)).expand(len(m), m.shape[1]) if w is None else w
    centre = (w * m).sum(0)
    scale = (w * (s.square() + (m - centre).square())).sum(0).sqrt()
    a, r, weight = ((m - centre) / scale).float(), (scale / s).float(), w.float()
    low, high = (((end - centre) / scale).float() for end in reach)
    u = torch.full_like(low, z).clamp_(low, high)
    found, left = u.clone(), torch.arange(len(u), device=u.device)
    for i in range(100):
        t = (u - a).mul_(r)
        below = torch.erfc(t * (-1 / _ROOT_2)).mul_(weight).sum(0).mul_(0.5) - q
        density = t.square().mul_(-0.5).exp_().mul_(r).mul_(weight)
        slope = density.sum(0)
        bend = density.mul_(t).mul_(r).sum(0)  # minus the second derivative
        low, high = torch.where(below < 0, u, low), torch.where(below < 0, high, u)
        step = below * _ROOT_2PI / slope
        bent = step * bend / slope
        more = ((below.abs() > 0.01 * q) | (bent.abs() > 0.3)) & (high - low > 1e-6)
        new = u - step / (1 + 0.5 * bent).clamp_min(0.5)
        inside = (new >= low) & (new <= high)
        u = torch.where(more & (~inside | (i % 4 == 3)), (low + high) / 2, torch.where(inside, new, u))
        found[left] = u
        if not bool(more.any()):
            break
        if int(more.sum()) < len(left) // 2:
            left, u, low, high = left[more], u[more], low[more], high[more]
            a, r, weight = a[:, more], r[:, more], weight[:, more]
    x, narrow = centre + scale * found.double(), 0.5 * s.amin(0)
    for _ in range(4):
        t = (x - m) / s
        slope = (w * torch.exp(-0.5 * t.square()) / s).sum(0) / _ROOT_2PI
        below = 0.5 * (w * torch.erfc(t / -_ROOT_2)).sum(0) - q
        step = below / slope
        step = torch.where(step.abs() < narrow, step, torch.zeros_like(step))  # where it is flat, x stays
        x = (x - step).clamp_(*reach)
        if bool((step.abs() < 1e-4 * narrow).all()):  # the next error is about the square of this one
            break
    return x


def solve_quantile(cdf: Callable[[Tensor], Tensor], q: float, low: Tensor, high: Tensor) -> Tensor:
    """The x with cdf(x) = q for a rising ``cdf``, on all entries at once: inverse quadratic steps inside a bracket, and
    bisection where they do not help (Chandrupatla 1997). ``low`` and ``high``: a guess, widened until they hold x."""
    least = 1e-12 * (high - low)
    for _ in range(400):
        above, below = cdf(low) > q, cdf(high) < q
        if not bool((above | below).any()):
            break
        width = high - low
        low, high = torch.where(above, low - width, low), torch.where(below, high + width, high)
    a, b = high, low
    fa, fb = cdf(a) - q, cdf(b) - q
    t, best = torch.full_like(a, 0.5), a
    for _ in range(120):
        x = a + t * (b - a)
        fx = cdf(x) - q
        same = fx.sign() == fa.sign()
        c, fc = torch.where(same, a, b), torch.where(same, fa, fb)
        b, fb = torch.where(same, b, a), torch.where(same, fb, fa)
        a, fa = x, fx
        best = torch.where(fa.abs() < fb.abs(), a, b)
        limit = torch.maximum(least, 1e-12 * best.abs()) / (b - a).abs().clamp_min(1e-300)
        if bool(((limit > 0.5) | (fa == 0) | (fb == 0)).all()):
            break
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        inverse = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        t = torch.where((phi.square() < xi) & ((1 - phi).square() < 1 - xi), inverse, 0.5).nan_to_num(0.5)
        t = torch.maximum(torch.minimum(t, 1 - limit.clamp_max(0.5)), limit.clamp_max(0.5))
    return best


def solve_count(cdf: Callable[[Tensor], Tensor], q: float, high: Tensor) -> Tensor:
    """The smallest whole number k with cdf(k) >= q, by bisection; ``high`` is a guess, doubled until it is enough."""
    low, high = torch.full_like(high, -1.0), high.ceil().clamp_min(1.0)
    while bool((short := cdf(high) < q - 1e-12).any()):
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        enough = cdf(middle) >= q - 1e-12
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high


def lgamma_difference(x: Tensor, d: Tensor) -> Tensor:
    """log Gamma(x + d) - log Gamma(x), also where x is large and the two are almost equal (Stirling's series)."""
    large = x.clamp_min(20)
    near = (large + d - 0.5) * torch.log1p(d / large) + d * large.log() - d + _stirling(large + d) - _stirling(large)
    return torch.where(x > 20, near, torch.lgamma(x + d) - torch.lgamma(x))


def _stirling(x: Tensor) -> Tensor:
    square = 1 / x.square()
    return (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / x


def betainc(a: Tensor, b: Tensor, x: Tensor, rest: Tensor | None = None) -> Tensor:
    """The regularised incomplete beta function I_x(a, b), in float64 (Lentz's continued fraction, DLMF 8.17.22).
    ``rest`` is 1 - x, for an x that rounds to 1."""
    rest = 1 - x.double() if rest is None else rest
    a, b, x, rest = torch.broadcast_tensors(a.double(), b.double(), x.double(), rest.double())
    swap = x > (a + 1) / (a + b + 2)  # there the fraction of 1 - x converges fast
    a, b = torch.where(swap, b, a), torch.where(swap, a, b)
    x, rest = torch.where(swap, rest, x), torch.where(swap, x, rest)
    log_x, log_rest = (torch.where(p < 0.5, p.log(), torch.log1p(-q)) for p, q in ((x, rest), (rest, x)))
    least = torch.minimum(a, b)
    front = lgamma_difference(torch.maximum(a, b), least) - torch.lgamma(least)
    front = front + torch.where(x > 0, a * log_x, -math.inf) + torch.where(rest > 0, b * log_rest, -math.inf)
    tiny = 1e-300
    c, d = torch.ones_like(x), 1 / _apart(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 2000):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _apart(1 + top * d, tiny), _apart(1 + top / c, tiny)
            value = value * (d * c)
        if bool(((d * c - 1).abs() < 1e-14).all()):  # closer than rounding may never be reached
            break
    value = front.exp() * value / a
    return torch.where(swap, 1 - value, value)


def _apart(x: Tensor, tiny: float) -> Tensor:
    """Away from 0."""
    return torch.where(x.abs() < tiny, torch.full_like(x, tiny), x)
