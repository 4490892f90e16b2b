"""All that ``bayesrnn evaluate`` measures of a trained language model."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.tasks.language import scoring
from bayesrnn.lab.tasks.language import task as language
from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE, WORDS, by_rule
from bayesrnn.lab.tasks.language.text import batchify

_NO_BOUND = "the bound is larger than any number: the rates of sharpening (eta) are too high here; it is left out"
RMS_LR = 2e-4  # by the RMS rule, whose steps have another unit; the best for best-medium on Penn Treebank


class Trained(Protocol):
    """A model with its recipe: a run that was read back, or the task itself."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def model(self) -> nn.Module: ...


def evaluate(
    run: Trained,
    streams: language.Streams,
    *,
    samples: int | None = None,
    dynamic: bool = False,
    reversed_text: bool = False,
    temperature: bool = False,
    dynamic_lr: str | float | None = None,
    dynamic_rule: str | None = None,
    dynamic_decay: str | float | None = None,
    drop_words: bool = False,
    test_only: bool = False,
    entropy_samples: int | None = None,
    seed: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Metrics by name, each on one stream, unless the name says otherwise.

    The state is carried from word to word; with ``data.carry_state: false`` it starts from zero in every window, as in
    training.

    Args:
        samples: draws to average over; None or 0: no Monte Carlo.
        dynamic: learn on while being tested, on the posterior mean; for a sharpened model the bound as well.
        reversed_text: entropy on the reversed test text against that on the text itself.
        temperature: of the posterior mean, chosen on the validation text; both texts are measured with it.
        dynamic_lr, dynamic_rule, dynamic_decay: see ``br.dynamic_evaluation``; None: the recipe's rate, or RMS_LR; SGD;
            no decay. Of several rates, "0.05,0.1", or decays, those that are best on the validation text are taken for
            the test text: first the rate, with the first decay; then the decay, with that rate.
        drop_words: keep the dropout of word types on in draws; the authors had it off. Figures of such draws have names
            that end in ``_words``.
        test_only: Monte Carlo on the test text alone, which halves its time.
        entropy_samples: draws for the entropy gap and for calibration; 0: the mean alone. None: 10.
    """
    if not dynamic and any(given is not None for given in (dynamic_lr, dynamic_rule, dynamic_decay)):
        raise UserError("--dynamic-lr, --dynamic-rule and --dynamic-decay are for dynamic evaluation; add --dynamic.")
    if dynamic_rule == "rms" and not isinstance(streams.train, Tensor):
        raise UserError("--dynamic-rule rms needs the training text in memory; name its folder with --data.")
    decays = _numbers("--dynamic-decay", str(0 if dynamic_decay is None else dynamic_decay), below=1.0)
    usual = RMS_LR if dynamic_rule == "rms" else run.recipe.evaluate.dynamic_lr
    rates = [usual] if dynamic_lr is None else _numbers("--dynamic-lr", str(dynamic_lr))
    random, drawn = language.is_random(run.recipe), 10 if entropy_samples is None else entropy_samples
    if entropy_samples is not None and not reversed_text:
        raise UserError("--entropy-samples is for the entropy on reversed text; add --reversed.")
    if test_only and not (samples and random):
        raise UserError("--test-only is for draws, and there are none; add --samples with their number.")
    if drop_words and not (random and (samples or (reversed_text and drawn))):
        raise UserError("--drop-words is for draws, and there are none; add --samples with their number.")
    if drop_words and not run.recipe.model.word_dropout:
        raise UserError("--drop-words is for models with word dropout, and this one has none; leave it away.")
    splits = {"valid": streams.valid, "test": streams.test}
    reset = reset_of(run)
    metrics: dict[str, Any] = {}
    for split, stream in splits.items():
        say(f"posterior mean on {split}")
        found = scoring.scores(run.model, stream, reset=reset)
        metrics |= {
            f"{split}_perplexity": found.perplexity,
            f"{split}_calibration_error": found.calibration_error,
            f"{split}_entropy": found.entropy,
        }
        if split == "test":
            metrics["reliability"] = found.reliability
    _sound(metrics)  # before the time that the rest takes, and before a rate is blamed
    if temperature:
        metrics |= _tempered(run.model, streams, reset, say)
    if samples and random:
        kind = WORDS if drop_words else ""
        metrics |= {f"samples{kind}": samples, f"draws_seed{kind}": seed}
        with scoring.word_dropout(run.model, on=drop_words):
            for split in ("test",) if test_only else splits:
                stream = splits[split]
                say(f"{counted(samples, 'draw')} on {split}")
                found_mc = scoring.monte_carlo_perplexities(run.model, stream, samples=samples, seed=seed, reset=reset)
                metrics[f"{split}_perplexity_mc{kind}"] = found_mc[samples]
                metrics[f"{split}_perplexity_by_draws{kind}"] = [
                    {"draws": draws, "perplexity": value} for draws, value in found_mc.items()
                ]
    if run.recipe.posterior.kind == "sharpened":
        data = run.recipe.data
        for split, stream in splits.items():
            say(f"sharpened bound on {split}")
            parts = batchify(stream[:, 0], min(data.batch_size, len(stream) // (data.window + 1)))
            metrics["bound_streams"] = min(metrics.get("bound_streams", data.batch_size), parts.shape[1])
            bound = scoring.sharpened_perplexity(run.model, parts, window=data.window, carry_state=data.carry_state)
            if math.isfinite(bound):
                metrics[f"{split}_perplexity_bound"] = bound
            else:
                say(_NO_BOUND)
    if dynamic:
        limits = {split: _diverged_above(metrics[f"{split}_perplexity"], len(streams.vocabulary)) for split in splits}
        metrics |= _dynamic(run, streams, rates, dynamic_rule or PAPERS_RULE, decays, limits, say)
    if reversed_text:
        metrics |= _reversed(run, streams.test, drawn if random else 0, drop_words, seed, say)
    return _sound(metrics)


def _sound(metrics: dict[str, Any]) -> dict[str, Any]:
    """The figures themselves, if all of them are numbers."""
    for key, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(
                f"{key} is {value}: the model is too far off to be measured, and nothing was written; look at its "
                "curves for where it went astray, and train it again, at a lower rate."
            )
    return metrics


def _numbers(option: str, text: str, *, below: float = float("inf")) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
        if not all(0 <= number < below for number in found):
            raise ValueError
    except ValueError:
        kind = (
            "a finite number of at least 0" if below == float("inf") else f"a number of at least 0 and below {below:g}"
        )
        raise UserError(f"{option} is {text}; it must be {kind}, or several with commas between.") from None
    return list(dict.fromkeys(found))


def reset_of(run: Trained) -> int | None:
    """Words after which a run's state starts from zero; None: never."""
    return None if run.recipe.data.carry_state else run.recipe.data.window


def _tempered(
    model: nn.Module, streams: language.Streams, reset: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    say("temperature of the posterior mean on valid")
    chosen = scoring.best_temperature(model, streams.valid, reset=reset)
    if any(math.isclose(chosen, end) for end in scoring.TEMPERATURES):
        say(f"temperature {chosen:g} is an end of the range that is looked at; the best one is beyond it")
    say(f"posterior mean at temperature {chosen:.3f}")
    valid = scoring.scores(model, streams.valid, reset=reset, temperature=chosen)
    test = scoring.scores(model, streams.test, reset=reset, temperature=chosen)
    return {
        "temperature": chosen,
        "valid_perplexity_tempered": valid.perplexity,
        "test_perplexity_tempered": test.perplexity,
        "test_calibration_error_tempered": test.calibration_error,
        "test_entropy_tempered": test.entropy,
    }


def _diverged_above(perplexity: float, vocabulary: int) -> float:
    """What no learning may end above: the perplexity of all words being equally likely.

    A model that is worse than that before it learns has diverged where it comes to twice its own.
    """
    return float(vocabulary) if perplexity < vocabulary else 2 * perplexity


def _dynamic(
    run: Trained,
    streams: language.Streams,
    rates: list[float],
    rule: str,
    decays: list[float],
    limits: dict[str, float],
    say: Callable[[str], None],
) -> dict[str, Any]:
    import bayesrnn as br

    carry_state, sharpened, scale = run.recipe.data.carry_state, run.recipe.posterior.kind == "sharpened", None
    window = run.recipe.evaluate.dynamic_window if carry_state else run.recipe.data.window
    if rule == "rms":
        assert isinstance(streams.train, Tensor)
        say("mean squared gradients on train")
        scale = br.dynamic.mean_squared_gradients(
            run.model, streams.train[:-1], streams.train[1:], window=window, carry_state=carry_state
        )
    # As in training: one stream's gradient is several times as long as a batch's.
    clip = run.recipe.train.clip if rule == "sgd" else None

    def perplexity(split: str, lr: float, decay: float, bound: bool = False) -> float:
        """Infinite: it diverged."""
        stream = getattr(streams, split)
        try:
            found = br.dynamic_evaluation(
                run.model, stream[:-1], stream[1:], lr=lr, window=window, rule=rule, decay=decay,
                gradient_scale=scale, clip=clip, carry_state=carry_state, bound=bound,
            ).perplexity  # fmt: skip
        except FloatingPointError:
            return math.inf
        return found if bound or found <= limits[split] else math.inf

    tried: dict[tuple[float, float], float] = {}

    def best_of(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        """On the validation text, which alone decides."""
        for pair in pairs:
            if pair not in tried:
                say(f"dynamic evaluation on valid, {_named(pair)}")
                tried[pair] = perplexity("valid", *pair)
                if tried[pair] == math.inf and len(rates) + len(decays) > 2:
                    say(f"it diverged with {_named(pair)}, which is left out")
        best = min(tried, key=lambda pair: tried[pair])
        if tried[best] == math.inf:
            raise _diverged("valid", list(tried))
        return best

    lr, _ = best_of([(lr, decays[0]) for lr in rates])
    lr, decay = best_of([(lr, decay) for decay in decays])
    say(f"dynamic evaluation on test, {_named((lr, decay))}")
    found: dict[str, Any] = {"dynamic_lr": lr, "dynamic_rule": rule, "dynamic_decay": decay, "dynamic_clip": clip}
    if len(tried) > 1:
        values = {_named(pair).removeprefix("rate "): value for pair, value in tried.items()}
        found["dynamic_tried"] = {name: value for name, value in values.items() if value < math.inf}
        found["dynamic_diverged"] = [name for name, value in values.items() if value == math.inf]
    found["valid_perplexity_dynamic"] = tried[lr, decay]
    found["test_perplexity_dynamic"] = perplexity("test", lr, decay)
    if found["test_perplexity_dynamic"] == math.inf:
        raise _diverged("test", [(lr, decay)])
    for split in ("valid", "test") if sharpened else ():
        say(f"dynamic evaluation on {split}, {_named((lr, decay))}, sharpened bound")
        found[f"{split}_perplexity_dynamic_bound"] = value = perplexity(split, lr, decay, bound=True)
        if value == math.inf:
            del found[f"{split}_perplexity_dynamic_bound"]
            say(_NO_BOUND)
    return found | {"dynamic_by_rule": by_rule(found)}


def _diverged(split: str, pairs: list[tuple[float, float]]) -> UserError:
    names = "; ".join(map(_named, pairs))
    return UserError(
        f"Dynamic evaluation diverged on {split} with {names}: lower --dynamic-lr, or leave --dynamic away. "
        "Nothing was written."
    )


def _named(pair: tuple[float, float]) -> str:
    lr, decay = pair
    return f"rate {lr:g}" + (f", decay {decay:g}" if decay else "")


def _reversed(
    run: Trained, test: Tensor, samples: int, drop_words: bool, seed: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Entropy gaps of the mean, of one draw, and of the average of all; ``entropy_gaps`` has those of 1, 2, … draws."""
    backwards, reset = torch.flip(test, (0,)), reset_of(run)
    found: dict[str, Any] = {}
    with scoring.word_dropout(run.model, on=drop_words):
        say("reversed text, no draws")
        forward = scoring.scores(run.model, test, reset=reset)
        reverse = scoring.scores(run.model, backwards, reset=reset)
        found |= {"entropy_gap_mean": reverse.entropy - forward.entropy, "reversed_entropy_mean": reverse.entropy}
        if samples:
            say(f"reversed text, {counted(samples, 'draw')}")
            forward = scoring.scores(run.model, test, samples=samples, seed=seed, reset=reset)
            reverse = scoring.scores(run.model, backwards, samples=samples, seed=seed, reset=reset)
            gaps = [r - f for r, f in zip(reverse.entropies, forward.entropies, strict=True)]
            drawn = {
                "entropy_gap_1": gaps[0],
                "reversed_entropy_1": reverse.entropies[0],
                "entropy_gap": gaps[-1],
                "reversed_entropy": reverse.entropy,
                "entropy_gaps": gaps,
                "entropy_samples": samples,
                "entropy_draws_seed": seed,
                "test_calibration_error_mc": forward.calibration_error,
                "test_mutual_information": forward.mutual_information,
            }
            found |= {f"{key}{WORDS if drop_words else ''}": value for key, value in drawn.items()}
    return found
