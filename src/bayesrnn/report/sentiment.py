"""Records of sentiment runs as tables, sentences and pictures for the documentation.

Records are ``results/sentiment-CELL-VARIANT/SEED.json`` (divided by review), ``results/sentiment-CELL-VARIANT-chunk/…``
(the authors' division), and ``results/sentiment-grid/*.json``: the ``sweep.json`` of a grid over
p_U and p_E, or the records of its runs.
"""

import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.report.plots import COLOURS
from bayesrnn.report.tables import Column, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELLS = {"lstm": "LSTM", "gru": "GRU"}
VARIANTS = {
    "plain": "no dropout",
    "naive": "naive dropout",
    "variational": "variational",
    "bbb": "Bayes by Backprop",
}
_GRID = ("model.recurrent_dropout", "model.word_dropout")  # p_U and p_E
_STYLES = dict(zip(VARIANTS, ("-", (0, (5, 1.5)), "-", (0, (1, 1))), strict=True))
_COLOUR = dict(zip(VARIANTS, (COLOURS[0], COLOURS[4], COLOURS[1], COLOURS[2]), strict=True))
_MARK = dict(zip(VARIANTS, "osD^", strict=True))

Record = Mapping[str, Any]
Runs = dict[tuple[str, str], list[Record]]


def load(results: Path, *, division: str = "review") -> Runs:
    """Records by (cell, variant), in the order of the tables; only those that exist."""
    suffix = "" if division == "review" else f"-{division}"
    found: Runs = {}
    for cell in CELLS:
        for variant in VARIANTS:
            records = _read(results / f"sentiment-{cell}-{variant}{suffix}")
            if records:
                found[cell, variant] = records
    for key, records in found.items():
        for record in records:
            if record["settings"]["data"]["split"] != division:
                raise UserError(f"A record of {'-'.join(key)} is not divided by {division}; it belongs elsewhere.")
    return found


def _read(folder: Path) -> list[Record]:
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            record["metrics"]["end"], record["settings"]["data"], record["curves"]["test_rmse"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path} is not the record of a sentiment run.") from None
        records.append(record)
    return sorted(records, key=lambda record: record["seed"])


def name_of(key: tuple[str, str]) -> str:
    return f"{CELLS[key[0]]}, {VARIANTS[key[1]]}"


def _mean(values: Sequence[float], pattern: str = "{:.4f}") -> str | None:
    """Mean and standard deviation over seeds."""
    if not values:
        return None
    spread = f" ± {pattern.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return pattern.format(statistics.fmean(values)) + spread


def _all(records: Sequence[Record], *path: str) -> list[float]:
    """The figure at this path in each record that has it."""
    found = []
    for record in records:
        value: Any = record["metrics"]
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found.append(value)
    return found


def table(runs: Runs) -> str:
    """Test errors at the end of training and at the epoch of least validation error."""
    rows = [
        {
            "name": name_of(key),
            "end": _mean(_all(records, "end", "test_rmse")),
            "end_mc": _mean(_all(records, "end", "test_rmse_mc")),
            "epoch": ", ".join(str(r["metrics"]["best_epoch"]) for r in records),
            "best": _mean(_all(records, "test_rmse")),
            "best_mc": _mean(_all(records, "test_rmse_mc")),
            "review": _mean(_all(records, "end", "test_review_rmse")),
            "seeds": len(records),
        }
        for key, records in runs.items()
    ]
    columns = (
        Column("name", "test RMSE"),
        Column("end", "end, standard"),
        Column("end_mc", "end, MC"),
        Column("best", "best epoch, standard"),
        Column("best_mc", "best epoch, MC"),
        Column("epoch", "best epochs"),
        Column("review", "end, whole reviews"),
        Column("seeds", "seeds"),
    )
    return markdown_table(rows, columns)


def interval_table(runs: Runs) -> str:
    """Coverage of the intervals at the end of training, their width, and what the spread of draws says."""
    rows = []
    for key, records in runs.items():
        row: dict[str, Any] = {"name": name_of(key)}
        for at, level in enumerate(_levels(records)):
            row[f"{level:g}"] = _mean([r["metrics"]["end"]["intervals"][at]["coverage"] for r in records], "{:.3f}")
            if level == 0.9:
                widths = [r["metrics"]["end"]["intervals"][at]["width"] for r in records]
                row["width"] = _mean(widths, "{:.3f}")
        row["likelihood"] = _mean(_all(records, "end", "test_log_likelihood"), "{:.3f}")
        row["correlation"] = _mean(_all(records, "end", "uncertainty", "rank_correlation"), "{:.3f}")
        halves = [_half(record) for record in records if record["metrics"]["end"]["uncertainty"]]
        row["half"] = _mean(halves)
        rows.append(row)
    levels = _levels(next(iter(runs.values()))) if runs else []
    columns = (
        Column("name", "share of test ratings inside"),
        *(Column(f"{level:g}", f"{level:.0%}") for level in levels),
        Column("width", "width of 90%"),
        Column("likelihood", "log likelihood"),
        Column("half", "RMSE of the more certain half"),
        Column("correlation", "rank correlation of spread and error"),
    )
    return markdown_table(rows, columns)


