"""Language models on Penn Treebank: the table of all recipes beside the papers, and the picture of overfitting."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.lab import recipes
from bayesrnn.lab.recipes import Recipe, tables
from bayesrnn.lab.report.plots import look
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, once
from bayesrnn.lab.tasks.language.dynamic_metrics import by_rule
from bayesrnn.lab.tasks.language.paper_tables import other_text
from docs.build import archive
from docs.build.pictures import drawn
from docs.build.seeds import devices, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TABLES = ("gal2016", "fortunato2017", "beyond")
_PLACES = "{:.2f}"
_COLUMNS = (
    Column("recipe", "recipe"), Column("paper", "paper", "{:.1f}"), Column("ours", "ours"),
    Column("paper_mc", "MC: paper", "{:.1f}"), Column("ours_mc", "ours"),
    Column("paper_dynamic", "dynamic: paper", "{:.1f}"), Column("sgd", "ours, SGD"), Column("rms", "ours, RMS"),
    Column("seeds", "seeds"),
)  # fmt: skip


def load(results: Path) -> dict[str, list[Record]]:
    """Records by language recipe, those with the recipe's own settings first; records of other texts are omitted."""
    found = {}
    for name in recipes.names():
        if recipes.load(name).task == "language" and (results / name).is_dir():
            records = once(record for record in archive.records(results / name) if not other_text(record))
            found[name] = sorted(records, key=lambda record: (bool(record.changed_settings()), record.seed))
    return {name: records for name, records in found.items() if records}


def table(results: Path) -> str:
    """A row for each recipe of the papers' tables, with its own settings: test perplexities, theirs and ours."""
    rows, shown = [], []
    for name, records in load(results).items():
        recipe, own = recipes.load(name), [record for record in records if not record.changed_settings()]
        if recipe.table in _TABLES and own:
            rows.append({"recipe": name, "seeds": len(own), **_published(name), **_measured(recipe, own)})
            shown += own
    if not rows:
        return markdown_table([], _COLUMNS)
    sentence = (
        "± is the standard deviation over seeds. MC: averaged over draws. Dynamic: weights are updated during testing, "
        f"by SGD in the papers{_elsewhere(rows)}. Sharpened models report bounds. Tied: the gates share their masks. "
        f"From `results/` ({devices(shown)})."
    )
    return "\n".join([markdown_table(rows, _COLUMNS), sentence])


def _published(name: str) -> dict[str, Any]:
    """Values of the recipe's own paper, or of another paper's table."""
    values = {"paper": "test", "paper_mc": "test_mc", "paper_dynamic": "test_dynamic"}
    published = tables.published(name)[0]
    return {column: published[key] for column, key in values.items()}


def _elsewhere(rows: Sequence[Mapping[str, Any]]) -> str:
    """Recipes whose dynamic value comes from another paper, in brackets."""
    found = [
        (row["recipe"], others) for row in rows if "test_dynamic" in (others := tables.published(row["recipe"])[1])
    ]
    text = "; ".join(f"{name}: {others['test_dynamic']}" for name, others in found)
    return f" ({text})" if text else ""


def _measured(recipe: Recipe, records: Sequence[Record]) -> dict[str, Any]:
    """Our values: for a sharpened model the bound; dynamic evaluation by every rule."""
    key = "test_perplexity_bound" if recipe.posterior.kind == "sharpened" else "test_perplexity"
    metrics = [record.metrics for record in records]
    return {
        "ours": mean(_numbers(metrics, key), _PLACES),
        "ours_mc": _drawn(recipe, metrics) if recipe.paper.test_mc or not recipe.paper.source else None,
        **{rule: _dynamic([by_rule(m).get(rule, {}) for m in metrics], key) for rule in ("sgd", "rms")},
    }


def _drawn(recipe: Recipe, metrics: Sequence[Mapping[str, Any]]) -> str | None:
    """Of draws; where a recipe's own keep all weights, those that were asked to are the same."""
    found = _some(metrics, "test_perplexity_mc")
    return _some(metrics, "test_perplexity_mc_units") if found is None and recipe.evaluate.keep_weights else found


