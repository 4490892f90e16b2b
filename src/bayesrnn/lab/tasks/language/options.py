"""Options of ``bayesrnn evaluate`` for language models. ``--help`` shows them without importing the task."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.errors import UserError

if TYPE_CHECKING:
    from bayesrnn.lab.recipes import Recipe

RULES = ("sgd", "rms")
RMS_LR = 2e-4  # the default rate of the RMS rule, whose steps have another unit; best for best-medium on Penn Treebank
_option: Any = partial(typer.Option, rich_help_panel="Language models")


@dataclass(frozen=True)
class EvaluateOptions:
    """What to measure besides the posterior mean; ``samples`` and ``seed`` are options of every task."""

    samples: int | None = None
    seed: int = 1
    dynamic: Annotated[bool, _option("--dynamic", help="Also update the weights during the test.")] = False
    reversed_text: Annotated[bool, _option("--reversed", help="Also the entropy on reversed text.")] = False
    temperature: Annotated[bool, _option("--temperature", help="Also at a temperature chosen on validation.")] = False
    dynamic_lr: Annotated[
        str | None,
        _option(
            help="Step size of --dynamic, or several with commas: the best on validation. Default: the recipe's; "
            "2e-4 for rms."
        ),
    ] = None
    dynamic_rule: Annotated[str | None, _option(help="sgd (the default), or rms (Krause et al.).")] = None
    dynamic_decay: Annotated[
        str | None,
        _option(help="Pull towards the trained weights; of several with commas the best on validation. Default: 0."),
    ] = None
    drop_words: Annotated[
        bool, _option("--drop-words", help="Keep word dropout on in draws; their metrics end in _words.")
    ] = False
    keep_weights: Annotated[
        bool, _option("--keep-weights", help="Turn weight dropout off in draws; their metrics end in _units.")
    ] = False
    noise: Annotated[
        str | None,
        _option(
            help="Factor of the dropout rates in draws, or several with commas: the best on validation; their metrics "
            "end in _scaled."
        ),
    ] = None
    entropy_samples: Annotated[int | None, _option(min=0, help="Draws for the entropy gap. Default: 10.")] = None

    @property
    def suffix(self) -> str:
        """The end of the names of metrics of draws."""
        given = {"_words": self.drop_words, "_units": self.keep_weights, "_scaled": self.noise is not None}
        return next((kind for kind, own in given.items() if own), "")

    @property
    def drawn(self) -> int:
        """Draws for the entropy gap."""
        return 10 if self.entropy_samples is None else self.entropy_samples

    def check(self, recipe: "Recipe", *, in_memory: bool) -> None:
        """Refuse options that contradict each other, or have no effect on this run.

        ``in_memory``: whether the training text is.
        """
        if self.dynamic_rule not in (None, *RULES):
            raise UserError(f"There is no rule {self.dynamic_rule}; choose {' or '.join(RULES)}.")
        given = (self.dynamic_lr, self.dynamic_rule, self.dynamic_decay)
        if not self.dynamic and any(each is not None for each in given):
            raise UserError(
                "--dynamic-lr, --dynamic-rule and --dynamic-decay are for dynamic evaluation; add --dynamic."
            )
        if self.dynamic_rule == "rms" and not in_memory:
            raise UserError("--dynamic-rule rms needs the training text in memory; name its folder with --data.")
        if self.entropy_samples is not None and not self.reversed_text:
            raise UserError("--entropy-samples is for the entropy on reversed text; add --reversed.")
        self._check_draws(recipe)

    def _check_draws(self, recipe: "Recipe") -> None:
        from bayesrnn.lab.tasks.base import is_random

        random = is_random(recipe)
        drawn = random and (self.samples or (self.reversed_text and self.drawn))
        named = {
            "--drop-words": self.drop_words, "--keep-weights": self.keep_weights, "--noise": self.noise is not None
        }  # fmt: skip
        given = [option for option, own in named.items() if own]
        if given and not drawn:
            raise UserError(f"{given[0]} is for draws, and there are none; add --samples with their number.")
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} name different draws; run evaluate once with each.")
        if self.drop_words and not recipe.model.word_dropout:
            raise UserError("--drop-words is for models with word dropout, and this one has none; omit it.")
        if self.keep_weights and not recipe.model.weight_dropout:
            raise UserError("--keep-weights is for models with weight dropout, and this one has none; omit it.")

        self._check_noise(recipe)

    def _check_noise(self, recipe: "Recipe") -> None:
        if self.noise is None:
            return
        if not any(rate for name, rate in recipe.model if name.endswith("dropout") and name != "step_dropout"):
            raise UserError("--noise is for models with dropout per sequence, and this one has none; omit it.")
        if len(self.scales) > 1 and not self.samples:
            raise UserError("Of several factors --noise takes the best on validation; add --samples.")

    @property
    def scales(self) -> list[float]:
        """Factors of the dropout rates in draws, to try."""
        found = _numbers("--noise", "1" if self.noise is None else str(self.noise))
        if not all(0 < factor <= 1 for factor in found):
            raise UserError(f"--noise is {self.noise}; factors of dropout rates are above 0 and at most 1.")
        return found

    def rates(self, recipe: "Recipe") -> list[float]:
        """Rates of dynamic evaluation to try."""
        usual = RMS_LR if self.dynamic_rule == "rms" else recipe.evaluate.dynamic_lr
        return [usual] if self.dynamic_lr is None else _numbers("--dynamic-lr", str(self.dynamic_lr))

    def decays(self) -> list[float]:
        """Decays of dynamic evaluation to try."""
        return _numbers("--dynamic-decay", str(0 if self.dynamic_decay is None else self.dynamic_decay), below=1.0)


def _numbers(option: str, text: str, *, below: float = math.inf) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
        if not all(0 <= number < below for number in found):
            raise ValueError
    except ValueError:
        kind = "a finite number of at least 0" if below == math.inf else f"a number of at least 0 and below {below:g}"
        raise UserError(f"{option} is {text}; it must be {kind}, or several with commas between.") from None
    return list(dict.fromkeys(found))
