"""``bayesrnn caption``: captions of images, and how sure the model is of every word."""

from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.lab.console.errors import one_line


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
    draws: Annotated[int, typer.Option(min=0, help="How many single draws to show captions of.")] = 3,
    beam: Annotated[int | None, typer.Option(min=1, help="Default: what validation chose, or the recipe's.")] = None,
    length_penalty: Annotated[float | None, typer.Option(min=0.0, help="Default: as for --beam.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="Write a page with the images and shaded words.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per image.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
) -> None:
    """Describe images: a caption, the uncertainty of each word in nats, and the captions of single draws."""
    import json
    from dataclasses import asdict

    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.opening import check_task, open_run
    from bayesrnn.lab.tasks.captioning import request
    from bayesrnn.lab.tasks.captioning.description import describe

    check_task(run, "captioning")
    where = device_of(device)
    names, files = request.names_and_files(images, features, ids)
    if gallery is not None:
        request.check_place(gallery)
    trained = open_run(run, where)
    rows = request.rows(files, names, features, where)
    found = describe(
        trained, names, rows, samples=samples, draws=draws, beam=beam, length_penalty=length_penalty,
        seed=seed,
    )  # fmt: skip
    console = plain_console()
    for one in found:
        if as_json:
            typer.echo(json.dumps({"image": one.image, "caption": one.caption, **asdict(one)}))
        else:
            request.show(console, one)
    if gallery is not None:
        title = f"Captions by {trained.config['recipe']}, seed {trained.config['seed']}"
        request.write_gallery(gallery, found, files, title)
        if not as_json:
            console.print(f"Written to {gallery}", soft_wrap=True)
