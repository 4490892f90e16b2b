"""The page of a report as it grows."""

from dataclasses import dataclass, field

from bayesrnn.lab.report import html as pages


@dataclass
class Page:
    """The page, or a chapter of it, as it grows: sections with their pictures. A chapter has a name for its ids."""

    chapter: str = ""
    sections: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, title, HTML."""
    pictures: dict[str, bytes] = field(default_factory=dict)

    def add(self, key: str, title: str, *parts: str) -> None:
        self.sections.append((self._named(key), title, "\n".join(parts)))

    def figure(self, name: str, png: bytes, *, alt: str, caption: str = "") -> str:
        self.pictures[f"{self._named(name)}.png"] = png
        return pages.image(png, alt=alt, caption=caption)

    def _named(self, key: str) -> str:
        return f"{file_name(self.chapter)}-{key}" if self.chapter else key


def file_name(key: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in key)
