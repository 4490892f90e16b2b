"""Film reviews and their ratings: the scale data of Pang and Lee (ACL 2005), cut into pieces of equal length.

reviews = read("scale_data.tar.gz")          # or the unpacked folder
parts = cut(reviews)                         # whole reviews on one side: train, valid, test
parts.train.tokens, parts.train.ratings      # (T, N) and (N,)
"""

import gzip
import io
import math
import tarfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted, read_bytes

AUTHORS = ("Dennis+Schwartz", "James+Berardinelli", "Scott+Renshaw", "Steve+Rhodes")
ARCHIVE = "scale_data.tar.gz"
PAD, START, UNKNOWN = 0, 1, 2
SPECIAL = ("<pad>", "<start>", "<unk>")
END = "\n"  # the end of a line counts as a word, as in the published code
WORDS = 19_996  # what the published limit, ids below 20,000, leaves for words
TEST_SHARE = 0.2
_KINDS = ("subj", "rating")

_MAX_FILE = 64 << 20
_MAX_ARCHIVE = 256 << 20


@dataclass(frozen=True)
class Review:
    """One review: lower-cased words, the last of them ``END``, and a rating from 0 to 1."""

    author: str
    words: list[str]
    rating: float


def read(path: str | Path) -> list[Review]:
    """All reviews, author by author, in the order of the files.

    Args:
        path: ``scale_data.tar.gz``, the folder ``scaledata`` that it holds, or a folder with either of them.
    """
    files = _find(Path(path))
    reviews = []
    for author in AUTHORS:
        if missing := [f"{kind}.{author}" for kind in _KINDS if (author, kind) not in files]:
            what = f"folder {author} with {' and '.join(missing)}" if len(missing) > 1 else f"file {missing[0]}"
            raise UserError(f"{path} has no {what}; unpack the archive again.")
        texts = _lines(files, author, "subj")
        ratings = [_rating(text, author, i) for i, text in enumerate(_lines(files, author, "rating"), 1)]
        if len(texts) != len(ratings):
            raise UserError(
                f"subj.{author} has {len(texts):,} lines and rating.{author} has {len(ratings):,}; they must have one "
                "line per review each, so unpack the archive again."
            )
        pairs = zip(texts, ratings, strict=True)
        reviews += [Review(author, [*filter(None, text.lower().split(" ")), END], rating) for text, rating in pairs]
    return reviews


def _find(path: Path) -> dict[tuple[str, str], bytes]:
    """The files by (author, kind), from wherever the path leads."""
    if path.is_file():
        return _from_archive(path)
    if not path.is_dir():
        raise UserError(f"{path} does not exist; name {ARCHIVE} or the folder it was unpacked into.")
    for folder in (path, path / "scaledata"):
        if any((folder / author).is_dir() for author in AUTHORS):
            paths = {(author, kind): folder / author / f"{kind}.{author}" for author in AUTHORS for kind in _KINDS}
            return {key: read_bytes(file, most=_MAX_FILE) for key, file in paths.items() if file.is_file()}
    if (path / ARCHIVE).is_file():
        return _from_archive(path / ARCHIVE)
    raise UserError(f"{path} has neither {ARCHIVE} nor the folders of its authors ({', '.join(AUTHORS)}).")


def _from_archive(path: Path) -> dict[tuple[str, str], bytes]:
    """Members are read in memory and looked up by name; nothing is unpacked, so nothing is written."""
    try:
        with gzip.open(path) as packed:
            data = packed.read(_MAX_ARCHIVE + 1)
        if len(data) > _MAX_ARCHIVE:
            raise UserError(f"{path} unpacks to more than {_MAX_ARCHIVE >> 20} MB; this is not the scale data.")
        found = {}
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                kind = parts[-1].partition(".")[0] if parts else ""
                if len(parts) < 2 or kind not in _KINDS or parts[-1] != f"{kind}.{parts[-2]}":
                    continue
                if not member.isreg() or member.size > _MAX_FILE:
                    raise UserError(f"{path}: {member.name} is no ordinary file of at most {_MAX_FILE >> 20} MB.")
                handle = archive.extractfile(member)
                found[parts[-2], kind] = b"" if handle is None else handle.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        reason = getattr(error, "strerror", None) or "damaged, or not a .tar.gz file"
        raise UserError(f"{path} cannot be read ({reason}); get {ARCHIVE} again.") from None
    return found


def _lines(files: dict[tuple[str, str], bytes], author: str, kind: str) -> list[str]:
    # Not splitlines(): in latin-1 it would cut at letters such as \x85 too.
    lines = files[author, kind].decode("latin-1").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise UserError(f"{kind}.{author} is empty; unpack the archive again.")
    return [line.removesuffix("\r") for line in lines]


