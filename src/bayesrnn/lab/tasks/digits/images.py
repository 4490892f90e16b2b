"""Handwritten digits (MNIST) from the four original idx files, gzipped or not.

digits = read_folder("mnist/")
digits.train_images, digits.train_labels     # (60000, 28, 28) and (60000,), uint8
"""

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted, first_line

SIDE = 28
CLASSES = 10
# File names, with the SHA-256 of the gzipped files as they were published.
FILES = {
    "train_images": ("train-images-idx3-ubyte", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train_labels": ("train-labels-idx1-ubyte", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "test_images": ("t10k-images-idx3-ubyte", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "test_labels": ("t10k-labels-idx1-ubyte", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_UNSIGNED_BYTE = 0x08
_LARGEST = 1 << 30  # bytes of one file's entries: twenty times MNIST
_BLOCK = 1 << 20
_DEFLATE = 1032  # no gzip stream grows by more than this


@dataclass(frozen=True)
class DigitImages:
    """Images (N, 28, 28) and labels (N,) of both splits, all uint8."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
            if len(images) != len(labels):
                raise UserError(
                    f"The {split} files hold {counted(len(images), 'image')} but {counted(len(labels), 'label')}; "
                    "the two files do not belong together."
                )
            if not len(images):
                raise UserError(f"The {split} files hold no images.")
            if tuple(images.shape[1:]) != (SIDE, SIDE):
                height, width = images.shape[1:]
                raise UserError(f"The {split} images are {height} x {width}; digits are {SIDE} x {SIDE}.")
            if int(labels.max()) >= CLASSES:
                raise UserError(f"The {split} labels go up to {int(labels.max())}; digits are 0 to {CLASSES - 1}.")


def read_folder(path: str | Path) -> DigitImages:
    """A folder with the four files under their original names, each gzipped (``.gz``) or not."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one that holds the four idx files of MNIST.")
    found = {part: _find(folder, name) for part, (name, _) in FILES.items()}
    return DigitImages(
        **{part: read_idx(file, dimensions=3 if "images" in part else 1) for part, file in found.items()}
    )


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise UserError(f"{folder} has no {name}.gz or {name}; put the four idx files of MNIST there.")


def read_idx(path: str | Path, *, dimensions: int) -> Tensor:
    """The entries of an idx file of unsigned bytes, as uint8 of the shape in its header.

    The header is checked against the file's size before memory is allocated; no more is read than it announces.
    """
    file = Path(path)
    try:
        with open(file, "rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if zipped else open(file, "rb") as stream:
            shape = _shape(file, stream, dimensions)  # type: ignore[arg-type]
            count, most = math.prod(shape), os.path.getsize(file) * (_DEFLATE if zipped else 1) - 4 - 4 * dimensions
            if count > _LARGEST:
                raise UserError(
                    f"{file} announces {count:,} bytes, too many for a set of digits; its header is damaged."
                )
            if most < count:
                raise _cut_short(file, count, f"{'at most ' * zipped}{max(most, 0):,}")
            entries = _read(stream, count + 1)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = "it ends too early" if isinstance(error, EOFError) else "its gzip stream is damaged"
        raise UserError(f"{file} is not whole: {reason}; fetch it again.") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}); check its name and permissions.") from None
    if len(entries) < count:
        raise _cut_short(file, count, f"{len(entries):,}")
    if len(entries) > count:
        raise UserError(f"{file} is longer than the {counted(count, 'byte')} its header announces; fetch it again.")
    flat = torch.frombuffer(entries, dtype=torch.uint8) if count else torch.empty(0, dtype=torch.uint8)
    return flat.view(shape)


def _cut_short(file: Path, count: int, held: str) -> UserError:
    return UserError(f"{file} is cut short: it announces {counted(count, 'byte')}, but it has {held}; fetch it again.")


def _shape(file: Path, stream: BinaryIO, dimensions: int) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise UserError(f"{file} is not an idx file; it should begin with two zero bytes, a type and a number of axes.")
    if magic[2] != _UNSIGNED_BYTE:
        raise UserError(f"{file} holds entries of type 0x{magic[2]:02x}; only unsigned bytes (0x08) are read.")
    if magic[3] != dimensions:
        axes = "1 axis" if magic[3] == 1 else f"{magic[3]} axes"
        raise UserError(f"{file} has {axes} and by its name should have {dimensions}; see that it is the right file.")
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise UserError(f"{file} is cut short within its header; fetch it again.")
    return struct.unpack(f">{dimensions}I", sizes)


def _read(stream: BinaryIO, most: int) -> bytearray:
    """Block by block: a read of ``most`` bytes would allocate them all."""
    entries = bytearray()
    while block := stream.read(min(_BLOCK, most - len(entries))):
        entries += block
    return entries


def download(folder: str | Path) -> Path:
    """Fetch the four files into a folder and check their SHA-256; existing ones stay."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name, checksum in FILES.values():
            file = where / f"{name}.gz"
            if not file.exists():
                torch.hub.download_url_to_file(f"{ADDRESS}{file.name}", str(file), checksum, progress=False)
    except (OSError, RuntimeError) as error:  # no network, or another checksum
        raise UserError(f"MNIST could not be fetched into {where} ({first_line(error)}); try again.") from None
    return where
