"""Captioned images as one self-contained page: words shaded by how unsure the model was, readable on a phone."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayesrnn.lab.report import html as pages

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.captioning.description import Description, Word

ENTROPY_LEVELS = (0.5, 1.0, 2.0, 3.0)
"""Nats; at each the shade gets darker."""
INFORMATION_LEVELS = (0.02, 0.05, 0.1, 0.2)
"""Nats; at each the line under a word gets thicker."""
LIGHT = ("#ffffff", "#fff1d0", "#ffdf9e", "#ffc966", "#ffae29")
DARK = ("#161616", "#382c10", "#54400d", "#6e5205", "#846200")
"""One hue, five shades; text on each has a contrast of at least 4.5."""
INK = {"light": "#1b1b1b", "dark": "#ffffff"}
_LINES = (0, 1, 2, 3, 5)


def _style() -> str:
    light = " ".join(f".e{i} {{ background: {shade}; }}" for i, shade in enumerate(LIGHT))
    dark = " ".join(f".e{i} {{ background: {shade}; }}" for i, shade in enumerate(DARK))
    lines = " ".join(f".m{i} {{ border-bottom: {width}px solid currentColor; }}" for i, width in enumerate(_LINES))
    return (
        "<style>"
        ".cards { display: grid; gap: 1.5rem;"
        " grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }"
        " .card { border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow-wrap: anywhere; }"
        " .card img { width: 100%; } .card figure { margin: 0 0 .6rem; }"
        " .caption { font-size: 1.2rem; line-height: 2; margin: .4rem 0; }"
        " .w { padding: .1rem .25rem; border-radius: 3px; white-space: nowrap; }"
        f" .w {{ color: {INK['light']}; }} {light} {lines}"
        f" @media (prefers-color-scheme: dark) {{ .w {{ color: {INK['dark']}; }} {dark} }}"
        " .key { line-height: 2; } .name, summary { color: var(--soft); font-size: .88rem; }"
        " .card td, .card th { padding: .2rem .4rem; } .card ul { margin: .3rem 0; padding-left: 1.2rem; }"
        "</style>"
    )


def level(value: float, levels: Sequence[float]) -> int:
    """How many of the levels the value reaches."""
    return sum(value >= at for at in levels)


def _word(word: "Word") -> str:
    shade, line = level(word.entropy, ENTROPY_LEVELS), level(word.mutual_information, INFORMATION_LEVELS)
    title = f"entropy {word.entropy:.2f}, mutual information {word.mutual_information:.3f} nats"
    return f'<span class="w e{shade} m{line}" title="{title}">{html.escape(word.word)}</span>'


def _card(one: "Description", picture: bytes | None) -> str:
    image = ""
    if picture is not None:
        image = pages.image(picture, alt=one.caption).replace("data:image/png", "data:image/jpeg")
    rows = "".join(
        f'<tr><th scope="row">{html.escape(w.word)}</th><td>{w.probability:.2f}</td><td>{w.entropy:.2f}</td>'
        f"<td>{w.mutual_information:.3f}</td></tr>"
        for w in one.words
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("word", "probability", "entropy", "mutual information"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    said = f"<p>Single draws say:</p>{pages.bullets(one.draws)}" if one.draws else ""
    return (
        f'<section class="card">{image}<p class="caption">{" ".join(map(_word, one.words))}</p>'
        f'<p class="name">{html.escape(one.image)}</p>{said}'
        f"<details><summary>Word by word, in nats</summary>{pages.wide(table)}</details></section>"
    )


def _key() -> str:
    """What shades and lines mean, with examples."""
    low = ("0", *(f"{at:g}" for at in ENTROPY_LEVELS))
    shades = " ".join(f'<span class="w e{i}">from {at}</span>' for i, at in enumerate(low))
    low = ("0", *(f"{at:g}" for at in INFORMATION_LEVELS))
    lines = " ".join(f'<span class="w m{i}">from {at}</span>' for i, at in enumerate(low))
    return (
        f'<p class="key">Shade: entropy of the prediction, in nats, how open the choice of the word was. {shades}</p>'
        f'<p class="key">Line below: mutual information, in nats, how much draws of the weights disagree. {lines}</p>'
    )


def gallery(
    descriptions: Sequence["Description"], pictures: Sequence[bytes | None], *, title: str, footer: str = ""
) -> str:
    """The page. ``pictures`` are JPEG files' bytes, or None where there is only the name."""
    cards = "".join(_card(one, picture) for one, picture in zip(descriptions, pictures, strict=True))
    return pages.page(title, [_style(), _key(), f'<div class="cards">{cards}</div>'], footer=footer)
