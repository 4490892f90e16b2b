"""What ``bayesrnn evaluate`` measures of a trained language model."""

import math
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.tasks.base import Say, is_random
from bayesrnn.lab.tasks.language import scoring
from bayesrnn.lab.tasks.language.dynamic import NO_BOUND, DynamicEvaluation
from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE
from bayesrnn.lab.tasks.language.options import EvaluateOptions
from bayesrnn.lab.tasks.language.streams import Streams, reset_of
from bayesrnn.lab.text import batchify, noise_of_draws


class ModelWithRecipe(Protocol):
    """A run that was opened, or the task itself."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def model(self) -> nn.Module: ...


def evaluate(
    run: ModelWithRecipe, streams: Streams, options: EvaluateOptions, *, say: Say = lambda text: None
) -> dict[str, Any]:
    """Metrics by name, each on one stream unless its name says otherwise.

    The state is carried from word to word; with ``data.carry_state: false`` it starts from zero in every window, as in
    training.
    """
    recipe = run.recipe
    options.check(recipe, in_memory=not streams.on_disk)
    rates, decays = options.rates(recipe), options.decays()
    metrics = _sound(_mean(run, streams, say))  # first: the rest takes long, and would blame its own rates
    if options.temperature:
        metrics |= _tempered(run, streams, say)
    if options.samples and is_random(recipe):
        metrics |= _monte_carlo(run, streams, options, options.samples, say)
    if recipe.posterior.kind == "sharpened":
        metrics |= _bounds(run, streams, say)
    if options.dynamic:
        before = {split: metrics[f"{split}_perplexity"] for split in ("valid", "test")}
        rule = options.dynamic_rule or PAPERS_RULE
        metrics |= DynamicEvaluation(run, streams, rule, rates, decays, before, say).metrics()
    if options.reversed_text:
        metrics |= _reversed(run, streams.test, options, say, metrics.get("noise_scaled", options.scales[0]))
    return _sound(metrics)


def _sound(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics themselves, if all of them are finite."""
    for key, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(
                f"{key} is {value}: the model is too far off to be measured, and nothing was written; look at its "
                "curves for where it diverged, and train it again at a lower rate."
            )
    return metrics


def _mean(run: ModelWithRecipe, streams: Streams, say: Say) -> dict[str, Any]:
    """The posterior mean on both texts."""
    metrics: dict[str, Any] = {}
    for split, stream in (("valid", streams.valid), ("test", streams.test)):
        say(f"posterior mean on {split}")
        found = scoring.scores(run.model, stream, reset=reset_of(run.recipe))
        metrics |= {
            f"{split}_perplexity": found.perplexity,
            f"{split}_calibration_error": found.calibration_error,
            f"{split}_entropy": found.entropy,
        }
    return {**metrics, "reliability": found.reliability, "test_deciles": found.deciles}


def _tempered(run: ModelWithRecipe, streams: Streams, say: Say) -> dict[str, Any]:
    reset = reset_of(run.recipe)
    say("temperature of the posterior mean on valid")
    chosen = scoring.best_temperature(run.model, streams.valid, reset=reset)
    if any(math.isclose(chosen, end) for end in scoring.TEMPERATURES):
        say(f"temperature {chosen:g} is an end of the range that is searched; the best one is beyond it")
    say(f"posterior mean at temperature {chosen:.3f}")
    valid = scoring.scores(run.model, streams.valid, reset=reset, temperature=chosen)
    test = scoring.scores(run.model, streams.test, reset=reset, temperature=chosen)
    return {
        "temperature": chosen,
        "valid_perplexity_tempered": valid.perplexity,
        "test_perplexity_tempered": test.perplexity,
        "test_calibration_error_tempered": test.calibration_error,
        "test_entropy_tempered": test.entropy,
        "test_deciles_tempered": test.deciles,
    }


