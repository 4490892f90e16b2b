"""Records of digit runs, ``results/digits-*/SEED.json``, as tables, sentences and pictures for the documentation.

Runs that compare sharpening with its absence, all else equal, are in ``results/digits-sharpening/RECIPE/SEED.json``.
"""

import io
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.report.changes import changed_settings
from bayesrnn.report.plots import COLOURS
from bayesrnn.report.tables import Column, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    "digits-lenet": "LeNet",
    "digits-lenet-ip": "LeNet, dropout after the inner product",
    "digits-lenet-all": "LeNet, dropout everywhere",
    "digits-lenet-all-gaussian": "LeNet, Gaussian noise everywhere",
    "digits-lenet-dropconnect": "LeNet, DropConnect",
    "digits-mlp-plain": "MLP 400",
    "digits-mlp-dropout": "MLP 400, dropout",
    "digits-bbb-400": "Bayes by Backprop, MLP 400",
    "digits-bbb-800": "Bayes by Backprop, MLP 800",
    "digits-bbb-1200": "Bayes by Backprop, MLP 1200",
    "digits-bbb-sharpened-400": "Bayes by Backprop, MLP 400, sharpened",
}
PLAIN, SHARPENED = "digits-bbb-400", "digits-bbb-sharpened-400"
LEVELS = (5.0, 4.0, 3.0, 2.5, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3)
PAIR = "digits-sharpening"
NO_RECORD = "No run is recorded yet."
_TURNED = "digits-lenet-all"
_SHARPENING = "digits-sharpening.png"

Record = Mapping[str, Any]
Runs = dict[str, list[Record]]


def load(results: Path) -> Runs:
    """Records by recipe, in the order of the tables; only those that exist."""
    runs: Runs = {}
    for name in NAMES:
        for path in sorted((results / name).glob("*.json")):
            try:
                record = json.loads(path.read_text("utf-8"))
                float(record["metrics"]["test_error"]), record["curves"]["test_error"][0], record["seed"]
            except (OSError, ValueError, KeyError, TypeError, IndexError):
                raise UserError(f"{path} is not the record of a digits run.") from None
            runs.setdefault(name, []).append(record)
    return runs


def _figures_of(records: Sequence[Record], key: str) -> list[float]:
    return [r["metrics"][key] for r in records if r["metrics"].get(key) is not None]


def _mean(values: Sequence[float], pattern: str = "{:.2f}") -> str | None:
    """Mean and standard deviation over seeds."""
    if not values:
        return None
    spread = f" ± {pattern.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return pattern.format(statistics.fmean(values)) + spread


def error_table(runs: Runs) -> str:
    """Errors of the weights with the lowest validation error, with one pass and with draws, beside the papers'."""
    from bayesrnn import recipes

    rows = []
    for name, records in runs.items():
        paper = recipes.load(name).paper
        rows.append(
            {
                "name": NAMES[name],
                "paper": paper.test_error,
                "valid": _mean(_figures_of(records, "valid_error")),
                "test": _mean(_figures_of(records, "test_error")),
                "valid_mc": _mean(_figures_of(records, "valid_error_mc")),
                "test_mc": _mean(_figures_of(records, "test_error_mc")),
                "seeds": len(records),
            }
        )
    columns = (
        Column("name", "error, %"),
        Column("paper", "paper, test", "{:.2f}"),
        Column("valid", "validation, standard"),
        Column("valid_mc", "validation, MC"),
        Column("test", "test, standard"),
        Column("test_mc", "test, MC"),
        Column("seeds", "seeds"),
    )
    return markdown_table(rows, columns)


