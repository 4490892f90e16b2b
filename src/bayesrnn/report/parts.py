"""The page of a report as it grows."""

from dataclasses import dataclass, field

from bayesrnn.report import html as pages


@dataclass
class Page:
    """The page as it grows: sections with their pictures."""

    sections: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, title, HTML."""
    pictures: dict[str, bytes] = field(default_factory=dict)

    def add(self, key: str, title: str, *parts: str) -> None:
        self.sections.append((key, title, "\n".join(parts)))

    def figure(self, name: str, png: bytes, *, alt: str, caption: str = "") -> str:
        self.pictures[f"{name}.png"] = png
        return pages.image(png, alt=alt, caption=caption)


def file_name(key: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in key)