def _dynamic(metrics: Sequence[Mapping[str, Any]], key: str) -> str | None:
    """One rule's value; for a sharpened model without any bound, the mean."""
    return _some(metrics, key) or _some(metrics, "test_perplexity", "no bound")


def _some(metrics: Sequence[Mapping[str, Any]], key: str, *remarks: str) -> str | None:
    """The mean; says so where not every seed has it."""
    found = _numbers(metrics, key)
    if len(found) < len(metrics):
        remarks += ("1 seed" if len(found) == 1 else f"{len(found)} seeds",)
    text = mean(found, _PLACES)
    return f"{text} ({', '.join(remarks)})" if text and remarks else text


def _numbers(records: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [value for each in records if isinstance(value := each.get(key), float)]


_PREDICTIONS = {
    "": "mean", "_tempered": "mean at the best temperature", "_mc": "average of {} draws",
    "_mc_units": "average of {} draws of unit masks",
}  # fmt: skip
_CALIBRATION = (
    Column("recipe", "recipe"), Column("predictions", "predictions"), Column("perplexity", "test perplexity", _PLACES),
    Column("error", "calibration error", "{:.2%}"), Column("surest", "-log p, surest tenth", "{:.3f}"),
    Column("middle", "middle", "{:.3f}"), Column("doubtful", "least sure tenth", "{:.3f}"),
)  # fmt: skip


def calibration(results: Path) -> str:
    """How far probabilities can be trusted: of the mean, of the mean at a temperature, and of averaged draws."""
    rows = []
    for name, records in load(results).items():
        own = records[0].metrics
        kinds = [kind for kind in _PREDICTIONS if f"test_calibration_error{kind}" in own]
        for kind in kinds if len(kinds) > 1 else ():
            nll = [tenth["nll"] for tenth in own.get(f"test_deciles{kind}") or [{"nll": None}]]
            draws = own.get(f"entropy_samples{kind.removeprefix('_mc')}")
            rows.append({
                "recipe": name, "predictions": _PREDICTIONS[kind].format(draws),
                "perplexity": _of_draws(own, kind, draws) if "_mc" in kind else own[f"test_perplexity{kind}"],
                "error": own[f"test_calibration_error{kind}"], "surest": nll[0], "middle": nll[len(nll) // 2],
                "doubtful": nll[-1],
            })  # fmt: skip
    return markdown_table(rows, _CALIBRATION)


def _of_draws(metrics: Mapping[str, Any], kind: str, draws: int | None) -> float | None:
    """The test perplexity of as many draws as the calibration error is of, if it was measured."""
    suffix = kind.removeprefix("_mc")
    if metrics.get(f"samples{suffix}") == draws:
        return metrics.get(f"test_perplexity{kind}")
    by_draws = {each["draws"]: each["perplexity"] for each in metrics.get(f"test_perplexity_by_draws{suffix}", ())}
    return by_draws.get(draws)


def _small(results: Path) -> dict[str, Record]:
    """The first record of each model of the overfitting figure (arXiv 1512.05287, figure 2)."""
    runs = load(results)
    return {name: records[0] for name, records in runs.items() if "figure" in recipes.load(name).paper.source}


def overfitting(results: Path) -> str:
    """The picture of the small models, and each one's best and last epoch."""
    small = _small(results)
    if not small:
        return ""
    lines = ["![Training and validation perplexity per epoch of the small models](figures/ptb-overfitting.png)", ""]
    for name, record in small.items():
        values = record.curve("valid_perplexity")
        best = min(values)
        lines.append(
            f"- {name}: validation {best:.1f} at best (epoch {values.index(best) + 1}), {values[-1]:.1f} after epoch "
            f"{len(values)}; training {record.curve('train_perplexity')[-1]:.1f}."
        )
    return "\n".join(lines)


def figures(results: Path) -> dict[str, bytes]:
    small = _small(results)
    return {"ptb-overfitting.png": drawn(lambda figure: _draw(figure, small), (6.4, 4.2))} if small else {}


def _draw(figure: "Figure", runs: dict[str, Record]) -> None:
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


BLOCKS: dict[str, Callable[[Path], str]] = {
    "penn-treebank": table, "overfitting": overfitting, "ptb-calibration": calibration,
}  # fmt: skip
