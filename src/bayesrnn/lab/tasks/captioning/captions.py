"""Images with captions: Flickr8k's files and COCO's, read strictly, and the words of a caption.

images = read_captions("flickr8k/")                 # or "coco/"
references = images.test                            # image name -> captions, each a list of words

Features of the images are in :mod:`bayesrnn.lab.tasks.captioning.image_features`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import MB, read_json, read_text

_MOST = 1024 * MB  # of a file: COCO's largest has 92
SPLITS = ("train", "valid", "test")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")

_TOKENS = "Flickr8k.token.txt"
_SPLIT_FILES = {"train": "Flickr_8k.trainImages.txt", "valid": "Flickr_8k.devImages.txt"}
_SPLIT_FILES["test"] = "Flickr_8k.testImages.txt"
# The published file has five captions of an image that no split and no archive has.
_STRAY = "2258277193_586949ec62.jpg.1"
_WORD = re.compile(r"[^\W_]+(?:(?:-|'(?!s\b))[^\W_]+)*|'s\b")

References = dict[str, list[list[str]]]


def words(text: str) -> list[str]:
    """Lower-cased words; punctuation goes, hyphens and apostrophes inside a word stay, 's is a word of its own."""
    return _WORD.findall(text.lower().replace("’", "'"))


@dataclass(frozen=True)
class CaptionedImages:
    """Captions by image name for each split, in the order of its file; the folder, and the images' files found."""

    train: References
    valid: References
    test: References
    folder: Path
    files: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split in SPLITS:
            if not getattr(self, split):
                raise UserError(f"The {split} split of {self.folder} has no images; put some into it.")
        for a, b in (("train", "valid"), ("train", "test"), ("valid", "test")):
            both = getattr(self, a).keys() & getattr(self, b).keys()
            if both:
                raise UserError(f"{min(both)} is in both the {a} and the {b} split; leave it in one.")

    def split(self, name: str) -> References:
        found: References = getattr(self, name)
        return found

    @property
    def names(self) -> list[str]:
        """All images, split after split."""
        return [*self.train, *self.valid, *self.test]


def read_captions(path: str | Path) -> CaptionedImages:
    """A folder in Flickr8k's or in COCO's layout.

    Flickr8k: ``Flickr8k.token.txt`` and the three ``Flickr_8k.*Images.txt``. COCO: ``captions_train*.json`` and
    ``captions_val*.json``, here or in ``annotations/``; without a ``captions_test*.json``, which COCO does not publish,
    every second image of the validation file (by id) is the test split. Images may be in a folder of any name.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one with Flickr8k's or COCO's caption files.")
    if (folder / _TOKENS).is_file():
        return _flickr8k(folder)
    if annotations := _annotations(folder):
        return _coco(folder, annotations)
    raise UserError(
        f"{folder} has neither {_TOKENS} (Flickr8k) nor captions_train*.json (COCO, here or in annotations/)."
    )


def image_files(folder: Path) -> dict[str, Path]:
    """Image name to file: of this folder, its subfolders, and those of ``images``."""
    places = [folder, *sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))]
    inner = folder / "images"
    if inner.is_dir():
        places += sorted(p for p in inner.iterdir() if p.is_dir())
    found: dict[str, Path] = {}
    for place in places:
        for file in place.iterdir():
            if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file():
                found.setdefault(file.name, file)
    return found


def feature_names(folder: Path) -> list[str] | None:
    """The names in the folder's ``filenames.json``, row by row of the features beside it; None: there is none."""
    file = folder / "filenames.json"
    if not file.is_file():
        return None
    names = read_json(file, most=_MOST)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file} must be a list of image names, one for each row of the features.")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"{file} names {twice} twice; each row of the features is another image.")
    return names


