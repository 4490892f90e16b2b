"""Published tables of language models beside our records."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesrnn.lab.reading import is_number
from bayesrnn.lab.recipes import Recipe
from bayesrnn.lab.recipes.tables import rows
from bayesrnn.lab.runs.record import Record, read_folder
from bayesrnn.lab.tasks.language.dynamic_metrics import PAPERS_RULE, by_rule

MEASURES = (
    ("valid", "valid_perplexity", "valid"),
    ("test", "test_perplexity", "test"),
    ("test_mc", "test_perplexity_mc", "test, MC"),
    ("valid_dynamic", "valid_perplexity_dynamic", "valid, dynamic"),
    ("test_dynamic", "test_perplexity_dynamic", "test, dynamic"),
    ("entropy_gap", "entropy_gap", "entropy gap"),
    ("entropy_gap_mean", "entropy_gap_mean", "entropy gap, mean"),
)
DYNAMIC = ("valid_dynamic", "test_dynamic")
TEXT = "ptb"
"""The folder of Penn Treebank, the text of the papers on language models."""


def other_text(record: Record) -> str:
    """The name of the text that a language model was trained on, if it is not the papers'; otherwise empty."""
    text = record.data or TEXT
    return "" if text == TEXT else text


def lines(table: str, results: Path) -> list[dict[str, Any]]:
    """The lines of a table; records and runs of a row are in the folder of its recipe's name."""
    return [
        line for name, recipe in rows(table).items() for line in compared(name, recipe, read_folder(results / name))
    ]


def compared(name: str, recipe: Recipe, records: Sequence[Record]) -> list[dict[str, Any]]:
    """One line per published value: the paper's, and the mean (± standard deviation over seeds) of ours.

    Runs with other settings or another text have lines of their own, whose names say so.
    """
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        text = other_text(record)
        own = ([f"on {text}"] if text else []) + sorted(record.changed_settings())
        alike.setdefault(tuple(own), []).append(record)
    found = []
    for marks, same in sorted(alike.items()) or [((), [])]:
        row = f"{name} ({', '.join(marks)})" if marks else name
        found += [{"row": row, **line} for line in _lines(recipe, same)]
    return found


def published_metrics(recipe: Recipe) -> list[tuple[str, str, str]]:
    """What the paper reports of this recipe: its key there, the key in a record, and a label."""
    bounds = ("valid", "test") if recipe.posterior.kind == "sharpened" else ()
    there = [each for each in MEASURES if getattr(recipe.paper, each[0]) is not None]
    return [(p, f"{key}_bound", f"{label} (bound)") if p in bounds else (p, key, label) for p, key, label in there]


def _shown(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.2e}"


def _lines(recipe: Recipe, records: Sequence[Record]) -> list[dict[str, Any]]:
    lines = []
    for published, key, label in published_metrics(recipe):
        papers, found_by = label, {label: [r.metric(key) for r in records]}
        if published in DYNAMIC:
            papers = f"{label} (bound)" if recipe.posterior.kind == "sharpened" else label
            found_by = {papers: [], **_by_rule(key, label, records)}
        for name, found in found_by.items():
            ours = [value for value in found if is_number(value)]
            text = None
            if ours:
                spread = f" ± {_shown(statistics.stdev(ours))}" if len(ours) > 1 else ""
                text = f"{_shown(statistics.fmean(ours))}{spread}"
            paper = getattr(recipe.paper, published) if name == papers else None
            lines.append({"measure": name, "paper": paper, "ours": text, "seeds": len(ours) or None})
    return lines


def _by_rule(key: str, label: str, records: Sequence[Record]) -> dict[str, list[Any]]:
    """Dynamic evaluation, the papers' rule first; labels name other rules and bounds."""
    rules = [by_rule(record.metrics) for record in records]
    others = {rule for each in rules for rule in each} - {PAPERS_RULE}
    lines = {}
    for rule in (PAPERS_RULE, *sorted(others)):
        for bound in (False, True):
            kind = ", ".join(([] if rule == PAPERS_RULE else [rule]) + ["bound"] * bound)
            name = key.replace("_dynamic", "_bound" * bound)
            found = [each[rule].get(name) for each in rules if rule in each]
            if any(value is not None for value in found):
                lines[f"{label} ({kind})" if kind else label] = found
    return lines
