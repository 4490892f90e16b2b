"""Corpora: a folder of text files, or the documentation that Python carries.

corpus = python_docs()                        # or read_folder("ptb/")
vocabulary = Vocabulary(corpus.train, min_count=2)
stream = batchify(vocabulary.encode(corpus.train), batch_size=20)
for x, y in windows(stream, 35): ...
"""

import codecs
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bayesrnn.errors import UserError
from bayesrnn.lab.text import EOS

MAX_BYTES = 2 << 30  # of one text file

_CHUNK = 1 << 18  # bytes read at once; their words take some 30 times as much
_LONGEST = 1 << 24  # characters of a word: a longer one is not text
_RARE_ENDS = re.compile("[\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # of lines, as str.splitlines has them, \n aside
_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_WORD = re.compile(r"[a-z_][a-z0-9_]*(?:['-][a-z]+)*|[0-9]+(?:\.[0-9]+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
_PATTERNS = {"train": ("*train*",), "valid": ("*valid*", "*val*", "*dev*"), "test": ("*test*",)}


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


def read_tokens(file: Path | BinaryIO) -> list[str]:
    """All words of a text, see :func:`words_of`."""
    if isinstance(file, Path) and file.is_file() and file.stat().st_size > MAX_BYTES:
        raise UserError(
            f"{file} is larger than {MAX_BYTES >> 30} GB, too much to hold in memory; "
            "make token files of the folder with `bayesrnn tokenize`, and train on those."
        )
    return [word for part in words_of(file) for word in part]


def words_of(file: Path | BinaryIO, *, chunk: int = _CHUNK) -> Iterator[list[str]]:
    """The words of a UTF-8 text, ``<eos>`` at the end of each line, in pieces; a file that is open is called stdin."""
    name = str(file) if isinstance(file, Path) else "stdin"
    rest, open_line = "", False
    for text, last in _decoded(file, chunk, name):
        text = rest + text
        cut = len(text) if last else _cut(text)
        part, rest = text[:cut], text[cut:]
        if len(rest) > _LONGEST:
            raise UserError(f"{name} has a word of more than {_LONGEST:,} characters; this is not a text.")
        words = _split(part)
        if part:
            open_line = part[-1] not in _ENDS
        if last and open_line:
            words.append(EOS)
        yield words


def _decoded(file: Path | BinaryIO, chunk: int, name: str) -> Iterator[tuple[str, bool]]:
    """(text, whether it is the last) of a file."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    done = 0
    try:
        with open(file, "rb") if isinstance(file, Path) else nullcontext(file) as source:
            while True:
                data = source.read(chunk)
                waiting = len(decoder.getstate()[0])
                try:
                    text = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    at = done - waiting + error.start
                    raise UserError(f"{name} is not UTF-8 text (byte {at}); convert it to UTF-8.") from None
                if "\0" in text:
                    raise UserError(f"{name} is a binary file; a language data set is made of UTF-8 text files.")
                done += len(data)
                yield text, not data
                if not data:
                    return
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}); check its name and permissions.") from None


def _cut(text: str) -> int:
    """Where the last white space ends, after which a word may go on in the next piece; never between \\r and \\n."""
    cut = len(text)
    while cut and not text[cut - 1].isspace():
        cut -= 1
    return cut - 1 if text[cut - 1 : cut] == "\r" else cut


def _split(part: str) -> list[str]:
    if _RARE_ENDS.search(part) is None:
        return part.replace("\n", f" {EOS} ").split()
    words = []
    for line in part.splitlines(keepends=True):
        words += line.split()
        if line[-1] in _ENDS:
            words.append(EOS)
    return words
