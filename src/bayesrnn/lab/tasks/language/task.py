"""Word-level language modelling: predict the next word of a text."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn import draws
from bayesrnn.dynamic import exp_or_inf
from bayesrnn.elbo import ELBO, Terms
from bayesrnn.errors import UserError
from bayesrnn.lab.cards import card_of
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.tasks.base import Files, Say, State, Task, is_random, posterior, recipe_elbo
from bayesrnn.lab.tasks.language import COMMANDS, dynamic_metrics
from bayesrnn.lab.tasks.language.analysis import analyse
from bayesrnn.lab.tasks.language.evaluation import evaluate
from bayesrnn.lab.tasks.language.metrics import CONDITIONS, DETAILS, METRICS, bounds_of, remarks, table
from bayesrnn.lab.tasks.language.mixture import TargetLogs
from bayesrnn.lab.tasks.language.model import LanguageModel, activity, zero_state
from bayesrnn.lab.tasks.language.options import EvaluateOptions
from bayesrnn.lab.tasks.language.settings import SECTIONS
from bayesrnn.lab.tasks.language.streams import Streams, disk_streams, evaluation_window, perplexity, streams
from bayesrnn.lab.tasks.language.text import python_docs, read_folder
from bayesrnn.lab.tasks.language.token_files import TokenFolder, as_ids, digest_pieces
from bayesrnn.lab.tasks.signature import ROWS, STEPS, Signature
from bayesrnn.lab.text import VOCABULARY, Vocabulary, each_split, vocabulary_of
from bayesrnn.likelihoods import Categorical

_IGNORED = Categorical().ignore_index
_TRIED = 100  # words of a stream, to measure how long an evaluation takes


def build(recipe: Recipe, vocabulary: int) -> nn.Module:
    """The recipe's model for a vocabulary of this many words, initialised from torch's global generator."""
    plain = LanguageModel(vocabulary, recipe.model)
    ordinary = ["decoder.bias", "rnn.*bias_hh*"] if recipe.model.one_bias else ["decoder.bias"]
    return posterior(plain, recipe.posterior, recurrent="rnn.*", exclude=ordinary)


def window_elbo(model: nn.Module, recipe: Recipe, windows: int) -> ELBO:
    """The published loss of a window: -log p summed over T steps and averaged over B rows, plus kl_weight KL / (B C).

    That is T times the loss per word, with B * C * T words in C = ``windows`` windows per epoch. With ``data.loss:
    word`` it is the loss per word. The model is given the targets, and returns their log-probabilities.
    """
    window = recipe.data.window
    words = recipe.data.batch_size * windows * window
    units = window if recipe.data.loss == "window" else 1
    weight = recipe.model.kl_weight
    return recipe_elbo(model, TargetLogs(), recipe.posterior, num_data=words, window=units, kl_weight=weight)


class Language(Task):
    """The text of a folder, or of Python's documentation, in streams side by side; windows hand on their state.

    Per epoch the validation text is scored in a few streams, at the end both texts as one.
    """

    sections = SECTIONS
    metric, card = "valid_perplexity", card_of(__file__)
    runs_called = "language models"
    command = "predict"
    merge_metrics = staticmethod(dynamic_metrics.merged)
    carried_metrics = staticmethod(dynamic_metrics.carried)
    report_metrics = staticmethod(dynamic_metrics.named_rules)
    unit = "words"
    source = "text"
    default_data = "python-docs"
    metrics, details, conditions = METRICS, DETAILS, CONDITIONS
    draw_options = ("samples", "entropy_samples", "drop_words", "keep_weights", "noise")
    commands = COMMANDS
    panel = "bayesrnn.lab.tasks.language.panel:LanguagePanel"
    report_sections = (
        "bayesrnn.lab.report.uncertainty:reliability",
        "bayesrnn.lab.tasks.language.sections:entropy_gap",
        "bayesrnn.lab.report.weights:signal_to_noise",
        "bayesrnn.lab.report.weights:pruning",
        "bayesrnn.lab.report.weights:patterns",
        "bayesrnn.lab.tasks.language.sections:words",
    )
    table, remarks = staticmethod(table), staticmethod(remarks)

    def __init__(
        self, recipe: Recipe, data: str | None, device: torch.device, vocabulary: Vocabulary | None = None
    ) -> None:
        super().__init__(recipe, data, device)
        self.random = is_random(recipe)
        if data is not None and TokenFolder.is_at(data):
            found = disk_streams(TokenFolder(data), recipe)
        else:
            found = streams(python_docs() if data is None else read_folder(data), recipe, vocabulary)
        self.streams = found.to(device)
        window = recipe.data.window
        self.batch_size = recipe.data.batch_size
        self.offset = torch.zeros((), dtype=torch.long, device=device)  # words before the first window
        self.steps = self.streams.windows if not recipe.data.shift else self.streams.shifted_windows
        self.examples_per_step = self.batch_size * window
        self.limit = 2 * math.log(len(self.streams.vocabulary)) + 2
        self.valid_streams = self.streams.valid_streams
        self._rows = torch.arange(window + recipe.data.vary + 1, device=device)
        if recipe.data.vary and (recipe.train.shared_draw or recipe.posterior.kind == "sharpened"):
            raise UserError("data.vary works without train.shared_draw and sharpening; set it to 0.")
        self._use(self.streams)

    @classmethod
    def for_run(cls, recipe: Recipe, data: str | None, device: torch.device, files: Files) -> "Language":
        return cls(recipe, data, device, vocabulary_of(files))

    def unknown_words(self) -> str:
        found = self.streams.unknown
        return f"Words that the run does not know: {each_split(found)}." if any(found.values()) else ""

    def _use(self, streams: Streams) -> None:
        self.streams, rows = streams, streams.train.shape[1]
        self._zeros = zero_state(self.recipe.model, rows, self.device)
        # Where a window of text on disk is put before each step.
        self._read = torch.zeros(streams.window + 1, rows, dtype=torch.long, device=self.device)

    def split(self, rows: slice) -> None:
        if self.recipe.data.vary:
            raise UserError("data.vary is for one process; train with one, or set it to 0.")
        self._use(self.streams.part(rows))

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        return build(recipe, len(vocabulary_of(files)))

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        self.sequences = self.recipe.data.batch_size * self.steps
        self.elbo = window_elbo(model, self.recipe, self.steps)

    def files(self) -> dict[str, bytes]:
        return {VOCABULARY: self.streams.vocabulary.to_bytes()}

    def content(self) -> Iterator[bytes]:
        """Word ids, identical for a text and its token files; sampled for a huge text."""
        yield from self.files().values()
        for split in (self.streams.train.t(), self.streams.valid, self.streams.test):
            yield from digest_pieces(split.reshape(-1).cpu().numpy())

    def tensors(self) -> dict[str, Tensor]:
        return {"offset": self.offset} if self.recipe.data.shift or self.recipe.data.vary else {}

    def start_epoch(self, epoch: int) -> None:
        self.offset.zero_()
        if self.recipe.data.shift:
            self.offset.copy_(torch.randint(0, self.streams.window, ()))

    def state(self) -> State:
        return tuple(z.clone() for z in self._zeros) if self.recipe.data.carry_state else ()

    def fetch(self, step: int) -> None:
        if self.streams.on_disk:
            start = step * self.streams.window + int(self.offset)
            words = self.streams.train[start : start + self.streams.window + 1]
            read = as_ids(words, len(self.streams.vocabulary))
            # From pinned memory the copy waits its turn behind the steps that are under way, and nobody waits for it.
            self._read.copy_(read.pin_memory() if self.device.type == "cuda" else read, non_blocking=True)

    def batch(self, position: Tensor) -> Tensor:
        if self.streams.on_disk:
            return self._read
        start = position * self.recipe.data.window + self.offset
        if self.recipe.data.vary:  # their lengths may add up to more than the text
            start = start.clamp(max=len(self.streams.train) - len(self._rows))
        return self.streams.train.index_select(0, start + self._rows)

    def objective(self, batch: Tensor, state: State) -> tuple[Tensor, Terms, State]:
        before, data = state or self._zeros, self.recipe.data
        if data.vary:
            return self._varied(batch, before, state)
        with activity(self.model, self.recipe.model) as penalties:
            terms, (_, after) = self.elbo.evaluate(lambda: self.model(batch[:-1], before, batch[1:]), batch[1:])
        # of two passes, the penalty of the one at the sharpened weights
        return self._penalised(terms, penalties[-1:]), terms, after if state else ()

    def _varied(self, batch: Tensor, before: State, state: State) -> tuple[Tensor, "Terms", State]:
        """The objective of a window of random length, in fixed shapes.

        The longest window runs in three parts under one draw. Words after the chosen length do not count; the state at
        that length is carried, and the next window begins there.
        """
        data, after = self.recipe.data, list[State]()
        chosen = torch.randint(3, (1,), device=self.device)
        more = data.vary * (chosen - 1)
        targets = batch[1:].masked_fill((self._rows[:-1] >= data.window + more).unsqueeze(1), _IGNORED)

        def run() -> tuple[Tensor, ...]:
            outputs, own = [], before
            sizes = [data.window - data.vary, data.vary, data.vary]
            for part, next_words in zip(batch[:-1].split(sizes), targets.split(sizes), strict=True):
                output, own = self.model(part, own, next_words)
                outputs.append(output)
                after.append(own)
            return (torch.cat(outputs),)

        with draws.bind(self.model, draws.HeldNoise()), activity(self.model, self.recipe.model) as penalties:
            terms, _ = self.elbo.evaluate(run, targets, count=batch.shape[1] * data.window)
        self.offset.add_(more[0])
        carried = tuple(torch.stack(each)[chosen][0] for each in zip(*after, strict=True)) if state else ()
        return self._penalised(terms, penalties[:1]), terms, carried  # the penalty of the part that always counts

    def _penalised(self, terms: "Terms", penalties: list[Tensor]) -> Tensor:
        loss, data = terms.loss, self.recipe.data
        for penalty in penalties:
            loss = loss + penalty * (data.window if data.loss == "window" else 1)
        return loss

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        return {
            "train_perplexity": exp_or_inf(totals["nll"] / self.examples_per_step),
            "kl_per_sequence": totals["kl"] / self.sequences,
            "sharpening_per_sequence": totals["sharpening"] / self.batch_size,
        }

    def validate(self) -> dict[str, Any]:
        found = self.perplexity_of(self.model, self.valid_streams)
        return {"valid_perplexity": found, "valid_streams": self.valid_streams.shape[1]}

    def evaluation_seconds(self) -> tuple[float, float]:
        each = []
        for stream in (self.valid_streams, self.streams.valid):
            part = stream[: max(_TRIED, self.streams.window) + 1]
            self.perplexity_of(self.model, part[: self.streams.window + 1])  # the first call allocates memory
            began = time.perf_counter()
            self.perplexity_of(self.model, part)
            each.append((time.perf_counter() - began) / (len(part) - 1))
        last = len(self.streams.valid) + len(self.streams.test)
        return each[0] * len(self.valid_streams), each[1] * last

    def final(self) -> dict[str, Any]:
        return {
            "valid_perplexity": self.perplexity_of(self.model, self.streams.valid),
            "test_perplexity": self.perplexity_of(self.model, self.streams.test),
        }

    def perplexity_of(self, model: nn.Module, stream: Tensor) -> float:
        """Perplexity of the posterior mean on streams (L, B); the state is carried as the recipe says."""
        window, carry = self.recipe.data.window, self.recipe.data.carry_state
        if carry:
            window = evaluation_window(stream, len(self.streams.vocabulary))
        return perplexity(model, stream, window=window, carry_state=carry)

    def evaluate(
        self, *, samples: int | None = None, seed: int = 1, say: Say = lambda text: None, **options: Any
    ) -> dict[str, Any]:
        draws = self.recipe.evaluate.samples if samples is None else samples
        return evaluate(self, EvaluateOptions(samples=draws, seed=seed, **options), say=say)

    @classmethod
    def paper_values(cls, settings: Mapping[str, Any]) -> dict[str, float]:
        found, posterior = super().paper_values(settings), settings.get("posterior")
        sharpened = isinstance(posterior, dict) and posterior.get("kind") == "sharpened"
        return bounds_of(found) if sharpened else found

    @staticmethod
    def analyse(run: OpenedRun, known: Mapping[str, Any], say: Say) -> dict[str, Any]:
        return analyse(run, known, say)

    @classmethod
    def signature(cls, run: OpenedRun) -> Signature:
        m, device = run.recipe.model, next(run.model.parameters()).device
        tokens = torch.zeros(STEPS, ROWS, dtype=torch.long, device=device)
        state = zero_state(m, ROWS, device)
        names = [f"{kind}{k + 1}" for k in range(m.layers) for kind in "hc"] if m.stacked else ["h", "c"]
        sizes: list[tuple[str | int, ...]] = [(len(each), "batch", each.shape[-1]) for each in state]
        return Signature(
            run.model,
            (tokens, state),
            ("tokens", *names),
            ("logits", *(f"{name}_next" for name in names)),
            (("time", "batch"), *sizes),
        )

    def describe(self) -> str:
        s, train, rows = self.streams, len(self.streams.train) * self.batch_size, self.valid_streams.shape[1]
        how = f" Validated in {rows} parallel streams after each epoch, as one stream at the end." if rows > 1 else ""
        return (
            f"{counted(train, 'word')} to train on, {len(s.valid):,} to validate, {len(s.test):,} to test; "
            f"{len(s.vocabulary):,} word types; unknown words: {each_split(s.unknown)}. "
            f"{counted(self.steps, 'window')} of {s.window} per epoch on {self.device}.{how}"
        )

    def about(self) -> dict[str, Any]:
        return {"unknown_words": self.streams.unknown}