def _levels(records: Sequence[Record]) -> list[float]:
    return [figure["level"] for figure in records[0]["metrics"]["end"]["intervals"]]


def _half(record: Record) -> float:
    risk = record["metrics"]["end"]["uncertainty"]["risk"]
    at = min(range(len(risk["coverage"])), key=lambda i: abs(risk["coverage"][i] - 0.5))
    value: float = risk["rmse"][at]
    return value


def findings(runs: Runs) -> list[str]:
    """What the records say about the claims, each a sentence with its numbers."""
    said = []
    for cell, cell_name in CELLS.items():
        variational = runs.get((cell, "variational"))
        if variational is None:
            continue
        ours = _all(variational, "end", "test_rmse_mc")
        for other in ("plain", "naive"):
            if (cell, other) in runs:
                theirs = _end(runs[cell, other])
                here, there = statistics.fmean(ours), statistics.fmean(theirs)
                spread = max(_range(ours), _range(theirs))
                said.append(
                    f"{cell_name}, end of training: variational is {abs(there - here):.4f} "
                    f"{'below' if here < there else 'ABOVE'} {VARIANTS[other]} ({here:.4f} against {there:.4f}), "
                    f"{'more' if there - here > spread else 'NOT more'} than the largest range of seeds, {spread:.4f}."
                )
        rises = {v: _rise(runs[cell, v]) for v in VARIANTS if (cell, v) in runs}
        listed = ", ".join(f"{VARIANTS[v]} {rise:+.4f}" for v, rise in rises.items())
        said.append(f"{cell_name}, rise of the test error from its lowest epoch to the last: {listed}.")
        standard = _all(variational, "end", "test_rmse")
        better = sum(mc <= mean for mc, mean in zip(ours, standard, strict=True))
        said.append(
            f"{cell_name}, variational: MC is at least as good as the standard approximation in {better} of "
            f"{len(ours)} seeds ({statistics.fmean(ours):.4f} against {statistics.fmean(standard):.4f})."
        )
        at = _levels(variational).index(0.9)
        covered = [r["metrics"]["end"]["intervals"][at]["coverage"] for r in variational]
        inside = "all" if all(0.85 <= c <= 0.95 for c in covered) else "NOT all"
        said.append(
            f"{cell_name}, variational: 90% intervals cover {min(covered):.1%} to {max(covered):.1%} of the test "
            f"ratings, {inside} between 85% and 95%."
        )
    return said


def _end(records: Sequence[Record]) -> list[float]:
    """Test errors at the end of training: with draws averaged where there are draws, else as they are."""
    return _all(records, "end", "test_rmse_mc") or _all(records, "end", "test_rmse")


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _curve(record: Record) -> list[float]:
    curve: list[float] = record["curves"].get("test_rmse_mc") or record["curves"]["test_rmse"]
    return curve


def _rise(records: Sequence[Record]) -> float:
    return statistics.fmean(_curve(r)[-1] - min(_curve(r)) for r in records)


def sources(runs: Runs) -> str:
    """Where the figures were made, and every setting that is not the recipe's."""
    devices = sorted({f"{r['device']}, torch {r['versions']['torch']}" for rs in runs.values() for r in rs})
    changed = sorted({o for rs in runs.values() for r in rs for o in r.get("overrides") or []})
    settings = f" Changed settings: {', '.join(changed)}." if changed else ""
    constants = sorted({f"{r['constant_rmse']:.4f}" for rs in runs.values() for r in rs})
    epochs = sorted({len(r["curves"]["test_rmse"]) for rs in runs.values() for r in rs})
    samples = sorted({r["metrics"]["samples"] for rs in runs.values() for r in rs} - {0})
    return (
        f"{' or '.join(map(str, epochs))} epochs; MC of {' or '.join(map(str, samples)) or 'no'} draws; ± is the "
        f"standard deviation over seeds; a constant gives {' or '.join(constants)}. "
        f"From `results/`, on {'; '.join(devices)}.{settings}"
    )


