"""What `make test-bounds` asks pip for is what pyproject.toml says."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def bounds():
    spec = importlib.util.spec_from_file_location("bounds", ROOT / "tests/bounds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_dependency_has_a_lowest_release_that_is_held(bounds):
    needed, tools = bounds.requirements()
    assert {"torch", "numpy", "optuna", "scikit-learn", "lightning-fabric"} <= set(needed)
    assert "bayesrnn" not in needed
    assert {"pytest", "triton"} <= {re.split(r"[=<>]", tool)[0] for tool in tools}
    held = bounds.held(needed, "lowest")
    assert len(held) == len(needed)
    assert all(re.fullmatch(r"[\w.-]+==[\d.]+", line) for line in held)
    assert "torch==" + re.search(r">=([\d.]+)", needed["torch"]).group(1) in held
    assert f"torch{needed['torch']}" in bounds.held(needed, "highest")


def test_tools_of_the_tests_are_pinned_within_the_bounds(bounds):
    """What `make test` pins of a dependency is a release that users may have as well."""
    needed, _ = bounds.requirements()
    text = (ROOT / "pyproject.toml").read_text()
    pinned = dict(re.findall(r'"([\w-]+)==([\d.]+)"', text))
    both = set(pinned) & set(needed)
    assert len(both) >= 5
    for name in both:
        lowest = re.search(r">=([\d.]+)", needed[name]).group(1)
        assert tuple(map(int, pinned[name].split("."))) >= tuple(map(int, lowest.split("."))), name


def test_a_dependency_without_a_lowest_release_is_said(bounds):
    with pytest.raises(SystemExit, match="numpy has no lowest version"):
        bounds.held({"numpy": "<3"}, "lowest")
