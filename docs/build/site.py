"""Check a built site: every internal link and anchor leads somewhere, and no page needs the network.

python -m docs.build.site build/site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_OPENED = {"a": "href", "img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}


class _Page(HTMLParser):
    """The anchors and the addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if (address := found.get(_OPENED.get(tag, ""))) is not None:
            self.addresses.append((tag, address))


def problems(site: Path) -> list[str]:
    """One line per link that leads nowhere and per resource that comes from the network."""
    pages = {path.resolve(): _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        for tag, address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme in ("mailto", "data") or (tag == "a" and parts.scheme in ("http", "https")):
                continue
            where = f"{path.relative_to(site.resolve())}: {address}"
            if parts.scheme or parts.netloc:
                found.append(f"{where} is loaded from the network")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{where} does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where} has no such anchor")
    return found


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]))
    print("\n".join(wrong), file=sys.stderr)
    sys.exit(bool(wrong))
