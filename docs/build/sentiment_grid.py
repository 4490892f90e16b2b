"""Sentiment runs that compare settings: a grid over p_U and p_E, and small trials of the KL's weight.

``results/sentiment-grid/*.json``: the ``sweep.json`` of the grid, or the records of its runs.
``results/sentiment-trials/*.json``: records of the trials. :mod:`docs.build.sentiment` has the rest of the page.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, devices, read_folder
from bayesrnn.lab.runs.record import read as read_record
from docs.build import archive
from docs.build.archive import Sweep

GRID = ("model.recurrent_dropout", "model.word_dropout")  # p_U and p_E
NOTHING = "No run is recorded yet."


def picture(name: str, about: str) -> str:
    return f"![{about}](figures/{name})"


def read(folder: Path) -> list[Record]:
    needs = ("metrics.end", "settings.data", "curves.test_rmse", "seed")
    return read_folder(folder, what="the record of a sentiment run", needs=needs)


def value_range(values: Sequence[float]) -> float:
    return max(values) - min(values)


Points = dict[tuple[float, float], float]


def grid(results: Path, *, last: bool = False) -> tuple[str, Points]:
    """What was run, and the lowest validation error by (p_U, p_E). Of several runs of a point, their mean.

    ``last``: the error after the last epoch instead, of the records of runs; a sweep's does not have it.
    """
    points: dict[tuple[float, float], list[float]] = {}
    about: set[str] = set()
    for path in sorted((results / "sentiment-grid").glob("*.json")):
        try:
            run = _sweep_or_run(path)
            about.add(f"{run.recipe}, {run.device}")
            if isinstance(run, Sweep):
                trials = [] if last else run.trials
                found = [(row["settings"], row["value"]) for row in trials if row["state"] == "complete"]
            else:
                curve = run.curve("valid_rmse")
                found = [({key: run.setting(key) for key in GRID}, curve[-1] if last else min(curve))]
            for settings, value in found:
                points.setdefault((float(settings[GRID[0]]), float(settings[GRID[1]])), []).append(value)
        except (UserError, ValueError, KeyError, TypeError, IndexError):
            raise UserError(f"{path} is neither a sweep over {' and '.join(GRID)} nor the record of a run.") from None
    return "; ".join(sorted(about)), {at: statistics.fmean(values) for at, values in sorted(points.items())}


def _sweep_or_run(path: Path) -> Sweep | Record:
    try:
        return archive.load(path, Sweep)
    except UserError:
        return read_record(path)


def grid_block(results: Path) -> str:
    """Validation errors over p_U (down) and p_E (across), the lowest and the last; the least of each is marked."""
    about, lowest = grid(results)
    if not lowest:
        return NOTHING
    lines = [_grid_table(lowest, "lowest validation RMSE")]
    lines += [picture("sentiment-grid.png", "Lowest validation RMSE over p_U and p_E"), ""]
    _, last = grid(results, last=True)
    if last:
        lines += [_grid_table(last, "last validation RMSE")]
        lines += [picture("sentiment-grid-last.png", "Last validation RMSE over p_U and p_E"), ""]
    said = [*_grid_ranges(results, lowest, last), *_grid_draws(results)]
    return "\n".join([*lines, *(f"- {sentence}" for sentence in said), "", f"{about}."])


def _grid_ranges(results: Path, lowest: Points, last: Points) -> list[str]:
    """By how much the points differ, and by how much seeds of the recipe do."""
    seeds = [record.curve("valid_rmse") for record in read(results / "sentiment-lstm-variational")]
    curves = [curve for curve in seeds if curve]
    if len(curves) < 2:
        return []
    said = []
    for name, points, of_seeds in (
        ("lowest", lowest, [min(c) for c in curves]),
        ("last", last, [c[-1] for c in curves]),
    ):
        if points:
            said.append(
                f"The {len(points)} {name} errors differ by up to {value_range(list(points.values())):.4f}, those of "
                f"{len(curves)} seeds of the recipe by up to {value_range(of_seeds):.4f}."
            )
    return said


def trial_block(results: Path) -> str:
    """Small runs with other weights of the KL, on validation pieces."""
    trials = read(results / "sentiment-trials")
    rows = [
        {
            "weight": record.setting("model.kl_weight"),
            "best": min(record.curve("valid_rmse")),
            "train": record.curve("train_rmse")[-1],
            "last": record.curve("valid_rmse")[-1],
            "kl": record.curve("kl")[-1],
        }
        for record in trials
    ]
    if not rows:
        return NOTHING
    rows.sort(key=lambda row: -row["weight"])
    columns = (
        Column("weight", "weight of the KL", "{:g}"),
        Column("best", "lowest validation RMSE", "{:.4f}"),
        Column("last", "last validation RMSE", "{:.4f}"),
        Column("train", "last training RMSE", "{:.4f}"),
        Column("kl", "KL at the end, nats", "{:,.0f}"),
    )
    changed = sorted({o for r in trials for o in r.overrides if not o.startswith("model.kl_weight")})
    about = f"{trials[0].recipe} with {', '.join(changed)}; on {devices(trials)}. One seed."
    return "\n".join([markdown_table(rows, columns), about])


def _grid_draws(results: Path) -> list[str]:
    """For each p_E, at how many points draws did at least as well as one standard pass at the end; of records only."""
    better: dict[float, list[bool]] = {}
    for path in sorted((results / "sentiment-grid").glob("*.json")):
        run = _sweep_or_run(path)
        if isinstance(run, Record) and run.metric("end.test_rmse_mc") is not None:
            rate = float(run.setting("model.word_dropout"))
            better.setdefault(rate, []).append(run.metric("end.test_rmse_mc") <= run.metric("end.test_rmse"))
    counts = [f"{sum(found)} of {len(found)} with p_E = {rate:g}" for rate, found in sorted(better.items())]
    if not counts:
        return []
    return [f"Test RMSE at the end, draws (MC) at least as good as the standard approximation: {', '.join(counts)}."]


def _grid_table(values: Points, label: str) -> str:
    best = min(values, key=lambda at: values[at])
    shown = {at: f"**{value:.4f}**" if at == best else f"{value:.4f}" for at, value in values.items()}
    down, across = (sorted({at[i] for at in values}) for i in (0, 1))
    rows = [{"u": f"p_U = {u:g}", **{f"{e:g}": shown.get((u, e)) for e in across}} for u in down]
    return markdown_table(rows, (Column("u", label), *(Column(f"{e:g}", f"p_E = {e:g}") for e in across)))
