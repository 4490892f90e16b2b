"""Tables and pictures of language-model runs for the documentation, from the records in results/."""

import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.lab import recipes
from bayesrnn.lab.report.plots import COLOURS, look
from bayesrnn.lab.report.sweep import heat_map
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, once
from bayesrnn.lab.tasks.language.published import other_text
from docs.build import archive, pruning
from docs.build.archive import Sweep
from docs.build.pictures import drawn, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEGEND = 60  # letters of a line in a legend
_STYLES = ("-", "--", "-.", ":")
_COLUMNS = (
    Column("recipe", "recipe"), Column("parameters", "weights", "{:,.0f}"),
    Column("valid_perplexity", "valid", "{:.2f}"), Column("test_perplexity", "test", "{:.2f}"),
    Column("test_perplexity_mc", "test, MC", "{:.2f}"),
    Column("test_perplexity_dynamic", "test, dynamic", "{:.2f}"), Column("dynamic_rule", "by rule"),
    Column("seed", "seed"),
)  # fmt: skip


def load(results: Path) -> dict[str, list[Record]]:
    """Records by recipe, of those language recipes that have any; those with the recipe's own settings come first.

    Records of other texts than the papers' are left out.
    """
    found = {}
    for name in recipes.names():
        if recipes.load(name).task == "language" and (results / name).is_dir():
            records = once(record for record in archive.records(results / name) if not other_text(record))
            found[name] = sorted(records, key=lambda record: (bool(record.changed_settings()), record.seed))
    return {name: records for name, records in found.items() if records}


def label(name: str, record: Record) -> str:
    """The recipe, and what the run had otherwise."""
    changed = ", ".join(record.changed_settings())
    return f"{name} ({changed})" if changed else name


def beyond(results: Path) -> str:
    """The rows that no paper has, one line per seed."""
    rows, sentences = [], []
    for name, records in load(results).items():
        if recipes.load(name).table == "beyond":
            for record in records:
                sentences += _averaged(name, record)
                shown = {column.key: record.metric(column.key) for column in _COLUMNS}
                rows.append({**shown, "recipe": label(name, record), "seed": record.seed})
    return "\n".join([markdown_table(rows, _COLUMNS), *sentences])


def _averaged(name: str, record: Record) -> list[str]:
    first, values = record.setting("train.average_from"), record.curve("valid_perplexity")
    if not first or not 1 < first <= len(values):
        return []
    return [
        f"- {name}, seed {record.seed}: {values[first - 2]:.1f} validation after epoch {first - 1}, the last "
        f"without averaging, {values[first - 1]:.1f} one epoch later with it, {min(values):.1f} at best."
    ]


_INGREDIENTS = {
    "model.tied": "tied embeddings", "model.word_dropout": "word dropout", "model.input_dropout": "input dropout",
    "model.output_dropout": "output dropout", "model.weight_dropout": "weight dropout",
    "train.average_from": "averaging", "train.l2": "L2",
}  # fmt: skip
_LEFT_OUT = (
    Column("without", "without"), Column("settings", "settings"), Column("parameters", "weights", "{:,.0f}"),
    Column("valid_perplexity", "valid", "{:.2f}"), Column("test_perplexity", "test", "{:.2f}"),
    Column("change", "valid, change", "{:+.2f}"),
)  # fmt: skip


def ablation(results: Path) -> str:
    """Runs of one recipe without one ingredient each, beside the run with all of them; the dearest loss first."""
    records = archive.records(results / "ablation")
    complete = [r for r in records if not _left_out(r)]
    if not complete:
        return markdown_table([], _LEFT_OUT)

    def beside(whole: Record) -> list[Record]:
        return [r for r in records if _left_out(r) and r.seed == whole.seed and _epochs(r) == _epochs(whole)]

    whole = max(complete, key=lambda r: len(beside(r)))
    rows = []
    for record in [whole, *beside(whole)]:
        row = {column.key: record.metric(column.key) for column in _LEFT_OUT}
        row["without"] = ", ".join(_INGREDIENTS[key] for key in _left_out(record)) or "– (all there)"
        row["settings"] = ", ".join(o for o in record.overrides if o not in whole.overrides) or None
        row["change"] = row["valid_perplexity"] - whole.metric("valid_perplexity") if record is not whole else None
        rows.append(row)
    rows.sort(key=lambda row: -(row["change"] if row["change"] is not None else math.inf))
    again = [
        f" With all there and seed {r.seed}: {r.metric('valid_perplexity'):.2f} validation, "
        f"{r.metric('test_perplexity'):.2f} test."
        for r in complete
        if r.seed != whole.seed and _epochs(r) == _epochs(whole)
    ]
    sentence = (
        f"{whole.recipe}, seed {whole.seed}, {_epochs(whole)} epochs each.{''.join(again)} Runs of "
        f"`python benchmarks/ablation.py` ({whole.made_on})."
    )
    return "\n".join([markdown_table(rows, _LEFT_OUT), sentence])


