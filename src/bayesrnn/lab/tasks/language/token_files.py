"""Texts that do not fit into memory: their words as numbers in files, read window by window.

tokenize("news/", "news-tokens/", min_count=5)     # two passes over each file, in constant memory
tokens = TokenFolder("news-tokens/")
streams = DiskStreams(tokens.file("train"), batch_size=20)
streams.window(0, 36)                               # (36, 20), as `batchify` of the whole text would have it
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import MB, counted, read_bytes, read_json, shown
from bayesrnn.lab.runs.files import write_file
from bayesrnn.lab.tasks.language.text import split_files, words_of
from bayesrnn.lab.text import EOS, VOCABULARY, Vocabulary

ABOUT = "tokens.json"
_SPLITS = ("train", "valid", "test")
_FORMAT = 1
_TYPES = ("<u2", "<u4")
_WHOLE = 1 << 26  # words of a text up to which its digest is of all of them
_BLOCKS, _BLOCK = 256, 1 << 16  # of a longer one: so many pieces of so many words

Words = npt.NDArray[Any]


def tokenize(
    text: str | Path, out: str | Path, *, min_count: int = 1, words: int | None = None, force: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:  # fmt: skip
    """Make token files of a folder of text files (see ``text.read_folder``); returns the content of tokens.json.

    The only memory that grows is for the counts of the training text's different words. Words seen fewer than
    ``min_count`` times there, and all but the ``words`` most frequent ones, are unknown.
    """
    files, folder = split_files(text), Path(out)
    if (folder / ABOUT).exists() and not force:
        raise UserError(f"{folder} already holds token files; replace them with --force, or choose another folder.")
    counts: Counter[str] = Counter()
    for part in words_of(files["train"]):
        counts.update(part)
    if len(counts) - (EOS in counts) < 2:
        raise UserError("The training text has fewer than two different words; a language model needs more.")
    vocabulary = Vocabulary(counts, min_count=min_count)
    if words is not None and len(vocabulary) > words + 1:
        vocabulary = Vocabulary.of_words(vocabulary.words[: words + 1])
    total = sum(counts.values())
    del counts
    kind = _TYPES[len(vocabulary) > 1 << 16]
    about: dict[str, Any] = {
        "program": "bayesrnn", "format": _FORMAT, "type": kind, "min_count": min_count, "words": words,
        "vocabulary": len(vocabulary), "tokens": {}, "unknown": {},
    }  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ABOUT).unlink(missing_ok=True)  # it is written last: where it is, all is whole
        for split in _SPLITS:
            count, unknown = _encode(files[split], folder / f"{split}.tokens", vocabulary, kind)
            about["tokens"][split], about["unknown"][split] = count, unknown
            say(f"{split}: {counted(count, 'word')}, {unknown:,} of them unknown")
        if about["tokens"]["train"] != total:
            raise UserError(f"{files['train']} has changed while it was read; start again.")
        write_file(folder / VOCABULARY, vocabulary.to_bytes())
        write_file(folder / ABOUT, json.dumps(about, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror}); choose another folder.") from None
    return about


def _encode(source: Path, target: Path, vocabulary: Vocabulary, kind: str) -> tuple[int, int]:
    """Write a text's tokens; returns how many there are, and how many are unknown."""
    count = unknown = 0
    with _written(target) as file:
        for words in words_of(source):
            ids = np.array(vocabulary.ids(words), dtype=kind)
            file.write(ids.tobytes())
            count += len(ids)
            unknown += int((ids == 0).sum())
    return count, unknown


