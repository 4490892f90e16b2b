"""Word-level language modelling: predict the next word of a text."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrnn.dynamic import exp_or_inf
from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.tasks.base import Files, Say, State, Task, posterior, recipe_elbo
from bayesrnn.lab.tasks.language import dynamic_metrics
from bayesrnn.lab.tasks.language.model import LanguageModel, LSTMState
from bayesrnn.lab.tasks.language.settings import SECTIONS
from bayesrnn.lab.tasks.language.text import Corpus, Vocabulary, batchify, python_docs, read_folder, windows
from bayesrnn.lab.tasks.language.token_files import DiskStreams, TokenFolder, sampled

if TYPE_CHECKING:
    from bayesrnn.elbo import ELBO, Terms

# Streams side by side for the validation after each epoch; final figures are taken on one stream.
EPOCH_STREAMS = 10
_LOGITS = 1 << 25  # numbers in one evaluation window's logits
_VOCABULARY = "vocabulary.txt"


@dataclass(frozen=True)
class Streams:
    """A corpus as ids: training text in ``batch_size`` streams (L, B), the other splits as one, (N, 1).

    Of token files the training text stays on disk.
    """

    vocabulary: Vocabulary
    train: Tensor | DiskStreams
    valid: Tensor
    test: Tensor
    unknown: dict[str, int]
    window: int

    @property
    def windows(self) -> int:
        """Whole windows per epoch, C; the ragged end of the streams is left out, as in the published code."""
        return (len(self.train) - 1) // self.window

    @property
    def valid_streams(self) -> Tensor:
        """The validation text in several streams, for the quick figure after each epoch."""
        return batchify(self.valid[:, 0], max(1, min(EPOCH_STREAMS, len(self.valid) // (self.window + 1))))

    def to(self, device: torch.device) -> "Streams":
        train = self.train.to(device) if isinstance(self.train, Tensor) else self.train
        return replace(self, train=train, valid=self.valid.to(device), test=self.test.to(device))

    def part(self, rows: slice) -> "Streams":
        """Some of the streams of the training text."""
        train = self.train[:, rows].contiguous() if isinstance(self.train, Tensor) else self.train.part(rows)
        return replace(self, train=train)


def streams(corpus: Corpus, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Streams:
    """The corpus as a recipe cuts it; the vocabulary is the training text's unless one is given."""
    vocabulary = vocabulary or Vocabulary(corpus.train, min_count=recipe.data.min_count)
    texts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    ids = {split: vocabulary.encode(text) for split, text in texts.items()}
    train = batchify(ids["train"], recipe.data.batch_size)
    unknown = {split: vocabulary.unknown(text) for split, text in texts.items()}
    made = Streams(vocabulary, train, ids["valid"].unsqueeze(1), ids["test"].unsqueeze(1), unknown, recipe.data.window)
    return _long_enough(made)


def disk_streams(folder: TokenFolder, recipe: Recipe) -> Streams:
    """Token files as a recipe cuts them; validation and test text are read into memory."""
    asked, made = recipe.data.min_count, folder.about.get("min_count")
    if asked not in (1, made):
        raise UserError(
            f"data.min_count is {asked}, but the token files in {folder.path} were made with {made}; "
            f"make them again with --min-count {asked}."
        )
    size = len(folder.vocabulary)
    train = DiskStreams(folder.file("train"), recipe.data.batch_size, vocabulary=size, where=folder.path)
    valid, test = (folder.read(split).unsqueeze(1) for split in ("valid", "test"))
    return _long_enough(Streams(folder.vocabulary, train, valid, test, folder.unknown, recipe.data.window))


def _long_enough(streams: Streams) -> Streams:
    """Every split has at least one window."""
    for split in ("train", "valid", "test"):
        length, window = len(getattr(streams, split)), streams.window
        if length <= window:
            rows = streams.train.shape[1] if split == "train" else 1
            each = f" in each of {rows} streams" if rows > 1 else ""
            smaller = "data.window or data.batch_size" if split == "train" else "data.window"
            raise UserError(
                f"The {split} text has {counted(length, 'word')}{each}, fewer than one window of {window} and the word "
                f"after it; use more text, or a smaller {smaller}."
            )
    return streams


def build(recipe: Recipe, vocabulary: int) -> nn.Module:
    """The recipe's model for a vocabulary of this many words, initialised from torch's global generator."""
    m = recipe.model
    plain = LanguageModel(
        vocabulary,
        m.hidden,
        m.layers,
        tied=m.tied,
        word_dropout=m.word_dropout,
        input_dropout=m.input_dropout,
        recurrent_dropout=m.recurrent_dropout,
        output_dropout=m.output_dropout,
        cell_dropout=m.cell_dropout,
        weight_dropout=m.weight_dropout,
        tied_masks=m.tied_masks,
        step_dropout=m.step_dropout,
        init=m.init,
        forget_bias=m.forget_bias,
        one_bias=m.one_bias,
    )
    ordinary = ["decoder.bias", "rnn.bias_hh*"] if m.one_bias else ["decoder.bias"]
    return posterior(plain, recipe.posterior, recurrent="rnn.*", exclude=ordinary)


