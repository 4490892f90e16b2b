"""The task is a layer over the library: it uses public names only."""

import ast
from pathlib import Path

import pytest

from bayesrnn.lab.tasks import forecast

FILES = sorted(Path(forecast.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_private_members_of_others_are_touched(path):
    found = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    assert found == []
