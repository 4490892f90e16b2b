"""A text as streams of word numbers, and the perplexity of a model on one."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesrnn.dynamic import exp_or_inf
from bayesrnn.errors import UserError
from bayesrnn.lab.modules import evaluating
from bayesrnn.lab.reading import counted
from bayesrnn.lab.recipes.schema import Recipe
from bayesrnn.lab.tasks.language.text import Corpus
from bayesrnn.lab.tasks.language.token_files import TokenFolder
from bayesrnn.lab.text import Vocabulary, batchify, windows

# Streams side by side for the validation after each epoch; final metrics are taken on one stream.
EPOCH_STREAMS = 10
_LOGITS = 1 << 25  # numbers in one evaluation window's logits


@dataclass(frozen=True)
class Streams:
    """A corpus as ids: training text in ``batch_size`` streams (L, B), the other splits as one, (N, 1).

    The training text of token files stays on disk (``on_disk``), in the type of the files.
    """

    vocabulary: Vocabulary
    train: Tensor
    valid: Tensor
    test: Tensor
    unknown: dict[str, int]
    window: int
    on_disk: bool = False

    @property
    def windows(self) -> int:
        """Whole windows per epoch, C; the ragged end of the streams is left out, as in the published code."""
        return (len(self.train) - 1) // self.window

    @property
    def shifted_windows(self) -> int:
        """Whole windows per epoch that are left after any number of words below one window."""
        return (len(self.train) - self.window) // self.window

    @property
    def valid_streams(self) -> Tensor:
        """The validation text in several streams, for the quick value after each epoch."""
        return batchify(self.valid[:, 0], max(1, min(EPOCH_STREAMS, len(self.valid) // (self.window + 1))))

    def to(self, device: torch.device) -> "Streams":
        train = self.train if self.on_disk else self.train.to(device)
        return replace(self, train=train, valid=self.valid.to(device), test=self.test.to(device))

    def part(self, rows: slice) -> "Streams":
        """Some of the streams of the training text."""
        train = self.train[:, rows]
        return replace(self, train=train if self.on_disk else train.contiguous())


def streams(corpus: Corpus, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Streams:
    """The corpus as a recipe cuts it; the vocabulary is the training text's unless one is given."""
    vocabulary = vocabulary or Vocabulary(corpus.train, min_count=recipe.data.min_count)
    texts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    ids = {split: vocabulary.encode(text) for split, text in texts.items()}
    train = batchify(ids["train"], recipe.data.batch_size)
    unknown = {split: vocabulary.unknown(text) for split, text in texts.items()}
    made = Streams(vocabulary, train, ids["valid"].unsqueeze(1), ids["test"].unsqueeze(1), unknown, recipe.data.window)
    return _long_enough(made, recipe)


def disk_streams(folder: TokenFolder, recipe: Recipe) -> Streams:
    """Token files as a recipe cuts them; validation and test text are read into memory."""
    asked, there = recipe.data.min_count, folder.about.min_count
    if asked not in (1, there):
        raise UserError(
            f"data.min_count is {asked}, but the token files in {folder.path} were made with {there}; "
            f"make them again with --min-count {asked}."
        )
    words, rows = folder.memory_map("train"), recipe.data.batch_size
    length = len(words) // rows
    train = words[: length * rows].view(rows, length).t()  # as `batchify` does it, without a copy
    valid, test = (folder.read(split).unsqueeze(1) for split in ("valid", "test"))
    made = Streams(folder.vocabulary, train, valid, test, folder.unknown, recipe.data.window, on_disk=True)
    return _long_enough(made, recipe)


def _long_enough(streams: Streams, recipe: Recipe) -> Streams:
    """Every split has at least one window, also after the words that ``data.shift`` skips."""
    window, data = streams.window, recipe.data
    if data.vary and streams.on_disk:
        raise UserError("data.vary needs the training text in memory; name its folder with --data, or set it to 0.")
    skipped = data.vary + (data.window - 1 if data.shift else 0)
    for split, more in (("train", skipped), ("valid", 0), ("test", 0)):
        length = len(getattr(streams, split))
        if length <= window + more:
            rows = streams.train.shape[1] if split == "train" else 1
            each = f" in each of {rows} streams" if rows > 1 else ""
            smaller = "data.window or data.batch_size" if split == "train" else "data.window"
            shifted = f", after up to {more} words that data.shift or data.vary skips" if more else ""
            raise UserError(
                f"The {split} text has {counted(length, 'word')}{each}, fewer than one window of {window} and the word "
                f"after it{shifted}; use more text, or a smaller {smaller}."
            )
    return streams


def reset_of(recipe: Recipe) -> int | None:
    """Words after which the state of a recipe's model starts from zero; None: never."""
    return None if recipe.data.carry_state else recipe.data.window


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
    with evaluating(model):
        total, state = 0.0, None
        for x, y in windows(stream, min(window, len(stream) - 1)):
            logits, state = model(x, state if carry_state else None)
            total += float(nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"))
    return exp_or_inf(total / (stream.numel() - stream.shape[1]))