def window_elbo(model: nn.Module, recipe: Recipe, windows: int) -> "ELBO":
    """The published loss of a window: -log p summed over T steps and averaged over B rows, plus KL / (B C).

    That is T times the loss per word, with B * C * T words in C = ``windows`` windows per epoch.
    """
    import bayesrnn as br

    window = recipe.data.window
    words = recipe.data.batch_size * windows * window
    return recipe_elbo(model, br.Categorical(), recipe.posterior, num_data=words, window=window)


class Language(Task):
    """The text of a folder, or of Python's documentation, in streams side by side; windows hand on their state.

    Per epoch the validation text is scored in a few streams, at the end both texts as one.
    """

    sections = SECTIONS
    metric = "valid_perplexity"
    runs_called = "language models"
    command = "predict"
    merge_metrics = staticmethod(dynamic_metrics.merged)
    carried_metrics = staticmethod(dynamic_metrics.carried)
    report_metrics = staticmethod(dynamic_metrics.named_rules)
    unit = "words"
    source = "text"
    default_data = "python-docs"
    paper_figures: ClassVar[Mapping[str, str]] = {
        "valid": "valid_perplexity",
        "test": "test_perplexity",
        "test_mc": "test_perplexity_mc",
        "valid_dynamic": "valid_perplexity_dynamic",
        "test_dynamic": "test_perplexity_dynamic",
        "entropy_gap": "entropy_gap",
        "entropy_gap_mean": "entropy_gap_mean",
    }

    def __init__(self, recipe: Recipe, data: str | None, device: torch.device) -> None:
        super().__init__(recipe, data, device)
        self.random = is_random(recipe)
        if data is not None and TokenFolder.is_at(data):
            found = disk_streams(TokenFolder(data), recipe)
        else:
            found = streams(python_docs() if data is None else read_folder(data), recipe)
        self.streams = found.to(device)
        window = recipe.data.window
        self.steps, self.batch_size = self.streams.windows, recipe.data.batch_size
        self.examples_per_step = self.batch_size * window
        self.limit = 2 * math.log(len(self.streams.vocabulary)) + 2
        self.valid_streams = self.streams.valid_streams
        self._rows = torch.arange(window + 1, device=device)
        self._use(self.streams)

    def _use(self, streams: Streams) -> None:
        self.streams, rows = streams, streams.train.shape[1]
        self._zeros = self._zero_state(rows)
        # Where a window of text on disk is put before each step.
        self._read = torch.zeros(streams.window + 1, rows, dtype=torch.long, device=self.device)

    def _zero_state(self, rows: int) -> LSTMState:
        m = self.recipe.model
        h, c = torch.zeros(2, m.layers, rows, m.hidden, device=self.device)
        return h, c

    def split(self, rows: slice) -> None:
        self._use(self.streams.part(rows))

    @staticmethod
    def build(recipe: Recipe, files: Files) -> nn.Module:
        return build(recipe, len(vocabulary_of(files)))

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        self.sequences = self.recipe.data.batch_size * self.steps
        self.elbo = window_elbo(model, self.recipe, self.steps)

    def files(self) -> dict[str, bytes]:
        return {_VOCABULARY: ("\n".join(self.streams.vocabulary.words) + "\n").encode("utf-8")}

    def content(self) -> Iterator[bytes]:
        """The numbers of the words, the same of a text and of token files made of it; of a huge text samples."""
        yield from self.files().values()
        train = self.streams.train
        words = train.tokens[: train.length * train.batch_size] if isinstance(train, DiskStreams) else train.t()
        for split in (words, self.streams.valid, self.streams.test):
            ids = split.reshape(-1)
            yield from sampled(ids.cpu().numpy() if isinstance(ids, Tensor) else ids)

    def state(self) -> State:
        return tuple(z.clone() for z in self._zeros) if self.recipe.data.carry_state else ()

    def fetch(self, step: int) -> None:
        train, window = self.streams.train, self.streams.window
        if isinstance(train, DiskStreams):
            read = train.window(step * window, window + 1)
            # From pinned memory the copy waits its turn behind the steps that are under way, and nobody waits for it.
            self._read.copy_(read.pin_memory() if self.device.type == "cuda" else read, non_blocking=True)

    def batch(self, position: Tensor) -> Tensor:
        if isinstance(self.streams.train, DiskStreams):
            return self._read
        return self.streams.train.index_select(0, position * self.recipe.data.window + self._rows)

    def objective(self, batch: Tensor, state: State) -> tuple[Tensor, "Terms", State]:
        h, c = state or self._zeros
        terms, (_, after) = self.elbo.evaluate(lambda: self.model(batch[:-1], (h, c)), batch[1:])
        return terms.loss, terms, after if state else ()

    def training(self, totals: Mapping[str, float]) -> dict[str, float]:
        return {
            "train_perplexity": exp_or_inf(totals["nll"] / self.examples_per_step),
            "kl_per_sequence": totals["kl"] / self.sequences,
            "sharpening_per_sequence": totals["sharpening"] / self.batch_size,
        }

    def validate(self) -> dict[str, Any]:
        return {"valid_perplexity": self._perplexity(self.valid_streams), "valid_streams": self.valid_streams.shape[1]}

    def final(self) -> dict[str, Any]:
        return {
            "valid_perplexity": self._perplexity(self.streams.valid),
            "test_perplexity": self._perplexity(self.streams.test),
        }

    def _perplexity(self, stream: Tensor) -> float:
        window, carry = self.recipe.data.window, self.recipe.data.carry_state
        if carry:
            window = evaluation_window(stream, len(self.streams.vocabulary))
        return perplexity(self.model, stream, window=window, carry_state=carry)

    def evaluate(
        self,
        *,
        samples: int | None = None,
        seed: int = 1,
        say: Say = lambda text: None,
        dynamic: bool = False,
        reversed_text: bool = False,
        temperature: bool = False,
        dynamic_lr: str | float | None = None,
        dynamic_rule: str | None = None,
        dynamic_decay: str | float | None = None,
        drop_words: bool = False,
        test_only: bool = False,
        entropy_samples: int | None = None,
    ) -> dict[str, Any]:
        from bayesrnn.lab.tasks.language.evaluation import evaluate

        if dynamic_rule not in (None, "sgd", "rms"):
            raise UserError(f"There is no rule {dynamic_rule}; choose sgd or rms.")
        return evaluate(
            self,
            self.streams,
            samples=self.recipe.evaluate.samples if samples is None else samples,
            dynamic=dynamic,
            reversed_text=reversed_text,
            temperature=temperature,
            dynamic_lr=dynamic_lr,
            dynamic_rule=dynamic_rule,
            dynamic_decay=dynamic_decay,
            drop_words=drop_words,
            test_only=test_only,
            entropy_samples=entropy_samples,
            seed=seed,
            say=say,
        )

    def describe(self) -> str:
        s, train = self.streams, len(self.streams.train) * self.batch_size
        unknown = ", ".join(f"{count:,} in {split}" for split, count in s.unknown.items())
        return (
            f"{counted(train, 'word')} to train on, {len(s.valid):,} to validate, {len(s.test):,} to test; "
            f"{len(s.vocabulary):,} word types; unknown words: {unknown}. "
            f"{counted(s.windows, 'window')} of {s.window} per epoch on {self.device}."
        )

    def about(self) -> dict[str, Any]:
        return {"unknown_words": self.streams.unknown}