@contextmanager
def _written(target: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole, or not at all."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


class TokenFolder:
    """The files that :func:`tokenize` writes. Opening them reads the vocabulary, and no token."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.about: dict[str, Any] = read_json(self.path / ABOUT, most=MB)
            content = read_bytes(self.path / VOCABULARY, most=1024 * MB)
            self.vocabulary = Vocabulary.from_bytes(content, name=VOCABULARY)
            number, kind = self.about["format"], self.about["type"]
            self.unknown: dict[str, int] = {split: _count(self.about["unknown"][split]) for split in _SPLITS}
            sizes = {split: _count(self.about["tokens"][split]) for split in _SPLITS}
            _count(self.about.get("min_count", 1))
        except (UserError, ValueError, KeyError, TypeError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise UserError(f"{self.path} holds no whole token files ({reason}); make them again.") from None
        if isinstance(number, int) and number > _FORMAT:
            raise UserError(f"{self.path} was written by a newer bayesrnn (format {shown(number)}); update bayesrnn.")
        if number != _FORMAT or kind not in _TYPES:  # any other type would be read as what it is not
            raise UserError(f"{self.path} holds no token files of this program; make them again with --force.")
        self._type = np.dtype(kind)
        for split, size in sizes.items():
            file = self.path / f"{split}.tokens"
            if not file.is_file() or file.stat().st_size != size * self._type.itemsize:
                raise UserError(f"{file} is not whole; make the token files again with --force.")

    @staticmethod
    def is_at(path: str | Path) -> bool:
        return (Path(path) / ABOUT).is_file()

    def file(self, split: str) -> Words:
        """The tokens of a split, mapped into memory: what is read is on disk until then."""
        file = self.path / f"{split}.tokens"
        if not file.stat().st_size:
            return np.empty(0, self._type)  # an empty file cannot be mapped
        found: Words = np.memmap(file, self._type, mode="r")
        return found

    def read(self, split: str) -> Tensor:
        """All tokens of a split, in memory: shape (N,), int64."""
        return as_ids(self.file(split), len(self.vocabulary), self.path)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{shown(value)} is no number of words")
    return value


def as_ids(tokens: Words, vocabulary: int, where: Path) -> Tensor:
    """As int64; a number outside the vocabulary is refused."""
    ids = torch.from_numpy(tokens.astype(np.int64))
    if len(ids) and int(ids.max()) >= vocabulary:
        raise UserError(f"A token file in {where} is damaged: it has a number outside the vocabulary; make it again.")
    return ids


def sampled(tokens: Words) -> Iterator[bytes]:
    """The bytes for a digest of a text: its length and all its words; of a huge text, pieces evenly spread over it."""
    count = len(tokens)
    yield f"{count} words".encode()
    if count <= _WHOLE:
        starts = list(range(0, count, _BLOCK))
    else:
        starts = [i * (count - _BLOCK) // (_BLOCKS - 1) for i in range(_BLOCKS)]
    for start in starts:
        yield tokens[start : start + _BLOCK].astype("<u4").tobytes()


class DiskStreams:
    """A text on disk, cut into ``batch_size`` streams side by side as ``batchify`` does it; (L, B) in total.

    ``rows`` are the streams to read, if other processes read the others; ``vocabulary`` and ``where`` check the ids.
    """

    def __init__(
        self, tokens: Words, batch_size: int, *, vocabulary: int, where: Path, rows: slice = slice(None)
    ) -> None:
        self.tokens, self.batch_size, self.vocabulary, self.where = tokens, batch_size, vocabulary, where
        self.length = len(tokens) // batch_size
        self.rows = range(batch_size)[rows]
        self.shape = (self.length, len(self.rows))

    def __len__(self) -> int:
        return self.length

    def part(self, rows: slice) -> "DiskStreams":
        """Some of the streams."""
        return DiskStreams(self.tokens, self.batch_size, vocabulary=self.vocabulary, where=self.where, rows=rows)

    def window(self, start: int, length: int) -> Tensor:
        """Steps ``start`` to ``start + length`` of every stream, (length, B), int64."""
        starts = [row * self.length + start for row in self.rows]
        read = np.stack([self.tokens[at : at + length] for at in starts], axis=1)
        return as_ids(read, self.vocabulary, self.where)
