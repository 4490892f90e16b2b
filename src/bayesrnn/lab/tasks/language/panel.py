"""The panel of language models: any text, word by word, and what was expected in the place of a word."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from bayesrnn.draws import Draw, mix
from bayesrnn.errors import UserError
from bayesrnn.lab.explore.panel import Draws, Handler, Options, Panel, Part, Request
from bayesrnn.lab.modules import module_of_draw
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import is_random
from bayesrnn.lab.tasks.language.scoring import draws_weights, log_probabilities
from bayesrnn.lab.tasks.language.sections import INFORMATION_LEVELS, SURPRISAL_LEVELS
from bayesrnn.lab.tasks.language.streams import evaluation_window, perplexity, reset_of
from bayesrnn.lab.tasks.language.text import python_docs, split_files
from bayesrnn.lab.tasks.language.words import score_text
from bayesrnn.lab.text import EOS, UNK, noise_of_draws, vocabulary_of
from bayesrnn.prediction.weights import HeldDraws, has_unit_noise

_WORDS = 1000  # of a text
_SCORED = 2000  # words of the validation text, to score a pruned model
_LIKELY = 8
_WARM = 32  # draws that are ready before the first question
_HELD = 1 << 29  # parameters of all held draws; they take half as many floats
_EXAMPLE = 12  # words
_READ = 1 << 14  # characters of the validation text, for the example


class Text(Request):
    """Score a text."""

    text: str = Field(max_length=10_000)
    draws: Draws = 16


class Place(Text):
    """What is expected in the place of this word; after the last word it is the next one."""

    place: int = Field(ge=0, le=_WORDS)


class LanguagePanel(Panel):
    title = "Words"
    score_label = "validation perplexity"

    def __init__(self, run: OpenedRun, options: Options) -> None:
        super().__init__(run, options)
        self.models: list[nn.Module] = []
        """The first draws of the weights, as plain modules, where that is faster."""

    def about(self) -> dict[str, Any]:
        return {
            "random": is_random(self.run.recipe),
            "example": self.example,
            "words": len(self.vocabulary),
            "levels": {"surprisal": SURPRISAL_LEVELS, "mutual_information": INFORMATION_LEVELS},
        }

    def handlers(self) -> Mapping[str, Handler]:
        return {"words": Handler(Text, self.words), "place": Handler(Place, self.place)}

    @cached_property
    def vocabulary(self) -> Any:
        return vocabulary_of(self.run.files)

    @cached_property
    def example(self) -> str:
        """A line of the validation text; where there is none, the most frequent words."""
        lines: list[list[str]] = []
        with suppress(UserError, OSError):
            place = self.run.place(self.options.data, self.device)
            if place is None:
                text = " ".join(python_docs().valid[: _EXAMPLE * 9]).replace(EOS, "\n")
            else:
                with open(split_files(place)["valid"], encoding="utf-8", errors="replace") as file:
                    text = file.read(_READ)
            lines = [line.split() for line in text.splitlines()]
        frequent = [word for word in self.vocabulary.words if word not in (EOS, UNK)]
        longest = max(lines[:20], key=len, default=[]) or frequent
        return " ".join(longest[:_EXAMPLE])

    def warm(self) -> Iterator[None]:
        asked = Text(text=self.example, draws=_WARM)
        for _ in self._draw(self._draws(asked)):
            yield
        for _ in self.words(asked):  # in one step: it lies inside a draw
            pass
        yield

    def _draw(self, count: int) -> Iterator[Part]:
        """Make the weights of the first draws, once: drawing a large model takes longer than running it.

        Models whose draws run all at once, with noise besides the weights', or too large to hold, are drawn each time.
        """
        model = self.run.model
        weights = sum(p.numel() for p in model.parameters())
        noisy = has_unit_noise(model.modules())
        if not draws_weights(model) or noisy or HeldDraws.serve(model) or count * weights > _HELD:
            self.models.clear()
            return
        while len(self.models) < count:
            self.models.append(module_of_draw(model, Draw(mix(1, len(self.models)))))
            yield {"progress": len(self.models) / count}

    def words(self, asked: Text) -> Iterator[Part]:
        """Every word with its surprisal, and entropy and mutual information of the prediction, in nats."""
        shown, known = self._tokens(asked.text)
        draws = self._draws(asked)
        yield from self._draw(draws)
        lines = score_text(self.run, known, samples=draws, seed=1, models=self.models[:draws]) if known else iter(())
        done = 0
        while part := list(islice(lines, 16)):
            texts = shown[done : done + len(part)]
            done += len(part)
            yield {"words": [{**line, "word": text} for line, text in zip(part, texts, strict=True)]}
            yield {"progress": done / len(shown)}

    def place(self, asked: Place) -> Iterator[Part]:
        """The likeliest words: by the average of the draws, by the mean weights, and by each draw."""
        shown, known = self._tokens(asked.text)
        if asked.place > len(known):
            raise UserError(f"The text has only {len(known)} words.")
        before, draws = known[: asked.place], self._draws(asked)
        yield from self._draw(draws)
        mean = self._probabilities(before, 0)[0]
        each = self._probabilities(before, draws) if draws else mean[None]
        average = each.mean(0)
        top = set(average.topk(min(_LIKELY, len(average))).indices.tolist())
        top |= set(mean.topk(min(3, len(mean))).indices.tolist())
        actual = shown[asked.place] if asked.place < len(shown) else None
        came = self.vocabulary.ids(known[asked.place : asked.place + 1])
        ids = sorted({*top, *came}, key=lambda i: -float(average[i]))
        yield {
            "actual": actual,
            "rows": [
                {
                    "word": self.vocabulary.words[i],
                    "came": i in came,
                    "average": float(average[i]),
                    "mean": float(mean[i]),
                    "draws": each[:, i].tolist() if draws else [],
                }
                for i in ids
            ],
            "draws": [self._likeliest(one) for one in each] if draws else [],
        }

    def _likeliest(self, probabilities: Tensor) -> list[Part]:
        found = probabilities.topk(min(4, len(probabilities)))
        words = self.vocabulary.decode(found.indices)
        return [{"word": w, "p": p} for w, p in zip(words, found.values.tolist(), strict=True)]

    def _draws(self, asked: Text) -> int:
        return asked.draws if is_random(self.run.recipe) else 0

    def _tokens(self, text: str) -> tuple[list[str], list[str]]:
        """The words as typed, and in the form in which the vocabulary knows them; ends of lines between them."""
        lines = [line.split() for line in text.replace("\0", " ").splitlines() if line.strip()]
        shown = [word for line in lines for word in (*line, EOS)][:-1]
        if len(shown) > _WORDS:
            raise UserError(f"The text has {len(shown):,} words; give at most {_WORDS:,}.")
        return shown, [self._known(word) for word in shown]

    def _known(self, word: str) -> str:
        lower = word.lower()
        number = "N" if lower[:1].isdigit() else lower
        forms = (word, lower, lower.strip(".,;:!?\"'()[]"), number)
        return next((form for form in forms if form in self.vocabulary), word)

    def _probabilities(self, before: list[str], draws: int) -> Tensor:
        """(draws, V) of the word after these; without draws (1, V), of the mean weights."""
        stream = self.vocabulary.encode([EOS, *before, UNK]).unsqueeze(1).to(self.device)
        keep = self.run.recipe.evaluate.keep_weights
        with noise_of_draws(self.run.model, weights=not keep), torch.no_grad():
            for _, logs in log_probabilities(
                self.run.model, stream, samples=draws, seed=1, reset=reset_of(self.run.recipe),
                models=self.models[:draws],
            ):  # fmt: skip
                last = logs[:, -1]
        return last.exp()

    def score(self, model: nn.Module) -> float:
        task: Any = self.task
        stream, reset = task.streams.valid[: _SCORED + 1], reset_of(self.run.recipe)
        window = reset or evaluation_window(stream, len(self.vocabulary))
        return perplexity(model, stream, window=window, carry_state=reset is None)