def is_random(recipe: Recipe) -> bool:
    """Whether draws of a recipe's model differ."""
    m = recipe.model
    rates = (m.word_dropout, m.input_dropout, m.recurrent_dropout, m.output_dropout, m.cell_dropout, m.weight_dropout)
    return recipe.posterior.kind != "none" or any(rates) or m.step_dropout > 0


def vocabulary_of(files: Files) -> Vocabulary:
    """The vocabulary that a run has written."""
    return Vocabulary.from_bytes(files[_VOCABULARY], name=_VOCABULARY)


def evaluation_window(stream: Tensor, vocabulary: int) -> int:
    """Steps per call that keep the logits of one window at about 130 MB."""
    return max(1, min(len(stream) - 1, _LOGITS // (stream.shape[1] * vocabulary)))


@torch.no_grad()
def perplexity(model: nn.Module, stream: Tensor, *, window: int = 100, carry_state: bool = True) -> float:
    """exp of the mean negative log probability per word, state carried over the whole stream, in eval mode.

    Args:
        model: (tokens, state) to (logits, state).
        stream: shape (L, B); the model predicts steps 1 to L - 1.
        window: steps per call; with ``carry_state`` it bounds memory and changes nothing else.
        carry_state: False: every window starts from the zero state.
    """
    was_training = model.training
    model.eval()
    try:
        total, state = 0.0, None
        for x, y in windows(stream, min(window, len(stream) - 1)):
            logits, state = model(x, state if carry_state else None)
            total += float(nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    finally:
        model.train(was_training)
    mean = total / (stream.numel() - stream.shape[1])
    return exp_or_inf(mean)
