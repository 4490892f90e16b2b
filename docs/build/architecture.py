"""The map of the source: one line per module, from its docstring."""

import ast
import re
from pathlib import Path


def tree(root: Path) -> str:
    """The packages and modules below src/bayesrnn, each with the first sentence of its docstring."""
    source = root / "src/bayesrnn"
    return "\n".join(["```text", "src/bayesrnn/", *_lines(source, 1), "```"])


def _lines(folder: Path, depth: int) -> list[str]:
    lines: list[str] = []
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_dir(), p.name)):
        if path.is_dir() and (path / "__init__.py").exists():
            lines += [_line(f"{path.name}/", path / "__init__.py", depth), *_lines(path, depth + 1)]
        elif path.suffix == ".py" and not path.name.startswith("_"):
            lines.append(_line(path.name, path, depth))
    return lines


def _line(name: str, file: Path, depth: int) -> str:
    return f"{'  ' * depth}{name:<{28 - 2 * depth}} {_summary(file)}".rstrip()


def _summary(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<!et al)\. ", first)[0].rstrip(".").replace("``", "`")
