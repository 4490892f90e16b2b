"""What ``bayesrnn evaluate`` measures of a trained language model."""

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.tasks.base import Say, is_random
from bayesrnn.lab.tasks.language import scoring
from bayesrnn.lab.tasks.language.dynamic import NO_BOUND, DynamicEvaluation
from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE
from bayesrnn.lab.tasks.language.options import EvaluateOptions
from bayesrnn.lab.tasks.language.streams import reset_of
from bayesrnn.lab.text import batchify, noise_of_draws

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.language.task import Language


def evaluate(task: "Language", options: EvaluateOptions, *, say: Say) -> dict[str, Any]:
    """Metrics by name, each on one stream unless its name says otherwise.

    The state is carried from word to word; with ``data.carry_state: false`` it starts from zero in every window, as in
    training.
    """
    recipe, streams = task.recipe, task.streams
    options.check(recipe, in_memory=not streams.on_disk)
    rates, decays = options.rates(recipe), options.decays()
    metrics = _sound(_mean(task, say))  # first: the rest takes long, and would blame its own rates
    if options.temperature:
        metrics |= _tempered(task, say)
    if options.samples and is_random(recipe):
        metrics |= _monte_carlo(task, options, options.samples, say)
    if recipe.posterior.kind == "sharpened":
        metrics |= _bounds(task, say)
    if options.dynamic:
        before = {split: metrics[f"{split}_perplexity"] for split in ("valid", "test")}
        rule = options.dynamic_rule or PAPERS_RULE
        metrics |= DynamicEvaluation(task, rule, rates, decays, before, say).metrics()
    if options.reversed_text:
        metrics |= _reversed(task, options, say, metrics.get("noise_scaled", options.scales[0]))
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


def _mean(task: "Language", say: Say) -> dict[str, Any]:
    """The posterior mean on both texts."""
    metrics: dict[str, Any] = {}
    for split, stream in (("valid", task.streams.valid), ("test", task.streams.test)):
        say(f"posterior mean on {split}")
        found = scoring.scores(task.model, stream, reset=reset_of(task.recipe))
        metrics |= {
            f"{split}_perplexity": found.perplexity,
            f"{split}_calibration_error": found.calibration_error,
            f"{split}_entropy": found.entropy,
        }
    return {**metrics, "reliability": found.reliability, "test_deciles": found.deciles}


def _tempered(task: "Language", say: Say) -> dict[str, Any]:
    reset = reset_of(task.recipe)
    say("temperature of the posterior mean on valid")
    chosen = scoring.best_temperature(task.model, task.streams.valid, reset=reset)
    if any(math.isclose(chosen, end) for end in scoring.TEMPERATURES):
        say(f"temperature {chosen:g} is an end of the range that is searched; the best one is beyond it")
    say(f"posterior mean at temperature {chosen:.3f}")
    valid = scoring.scores(task.model, task.streams.valid, reset=reset, temperature=chosen)
    test = scoring.scores(task.model, task.streams.test, reset=reset, temperature=chosen)
    return {
        "temperature": chosen,
        "valid_perplexity_tempered": valid.perplexity,
        "test_perplexity_tempered": test.perplexity,
        "test_calibration_error_tempered": test.calibration_error,
        "test_entropy_tempered": test.entropy,
        "test_deciles_tempered": test.deciles,
    }


def _monte_carlo(task: "Language", options: EvaluateOptions, samples: int, say: Say) -> dict[str, Any]:
    """Perplexity of averaged draws, and of fewer of them; of several factors of the noise the best on validation."""
    kind, seed, scales, streams = options.suffix, options.seed, options.scales, task.streams
    metrics: dict[str, Any] = {f"samples{kind}": samples, f"draws_seed{kind}": seed}

    def measured(split: str, stream: Tensor, scale: float) -> dict[str, Any]:
        say(f"{counted(samples, 'draw')} on {split}" + (f", noise times {scale:g}" if options.noise else ""))
        with _noise(task, options, scale):
            found = scoring.monte_carlo_perplexities(
                task.model, stream, samples=samples, seed=seed, reset=reset_of(task.recipe)
            )
        by_draws = [{"draws": draws, "perplexity": value} for draws, value in found.items()]
        return {f"{split}_perplexity_mc{kind}": found[samples], f"{split}_perplexity_by_draws{kind}": by_draws}

    tried = {scale: measured("valid", streams.valid, scale) for scale in scales}
    best = min(scales, key=lambda scale: tried[scale][f"valid_perplexity_mc{kind}"])
    if len(scales) > 1:
        metrics["noise_tried"] = {f"{scale:g}": own[f"valid_perplexity_mc{kind}"] for scale, own in tried.items()}
    if options.noise:
        metrics["noise_scaled"] = best
    return metrics | tried[best] | measured("test", streams.test, best)


def _noise(task: "Language", options: EvaluateOptions, scale: float) -> AbstractContextManager[None]:
    keep = options.keep_weights or (task.recipe.evaluate.keep_weights and options.noise is None)
    return noise_of_draws(task.model, words=options.drop_words, weights=not keep, scale=scale)


def _bounds(task: "Language", say: Say) -> dict[str, Any]:
    """The bounds of a sharpened model, on as many streams as in training where the text is long enough."""
    data, metrics = task.recipe.data, dict[str, Any]()
    for split, stream in (("valid", task.streams.valid), ("test", task.streams.test)):
        say(f"sharpened bound on {split}")
        parts = batchify(stream[:, 0], min(data.batch_size, len(stream) // (data.window + 1)))
        metrics["bound_streams"] = min(metrics.get("bound_streams", data.batch_size), parts.shape[1])
        bound = scoring.sharpened_perplexity(task.model, parts, window=data.window, carry_state=data.carry_state)
        if math.isfinite(bound):
            metrics[f"{split}_perplexity_bound"] = bound
        else:
            say(NO_BOUND)
    return metrics


def _reversed(task: "Language", options: EvaluateOptions, say: Say, scale: float) -> dict[str, Any]:
    """Entropy gaps of the mean, of one draw, and of the average of all; ``entropy_gaps`` has those of 1, 2, … draws."""
    reset, samples = reset_of(task.recipe), options.drawn if is_random(task.recipe) else 0
    with _noise(task, options, scale):
        say("reversed text, no draws")
        mean = scoring.entropy_gaps(task.model, task.streams.test, reset=reset)
        found = {"entropy_gap_mean": mean.gaps[0], "reversed_entropy_mean": mean.reverse.entropy}
        if not samples:
            return found
        say(f"reversed text, {counted(samples, 'draw')}")
        drawn = scoring.entropy_gaps(task.model, task.streams.test, samples=samples, seed=options.seed, reset=reset)
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
