"""Dynamic evaluation of a language model: its rate and decay are chosen on the validation text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bayesrnn import dynamic
from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.language.dynamic_metrics import by_rule

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Say
    from bayesrnn.lab.tasks.language.task import Language

NO_BOUND = "the bound is larger than any number: the rates of sharpening (eta) are too high here; it is left out"

Pair = tuple[float, float]
"""A rate and a decay."""


@dataclass
class DynamicEvaluation:
    """One rule on the texts of one run.

    Args:
        rates, decays: what to try. First the rate is chosen, with the first decay; then the decay, with that rate.
        perplexities: of the model that does not learn, by split: above :meth:`limit` learning has diverged.
    """

    task: "Language"
    rule: str
    rates: Sequence[float]
    decays: Sequence[float]
    perplexities: dict[str, float]
    say: "Say"
    tried: dict[Pair, float] = field(default_factory=dict)
    """Validation perplexities; infinite where learning diverged."""

    def __post_init__(self) -> None:
        recipe = self.task.recipe
        self.carry_state = recipe.data.carry_state
        self.window = recipe.evaluate.dynamic_window if self.carry_state else recipe.data.window
        # As in training: one stream's gradient is several times as long as a batch's.
        self.clip = recipe.train.clip if self.rule == "sgd" else None
        self.scale: Any = None
        if self.rule == "rms":
            self.say("mean squared gradients on train")
            train, options = (
                self.task.streams.train,
                {"window": self.window, "carry_state": self.carry_state, "graph": True},
            )
            self.scale = dynamic.mean_squared_gradients(self.task.model, train[:-1], train[1:], **options)

    def limit(self, split: str) -> float:
        """The perplexity of all words being equally likely; twice its own for a model that is worse than that."""
        before, vocabulary = self.perplexities[split], float(len(self.task.streams.vocabulary))
        return vocabulary if before < vocabulary else 2 * before

    def perplexity(self, split: str, pair: Pair, *, bound: bool = False) -> float:
        """Infinite if learning diverges."""
        stream = {"valid": self.task.streams.valid, "test": self.task.streams.test}[split]
        try:
            found = dynamic.dynamic_evaluation(
                self.task.model, stream[:-1], stream[1:], lr=pair[0], window=self.window, rule=self.rule, decay=pair[1],
                gradient_scale=self.scale, clip=self.clip, carry_state=self.carry_state, bound=bound,
                graph=True,
            ).perplexity  # fmt: skip
        except FloatingPointError:
            return math.inf
        return found if bound or found <= self.limit(split) else math.inf

    def best_of(self, pairs: Sequence[Pair]) -> Pair:
        """The pair with the lowest validation perplexity, of these and those tried before."""
        for pair in pairs:
            if pair not in self.tried:
                self.say(f"dynamic evaluation on valid, {_named(pair)}")
                self.tried[pair] = self.perplexity("valid", pair)
                if self.tried[pair] == math.inf and len(self.rates) + len(self.decays) > 2:
                    self.say(f"it diverged with {_named(pair)}, which is left out")
        best = min(self.tried, key=lambda pair: self.tried[pair])
        if self.tried[best] == math.inf:
            raise _diverged("valid", list(self.tried))
        return best

    def metrics(self) -> dict[str, Any]:
        """Choose rate and decay on the validation text, then measure the test text."""
        lr, _ = self.best_of([(lr, self.decays[0]) for lr in self.rates])
        best = lr, decay = self.best_of([(lr, decay) for decay in self.decays])
        self.say(f"dynamic evaluation on test, {_named(best)}")
        found: dict[str, Any] = {
            "dynamic_lr": lr, "dynamic_rule": self.rule, "dynamic_decay": decay, "dynamic_clip": self.clip
        }  # fmt: skip
        if len(self.tried) > 1:
            values = {_named(pair).removeprefix("rate "): value for pair, value in self.tried.items()}
            found["dynamic_tried"] = {name: value for name, value in values.items() if value < math.inf}
            found["dynamic_diverged"] = [name for name, value in values.items() if value == math.inf]
        found["valid_perplexity_dynamic"] = self.tried[best]
        found["test_perplexity_dynamic"] = self.perplexity("test", best)
        if found["test_perplexity_dynamic"] == math.inf:
            raise _diverged("test", [best])
        if self.task.recipe.posterior.kind == "sharpened":
            found |= self._bounds(best)
        return found | {"dynamic_by_rule": by_rule(found)}

    def _bounds(self, pair: Pair) -> dict[str, float]:
        found = {}
        for split in ("valid", "test"):
            self.say(f"dynamic evaluation on {split}, {_named(pair)}, sharpened bound")
            value = self.perplexity(split, pair, bound=True)
            if value < math.inf:
                found[f"{split}_perplexity_dynamic_bound"] = value
            else:
                self.say(NO_BOUND)
        return found


def _diverged(split: str, pairs: Sequence[Pair]) -> UserError:
    names = "; ".join(map(_named, pairs))
    return UserError(
        f"Dynamic evaluation diverged on {split} with {names}: lower --dynamic-lr, or omit --dynamic. "
        "Nothing was written."
    )


def _named(pair: Pair) -> str:
    lr, decay = pair
    return f"rate {lr:g}" + (f", decay {decay:g}" if decay else "")
