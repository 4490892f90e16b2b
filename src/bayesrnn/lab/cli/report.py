"""``bayesrnn report``: runs side by side on one self-contained page."""

from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders, records, folders of those, or of Forecaster.save."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for index.html and the pictures.")] = Path("report"),
    fast: Annotated[bool, typer.Option("--fast", help="Only what is recorded; do not open weights.")] = False,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a report of other runs in --out.")] = False,
) -> None:
    """Compare runs: curves, metrics beside the paper's, calibration, uncertainty, weights, settings, environment."""
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.reading import counted
    from bayesrnn.lab.registry import open_saved
    from bayesrnn.lab.report.analysis import Analysis, analyse
    from bayesrnn.lab.report.page import build, heading, sources
    from bayesrnn.lab.report.parts import Page
    from bayesrnn.lab.runs.collection import LeftOut, groups, read
    from bayesrnn.lab.runs.files import make_folder, write_file

    console = plain_console()
    left_out: LeftOut = {}
    saved = {path: found for path in runs if (found := open_saved(Path(path))) is not None}
    together = groups(run for path in runs if path not in saved for run in read(path, left_out))
    source = sources(runs)
    _check(out, source, replace=replace)
    if left_out:
        why = "; ".join(f"{', '.join(map(str, files))} ({reason})" for reason, files in left_out.items())
        console.print(f"Left out: {why}.", soft_wrap=True, markup=False)
    analyses: dict[str, Analysis] = {}
    for group in together:
        folder = group.first.folder
        if not fast and folder is not None and (folder / "best.safetensors").exists():
            analyses[group.label] = analyse(folder, group.first.metrics, console.say)
    chapters = []
    for one in saved.values():
        chapters.append(Page(one.title if together or len(saved) > 1 else ""))
        one.report(chapters[-1], fast=fast, say=console.say)
    titles = [*([heading(together)] if together else []), *(each.title for each in saved.values())]
    page, pictures = build(together, analyses, title=title or " and ".join(titles), more=chapters, source=source)
    make_folder(out, "choose another --out")
    for name, png in pictures.items():
        write_file(out / name, png)
    write_file(out / "index.html", page)
    size = (out / "index.html").stat().st_size / 1e6
    console.print(f"{out / 'index.html'} ({size:.1f} MB, everything inside) and {counted(len(pictures), 'picture')}.")


def _check(out: Path, source: str, *, replace: bool) -> None:
    """Replace nothing but an earlier report of the same runs, or any report if that is asked for."""
    from bayesrnn.lab.report.page import GENERATOR

    above = next(folder for folder in (out, *out.parents) if folder.exists())
    if not above.is_dir():
        raise UserError(f"{above} is a file; choose a folder with --out.")
    page = out / "index.html"
    if not page.exists():
        return
    if not page.is_file():
        raise UserError(f"{page} is not a regular file; choose another --out.")
    with open(page, encoding="utf-8", errors="replace") as file:
        start = file.read(20_000)
    if f'content="{GENERATOR}"' not in start:
        raise UserError(f"{page} is not a report of bayesrnn, and will not be replaced; choose another --out.")
    if not replace and f'name="source" content="{source}"' not in start:
        raise UserError(f"{page} is a report of other runs; choose another --out, or replace it with --replace.")
