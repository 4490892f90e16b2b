"""``bayesrnn tokenize``: turn a text of any size into token files."""

from pathlib import Path
from typing import Annotated

import typer

from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    text: Annotated[Path, typer.Argument(help="Folder with train, valid and test text files.")],
    out: Annotated[Path, typer.Argument(help="Folder to write the token files to.")],
    min_count: Annotated[int, typer.Option(min=1, help="Rarer words of the training text are unknown words.")] = 1,
    words: Annotated[int | None, typer.Option(min=2, help="Keep at most this many of the most frequent words.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing token files.")] = False,
) -> None:
    """Turn a text of any size into token files, in constant memory; then `bayesrnn train RECIPE --data OUT`."""
    from bayesrnn.lab.tasks.language.token_files import tokenize

    about = tokenize(text, out, min_count=min_count, words=words, force=force, say=typer.echo)
    typer.echo(f"{about['vocabulary']:,} word types. Written to {out}; train on it with --data {out}")
