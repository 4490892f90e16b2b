"""The release checklist: build, inspect and try what would be uploaded. `make release-check` runs it.

    python tests/release.py --out dist

Writes the sdist, the wheel, `sbom.json` (CycloneDX) and `licences.md` to the folder. Needs no network: the wheel is
installed into an empty environment, and its dependencies are linked from this one.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 1_500_000  # bytes of the wheel
EXTRAS = ("lab",)  # the SBOM and the licences cover the library and these
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
COMMAND = "import sys, runpy; sys.argv = ['bayesrnn', '--version']; runpy.run_module('bayesrnn', run_name='__main__')"


class Failed(Exception):
    """A check that did not pass: one line says which."""


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(str(part) for part in command[:5])} ...:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def check_versions() -> str:
    """The version is the same in the package, the changelog, CITATION.cff and the README."""
    own = re.findall(r'__version__ = "(.*)"', (ROOT / "src/bayesrnn/_version.py").read_text("utf-8"))[0]
    for file, pattern in (
        ("CHANGELOG.md", r"(?m)^## ([^,\s]+)"),
        ("CITATION.cff", r"(?m)^version: (.*)$"),
        ("README.md", r"version = \{(.*?)\}"),
    ):
        found = re.findall(pattern, (ROOT / file).read_text("utf-8"))
        if not found or found[0] != own:
            raise Failed(f"{file} is of version {found[0] if found else 'none'}, the package of {own}.")
    heading = re.findall(r"(?m)^## .*$", (ROOT / "CHANGELOG.md").read_text("utf-8"))[0]
    return f"{own}{'; write the date into the changelog before you tag' if 'unreleased' in heading else ''}"


def build(out: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel built from it."""
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("bayesrnn-*.whl"), *out.glob("bayesrnn-*.tar.gz")):
        old.unlink()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (wheel,), (sdist,) = out.glob("bayesrnn-*.whl"), out.glob("bayesrnn-*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_wheel(wheel: Path) -> str:
    """The package alone, with types and recipes, and small."""
    names = zipfile.ZipFile(wheel).namelist()
    strange = [name for name in names if not re.match(r"bayesrnn(-[\w.+]+\.dist-info)?/", name)]
    strange += [name for name in names if re.search(r"/(results|docs|tests)/|(^|/)(test_|conftest)", name)]
    missing = [end for end in ("bayesrnn/py.typed", "recipes/brnn-medium.yaml", "/licenses/LICENSE")
               if not any(name.endswith(end) for name in names)]  # fmt: skip
    if strange or missing or wheel.stat().st_size > LARGEST:
        raise Failed(f"The wheel has {strange}, lacks {missing}, and has {wheel.stat().st_size:,} bytes.")
    return f"{len(names)} files, {wheel.stat().st_size:,} bytes"


def check_description(wheel: Path) -> str:
    """The text on PyPI has no link into the repository."""
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(metadata).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]*)\)", text)
    local = [link for link in links if not link.startswith("https://")]
    if local or "# bayesrnn" not in text:
        raise Failed(f"The description lacks its text, or links to {local}: see hatch_build.py.")
    return f"{len(text.split())} words, {len(links)} links"


def check_sdist(sdist: Path) -> str:
    """Everything that git tracks is in it."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(run("git", "ls-files").splitlines()) - {".gitignore"}
    lost = sorted(name for name in tracked - names if (ROOT / name).exists() and not name.startswith("."))
    if lost:
        raise Failed(f"The sdist lacks {len(lost)} files, such as {lost[0]}: see tool.hatch.build in pyproject.toml.")
    return f"{len(names)} files"


def requirements(*names: str) -> Iterator[Distribution]:
    """These distributions and what they require here; `"a[b]"` with the optional part b."""
    from packaging.requirements import Requirement

    waiting, seen = [Requirement(name) for name in names], set()
    while waiting:
        one = waiting.pop()
        if (one.name, *sorted(one.extras)) in seen:
            continue
        seen.add((one.name, *sorted(one.extras)))
        try:
            found = distribution(one.name)
        except PackageNotFoundError:
            continue
        parts = [{"extra": extra} for extra in ("", *one.extras)]
        needed = [Requirement(line) for line in found.requires or []]
        waiting += [r for r in needed if r.marker is None or any(r.marker.evaluate(part) for part in parts)]
        yield found


def link(folder: Path, *names: str) -> None:
    """Link distributions of this environment, and what they require, into a folder of packages."""
    for one in requirements(*names):
        for top in {Path(file).parts[0] for file in one.files or [] if not str(file).startswith("..")}:
            target = folder / top
            if top != "__pycache__" and not target.exists():
                target.symlink_to(one.locate_file(top))


def wheel_requirements(wheel: Path, *extras: str) -> list[str]:
    """The requirements in the wheel's metadata, with those of some extras."""
    from packaging.requirements import Requirement

    archive = zipfile.ZipFile(wheel)
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    found = []
    for line in re.findall(r"(?m)^Requires-Dist: (.*)$", archive.read(metadata).decode()):
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.append(f"{one.name}[{','.join(one.extras)}]" if one.extras else one.name)
    return found


def environment(wheel: Path, folder: Path, *extras: str) -> Path:
    """An empty environment with the wheel, installed by pip, and its requirements; returns its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel)
    link(Path(packages), *wheel_requirements(wheel, *extras))
    return python


def check_install(wheel: Path, scratch: Path) -> str:
    """The README's example runs with torch and numpy alone; the command with the extra `lab`."""
    code = "\n".join(PYTHON.findall((ROOT / "README.md").read_text("utf-8")))
    run(environment(wheel, scratch / "bare"), "-I", "-c", code, cwd=scratch)
    python = environment(wheel, scratch / "lab", *EXTRAS)
    return run(python, "-I", "-c", COMMAND, cwd=scratch).strip()


def write_lists(python: Path, out: Path) -> str:
    """The software bill of materials and the licences of the dependencies."""
    sbom, licences = out / "sbom.json", out / "licences.md"
    cyclonedx = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml"]
    run(*cyclonedx, "--of", "JSON", "--output-reproducible", "-o", sbom, python)
    options = [f"--python={python}", "--from=mixed", "--with-system", "--with-urls", "--ignore-packages", "bayesrnn"]
    run(sys.executable, "-m", "piplicenses", *options, "--format=markdown", f"--output-file={licences}")
    unknown = re.findall(r"(?m)^\| (\S+) +\| \S+ +\| UNKNOWN ", licences.read_text("utf-8"))
    if unknown:
        raise Failed(f"No licence is known of {', '.join(unknown)}.")
    return f"{sbom.name}, {licences.name}: {licences.read_text('utf-8').count(chr(10)) - 2} packages"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the release, and check what would be uploaded.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out.absolute()
    try:
        print("version:", check_versions(), flush=True)
        wheel, sdist = build(out)
        print("sdist:", check_sdist(sdist), flush=True)
        print("wheel, from the sdist:", check_wheel(wheel), flush=True)
        print("description:", check_description(wheel), flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            print("installed:", check_install(wheel, Path(scratch)), flush=True)
            print("lists:", write_lists(Path(scratch) / "lab/bin/python", out), flush=True)
    except Failed as error:
        sys.exit(f"release check: {error}")
    print(f"{out} holds the release.")


if __name__ == "__main__":
    main()