NOTHING = "No run is recorded yet."


def _picture(name: str, about: str) -> str:
    return f"![{about}](figures/{name})"


def block(results: Path) -> str:
    """Errors: table, claims and curves."""
    runs = load(results)
    if not runs:
        return NOTHING
    picture = _picture("sentiment-curves.png", "Test RMSE per epoch of all models, mean and range over seeds")
    return "\n".join([table(runs), *(f"- {said}" for said in findings(runs)), "", picture, "", sources(runs)])


def interval_block(results: Path) -> str:
    """Coverage, and error against uncertainty."""
    runs = load(results)
    if not runs:
        return NOTHING
    lines = [interval_table(runs), _picture("sentiment-intervals.png", "Coverage of intervals less their level")]
    if _any_spread(runs):
        lines += ["", _picture("sentiment-uncertainty.png", "Test RMSE against the spread of draws")]
    return "\n".join(lines)


def _any_spread(runs: Runs) -> bool:
    return any(r["metrics"]["end"]["uncertainty"] for records in runs.values() for r in records)


def division_block(results: Path) -> str:
    """The authors' division."""
    runs = load(results, division="chunk")
    return "\n".join([table(runs), sources(runs)]) if runs else NOTHING


def grid(results: Path) -> tuple[str, dict[tuple[float, float], float]]:
    """What was run, and the lowest validation error by (p_U, p_E). Of several runs of a point, their mean."""
    points: dict[tuple[float, float], list[float]] = {}
    about: set[str] = set()
    for path in sorted((results / "sentiment-grid").glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            about.add(f"{record['recipe']}, {record['device']}")
            if "trials" in record:
                found = [(row["settings"], row["value"]) for row in record["trials"] if row["state"] == "complete"]
            else:
                found = [(_dotted(record["settings"]), min(record["curves"]["valid_rmse"]))]
            for settings, value in found:
                points.setdefault((float(settings[_GRID[0]]), float(settings[_GRID[1]])), []).append(value)
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{path} is neither a sweep over {' and '.join(_GRID)} nor the record of a run.") from None
    return "; ".join(sorted(about)), {at: statistics.fmean(values) for at, values in sorted(points.items())}


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {f"model.{key}": value for key, value in settings["model"].items()}


def grid_block(results: Path) -> str:
    """Validation error over p_U (down) and p_E (across); the least is marked."""
    about, values = grid(results)
    if not values:
        return NOTHING
    best = min(values, key=lambda at: values[at])
    shown = {at: f"**{value:.4f}**" if at == best else f"{value:.4f}" for at, value in values.items()}
    down, across = (sorted({at[i] for at in values}) for i in (0, 1))
    rows = [{"u": f"p_U = {u:g}", **{f"{e:g}": shown.get((u, e)) for e in across}} for u in down]
    columns = (Column("u", "lowest validation RMSE"), *(Column(f"{e:g}", f"p_E = {e:g}") for e in across))
    picture = _picture("sentiment-grid.png", "Validation RMSE over p_U and p_E")
    return "\n".join([markdown_table(rows, columns), picture, "", f"{about}."])


BLOCKS: dict[str, Callable[[Path], str]] = {
    "sentiment": block,
    "sentiment-intervals": interval_block,
    "sentiment-division": division_block,
    "sentiment-grid": grid_block,
}


def figures(results: Path) -> dict[str, bytes]:
    """PNG files by name, of whatever records there are."""
    runs, (_, points) = load(results), grid(results)
    made = {}
    if runs:
        made["sentiment-curves.png"] = _png(lambda f: _draw_curves(f, runs), (9.0, 4.2))
        made["sentiment-intervals.png"] = _png(lambda f: _draw_coverage(f, runs), (9.0, 4.2))
    if _any_spread(runs):
        made["sentiment-uncertainty.png"] = _png(lambda f: _draw_uncertainty(f, runs), (9.0, 4.2))
    if points:
        made["sentiment-grid.png"] = _grid_picture(points)
    return made


def write_figures(results: Path, folder: Path) -> list[Path]:
    """Write the pictures into the folder; returns their paths."""
    made = figures(results)
    if made:
        folder.mkdir(parents=True, exist_ok=True)
    for name, png in made.items():
        (folder / name).write_bytes(png)
    return [folder / name for name in made]


def _png(draw: Callable[["Figure"], None], size: tuple[float, float]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _tidy(axes: "Axes", title: str, x: str, y: str | None) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    if y is not None:
        axes.set_ylabel(y)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _panels(figure: "Figure", runs: Runs, *, sharey: bool = True) -> dict[str, "Axes"]:
    cells = [cell for cell in CELLS if any(key[0] == cell for key in runs)]
    made = figure.subplots(1, len(cells), sharey=sharey, squeeze=False)[0]
    return dict(zip(cells, made, strict=True))


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def _draw_curves(figure: "Figure", runs: Runs) -> None:
    """Test error per epoch: mean over seeds and their range; MC where there are draws."""
    panels = _panels(figure, runs)
    for (cell, variant), records in runs.items():
        curves = [_curve(record) for record in records]
        length = min(map(len, curves))
        columns = [[curve[i] for curve in curves] for i in range(length)]
        epochs = list(range(1, length + 1))
        axes, colour = panels[cell], _COLOUR[variant]
        label = VARIANTS[variant] + (", MC" if "test_rmse_mc" in records[0]["curves"] else "")
        axes.plot(
            epochs,
            [statistics.fmean(c) for c in columns],
            color=colour,
            linestyle=_STYLES[variant],
            linewidth=2,
            label=label,
        )
        axes.fill_between(epochs, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.2, lw=0)
    constant = next(iter(runs.values()))[0]["constant_rmse"]
    for i, (cell, axes) in enumerate(panels.items()):
        axes.axhline(constant, color="#666666", linewidth=1, linestyle=":", label="a constant")
        _tidy(axes, CELLS[cell], "epoch", None if i else "test RMSE")
    _legend(figure, max(panels.values(), key=lambda a: len(a.get_legend_handles_labels()[1])))


def _draw_coverage(figure: "Figure", runs: Runs) -> None:
    """Share of test ratings inside their interval, less the interval's level."""
    panels = _panels(figure, runs)
    for (cell, variant), records in runs.items():
        levels = _levels(records)
        off = (list(VARIANTS).index(variant) - 1.5) * 0.15
        for number, record in enumerate(records):
            inside = [i["coverage"] - i["level"] for i in record["metrics"]["end"]["intervals"]]
            panels[cell].plot(
                [at + off for at in range(len(levels))],
                inside,
                _MARK[variant],
                color=_COLOUR[variant],
                markersize=6,
                alpha=0.8,
                label=None if number else VARIANTS[variant],
            )
    for i, (cell, axes) in enumerate(panels.items()):
        axes.axhline(0, color="#666666", linewidth=1)
        axes.axhspan(-0.05, 0.05, color="#eeeeee", zorder=0)
        axes.set_xticks(range(len(levels)), [f"{level:.0%}" for level in levels])
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, -0.08), max(high, 0.08))
        _tidy(axes, CELLS[cell], "level of the interval", None if i else "share inside, less the level")
    _legend(figure, max(panels.values(), key=lambda a: len(a.get_legend_handles_labels()[1])))


