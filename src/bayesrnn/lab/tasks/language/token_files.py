"""Texts that do not fit into memory: their words as numbers in files, read window by window.

tokenize("news/", "news-tokens/", min_count=5)     # two passes over each file, in constant memory
TokenFolder("news-tokens/").memory_map("train")         # (N,), on disk until it is read
"""

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, Field, ValidationError
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


class _Counts(BaseModel, strict=True):
    """Numbers of words by split."""

    train: int = Field(ge=0)
    valid: int = Field(ge=0)
    test: int = Field(ge=0)


class _About(BaseModel, strict=True):
    """What tokens.json must say; any other type would be misread."""

    format: Literal[1]
    type: Literal["<u2", "<u4"]
    tokens: _Counts
    unknown: _Counts
    min_count: int = Field(1, ge=0)


class TokenFolder:
    """The files that :func:`tokenize` writes. Opening them reads the vocabulary, and no token."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            about = read_json(self.path / ABOUT, most=MB)
            number = about.get("format") if isinstance(about, dict) else None
            if isinstance(number, int) and number > _FORMAT:
                raise UserError(f"it was written by a newer bayesrnn, in format {shown(number)}; update bayesrnn")
            self.about = _About.model_validate(about)
            content = read_bytes(self.path / VOCABULARY, most=1024 * MB)
            self.vocabulary = Vocabulary.from_bytes(content, name=VOCABULARY)
        except (UserError, ValidationError) as error:
            reason = str(error).rstrip(".")
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                reason = f"{ABOUT}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise UserError(f"{self.path} holds no whole token files ({reason}); make them again.") from None
        self.unknown = self.about.unknown.model_dump()
        self._type = np.dtype(self.about.type)
        for split, size in self.about.tokens.model_dump().items():
            file = self.path / f"{split}.tokens"
            if not file.is_file() or file.stat().st_size != size * self._type.itemsize:
                raise UserError(f"{file} is not whole; make the token files again with --force.")

    @staticmethod
    def is_at(path: str | Path) -> bool:
        return (Path(path) / ABOUT).is_file()

    def memory_map(self, split: str) -> Tensor:
        """The tokens of a split, shape (N,), mapped into memory: what is read is on disk until then."""
        file = self.path / f"{split}.tokens"
        if not file.stat().st_size:
            return torch.empty(0, dtype=torch.long)  # an empty file cannot be mapped
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written to
            return torch.from_numpy(np.memmap(file, self._type, mode="r"))

    def read(self, split: str) -> Tensor:
        """All tokens of a split, in memory: shape (N,), int64."""
        return as_ids(self.memory_map(split), len(self.vocabulary))


def as_ids(tokens: Tensor, vocabulary: int) -> Tensor:
    """As int64; a number outside the vocabulary is refused."""
    ids = tokens.long()
    if ids.numel() and int(ids.max()) >= vocabulary:
        raise UserError(
            "A token file is damaged: it has a number outside the vocabulary; make it again with bayesrnn tokenize."
        )
    return ids


def digest_pieces(tokens: Words) -> Iterator[bytes]:
    """The bytes for a digest of a text: its length and all its words; of a huge text, pieces evenly spread over it."""
    count = len(tokens)
    yield f"{count} words".encode()
    if count <= _WHOLE:
        starts = list(range(0, count, _BLOCK))
    else:
        starts = [i * (count - _BLOCK) // (_BLOCKS - 1) for i in range(_BLOCKS)]
    for start in starts:
        yield tokens[start : start + _BLOCK].astype("<u4").tobytes()
