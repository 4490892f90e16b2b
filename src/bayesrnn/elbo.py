"""The objective, and the one place where the KL is scaled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bayesrnn.draws import is_number, is_whole
from bayesrnn.likelihoods import Categorical, Likelihood


@dataclass(frozen=True)
class Terms:
    """One evaluation of the objective. `loss` is what to minimise; the other terms are unscaled sums."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    sharpening: Tensor


class ELBO(nn.Module):
    r"""The negative evidence lower bound per target.

    .. math:: \text{loss} = \frac{1}{n} \Big( -\sum_{i=1}^{n} \log p(y_i \mid f_w(x_i)) + S \Big)
              + \frac{1}{N} \mathrm{KL}(q(w) \,\|\, p(w)), \quad w \sim q

    with n targets in this batch, N = `num_data` targets in the whole training set, and S the sharpening KL of this
    batch (0 but for `br.PosteriorSharpening`). Summed over the batches of an epoch, n * loss is the bound on
    -log p(all targets): the KL counts once per epoch, however the data is cut (Graves 2011; arXiv 1704.02798, Eq. 7).

    Args:
        model: the model whose `br.kl` counts.
        likelihood: `br.Categorical()` or `br.Gaussian()`.
        num_data: number of targets in the training set (for a language model: its words).
        length_scale: prior length scale l of dropout posteriors, see `br.kl`.
        check_finite: raise on a NaN or infinite loss (needs the value; off while a CUDA graph is captured).

    Example::

        q = br.BayesByBackprop(model, prior=br.Normal(0.1))
        elbo = br.ELBO(q, br.Categorical(), num_data=929_589)
        terms = elbo(q(x), y)
        terms.loss.backward()
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        *,
        num_data: int,
        length_scale: float = 1.0,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        if not is_number(num_data) or not num_data > 0:
            raise ValueError(
                f"num_data must be the number of training targets, at least 1, got {num_data!r}: "
                "the KL is divided by it"
            )
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(likelihood, nn.Module) or not isinstance(likelihood, Likelihood):
            raise TypeError(f"likelihood must be br.Categorical() or br.Gaussian(), got {likelihood!r}")
        self.model, self.likelihood = model, likelihood
        self.num_data = int(num_data) if is_whole(num_data) else float(num_data)
        self.length_scale, self.check_finite = _check_length_scale(length_scale), check_finite

    def forward(self, output: Any, target: Any) -> Terms:
        """`output` is what the model returned (of a tuple, the first part), `target` what it should say.

        Of a PackedSequence the `.data` counts, in the output as in the target.
        """
        if isinstance(output, (tuple, list)) and not isinstance(output, PackedSequence):
            output = output[0]
        output, target = (p.data if isinstance(p, PackedSequence) else p for p in (output, target))
        if self.check_finite and isinstance(self.likelihood, Categorical) and not _capturing(output):
            self.likelihood.check(output, target)
        nll = self.likelihood.nll(output, target)
        divergence = kl(self.model, length_scale=self.length_scale).to(nll.device)
        sharpening = nll.new_zeros(())
        part: Any
        for part in self.model.modules():
            if hasattr(part, "sharpening_kl"):
                sharpening = sharpening + part.sharpening_kl()
        loss = (nll + sharpening) / self.likelihood.count(target) + divergence / self.num_data
        if self.check_finite and not _capturing(loss) and not bool(torch.isfinite(loss)):
            if not bool(torch.as_tensor(self.likelihood.count(target))):
                raise ValueError("no target of this batch counts: it is empty, or all of it is padding; leave it out")
            self._refuse({"the negative log-likelihood": nll, "the KL": divergence, "the sharpening KL": sharpening})
        return Terms(loss=loss, nll=nll, kl=divergence, sharpening=sharpening)

    def _refuse(self, terms: dict[str, Tensor]) -> NoReturn:
        """Name the term that is not finite, and what it comes from. Data has no part in the KL, weights have."""
        wrong = {name: term for name, term in terms.items() if not bool(torch.isfinite(term))}
        broken = next((n for n, p in self.model.named_parameters() if not bool(torch.isfinite(p).all())), "")
        blame = "the KL" if "the KL" in wrong and not broken else next(iter(wrong), "the loss")
        part = wrong.get(blame)
        if part is not None and part.dtype == torch.float16 and bool(torch.isinf(part)):
            raise FloatingPointError(
                f"{blame} is a sum, and more than float16 holds (65,504): keep the model in float32 and use "
                "torch.autocast, or use bfloat16"
            )
        if blame == "the KL" and not broken:
            raise FloatingPointError(
                "the KL is not finite, though all weights are: sigma (init_sigma) or the weights are too large for the "
                "prior (its sigma; of dropout, 1 / length_scale); choose a wider prior, or a smaller init_sigma"
            )
        where = f", and weights {broken} are not" if broken else ""
        raise FloatingPointError(
            f"{blame} is not finite{where}: look for NaN in the inputs or targets, or lower the learning rate"
        )


def _check_length_scale(value: float) -> float:
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"length_scale must be a positive number, got {value!r}: the prior is N(0, 1 / l^2)")
    return float(value)


def _capturing(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def kl(model: nn.Module, *, length_scale: float = 1.0) -> Tensor:
    """KL(q(w) || p(w)) of all of the model's weights: an unscaled sum, every weight once.

    Closed form for Gaussian posteriors with a `Normal` prior; for other priors the single-sample estimate at the
    current draw. Dropout layers add their L2 form, (1 - p) l^2 / 2 * ||W||^2 for each matrix W that their noise acts
    on (arXiv 1506.02142, Eq. 7).

    Args:
        model: any module; posteriors and noisy layers are found however deep they sit.
        length_scale: l, the prior length scale of dropout posteriors: the prior is N(0, 1 / l^2).
    """
    length_scale = _check_length_scale(length_scale)
    terms: list[Tensor] = []
    module: Any
    # a weight with a posterior of its own has its KL there, also inside a layer with dropout
    owners: list[Any] = [m for m in model.modules() if hasattr(m, "posterior_kl") and hasattr(m, "means")]
    counted = {id(mean) for owner in owners for mean in owner.means.values()}
    for module in model.modules():
        if hasattr(module, "posterior_kl"):
            terms.append(module.posterior_kl())
        if hasattr(module, "dropped_weights"):
            for weight, keep in module.dropped_weights():
                if id(weight) not in counted:
                    counted.add(id(weight))
                    terms.append((0.5 * keep * length_scale**2) * weight.square().sum())
    if not terms:
        first = next(model.parameters(), None)
        return torch.zeros(()) if first is None else torch.zeros((), device=first.device, dtype=first.dtype)
    return torch.stack([term.to(terms[0].device) for term in terms]).sum()
