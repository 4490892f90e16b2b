"""Word-level text: corpora, vocabularies, continuous streams and truncated-BPTT windows.

corpus = python_docs()                        # or read_folder("ptb/")
vocabulary = Vocabulary(corpus.train, min_count=2)
stream = batchify(vocabulary.encode(corpus.train), batch_size=20)
for x, y in windows(stream, 35): ...
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted

EOS = "<eos>"
UNK = "<unk>"
MAX_BYTES = 2 << 30  # of one text file

_WORD = re.compile(r"[a-z_][a-z0-9_]*(?:['-][a-z]+)*|[0-9]+(?:\.[0-9]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
_PATTERNS = {
    "train": ("*train*",),
    "valid": ("*valid*", "*val*", "*dev*"),
    "test": ("*test*",),
}


@dataclass(frozen=True)
class Corpus:
    """The tokens of the three splits, each a list of words with ``<eos>`` at the end of a sentence or line."""

    train: list[str]
    valid: list[str]
    test: list[str]

    def __post_init__(self) -> None:
        words = set(self.train) - {EOS}
        if len(words) < 2:
            found = f"only one word ({words.pop()!r})" if words else "no words"
            raise UserError(
                f"The training text has {found}; a language model needs text with at least two different words."
            )
        for split in ("valid", "test"):
            if not set(getattr(self, split)) - {EOS}:
                raise UserError(f"The {split} text has no words; put some text into it.")


def python_docs() -> Corpus:
    """The documentation that Python carries in its standard library (``pydoc_data.topics``), as a corpus.

    About 50,000 lower-cased words; numbers become ``N``. Topics quote each other at length, so a paragraph that was
    seen before is left out, and whole topics go to one split: 80% of the words to train, 10% to valid, 10% to test.
    Topics are put in an order that depends on nothing but their names. The text is that of the running Python, so
    numbers differ a little between Python versions.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    documents: list[list[str]] = []
    for _, text in sorted(topics.items(), key=lambda item: (zlib.crc32(item[0].encode()), item[0])):
        document: list[str] = []
        for paragraph in re.split(r"\n\s*\n", text.lower().replace("’", "'")):
            flat = " ".join(paragraph.split())
            if flat not in seen:
                seen.add(flat)
                document += _sentences(flat)
        documents.append(document)

    total = sum(map(len, documents))
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    done = 0
    for document in documents:
        middle = (done + len(document) / 2) / total
        splits["train" if middle < 0.8 else "valid" if middle < 0.9 else "test"] += document
        done += len(document)
    return Corpus(**splits)


def _sentences(paragraph: str) -> list[str]:
    tokens: list[str] = []
    for sentence in _SENTENCE_END.split(paragraph):
        words = ["N" if word[0].isdigit() else word for word in _WORD.findall(sentence)]
        if words:
            tokens += [*words, EOS]
    return tokens


def read_folder(path: str | Path) -> Corpus:
    """A folder with one UTF-8 text file per split: ``*train*``, ``*valid*`` (or ``*val*``, ``*dev*``) and ``*test*``.

    Words are what white space separates, taken as they are; every line ends with ``<eos>``.
    """
    return Corpus(**{split: read_tokens(file) for split, file in split_files(path).items()})


def split_files(path: str | Path) -> dict[str, Path]:
    """The text file of each split in a folder."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one that holds train, valid and test text files.")
    files = {split: _find_split(folder, split, patterns) for split, patterns in _PATTERNS.items()}
    for a, b in (("train", "valid"), ("train", "test"), ("valid", "test")):
        if files[a] == files[b]:
            raise UserError(f"{files[a]} looks like both the {a} and the {b} file; rename it after one of them.")
    return files


def _find_split(folder: Path, split: str, patterns: Sequence[str]) -> Path:
    for pattern in patterns:
        found = sorted(p for p in folder.glob(pattern) if p.is_file() and not p.name.startswith("."))
        if len(found) > 1:
            names = ", ".join(p.name for p in found)
            raise UserError(f"{folder} has several {split} files ({names}); leave one that matches {pattern}.")
        if found:
            return found[0]
    raise UserError(f"{folder} has no {split} file; add one whose name matches {' or '.join(patterns)}.")


def read_tokens(file: Path) -> list[str]:
    """The words of a UTF-8 text file, with ``<eos>`` at the end of each line."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(
                f"{file} is larger than {MAX_BYTES >> 30} GB, too much to hold in memory; "
                "make token files of the folder with `bayesrnn tokenize`, and train on those."
            )
        data = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); check its name and permissions.") from None
    return tokens_of(data, str(file))


def tokens_of(data: bytes, name: str) -> list[str]:
    """As :func:`read_tokens`, of bytes; ``name`` is what an error calls them."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 text (byte {error.start}); convert it to UTF-8.") from None
    if "\0" in text:
        raise UserError(f"{name} is a binary file; a language data set is made of UTF-8 text files.")
    return [word for line in text.splitlines() for word in (*line.split(), EOS)]


class Vocabulary:
    """Words and their ids, most frequent first; id 0 is ``<unk>``, which stands for every word not in it.

    Args:
        tokens: the training text.
        min_count: a word seen fewer times than this is left out.
    """

    def __init__(self, tokens: Iterable[str], *, min_count: int = 1) -> None:
        if min_count < 1:
            raise ValueError(f"min_count is {min_count}; it must be at least 1.")
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
        """As :meth:`encode`, as a list."""
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
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
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
    if length < 1:
        raise ValueError(f"The window length is {length}; it must be at least 1.")
    steps = len(stream) - 1
    if steps < length:
        raise UserError(
            f"A stream of {counted(len(stream), 'step')} is shorter than one window of {length} (and the word after "
            "it); use more text, fewer streams or a shorter window."
        )
    # Checked here, not in the generator, so that the error comes from the call and not from the first next().
    return ((stream[i : min(i + length, steps)], stream[i + 1 : i + 1 + length]) for i in range(0, steps, length))