def calibration_table(runs: Runs) -> str:
    """-log p and calibration error on the test images."""
    rows = []
    for name, records in runs.items():
        row: dict[str, Any] = {"name": NAMES[name]}
        for key, pattern in (("test_nll", "{:.4f}"), ("test_calibration_error", "{:.4f}")):
            for suffix in ("", "_mc"):
                row[key + suffix] = _mean(_figures_of(records, key + suffix), pattern)
        rows.append(row)
    columns = (
        Column("name", "test images"),
        Column("test_nll", "-log p, standard"),
        Column("test_nll_mc", "-log p, MC"),
        Column("test_calibration_error", "calibration error, standard"),
        Column("test_calibration_error_mc", "calibration error, MC"),
    )
    return markdown_table(rows, columns)


def unfamiliar_table(runs: Runs) -> str:
    """Areas under the ROC curve of telling each kind of image from digits, by entropy and by mutual information."""
    rows, kinds = [], []
    for name, records in runs.items():
        for label, key, field in (
            ("entropy, standard", "unfamiliar", "entropy_auroc"),
            ("entropy, MC", "unfamiliar_mc", "entropy_auroc"),
            ("mutual information, MC", "unfamiliar_mc", "mutual_information_auroc"),
        ):
            found: dict[str, list[float]] = {}
            for record in records:
                for line in record["metrics"].get(key) or []:
                    found.setdefault(line["kind"], []).append(line[field])
            if found:
                kinds = list(found)
                rows.append({"name": f"{NAMES[name]}: {label}", **{k: _mean(v, "{:.3f}") for k, v in found.items()}})
    return markdown_table(rows, (Column("name", "area under the ROC curve"), *(Column(k, k) for k in kinds)))


def first_epoch(curve: Sequence[float], level: float) -> int | None:
    """The first epoch (from 1) whose error is at most the level."""
    return next((epoch for epoch, error in enumerate(curve, 1) if error <= level), None)


def levels_reached(runs: Runs) -> list[dict[str, Any]]:
    """For each level of test error that every run of both kinds reached: its first epoch, as a mean over seeds."""
    rows = []
    for level in LEVELS:
        row: dict[str, Any] = {"level": level}
        for name in (PLAIN, SHARPENED):
            epochs = [first_epoch(r["curves"]["test_error"], level) for r in runs.get(name, [])]
            if not epochs or None in epochs:
                break
            row[name] = statistics.fmean(e for e in epochs if e is not None)
        else:
            rows.append(row)
    return rows


def level_table(runs: Runs) -> str:
    rows = levels_reached(runs)
    columns = (
        Column("level", "test error reached", "{:g} %"),
        Column(PLAIN, "epochs, plain", "{:.1f}"),
        Column(SHARPENED, "epochs, sharpened", "{:.1f}"),
    )
    return markdown_table(rows, columns)


def pruning_table(runs: Runs) -> str:
    """Test error of the posterior mean with a share of the weights removed."""
    shares = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98)
    rows = []
    for name, records in runs.items():
        curves = [{p["fraction"]: p["test_error"] for p in r["metrics"].get("pruning") or []} for r in records]
        curves = [curve for curve in curves if curve]
        if curves:
            rows.append({"name": NAMES[name], **{str(s): _mean([c[s] for c in curves]) for s in shares}})
    return markdown_table(rows, (Column("name", "test error, %"), *(Column(str(s), f"{s:.0%}") for s in shares)))


