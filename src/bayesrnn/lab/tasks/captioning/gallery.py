"""Captioned images as one self-contained page: words shaded by how unsure the model was, readable on a phone."""

from collections.abc import Sequence
from pathlib import Path

from bayesrnn.lab.report import html
from bayesrnn.lab.tasks.captioning.description import Description

ENTROPY_LEVELS = (0.5, 1.0, 2.0, 3.0)
"""Nats; at each the shade gets darker."""
INFORMATION_LEVELS = (0.02, 0.05, 0.1, 0.2)
"""Nats; at each the line under a word gets thicker."""


def gallery(
    descriptions: Sequence[Description], pictures: Sequence[bytes | None], *, title: str, footer: str = ""
) -> str:
    """The page. ``pictures`` are JPEG files' bytes, or None where there is only the name."""
    both = zip(descriptions, pictures, strict=True)
    images = ["" if png is None else html.image(png, alt=one.caption, kind="jpeg") for one, png in both]
    return html.render(
        "gallery.html", folder=Path(__file__).parent, title=title, footer=footer, generator="",
        cards=list(zip(descriptions, images, strict=True)),
        levels={"entropy": ENTROPY_LEVELS, "information": INFORMATION_LEVELS},
    )  # fmt: skip
