"""Words as numbers, for every task on text: vocabularies, streams, windows, and the dropout of word types."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.nn import Dropout, Embedding, SequenceDropout
from bayesrnn.nn.rnn import NoisyRNN

EOS = "<eos>"
VOCABULARY = "vocabulary.txt"
UNK = "<unk>"
_RATES: dict[type[nn.Module], tuple[str, ...]] = {
    Embedding: ("word_dropout",),
    NoisyRNN: ("input_dropout", "recurrent_dropout", "weight_dropout", "cell_dropout"),
    SequenceDropout: ("p",),
    Dropout: ("p",),
}


class Vocabulary:
    """Words and their ids, most frequent first; id 0 is ``<unk>``, which stands for every word not in it.

    Args:
        tokens: the training text.
        min_count: a word seen fewer times than this is left out.
    """

    def __init__(self, tokens: Iterable[str], *, min_count: int = 1) -> None:
        counts = Counter(tokens)
        counts.pop(UNK, None)
        kept = sorted((w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w))
        if len(kept) < 2:
            raise UserError(
                f"Fewer than two words are seen at least {counted(min_count, 'time')} in the training text; "
                "use more text or a lower min_count."
            )
        self.words: list[str] = [UNK, *kept]
        self._ids = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def of_words(cls, words: Sequence[str]) -> "Vocabulary":
        """The vocabulary that has these words, in this order; the first stands for all others."""
        new = cls.__new__(cls)
        new.words = list(words)
        new._ids = {word: i for i, word in enumerate(new.words)}
        return new

    def to_bytes(self) -> bytes:
        """One word per line."""
        return ("\n".join(self.words) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, content: bytes, *, name: str = "The vocabulary") -> "Vocabulary":
        """From a file with one word per line, as runs write it: at least two words, each once."""
        try:
            words = content.decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8 text (byte {error.start}).") from None
        if words[-1]:
            raise UserError(f"{name} is cut short: its last line has no end.")
        del words[-1]
        if len(words) < 2 or len(set(words)) < len(words):
            raise UserError(f"{name} must have at least two words, each on a line of its own, and none twice.")
        return cls.of_words(words)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def encode(self, tokens: Iterable[str]) -> Tensor:
        """Ids of the tokens, shape (number of tokens,), int64."""
        return torch.tensor(self.ids(tokens), dtype=torch.long)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Like :meth:`encode`, as a list."""
        return [self._ids.get(token, 0) for token in tokens]

    def decode(self, ids: Tensor | Iterable[int]) -> list[str]:
        """The words of the ids."""
        return [self.words[int(i)] for i in ids]

    def unknown(self, tokens: Iterable[str]) -> int:
        """How many of the tokens become ``<unk>``."""
        return sum(self._ids.get(token, 0) == 0 for token in tokens)


def batchify(ids: Tensor, batch_size: int) -> Tensor:
    """Cut one long text into ``batch_size`` continuous streams, side by side.

    Args:
        ids: shape (N,).

    Returns:
        Shape (N // batch_size, batch_size); column b is the b-th part of the text. The remainder is dropped.
    """
    length = len(ids) // batch_size
    if length < 2:
        raise UserError(
            f"The text has {counted(len(ids), 'token')}, too few for {counted(batch_size, 'stream')} of at least two; "
            "use more text or a smaller batch size."
        )
    return ids[: length * batch_size].view(batch_size, length).t().contiguous()


def windows(stream: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Consecutive windows (x, y) of a stream for truncated backpropagation; y is x one step later.

    Args:
        stream: shape (L, B), as from :func:`batchify`.
        length: steps per window, T. The last window may be shorter.

    Yields:
        x and y, each (T, B). Together the y are steps 1 to L - 1 of the stream, each once.
    """
    steps = len(stream) - 1
    if steps < length:
        raise UserError(
            f"A stream of {counted(len(stream), 'step')} is shorter than one window of {length} (and the word after "
            "it); use more text, fewer streams or a shorter window."
        )
    # Checked here, not in the generator, so that the error comes from the call and not from the first next().
    return ((stream[i : min(i + length, steps)], stream[i + 1 : i + 1 + length]) for i in range(0, steps, length))


@contextmanager
def noise_of_draws(
    model: nn.Module, *, words: bool = False, weights: bool = True, scale: float = 1.0
) -> Iterator[None]:
    """Inside the block draws drop no words (as the papers' Monte Carlo tests), or no weights; rates are scaled."""
    factors = {"word_dropout": float(words), "weight_dropout": float(weights)}
    changed: list[tuple[Any, str, float]] = []
    for module in model.modules():
        for kind, names in _RATES.items():
            if isinstance(module, kind):
                changed += [(module, name, getattr(module, name)) for name in names]
    changed = [(module, name, rate) for module, name, rate in changed if rate and factors.get(name, 1.0) * scale != 1]
    try:
        for module, name, rate in changed:
            setattr(module, name, rate * factors.get(name, 1.0) * scale)
        yield
    finally:
        for module, name, rate in changed:
            setattr(module, name, rate)


def each_split(counts: Mapping[str, int]) -> str:
    """Counts of words in words: 3 in train, 1 in test."""
    return ", ".join(f"{count:,} in {split}" for split, count in counts.items())


def vocabulary_of(files: Mapping[str, bytes]) -> Vocabulary:
    """The vocabulary among the files of a run."""
    return Vocabulary.from_bytes(files[VOCABULARY], name=VOCABULARY)