def findings(runs: Runs) -> list[str]:
    """What the records say about the claims, each a sentence with its numbers."""
    said = []
    both = [r["metrics"] for r in runs.get(_TURNED, []) if r["metrics"].get("test_error_mc") is not None]
    if both:
        standard, mc = ([m[key] for m in both] for key in ("test_error", "test_error_mc"))
        below = sum(b < a for a, b in zip(standard, mc, strict=True))
        reached = "at most" if statistics.fmean(mc) <= 0.7 else "MORE than"
        said.append(
            f"Dropout after every convolution: MC is below the standard error in {below} of {len(mc)} seeds "
            f"({statistics.fmean(mc):.2f}% against {statistics.fmean(standard):.2f}%), {reached} 0.7%."
        )
    ip = _figures_of(runs.get("digits-lenet-ip", []), "test_error")
    if both and ip:
        hurts = "hurts" if statistics.fmean(standard) > statistics.fmean(ip) else "does NOT hurt"
        helps = "helps" if statistics.fmean(mc) < statistics.fmean(ip) else "does NOT help"
        said.append(
            f"Against dropout after the inner product alone ({statistics.fmean(ip):.2f}%, standard), dropout after "
            f"convolutions {hurts} with one standard pass and {helps} with draws."
        )
    bbb = runs.get(PLAIN)
    if bbb:
        errors = _figures_of(bbb, "test_error")
        reached = "at most" if statistics.fmean(errors) <= 1.4 else "MORE than"
        said.append(f"Bayes by Backprop, 400 units: {statistics.fmean(errors):.2f}% (mean weights), {reached} 1.4%.")
    return said


def sharpening_finding(runs: Runs) -> str | None:
    """Whether each level of error is reached in no more epochs with sharpening."""
    rows = levels_reached(runs)
    if not rows:
        return None
    later = [f"{row['level']:g}%" for row in rows if row[SHARPENED] > row[PLAIN]]
    verdict = f"LATER at {', '.join(later)}" if later else "never later"
    return (
        f"Sharpening reaches the {len(rows)} levels from {rows[0]['level']:g}% to {rows[-1]['level']:g}% test error "
        f"{verdict} (mean of first epochs over seeds)."
    )


def sources(runs: Runs) -> str:
    """Where the figures were made, and every setting that is not the recipe's."""
    every = [r for records in runs.values() for r in records]
    devices = sorted({f"{r['device']}, torch {r['versions']['torch']}" for r in every})
    changed = sorted({text for r in every for text in changed_settings(r)})
    samples = sorted({r["metrics"].get("samples") or 0 for r in every} - {0})
    epochs = sorted({len(r["curves"]["test_error"]) for r in every})
    settings = f" Not as in the recipes: {', '.join(changed)}." if changed else ""
    return (
        f"{' or '.join(map(str, epochs))} epochs, of which validation chose one; MC: "
        f"{' or '.join(map(str, samples)) or 'no'} draws; ± is the standard deviation over seeds. From `results/`, on "
        f"{'; '.join(devices)}.{settings}"
    )


def block(results: Path) -> str:
    """The main table of the page with its findings."""
    runs = load(results)
    if not runs:
        return NO_RECORD
    return "\n".join([error_table(runs), *(f"- {sentence}" for sentence in findings(runs)), "", sources(runs)])


def sharpening_block(results: Path) -> str:
    """Epochs to each level of error, plain and sharpened, the picture, and the last figures of both."""
    runs = load(results / PAIR)
    found = sharpening_finding(runs)
    if found is None:
        return NO_RECORD
    alt = "Test error per epoch, and the first epoch of each error level"
    parts = [level_table(runs), f"- {found}\n", f"![{alt}](figures/{_SHARPENING})\n", error_table(runs), sources(runs)]
    return "\n".join(parts)


def _block_of(results: Path, table: Callable[[Runs], str] | None, picture: str | None = None, alt: str = "") -> str:
    runs = load(results)
    parts = [table(runs).rstrip("\n")] if table is not None and runs else []
    if picture is not None and picture in _drawings(runs):
        parts.append(f"![{alt}](figures/{picture})")
    return "\n\n".join(parts) or NO_RECORD


BLOCKS: dict[str, Callable[[Path], str]] = {
    "digits": block,
    "digits-errors": lambda results: _block_of(
        results, None, "digits-errors.png", "Test error of every network with one standard pass and with draws"
    ),
    "digits-calibration": lambda results: _block_of(results, calibration_table),
    "digits-unfamiliar": lambda results: _block_of(results, unfamiliar_table),
    "digits-turning": lambda results: _block_of(
        results, None, "digits-turning.png", "Softmax inputs and outputs of draws as a digit 1 turns by 180 degrees"
    ),
    "digits-pruning": lambda results: _block_of(
        results, pruning_table, "digits-pruning.png", "Test error against the share of weights removed"
    ),
    "digits-sharpening": sharpening_block,
}
"""Blocks of docs/digits.md by name: results folder to Markdown."""


