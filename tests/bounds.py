"""Run the fast tests with the oldest, or the newest, releases of all dependencies that pyproject.toml allows.

    python tests/bounds.py lowest --venv /tmp/lowest          # makes the environment, installs, runs the fast tests
    python tests/bounds.py highest --venv /tmp/highest
    python tests/bounds.py lowest --show                      # what would be asked for

Every dependency is held, those of the optional parts too. Test tools are of the versions that the tests are run with.
From PyPI torch comes with CUDA: some gigabytes. Arguments after -- go to pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?\s*([^;]*)")


def requirements(root: Path = ROOT) -> tuple[dict[str, str], list[str]]:
    """What the package needs, all optional parts included, as {name: versions}; and the tools of its tests."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    parts = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in parts if name not in ("test", "dev") for line in parts[name])]
    needed = {_name(line): _REQUIREMENT.match(line).group(2).strip() for line in lines if _name(line) != "bayesrnn"}  # type: ignore[union-attr]
    # Lightning is no dependency: one example has it, whose test is skipped here.
    tools = [line for line in parts["test"] if _name(line) not in {*needed, "bayesrnn", "lightning"}]
    # Triton's release goes with torch's, which brings its own where it can use a GPU.
    return needed, ["triton" if _name(line) == "triton" else line for line in tools]


def _name(line: str) -> str:
    found = _REQUIREMENT.match(line)
    assert found is not None, line
    return found.group(1).lower().replace("_", "-")


def held(needed: dict[str, str], which: str) -> list[str]:
    """Constraints for pip: of ``lowest`` the first release that is allowed, of ``highest`` what is allowed."""
    if which == "highest":
        return [f"{name}{versions}" for name, versions in needed.items()]
    lowest = {}
    for name, versions in needed.items():
        found = re.search(r">=\s*([\w.]+)", versions)
        if found is None:
            raise SystemExit(f"{name} has no lowest version in pyproject.toml")
        lowest[name] = found.group(1)
    return [f"{name}=={version}" for name, version in lowest.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("which", choices=["lowest", "highest"])
    parser.add_argument("--venv", type=Path, help="the environment: made here, or used again")
    parser.add_argument("--show", action="store_true", help="print the constraints and end")
    parser.add_argument("pytest", nargs="*", help="for pytest")
    asked = parser.parse_args()
    needed, tools = requirements()
    constraints = held(needed, asked.which)
    if asked.show or asked.venv is None:
        print("\n".join(constraints))
        return
    python = asked.venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(asked.venv)], check=True)
    held_in = asked.venv / "constraints.txt"
    held_in.write_text("\n".join(constraints) + "\n")
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(held_in)]
    subprocess.run([*install, "-e", f"{ROOT}[all]", *tools], check=True)
    listing = subprocess.run([str(python), "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    found = {_name(line): line for line in listing.splitlines() if "==" in line}
    print("\n".join(found[name] for name in (*needed, "triton") if name in found), flush=True)
    fast = [str(python), "-m", "pytest", "-q", "-m", "not slow", "-n", "2", *asked.pytest]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    if asked.which == "lowest":  # old releases warn of what newer ones beneath them have deprecated
        environment["PYTEST_ADDOPTS"] = "-W default"
    sys.exit(subprocess.run(fast, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    main()