def _rating(text: str, author: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise UserError(f"Line {line} of rating.{author} is {text[:20]!r}; a rating is a number from 0 to 1.")
    return value


@dataclass(frozen=True)
class Chunks:
    """Pieces of reviews: ``tokens`` (T, N), padded in front, ``ratings`` (N,), ``review`` (N,) that each is of."""

    tokens: Tensor
    ratings: Tensor
    review: Tensor

    def __len__(self) -> int:
        return len(self.ratings)

    def of(self, rows: slice | Tensor) -> "Chunks":
        """Some of the pieces."""
        return Chunks(self.tokens[:, rows].contiguous(), self.ratings[rows], self.review[rows])

    def to(self, device: torch.device) -> "Chunks":
        return Chunks(self.tokens.to(device), self.ratings.to(device), self.review.to(device))


@dataclass(frozen=True)
class Parts:
    """Pieces for training, validation and test; the words behind the ids."""

    words: list[str]
    train: Chunks
    valid: Chunks
    test: Chunks

    @property
    def mean(self) -> float:
        """Mean of the training ratings."""
        return float(self.train.ratings.mean())

    @property
    def sd(self) -> float:
        """Standard deviation of the training ratings."""
        return float(self.train.ratings.std(correction=0))

    def to(self, device: torch.device) -> "Parts":
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))


def cut(
    reviews: Sequence[Review], *, by: str = "review", length: int = 200, words: int = WORDS, valid: float = 0.1,
    seed: int = 0,
) -> Parts:  # fmt: skip
    """Shuffle the reviews, cut each into pieces that carry its rating, and divide them: 20% are the test part.

    Args:
        by: "review": all pieces of a review are on one side, copies of a review (the scale data has 47) are left out,
            and the vocabulary is that of the training reviews. "chunk": the authors' division, in which a review may
            be on both sides: the first 80% of the pieces, and a vocabulary of all texts.
        length: tokens per piece, T; shorter ones are padded in front.
        words: the most frequent words, which are kept; the others become one unknown word.
        valid: share of the training part for validation; 0: none.
    """
    order = list(range(len(reviews)))
    np.random.RandomState(seed).shuffle(order)  # numpy's old generator: the published order of reviews
    shuffled = [reviews[i] for i in order]
    whole = by == "review"
    if whole:
        first: dict[tuple[str, ...], Review] = {}
        for review in shuffled:
            first.setdefault(tuple(review.words), review)
        shuffled = list(first.values())
    known = shuffled[: _training(len(shuffled), valid)[1]] if whole else shuffled
    counts = Counter(word for review in known for word in review.words)
    vocabulary = [*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))[:words]]
    chunks = _chunks(shuffled, vocabulary, length)
    if whole:
        rest, train = (int((chunks.review < n).sum()) for n in _training(len(shuffled), valid))
    else:
        rest, train = _training(len(chunks), valid)
    parts = Parts(vocabulary, *(chunks.of(slice(*ends)) for ends in ((0, train), (train, rest), (rest, len(chunks)))))
    if len(parts.train) < 2 or len(parts.test) < 1 or (valid and not len(parts.valid)) or parts.sd == 0:
        raise UserError(
            f"The data have {counted(len(reviews), 'review')}, too few (or too alike) to train, validate and test with."
        )
    return parts


def _training(count: int, valid: float) -> tuple[int, int]:
    """How many of ``count`` come before the test part, and how many of those are trained on."""
    rest = int(count * (1 - TEST_SHARE))
    return rest, rest - int(rest * valid)


def _chunks(reviews: Sequence[Review], vocabulary: list[str], length: int) -> Chunks:
    """Every review with the start symbol in front, in consecutive pieces; the order is that of the reviews."""
    ids = {word: i for i, word in enumerate(vocabulary) if i >= len(SPECIAL)}
    rows, ratings, origin = [], [], []
    for number, review in enumerate(reviews):
        tokens = [START, *(ids.get(word, UNKNOWN) for word in review.words)]
        for start in range(0, len(tokens), length):
            piece = tokens[start : start + length]
            rows.append([PAD] * (length - len(piece)) + piece)
            ratings.append(review.rating)
            origin.append(number)
    tokens_first = torch.tensor(rows, dtype=torch.long).t().contiguous()
    return Chunks(tokens_first, torch.tensor(ratings, dtype=torch.float64), torch.tensor(origin, dtype=torch.long))
