"""`Dropout`: torch's, with a mask that a draw holds, and with Gaussian noise."""

from __future__ import annotations

from torch import Tensor, nn

from bayesrnn import draws


class Dropout(nn.Module):
    """Multiplicative noise on the units of every example: Bernoulli (MC dropout, arXiv 1506.02158) or Gaussian.

    For layers without a time axis: after a `Linear`, a convolution, anything. In train mode every call has new masks,
    in eval mode nothing happens, as with `torch.nn.Dropout`. Inside `br.draw` the masks are those of the draw, the same
    at every call; `torch.nn.Dropout` has new ones. For sequences see `br.SequenceDropout`.

    Args:
        p: rate. noise: "bernoulli", or "gaussian" for N(1, p / (1 - p)), which has the same variance
            (Srivastava et al. 2014).

    Shapes: (B, ...), every entry a unit of its own; the output has the input's shape.
    """

    def __init__(self, p: float = 0.5, *, noise: str = "bernoulli") -> None:
        super().__init__()
        self.p = draws.check_probability("p", p)
        self.noise = draws.check_choice("noise", noise, ("bernoulli", "gaussian"))

    def forward(self, input: Tensor) -> Tensor:
        source = draws.source(self)
        if source is None or self.p == 0:
            return input
        if input.dim() < 2:
            raise ValueError(f"Dropout needs a batch of examples, (B, ...), got shape {tuple(input.shape)}")
        noise = draws.Noise(self.p, self.noise)
        return input * source.units("units", noise, input.shape[1:], input, rows=input.shape[0])

    def extra_repr(self) -> str:
        return f"p={self.p}, noise={self.noise!r}"
