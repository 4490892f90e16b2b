"""Images that a user names for captions, and how the captions are shown: in the terminal, or on a page."""

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape

from bayesrnn.errors import UserError
from bayesrnn.lab.report import html
from bayesrnn.lab.report.tables import Column, rich_table
from bayesrnn.lab.runs.files import check_out, write_file
from bayesrnn.lab.tasks.captioning.description import Description
from bayesrnn.lab.tasks.captioning.image_features import encode, open_image, read_features

_WIDTH = 480  # of pictures in a gallery, pixels
ENTROPY_LEVELS = (0.5, 1.0, 2.0, 3.0)
"""Nats; at each the shade gets darker."""
INFORMATION_LEVELS = (0.02, 0.05, 0.1, 0.2)
"""Nats; at each the line under a word gets thicker."""


def names_and_files(
    images: list[Path] | None, features: Path | None, ids: list[str] | None
) -> tuple[list[str], list[Path | None]]:
    """Names of the images, and their files where there are any."""
    if bool(images) == bool(features):
        raise UserError("Give image files, or --features FILE with --ids NAME,NAME; one of the two.")
    if images:
        if ids:
            raise UserError("--ids go with --features; image files need none.")
        return [image.name for image in images], list(images)
    names = [name for text in ids or [] for name in text.split(",") if name]
    if not names:
        raise UserError("--features needs --ids, the names of the images to describe.")
    return names, [None] * len(names)


def check_place(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--gallery writes a page; {path} should end in .html.")
    check_out(path, force=True, option="--gallery")


def rows(files: list[Path | None], names: list[str], features: Path | None, device: torch.device) -> torch.Tensor:
    if features is not None:
        return read_features(features).of(names).to(device)
    return encode([file for file in files if file is not None], device=device).to(device)


def show(console: Console, one: Description) -> None:
    console.print(f"{escape(one.image)}: [bold]{escape(one.caption)}[/bold]", soft_wrap=True)
    columns = (
        Column("word", "word"),
        Column("probability", "probability", "{:.2f}"),
        Column("entropy", "entropy", "{:.2f}"),
        Column("mutual_information", "mutual information", "{:.3f}"),
    )
    console.print(rich_table([vars(word) for word in one.words], columns))
    for k, caption in enumerate(one.draws, 1):
        console.print(f"draw {k}: {escape(caption)}", soft_wrap=True)
    console.print()


def gallery(
    descriptions: Sequence[Description], pictures: Sequence[bytes | None], *, title: str, footer: str = ""
) -> str:
    """One self-contained page. ``pictures`` are JPEG files' bytes, or None where there is only the name."""
    both = zip(descriptions, pictures, strict=True)
    images = ["" if jpeg is None else html.image(jpeg, alt=one.caption, kind="jpeg") for one, jpeg in both]
    return html.render(
        "gallery.html", folder=Path(__file__).parent, title=title, footer=footer, generator="",
        cards=list(zip(descriptions, images, strict=True)),
        levels={"entropy": ENTROPY_LEVELS, "information": INFORMATION_LEVELS},
    )  # fmt: skip


def write_gallery(path: Path, found: list[Description], files: list[Path | None], title: str) -> None:
    pictures = [None if file is None else small(file) for file in files]
    write_file(path, gallery(found, pictures, title=title))


def small(file: Path) -> bytes:
    """The picture as a JPEG file that fits a page."""
    image = open_image(file)
    image.thumbnail((_WIDTH, 2 * _WIDTH))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()