def figures(results: Path) -> dict[str, bytes]:
    """PNG files by name, of whatever records there are."""
    made = {name: _png(draw, size) for name, (draw, size) in _drawings(load(results)).items()}
    pair = load(results / PAIR)
    if sharpening_finding(pair) is not None:
        made[_SHARPENING] = _png(lambda figure: _draw_sharpening(figure, pair), (9.0, 4.0))
    return made


def write_figures(results: Path, folder: Path) -> list[Path]:
    """Write the pictures into the folder; returns their paths."""
    made = figures(results)
    if made:
        folder.mkdir(parents=True, exist_ok=True)
    for name, png in made.items():
        (folder / name).write_bytes(png)
    return [folder / name for name in made]


Drawing = tuple[Callable[["Figure"], None], tuple[float, float]]


def _drawings(runs: Runs) -> dict[str, Drawing]:
    """What can be drawn of these records: how, and how large."""
    found: dict[str, Drawing] = {}
    if any(_figures_of(records, "test_error_mc") for records in runs.values()):
        found["digits-errors.png"] = lambda f: _draw_errors(f, runs), (8.0, 1.4 + 0.36 * len(runs))
    if any(r["metrics"].get("pruning") for records in runs.values() for r in records):
        found["digits-pruning.png"] = lambda f: _draw_pruning(f, runs), (7.2, 4.2)
    turned = next((r for r in runs.get(_TURNED, []) if r["metrics"].get("turning")), None)
    if turned is not None:
        found["digits-turning.png"] = lambda f: _draw_turning(f, turned), (9.0, 6.0)
    return found


def _png(draw: Callable[["Figure"], None], size: tuple[float, float]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _tidy(axes: "Axes", x: str, y: str, *, grid: str = "y") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_errors(figure: "Figure", runs: Runs) -> None:
    axes = figure.add_subplot()
    for key, colour, marker, label, shift in (
        ("test_error", COLOURS[0], "o", "one standard pass", 0.14),
        ("test_error_mc", COLOURS[1], "D", "draws averaged (MC)", -0.14),
    ):
        seen = False
        for row, records in enumerate(reversed(runs.values())):
            values = _figures_of(records, key)
            if values:
                y = row + shift
                axes.plot(values, [y] * len(values), marker, color=colour, markersize=4, alpha=0.45, linestyle="")
                axes.plot(
                    statistics.fmean(values), y, marker, color=colour, markersize=8, linestyle="",
                    label=None if seen else label,
                )  # fmt: skip
                seen = True
    axes.set_yticks(range(len(runs)), [NAMES[name] for name in reversed(runs)])
    axes.set_ylim(-0.6, len(runs) - 0.4)
    _tidy(axes, "test error, % (large: mean over seeds)", "", grid="x")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)


def _mean_curve(records: Sequence[Record]) -> list[float]:
    curves = [r["curves"]["test_error"] for r in records]
    return [statistics.fmean(values) for values in zip(*curves, strict=False)]


