"""Two short tables of language models: all published rows at a glance, and what more can be had of a trained model."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bayesrnn import recipes
from bayesrnn.recipes import Recipe
from bayesrnn.report.changes import changed_settings
from bayesrnn.report.language import label, load
from bayesrnn.report.records import Record, devices, figures, mean
from bayesrnn.report.tables import Column, markdown_table
from bayesrnn.tasks.figures import PAPERS_RULE, by_rule

_TABLES = ("gal2016", "fortunato2017", "beyond")
_PLACES = "{:.2f}"
_GLANCE = (
    Column("recipe", "recipe"), Column("paper", "paper", "{:.1f}"), Column("ours", "ours"),
    Column("paper_mc", "MC: paper", "{:.1f}"), Column("ours_mc", "ours"),
    Column("paper_dynamic", "dynamic: paper", "{:.1f}"), Column("ours_dynamic", "ours"),
    Column("seeds", "seeds"),
)  # fmt: skip


def glance(results: Path) -> str:
    """A line for each recipe of the papers' tables, with its own settings: test perplexities, theirs and ours."""
    rows, shown = [], []
    for name, records in load(results).items():
        recipe, own = recipes.load(name), [record for record in records if not changed_settings(record)]
        if recipe.table in _TABLES and own:
            rows.append({"recipe": name, "seeds": len(own), **_published(recipe), **_measured(recipe, own)})
            shown += own
    if not rows:
        return markdown_table([], _GLANCE)
    sentence = (
        "± is the standard deviation over seeds. MC: averaged over draws; dynamic: learnt on while being tested, by "
        "SGD unless another rule is named; of a sharpened model the bound. Tied and untied: gates share their masks, "
        f"or have their own. From `results/` ({devices(shown)})."
    )
    return "\n".join([markdown_table(rows, _GLANCE), sentence])


def _published(recipe: Recipe) -> dict[str, Any]:
    paper = recipe.paper
    return {"paper": paper.test, "paper_mc": paper.test_mc, "paper_dynamic": paper.test_dynamic}


def _measured(recipe: Recipe, records: Sequence[Record]) -> dict[str, Any]:
    """Of a sharpened model the bound; dynamic evaluation by the papers' rule, or by the one that there is."""
    key = "test_perplexity_bound" if recipe.posterior.kind == "sharpened" else "test_perplexity"
    rules = [by_rule(record["metrics"]) for record in records]
    rule = PAPERS_RULE if any(PAPERS_RULE in each for each in rules) else next((r for each in rules for r in each), "")
    learnt = [each[rule] for each in rules if rule in each]
    dynamic = mean([figures[key] for figures in learnt if key in figures], _PLACES)
    if dynamic is None:  # the bound was not measured
        dynamic = mean([figures["test_perplexity"] for figures in learnt], _PLACES)
    return {
        "ours": mean(figures(records, key), _PLACES),
        "ours_mc": mean(figures(records, "test_perplexity_mc"), _PLACES) if recipe.paper.test_mc else None,
        "ours_dynamic": dynamic and (dynamic if rule == PAPERS_RULE else f"{dynamic} ({rule})"),
    }


_FURTHER = (
    Column("recipe", "recipe"), Column("seed", "seed"), Column("test_perplexity", "mean", _PLACES),
    Column("tempered", "at temperature"), Column("drawn", "average of draws"),
    Column("sgd", "dynamic (sgd)", _PLACES), Column("rms", "dynamic (rms)", _PLACES),
)  # fmt: skip


def further(results: Path) -> str:
    """Test perplexities of the runs whose temperature was chosen: one model, measured in several ways."""
    rows = []
    for name, records in load(results).items():
        for record in (r for r in records if "temperature" in r["metrics"]):
            metrics = record["metrics"]
            rules = {rule: figures.get("test_perplexity") for rule, figures in by_rule(metrics).items()}
            row = {"recipe": label(name, record), "seed": record["seed"], **rules}
            row["test_perplexity"] = metrics["test_perplexity"]
            row["tempered"] = f"{metrics['test_perplexity_tempered']:.2f} (T = {metrics['temperature']:.2f})"
            if "test_perplexity_mc" in metrics:
                row["drawn"] = f"{metrics['test_perplexity_mc']:.2f} ({metrics['samples']})"
            rows.append(row)
    return markdown_table(rows, _FURTHER)


BLOCKS: dict[str, Callable[[Path], str]] = {"glance": glance, "further": further}
