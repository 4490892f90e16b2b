"""The page of a report as it grows."""

from dataclasses import dataclass, field

from markupsafe import Markup

from bayesrnn.lab.report import html


@dataclass(frozen=True)
class SectionHTML:
    """One section of a page."""

    key: str
    title: str
    parts: tuple[Markup, ...]


@dataclass
class Page:
    """A report, or a chapter of one: sections with their pictures. The name of a chapter is part of its ids."""

    chapter: str = ""
    sections: list[SectionHTML] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)

    @property
    def level(self) -> int:
        """The level of the headings of sections."""
        return 3 if self.chapter else 2

    def add(self, key: str, title: str, *parts: Markup) -> None:
        """Add a section of HTML from :mod:`bayesrnn.lab.report.html`."""
        self.sections.append(SectionHTML(self._named(key), title, parts))

    def figure(self, name: str, png: bytes, *, alt: str, caption: str = "") -> Markup:
        """A picture inside the page, which is also a file beside it."""
        self.pictures[f"{self._named(name)}.png"] = png
        return html.image(png, alt=alt, caption=caption)

    def add_figure(self, key: str, title: str, png: bytes, *, alt: str, caption: str, text: str = "") -> None:
        """Add a section with one picture, below a text."""
        above = [html.paragraphs(text)] if text else []
        self.add(key, title, *above, self.figure(key, png, alt=alt, caption=caption))

    def heading(self, text: str) -> Markup:
        """A heading within a section."""
        return html.heading(text, self.level + 1)

    def _named(self, key: str) -> str:
        return f"{file_name(self.chapter)}-{key}" if self.chapter else key


def file_name(key: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in key)
