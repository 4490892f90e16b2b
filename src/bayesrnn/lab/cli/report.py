"""``bayesrnn report``: runs side by side on one self-contained page."""

from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders, records, or folders of those.")],
    out: Annotated[Path, typer.Option(help="Folder for index.html and the pictures.")] = Path("report"),
    fast: Annotated[bool, typer.Option("--fast", help="Only what is recorded; do not open weights.")] = False,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """Compare runs: curves, metrics beside the paper's, calibration, uncertainty, weights, settings, environment."""
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.reading import counted
    from bayesrnn.lab.report.analysis import Analysis, analyse
    from bayesrnn.lab.report.page import build, heading
    from bayesrnn.lab.runs.collection import LeftOut, groups, read
    from bayesrnn.lab.runs.files import make_folder, write_file

    console = plain_console()
    left_out: LeftOut = {}
    together = groups(run for path in runs for run in read(path, left_out))
    _check(out)
    if left_out:
        why = "; ".join(f"{', '.join(map(str, files))} ({reason})" for reason, files in left_out.items())
        console.print(f"Left out: {why}.", soft_wrap=True, markup=False)
    analyses: dict[str, Analysis] = {}
    for group in together:
        folder = group.first.folder
        if not fast and folder is not None and (folder / "best.safetensors").exists():
            analyses[group.label] = analyse(
                folder, group.first.metrics, lambda text: console.print(text, style="dim", soft_wrap=True)
            )
    page, pictures = build(together, analyses, title=title or heading(together))
    make_folder(out, "choose another --out")
    for name, png in pictures.items():
        write_file(out / name, png)
    write_file(out / "index.html", page)
    size = (out / "index.html").stat().st_size / 1e6
    console.print(f"{out / 'index.html'} ({size:.1f} MB, everything inside) and {counted(len(pictures), 'picture')}.")


def _check(out: Path) -> None:
    """Replace nothing but an earlier report."""
    from bayesrnn.lab.report.page import GENERATOR

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; choose a folder with --out.")
    page = out / "index.html"
    if not page.exists():
        return
    if not page.is_file():
        raise UserError(f"{page} is not a regular file; choose another --out.")
    with open(page, encoding="utf-8", errors="replace") as file:
        if f'content="{GENERATOR}"' not in file.read(20_000):
            raise UserError(f"{page} is not a report of bayesrnn, and will not be replaced; choose another --out.")