def _epochs(record: Record) -> int:
    epochs: int = record.setting("train.epochs")
    return epochs


def _left_out(record: Record) -> list[str]:
    """Ingredients of the recipe that the run has switched off."""
    recipe, own = recipes.flatten(recipes.load(record.recipe)), _flat(record)
    return [key for key in _INGREDIENTS if recipe[key] and not own[key]]


def _flat(record: Record) -> dict[str, Any]:
    parts = {name: part for name, part in record.settings.items() if isinstance(part, dict)}
    return {f"{name}.{key}": value for name, part in parts.items() for key, value in part.items()}


def _small(runs: dict[str, list[Record]]) -> dict[str, Record]:
    """The first record of each model of the overfitting figure (arXiv 1512.05287, figure 2)."""
    return {name: records[0] for name, records in runs.items() if "figure" in recipes.load(name).paper.source}


def overfitting(results: Path) -> str:
    """The picture of the small models, and where each is at its best and in the end."""
    small = _small(load(results))
    if not small:
        return ""
    lines = [
        "![Training and validation perplexity of the small models, epoch by epoch](figures/ptb-overfitting.png)",
        "",
    ]
    for name, record in small.items():
        values = record.curve("valid_perplexity")
        best = min(values)
        lines.append(
            f"- {name}: {best:.1f} validation at best, in epoch {values.index(best) + 1}, and {values[-1]:.1f} after "
            f"epoch {len(values)}, where training is at {record.curve('train_perplexity')[-1]:.1f}."
        )
    return "\n".join(lines)


def _grids(results: Path) -> dict[str, Sweep]:
    """Grids over two settings by name: records of sweeps (sweep.json under another name), or folders of single runs."""
    found = archive.load_all(results / "grid", "*.json", Sweep)
    for folder in sorted({path.parent for path in (results / "grid").glob("*/*.json")}):
        found[folder.name] = _grid_of(archive.records(folder))
    return found


def _grid_of(records: list[Record]) -> Sweep:
    """Runs that differ in two settings, as the record of a sweep over them."""
    flat = [_flat(record) for record in records]
    space = {key: sorted({one[key] for one in flat}) for key in flat[0] if len({repr(one[key]) for one in flat}) > 1}
    trials = [
        {
            "settings": {key: one[key] for key in space},
            "value": record.metric("valid_perplexity"),
            "state": "complete",
        }
        for record, one in zip(records, flat, strict=True)
    ]
    best = min(trials, key=lambda row: row["value"])
    return Sweep.model_validate({**records[0].to_dict(), "space": space, "trials": trials, "best": best})


def grid(results: Path) -> str:
    """A picture and a sentence for every grid."""
    parts = []
    for name, sweep in _grids(results).items():
        best, (down, right) = sweep.best, sweep.space
        done = [row["value"] for row in sweep.trials if row["state"] == "complete"]
        epochs = sweep.settings["train"]["epochs"]
        settings = ", ".join(f"{key} {value:g}" for key, value in best["settings"].items())
        parts += [
            f"![Validation perplexity of every pair of {down} and {right}](figures/ptb-grid-{name}.png)",
            "",
            f"{sweep.recipe}, {epochs} epochs, seed {sweep.seed}: {best['value']:.2f} with {settings}; "
            f"{max(done):.2f} at worst. {sweep.made_on}.",
        ]
    return "\n".join(parts)


BLOCKS: dict[str, Callable[[Path], str]] = {
    "beyond": beyond,
    "ablation": ablation,
    "grid": grid,
    "overfitting": overfitting,
    **pruning.BLOCKS,
}


def figures(results: Path) -> dict[str, bytes]:
    """PNG files by name, of whatever records there are."""
    every, made = load(results), {}
    small, runs = _small(every), {name: records for name, records in every.items() if name not in _small(every)}
    if small:
        made["ptb-overfitting.png"] = drawn(lambda f: _draw_overfitting(f, small), (6.4, 4.2))
    if runs:
        made["ptb-curves.png"] = drawn(lambda f: _draw_curves(f, runs), (8.6, 4.8))
    made |= pruning.figures(results)
    for name, sweep in _grids(results).items():
        down, right = sweep.space
        values = (sweep.space[down], sweep.space[right])
        made[f"ptb-grid-{name}.png"] = heat_map(
            sweep.trials, keys=(down, right), values=values, label="validation perplexity"
        )
    gaps = _gaps(runs)
    if gaps:
        lines = sum(name.count("\n") + 1 for name in gaps)
        made["ptb-entropy-gap.png"] = drawn(lambda f: _draw_gaps(f, gaps), (6.4, 3.8 + 0.2 * lines))
    return made


