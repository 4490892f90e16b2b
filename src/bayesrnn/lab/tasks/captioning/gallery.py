"""Captioned images as one self-contained page: words shaded by how unsure the model was, readable on a phone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrnn.lab.report import html

if TYPE_CHECKING:
    from markupsafe import Markup

    from bayesrnn.lab.tasks.captioning.description import CaptionWord, Description

ENTROPY_LEVELS = (0.5, 1.0, 2.0, 3.0)
"""Nats; at each the shade gets darker."""
INFORMATION_LEVELS = (0.02, 0.05, 0.1, 0.2)
"""Nats; at each the line under a word gets thicker."""


def _word(word: "CaptionWord") -> "Markup":
    return html.word(
        word.word,
        shade=html.level(word.entropy, ENTROPY_LEVELS),
        line=html.level(word.mutual_information, INFORMATION_LEVELS),
        title=f"entropy {word.entropy:.2f}, mutual information {word.mutual_information:.3f} nats",
    )


def gallery(
    descriptions: Sequence["Description"], pictures: Sequence[bytes | None], *, title: str, footer: str = ""
) -> str:
    """The page. ``pictures`` are JPEG files' bytes, or None where there is only the name."""
    cards = [
        {
            "about": one,
            "image": "" if picture is None else html.image(picture, alt=one.caption, kind="jpeg"),
            "words": [_word(word) for word in one.words],
            "table": html.wide(
                html.table(
                    ["word", "probability", "entropy", "mutual information"],
                    [
                        [w.word, f"{w.probability:.2f}", f"{w.entropy:.2f}", f"{w.mutual_information:.3f}"]
                        for w in one.words
                    ],
                )
            ),
        }
        for one, picture in zip(descriptions, pictures, strict=True)
    ]
    keys = [
        html.key(f"{text}, in nats", mark, ["from 0", *(f"from {at:g}" for at in levels)])
        for text, mark, levels in (
            ("Shade, entropy of the prediction: how open the choice of the word was", "s", ENTROPY_LEVELS),
            ("Line below, mutual information: how much draws of the weights disagree", "i", INFORMATION_LEVELS),
        )
    ]
    return html.render(
        "gallery.html", folder=Path(__file__).parent, title=title, cards=cards, keys=keys, footer=footer, generator=""
    )