def _monte_carlo(
    run: ModelWithRecipe, streams: Streams, options: EvaluateOptions, samples: int, say: Say
) -> dict[str, Any]:
    """Perplexity of averaged draws, and of fewer of them; of several factors of the noise the best on validation."""
    kind, seed, scales = options.suffix, options.seed, options.scales
    metrics: dict[str, Any] = {f"samples{kind}": samples, f"draws_seed{kind}": seed}

    def measured(split: str, stream: Tensor, scale: float) -> dict[str, Any]:
        say(f"{counted(samples, 'draw')} on {split}" + (f", noise times {scale:g}" if options.noise else ""))
        with _noise(run, options, scale):
            found = scoring.monte_carlo_perplexities(
                run.model, stream, samples=samples, seed=seed, reset=reset_of(run.recipe)
            )
        by_draws = [{"draws": draws, "perplexity": value} for draws, value in found.items()]
        return {f"{split}_perplexity_mc{kind}": found[samples], f"{split}_perplexity_by_draws{kind}": by_draws}

    if not options.test_only:
        tried = {scale: measured("valid", streams.valid, scale) for scale in scales}
        scales = sorted(scales, key=lambda scale: tried[scale][f"valid_perplexity_mc{kind}"])
        metrics |= tried[scales[0]]
        if len(scales) > 1:
            metrics["noise_tried"] = {f"{scale:g}": own[f"valid_perplexity_mc{kind}"] for scale, own in tried.items()}
    if options.noise:
        metrics["noise_scaled"] = scales[0]
    return metrics | measured("test", streams.test, scales[0])


def _noise(run: ModelWithRecipe, options: EvaluateOptions, scale: float) -> AbstractContextManager[None]:
    return noise_of_draws(run.model, words=options.drop_words, weights=not options.keep_weights, scale=scale)


def _bounds(run: ModelWithRecipe, streams: Streams, say: Say) -> dict[str, Any]:
    """The bounds of a sharpened model, on as many streams as in training where the text is long enough."""
    data, metrics = run.recipe.data, dict[str, Any]()
    for split, stream in (("valid", streams.valid), ("test", streams.test)):
        say(f"sharpened bound on {split}")
        parts = batchify(stream[:, 0], min(data.batch_size, len(stream) // (data.window + 1)))
        metrics["bound_streams"] = min(metrics.get("bound_streams", data.batch_size), parts.shape[1])
        bound = scoring.sharpened_perplexity(run.model, parts, window=data.window, carry_state=data.carry_state)
        if math.isfinite(bound):
            metrics[f"{split}_perplexity_bound"] = bound
        else:
            say(NO_BOUND)
    return metrics


def _reversed(run: ModelWithRecipe, test: Tensor, options: EvaluateOptions, say: Say, scale: float) -> dict[str, Any]:
    """Entropy gaps of the mean, of one draw, and of the average of all; ``entropy_gaps`` has those of 1, 2, … draws."""
    reset, samples = reset_of(run.recipe), options.drawn if is_random(run.recipe) else 0
    with _noise(run, options, scale):
        say("reversed text, no draws")
        mean = scoring.entropy_gaps(run.model, test, reset=reset)
        found = {"entropy_gap_mean": mean.gaps[0], "reversed_entropy_mean": mean.reverse.entropy}
        if not samples:
            return found
        say(f"reversed text, {counted(samples, 'draw')}")
        drawn = scoring.entropy_gaps(run.model, test, samples=samples, seed=options.seed, reset=reset)
    own = {
        "entropy_gap_1": drawn.gaps[0],
        "reversed_entropy_1": drawn.reverse.entropies[0],
        "entropy_gap": drawn.gaps[-1],
        "reversed_entropy": drawn.reverse.entropy,
        "entropy_gaps": drawn.gaps,
        "entropy_samples": samples,
        "entropy_draws_seed": options.seed,
        "test_calibration_error_mc": drawn.forward.calibration_error,
        "test_deciles_mc": drawn.forward.deciles,
        "test_mutual_information": drawn.forward.mutual_information,
    }
    return found | {f"{key}{options.suffix}": value for key, value in own.items()}