def _draw_uncertainty(figure: "Figure", runs: Runs) -> None:
    """Left: error of the most certain part. Right: error against predicted spread. LSTM where there is one."""
    cell = next(iter(runs))[0]
    left, right = figure.subplots(1, 2)
    for (of, variant), records in runs.items():
        found = [r["metrics"]["end"]["uncertainty"] for r in records]
        if of != cell or not all(found):
            continue
        style = {"color": _COLOUR[variant], "marker": _MARK[variant], "markersize": 5, "label": VARIANTS[variant]}
        coverage = found[0]["risk"]["coverage"]
        mean = [statistics.fmean(column) for column in zip(*(f["risk"]["rmse"] for f in found), strict=True)]
        left.plot(coverage, mean, linewidth=2, **style)
        spread, error = (
            [statistics.fmean(column) for column in zip(*(f["bins"][k] for f in found), strict=True)]
            for k in ("spread", "rmse")
        )
        right.plot(spread, error, linestyle="", **style)
    _tidy(left, f"{CELLS[cell]}: keep the most certain", "share of the predictions kept", "test RMSE of those")
    _tidy(right, f"{CELLS[cell]}: ten groups by spread", "standard deviation of the draws", "test RMSE of the group")
    right.set_xlim(left=0)
    _legend(figure, left)


def _grid_picture(values: Mapping[tuple[float, float], float]) -> bytes:
    from bayesrnn.report.sweep import heat_map

    rows = [{"settings": dict(zip(_GRID, at, strict=True)), "value": value} for at, value in values.items()]
    down, across = (sorted({at[i] for at in values}) for i in (0, 1))
    return heat_map(rows, keys=_GRID, values=(down, across), label="lowest validation RMSE")
