"""``bayesrnn caption``: captions of images, and how sure the model is of every word."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayesrnn.lab.cli.errors import one_line

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from bayesrnn.lab.tasks.captioning.description import Description

_WIDTH = 480  # of pictures in a gallery, pixels


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder of a captioning recipe.")],
    images: Annotated[list[Path] | None, typer.Argument(metavar="[IMAGE]...", help="Image files.")] = None,
    features: Annotated[
        Path | None, typer.Option(help="Features (.npy, with filenames.json beside it) in place of images.")
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option(help="Names in filenames.json; several with commas, or --ids again.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=100_000, help="Draws for the uncertainty; 0: the posterior mean alone.")
    ] = 20,
    draws: Annotated[int, typer.Option(min=0, help="How many single draws say their own caption.")] = 3,
    average: Annotated[
        bool, typer.Option("--average", help="Search with the draws' average, not the posterior mean.")
    ] = False,
    beam: Annotated[int | None, typer.Option(min=1, help="Default: what validation chose, or the recipe's.")] = None,
    length_penalty: Annotated[float | None, typer.Option(min=0.0, help="Default: as for --beam.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="Write a page with the images and shaded words.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per image.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
) -> None:
    """Describe images: a caption, the uncertainty of each word in nats, and what single draws would say."""
    import json
    from dataclasses import asdict

    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.captioning.description import describe

    check_task(run, "captioning")
    where = device_of(device)
    names, files = _asked(images, features, ids)
    if gallery is not None:
        _check_place(gallery)
    trained = open_run(run, where)
    found = describe(
        trained,
        names,
        _rows(files, names, features, where),
        samples=samples,
        draws=draws,
        average=average,
        beam=beam,
        length_penalty=length_penalty,
        seed=seed,
    )
    if as_json:
        for one in found:
            typer.echo(json.dumps({"image": one.image, "caption": one.caption, **asdict(one)}))
    else:
        console = plain_console()
        for one in found:
            _show(console, one)
    if gallery is not None:
        _write_gallery(gallery, found, files, f"Captions by {trained.config['recipe']}, seed {trained.config['seed']}")
        if not as_json:
            console.print(f"Written to {gallery}", soft_wrap=True)


def _asked(
    images: list[Path] | None, features: Path | None, ids: list[str] | None
) -> tuple[list[str], list[Path | None]]:
    """Names of the images, and their files where there are any."""
    from bayesrnn.errors import UserError

    if bool(images) == bool(features):
        raise UserError("Give image files, or --features FILE with --ids NAME,NAME; one of the two.")
    if images:
        if ids:
            raise UserError("--ids go with --features; image files need none.")
        return [image.name for image in images], list(images)
    names = [name for text in ids or [] for name in text.split(",") if name]
    if not names:
        raise UserError("--features needs --ids, the names of the images to describe.")
    return names, [None] * len(names)


def _check_place(path: Path) -> None:
    from bayesrnn.errors import UserError
    from bayesrnn.lab.runs.files import check_free

    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--gallery writes a page; {path} should end in .html.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent}; make it first.")
    check_free(path, force=True, option="--gallery")


def _rows(files: list[Path | None], names: list[str], features: Path | None, device: "torch.device") -> "torch.Tensor":
    from bayesrnn.lab.tasks.captioning.image_features import encode, read_features

    if features is not None:
        return read_features(features).of(names).to(device)
    return encode([file for file in files if file is not None], device=device).to(device)


def _show(console: "Console", one: "Description") -> None:
    from rich.markup import escape

    from bayesrnn.lab.report.tables import Column, rich_table

    console.print(f"{escape(one.image)}: [bold]{escape(one.caption)}[/bold]", soft_wrap=True)
    columns = (
        Column("word", "word"),
        Column("probability", "probability", "{:.2f}"),
        Column("entropy", "entropy", "{:.2f}"),
        Column("mutual_information", "mutual information", "{:.3f}"),
    )
    console.print(rich_table([vars(word) for word in one.words], columns))
    for k, caption in enumerate(one.draws, 1):
        console.print(f"draw {k}: {escape(caption)}", soft_wrap=True)
    console.print()


def _write_gallery(path: Path, found: list["Description"], files: list[Path | None], title: str) -> None:
    from bayesrnn.lab.runs.files import write_file
    from bayesrnn.lab.tasks.captioning.gallery import gallery

    pictures = [None if file is None else _small(file) for file in files]
    write_file(path, gallery(found, pictures, title=title))


def _small(file: Path) -> bytes:
    """The picture as a JPEG file that fits a page."""
    import io

    from bayesrnn.lab.tasks.captioning.image_features import open_image

    image = open_image(file)
    image.thumbnail((_WIDTH, 2 * _WIDTH))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()