def _draw_sharpening(figure: "Figure", runs: Runs) -> None:
    left, right = figure.subplots(1, 2)
    kinds = ((PLAIN, COLOURS[0], "o", "plain"), (SHARPENED, COLOURS[1], "D", "sharpened"))
    for name, colour, _, label in kinds:
        for record in runs[name]:
            curve = record["curves"]["test_error"]
            left.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=0.7, alpha=0.35)
        curve = _mean_curve(runs[name])
        style = "-" if name == PLAIN else (0, (5, 1.5))
        left.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=2, linestyle=style, label=label)
    left.set_xscale("log")
    left.xaxis.set_major_formatter("{x:g}")
    left.set_yscale("log")
    _plain_ticks(left, [1, 1.2, 1.4, 1.7, 2, 2.5, 3, 4, 5, 7, 10, 15, 20])
    _tidy(left, "epoch (log scale)", "test error, % (log scale)")
    left.legend(frameon=False)
    rows = levels_reached(runs)
    for name, colour, marker, label in kinds:
        right.plot(
            [row["level"] for row in rows], [row[name] for row in rows], marker=marker, color=colour, label=label,
            linewidth=1.3, markersize=6,
        )  # fmt: skip
    right.invert_xaxis()
    if rows:
        right.set_yscale("log")
        _plain_ticks(right, [m * 10**e for e in range(3) for m in (1, 2, 3, 5)])
    _tidy(right, "test error reached, %", "first epoch, mean over seeds (log scale)")


def _plain_ticks(axes: "Axes", ticks: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _draw_pruning(figure: "Figure", runs: Runs) -> None:
    axes = figure.add_subplot()
    pruned = {name: [r for r in records if r["metrics"].get("pruning")] for name, records in runs.items()}
    styles = zip(COLOURS, "oDs^v", ("-", (0, (5, 1.5)), (0, (1, 1)), "-.", "-"), strict=False)
    for (name, records), (colour, marker, style) in zip([i for i in pruned.items() if i[1]], styles, strict=False):
        rows = records[0]["metrics"]["pruning"]
        mean = [statistics.fmean(r["metrics"]["pruning"][k]["test_error"] for r in records) for k in range(len(rows))]
        kept = [100 * (1 - row["fraction"]) for row in rows]
        axes.plot(kept, mean, marker=marker, linestyle=style, color=colour, label=NAMES[name], markersize=5)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_yscale("log")
    _plain_ticks(axes, [1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 90])
    ticks = [100, 50, 25, 10, 5, 2, 1]
    axes.set_xticks(ticks, [f"{t}%" for t in ticks])
    axes.minorticks_off()
    _tidy(axes, "weights left, highest |mean| / sigma kept (log scale)", "test error, % (log scale)")
    axes.legend(frameon=False, fontsize=9)


def _draw_turning(figure: "Figure", record: Record) -> None:
    """Every draw a short line, as wide as the angle allows; classes side by side within an angle."""
    rows = record["metrics"]["turning"]
    outputs = [[_softmax(draw) for draw in row["logits"]] for row in rows]
    means = [[statistics.fmean(draw[c] for draw in draws) for c in range(10)] for draws in outputs]
    shown = sorted(sorted(range(10), key=lambda c: -max(m[c] for m in means))[:4])
    top, bottom = figure.subplots(2, 1, sharex=True)
    step = rows[1]["angle"] - rows[0]["angle"]
    width = 0.8 * step / len(shown)
    for at, c in enumerate(shown):
        shift = (at - (len(shown) - 1) / 2) * width
        for axes, values in (
            (top, [[draw[c] for draw in row["logits"]] for row in rows]),
            (bottom, [[draw[c] for draw in draws] for draws in outputs]),
        ):
            for row, of_draws in zip(rows, values, strict=True):
                axes.plot(
                    [row["angle"] + shift] * len(of_draws), of_draws, linestyle="", marker="_", markersize=7,
                    color=COLOURS[at], alpha=0.5, markeredgewidth=1.2,
                )  # fmt: skip
            middle = [statistics.median(v) for v in values]
            angles = [row["angle"] + shift for row in rows]
            axes.plot(
                angles, middle, color=COLOURS[at], linewidth=1, marker="osD^"[at], markersize=3.5, label=f"class {c}"
            )
    _tidy(top, "", "softmax input")
    _tidy(bottom, "degrees that a test image of a 1 is turned by", "softmax output")
    bottom.set_xticks([row["angle"] for row in rows])
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(shown), frameon=False)


def _softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(v - top) for v in logits]
    return [p / sum(powers) for p in powers]
