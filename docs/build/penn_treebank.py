"""Two short tables of language models: all published rows at a glance, and what more can be had of a trained model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrnn.lab import recipes
from bayesrnn.lab.metrics import mean
from bayesrnn.lab.recipes import Recipe, tables
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, devices
from bayesrnn.lab.tasks.language.dynamic_metrics import by_rule
from docs.build.language import label, load

_TABLES = ("gal2016", "fortunato2017", "beyond")
_PLACES = "{:.2f}"
_GLANCE = (
    Column("recipe", "recipe"), Column("paper", "paper", "{:.1f}"), Column("ours", "ours"),
    Column("paper_mc", "MC: paper", "{:.1f}"), Column("ours_mc", "ours"),
    Column("paper_dynamic", "dynamic: paper", "{:.1f}"), Column("sgd", "ours, by SGD"), Column("rms", "ours, by RMS"),
    Column("seeds", "seeds"),
)  # fmt: skip


def glance(results: Path) -> str:
    """A line for each recipe of the papers' tables, with its own settings: test perplexities, theirs and ours."""
    rows, shown = [], []
    for name, records in load(results).items():
        recipe, own = recipes.load(name), [record for record in records if not record.changed_settings()]
        if recipe.table in _TABLES and own:
            rows.append({"recipe": name, "seeds": len(own), **_published(name), **_measured(recipe, own)})
            shown += own
    if not rows:
        return markdown_table([], _GLANCE)
    sentence = (
        "± is the standard deviation over seeds. MC: averaged over draws; dynamic: learnt on while being tested, in "
        f"the papers by SGD{_elsewhere(rows)}; of a sharpened model the bounds. Tied and untied: gates share their "
        f"masks, or have their own. From `results/` ({devices(shown)})."
    )
    return "\n".join([markdown_table(rows, _GLANCE), sentence])


def _published(name: str) -> dict[str, Any]:
    """Values of the recipe's own paper, or of another paper's table."""
    figures = {"paper": "test", "paper_mc": "test_mc", "paper_dynamic": "test_dynamic"}
    published = tables.published(name)[0]
    return {column: published[key] for column, key in figures.items()}


def _elsewhere(rows: Sequence[Mapping[str, Any]]) -> str:
    """Recipes whose dynamic value comes from another paper, in brackets."""
    found = [
        (row["recipe"], others) for row in rows if "test_dynamic" in (others := tables.published(row["recipe"])[1])
    ]
    text = "; ".join(f"that of {name} is of {others['test_dynamic']}" for name, others in found)
    return f" ({text})" if text else ""


def _measured(recipe: Recipe, records: Sequence[Record]) -> dict[str, Any]:
    """Our values: for a sharpened model the bound; dynamic evaluation by every rule."""
    key = "test_perplexity_bound" if recipe.posterior.kind == "sharpened" else "test_perplexity"
    metrics = [record.metrics for record in records]
    return {
        "ours": mean(_numbers(metrics, key), _PLACES),
        "ours_mc": _some(metrics, "test_perplexity_mc") if recipe.paper.test_mc or not recipe.paper.source else None,
        **{rule: _learnt([by_rule(m).get(rule, {}) for m in metrics], key) for rule in ("sgd", "rms")},
    }


def _learnt(figures: Sequence[Mapping[str, Any]], key: str) -> str | None:
    """One rule's value; for a sharpened model without any bound, the mean."""
    return _some(figures, key) or _some(figures, "test_perplexity", "no bound")


def _some(figures: Sequence[Mapping[str, Any]], key: str, *remarks: str) -> str | None:
    """The mean; says so where not every seed has it."""
    found = _numbers(figures, key)
    if len(found) < len(figures):
        remarks += ("1 seed" if len(found) == 1 else f"{len(found)} seeds",)
    text = mean(found, _PLACES)
    return f"{text} ({', '.join(remarks)})" if text and remarks else text


def _numbers(records: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """The values of those that have one."""
    return [value for each in records if isinstance(value := each.get(key), float)]


_FURTHER = (
    Column("recipe", "recipe"), Column("seed", "seed"), Column("mean", "mean", _PLACES),
    Column("tempered", "at temperature"), Column("drawn", "average of draws"),
    Column("sgd", "dynamic (sgd)", _PLACES), Column("rms", "dynamic (rms)", _PLACES),
)  # fmt: skip


def further(results: Path) -> str:
    """Test perplexities of the runs whose temperature was chosen: one model, measured in several ways."""
    rows = []
    for name, records in load(results).items():
        for record in records:
            metrics = record.metrics
            plain, tempered, temperature, drawn = (
                next(iter(_numbers([metrics], key)), None)
                for key in ("test_perplexity", "test_perplexity_tempered", "temperature", "test_perplexity_mc")
            )
            if temperature is None or tempered is None:
                continue
            row = {"recipe": label(name, record), "seed": record.seed, "mean": plain}
            row["tempered"] = f"{tempered:.2f} (T = {temperature:.2f})"
            row["drawn"] = None if drawn is None else f"{drawn:.2f} ({metrics.get('samples')})"
            rules = by_rule(metrics)
            row |= {
                rule: next(iter(_numbers([rules.get(rule, {})], "test_perplexity")), None) for rule in ("sgd", "rms")
            }
            rows.append(row)
    return markdown_table(rows, _FURTHER)


BLOCKS: dict[str, Callable[[Path], str]] = {"glance": glance, "further": further}