def write_figures(results: Path, folder: Path) -> list[Path]:
    """Write the pictures into the folder; returns their paths."""
    return write(figures(results), folder)


def _draw_curves(figure: "Figure", runs: dict[str, list[Record]]) -> None:
    axes = figure.add_subplot()
    for k, (name, records) in enumerate(runs.items()):
        for record in records[:1]:
            values = record.curve("valid_perplexity")
            colour, style = COLOURS[k % len(COLOURS)], _STYLES[k // len(COLOURS) % len(_STYLES)]
            axes.plot(range(1, len(values) + 1), values, color=colour, linestyle=style, linewidth=1.6,
                      label=f"{label(name, record)}  {min(values):.1f}")  # fmt: skip
    axes.set_ylim(65, 140)
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation perplexity, 10 streams")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8.5, title="recipe, one seed, and its lowest", title_fontsize=8.5)


def _draw_overfitting(figure: "Figure", runs: dict[str, Record]) -> None:
    axes = figure.add_subplot()
    for name, record in runs.items():
        own = look(name, runs, None)
        for key, style in (("valid_perplexity", "-"), ("train_perplexity", ":")):
            values = record.curve(key)
            axes.plot(
                range(1, len(values) + 1), values, color=own["color"], marker=own["marker"], markevery=5, markersize=4,
                linestyle=style, linewidth=1.6, label=name if style == "-" else None,
            )  # fmt: skip
    axes.set_yscale("log")
    ticks = [20, 30, 50, 70, 100, 150, 200, 300, 500]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("epoch")
    axes.set_ylabel("perplexity: validation (line), training (dots)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8.5)


def _gaps(runs: dict[str, list[Record]]) -> dict[str, list[Record]]:
    """The records with entropy gaps, all seeds of the same settings together."""
    found: dict[str, list[Record]] = {}
    for name, records in runs.items():
        for record in records:
            if record.metric("entropy_gap_mean") is not None:
                found.setdefault(label(name, record), []).append(record)
    return {textwrap.fill(f"{name}, {_seeds(records)}", _LEGEND): records for name, records in found.items()}


def _seeds(records: list[Record]) -> str:
    return f"seed {records[0].seed}" if len(records) == 1 else f"mean of {len(records)} seeds, and each"


def _draw_gaps(figure: "Figure", gaps: dict[str, list[Record]]) -> None:
    axes = figure.add_subplot()
    most = 1
    for name, runs in gaps.items():
        curves, style = [dict(_gap_points(record)) for record in runs], look(name, gaps, None)
        if len(runs) > 1:
            for curve in curves:
                _draw_gap(axes, curve, **{**style, "marker": "", "alpha": 0.35, "linewidth": 0.9})
                axes.plot([0], [curve[0]], marker="_", markersize=9, color=style["color"], alpha=0.5)
        middle = {k: sum(c[k] for c in curves) / len(curves) for k in curves[0] if all(k in c for c in curves)}
        most = max(most, *middle)
        axes.plot([0], [middle[0]], markersize=7, **style)
        _draw_gap(axes, middle, label=name, markersize=4, **style)
    axes.set_xticks([0, *range(1, most + 1)], ["mean", *map(str, range(1, most + 1))])
    axes.set_xlabel("the posterior mean, or draws that are averaged")
    axes.set_ylabel("entropy on reversed minus on test text, nats")
    axes.grid(alpha=0.25)
    paper = recipes.load("brnn-medium").paper
    axes.plot([1, most], [paper.entropy_gap] * 2, ":", color="#777777", linewidth=1.2)
    both = f"published, of 10 draws ({paper.entropy_gap:g}) and the mean ({paper.entropy_gap_mean:g})"
    axes.plot([-0.3, 0.3], [paper.entropy_gap_mean] * 2, ":", color="#777777", linewidth=1.2, label=both)
    figure.legend(loc="outside upper left", frameon=False, fontsize=8.5, handlelength=4)


def _draw_gap(axes: "Axes", curve: dict[int, float], **style: Any) -> None:
    """Of draws; where there are none, of the mean, so that the legend has the run."""
    points = [(k, gap) for k, gap in curve.items() if k] or list(curve.items())
    axes.plot(*zip(*points, strict=True), **style)


def _gap_points(record: Record) -> list[tuple[int, float]]:
    """(draws, gap); 0 draws are the mean. Older records have those of the mean, one draw and all draws."""
    points = [(0, record.metric("entropy_gap_mean"))]
    if gaps := record.metric("entropy_gaps"):
        return points + list(enumerate(gaps, start=1))
    more = {1: record.metric("entropy_gap_1"), record.metric("entropy_samples") or 10: record.metric("entropy_gap")}
    return points + [(k, gap) for k, gap in more.items() if gap is not None]
