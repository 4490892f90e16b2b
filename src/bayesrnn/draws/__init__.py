"""Draws: one setting of all random weights of a model, held for a whole sequence.

Every random layer asks `source(module)` where its noise comes from:

- inside `draw(model)`: from the held draw, the same noise on every call;
- inside `mean(model)`: from nowhere (`None`): the posterior mean is used;
- otherwise: fresh noise from torch's global generator when `module.training`, the posterior mean when not.
"""

from bayesrnn.draws.binding import Bound, bind, differentiable_in_eval, draw, mean, release, source, torch_source, using
from bayesrnn.draws.noise import Noise
from bayesrnn.draws.sources import FRESH, Draw, HeldNoise, NoNoise, Source, Stacked, Unfoldable, mix, seed_or_new

__all__ = [
    "FRESH",
    "Bound",
    "Draw",
    "HeldNoise",
    "NoNoise",
    "Noise",
    "Source",
    "Stacked",
    "Unfoldable",
    "bind",
    "differentiable_in_eval",
    "draw",
    "mean",
    "mix",
    "release",
    "seed_or_new",
    "source",
    "torch_source",
    "using",
]
