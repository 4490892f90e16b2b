"""``bayesrnn bench``: the speed of training and prediction on this machine, as ratios to plain torch.nn."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.cli.options import Device
from bayesrnn.lab.console.errors import one_line


@one_line
def command(
    device: Device = None,
    precision: Annotated[str, typer.Option(help="On CUDA: tf32, fp32 or bf16.")] = "tf32",
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Units x batch, such as 650x20; 650x20x10000 with the number of words; 400-1150-1150-400x20@70 with "
            "the widths of the embedding and of each layer, and words per window; repeatable."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="plain, variational, bayes, sharpened, or FlashRNN and haste, if installed, on a GPU: part of a row's "
            "name; repeatable. Default: all."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for each row.")] = 3.0,
    draws: Annotated[int, typer.Option(min=0, help="Draws of the prediction row; 0: no such row.")] = 100,
    quick: Annotated[bool, typer.Option("--quick", help="One small size, half a second for each row.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace that file.")] = False,
) -> None:
    """Time whole training steps against plain torch.nn; every row passes a correctness check first."""
    from rich.table import Table

    from bayesrnn.lab import bench
    from bayesrnn.lab.baselines import installed_peers
    from bayesrnn.lab.console.output import command_line, plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.runs.files import check_out, write_file

    if out is not None:
        check_out(out, force=force)
    console = plain_console()
    where = device_of(device)
    if precision not in bench.TOLERANCE:
        raise UserError(f"--precision must be one of {', '.join(bench.TOLERANCE)}, not {precision!r}.")
    options = bench.Options(
        device=str(where),
        precision=precision if where.type == "cuda" else "fp32",
        seconds=min(seconds, 0.5) if quick else seconds,
        sizes=tuple(map(bench.parse_size, size)) if size else bench.default_sizes(where, quick),
        kinds=_kinds(kind, [*bench.KINDS, *installed_peers(where)]),
        draws=min(draws, 20) if quick else draws,
    )

    def keep(record: dict[str, Any]) -> None:
        if out is not None:
            write_file(out, json.dumps(record, indent=2) + "\n")

    record = bench.run(options, console.say, command_line(), keep)
    heads = "model", "trained as", "ms a step", "words/s", "torch.nn, ms", "speed of torch.nn's", "worst error"
    table = Table(*heads)
    for row in record["training"]:
        error = f"{row['error']:.1e}" if "error" in row else ""
        cells = ["", "", "", "check failed" if "error" in row else "does not run"]
        if "failed" not in row:
            ms, plain = f"{row['milliseconds']:.2f}", f"{row['plain_milliseconds']:.2f}"
            cells = [ms, f"{row['words_per_second']:,.0f}", plain, f"{row['ratio']:.2f}x"]
        table.add_row(row["title"], row["kind"], *cells, error)
    console.print(table)
    if any("failed" in row and "error" in row for row in record["training"]):
        raise UserError("A correctness check failed: the rows that say so have no times.")


def _kinds(asked: list[str] | None, known: list[str]) -> tuple[str, ...]:
    from bayesrnn.lab.baselines import PEERS

    found = {word: [name for name in known if word.strip() and word.lower() in name.lower()] for word in asked or []}
    wrong = next((word for word, names in found.items() if not names), None)
    if wrong is not None:
        names = "; ".join(f'"{name}"' for name in known)
        peers = [name for name in PEERS if name not in known and wrong.strip() and wrong.lower() in name.lower()]
        if peers:
            raise UserError(f"{peers[0]} cannot be timed here: it must be installed, and needs a GPU.")
        raise UserError(f"There is no kind {wrong!r} to time; there are {names}. Part of a name is enough.")
    return tuple(name for name in known if not asked or any(name in names for names in found.values()))