def _flickr8k(folder: Path) -> CaptionedImages:
    splits: dict[str, list[str]] = {}
    for split, name in _SPLIT_FILES.items():
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}, which lists the {split} images; put it there.")
        splits[split] = [line.strip() for line in read_text(folder / name, most=_MOST).splitlines() if line.strip()]
        if len(set(splits[split])) < len(splits[split]):
            raise UserError(f"{folder / name} names an image twice.")
    captions: References = {}
    for image, text, where in _flickr8k_lines(folder / _TOKENS):
        found = words(text)
        if not found:
            raise UserError(f"{where}: the caption has no words.")
        captions.setdefault(image, []).append(found)
    files = image_files(folder)
    known = set(feature_names(folder) or []) | files.keys()
    if known:
        known |= {_STRAY, *(name for images in splits.values() for name in images)}
        if unknown := next((image for image in captions if image not in known), None):
            raise UserError(
                f"{folder / _TOKENS} has captions of {unknown}, but no split, feature or image file has that name."
            )
    for split, images in splits.items():
        if missing := next((image for image in images if image not in captions), None):
            raise UserError(f"{missing} of the {split} split has no caption in {folder / _TOKENS}.")
    made = {split: {image: captions[image] for image in images} for split, images in splits.items()}
    return CaptionedImages(**made, folder=folder, files=files)


def _flickr8k_lines(file: Path) -> Iterator[tuple[str, str, str]]:
    """(image, caption, where it stands) of lines NAME#NUMBER, tab, caption."""
    for number, line in enumerate(read_text(file, most=_MOST).splitlines(), 1):
        if not line.strip():
            continue
        key, tab, text = line.partition("\t")
        image, hash_, index = key.rpartition("#")
        if not (tab and hash_ and image and index.strip().isdigit()):
            raise UserError(f"{file}, line {number}: expected IMAGE#NUMBER, a tab and a caption, got {line[:60]!r}.")
        yield image, text, f"{file}, line {number}"


def _annotations(folder: Path) -> dict[str, Path]:
    """COCO's annotation files by split; empty where there are none at all."""
    found: dict[str, Path] = {}
    for split, short in (("train", "train"), ("valid", "val"), ("test", "test")):
        files = [p for place in (folder, folder / "annotations") for p in sorted(place.glob(f"captions_{short}*.json"))]
        if len(files) > 1:
            raise UserError(
                f"{folder} has several {split} caption files ({', '.join(p.name for p in files)}); keep one."
            )
        if files:
            found[split] = files[0]
    return found


def _coco(folder: Path, annotations: dict[str, Path]) -> CaptionedImages:
    for split, short in (("train", "train"), ("valid", "val")):
        if split not in annotations:
            raise UserError(f"{folder} has no captions_{short}*.json for the {split} split; put it there.")
    splits = {split: _coco_split(file) for split, file in annotations.items()}
    if "test" not in splits:
        images = list(splits["valid"].items())
        splits["valid"], splits["test"] = dict(images[::2]), dict(images[1::2])
    return CaptionedImages(**splits, folder=folder, files=image_files(folder))


def _coco_split(file: Path) -> References:
    """Captions by file name, images in the order of their ids."""
    content = read_json(file, most=_MOST)
    try:
        names = {image["id"]: image["file_name"] for image in content["images"]}
        pairs = [(note["image_id"], note["caption"]) for note in content["annotations"]]
        if not all(isinstance(n, int) and isinstance(name, str) for n, name in names.items()):
            raise TypeError
        if not all(isinstance(n, int) and isinstance(text, str) for n, text in pairs):
            raise TypeError
    except (KeyError, TypeError):
        raise UserError(
            f"{file} is not in COCO's format: images with id and file_name, annotations with image_id and caption."
        ) from None
    captions: dict[Any, list[list[str]]] = {number: [] for number in sorted(names)}
    for number, text in pairs:
        if number not in names:
            raise UserError(f"{file} has a caption of image {number}, which is not among its images.")
        found = words(text)
        if not found:
            raise UserError(f"{file}: a caption of image {number} ({names[number]}) has no words.")
        captions[number].append(found)
    if missing := next((number for number, each in captions.items() if not each), None):
        raise UserError(f"{file} has no caption of image {missing} ({names[missing]}).")
    if len(set(names.values())) < len(names):
        raise UserError(f"{file} has two images of one file name.")
    return {names[number]: each for number, each in captions.items()}
