"""The description on PyPI: README.md without pictures and links into the repository, which lead nowhere there."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LOCAL = r"\[([^\]]*)\]\((?!https?:)[^)]*\)"
_WHERE = "\nThe pages that this text names are in the source distribution, in `docs/`; `make docs` builds them.\n"


def description(readme: str) -> str:
    without_pictures = re.sub(rf"(?m)^!{_LOCAL}\n+", "", readme)
    return re.sub(_LOCAL, r"\1", without_pictures) + _WHERE


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = description((Path(self.root) / "README.md").read_text("utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
