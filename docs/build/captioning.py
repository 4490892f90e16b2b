"""Records of captioning runs as tables and sentences for the documentation; ``caption_plots.py`` has the pictures.

Records are ``results/caption-METHOD/SEED.json``, and ``results/caption-search/*.json`` for the runs of the search on
validation that chose their settings.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bayesrnn.lab import recipes
from bayesrnn.lab.metrics import mean
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, devices, read_folder
from bayesrnn.lab.runs.record import values as values_of
from docs.build import caption_texts

METHODS = {
    "caption-dropout": "dropout",
    "caption-variational": "variational dropout",
    "caption-bbb": "Bayes by Backprop",
    "caption-bbb-masks": "Bayes by Backprop with masks",
    "caption-dropout-wide": "dropout, 1024 units",
    "caption-variational-wide": "variational dropout, 1024 units",
}
PAIRS = (
    ("caption-bbb", "caption-dropout"),
    ("caption-bbb-masks", "caption-dropout"),
    ("caption-variational", "caption-dropout"),
    ("caption-variational-wide", "caption-dropout-wide"),
)
"""Methods that are compared in words: a Bayesian one, and the baseline with as many units."""
SCORES = {"bleu1": "BLEU-1", "bleu2": "BLEU-2", "bleu3": "BLEU-3", "bleu4": "BLEU-4", "cider": "CIDEr"}
SIGNS = {"entropy": "entropy", "mutual_information": "mutual information", "surprisal": "surprisal"}
WAYS = {"": "mean", "_mc": "draws", "_consensus": "consensus of draws"}
"""Captions of the posterior mean, of the draws' averaged probabilities, and the most typical of the draws' captions."""
NOTHING = caption_texts.NOTHING
_DOUBT = "captioning-doubt.png"
FIGURES = {
    "captioning-curves.png": "Perplexity per epoch of each method, training and validation; figures in the tables",
    "captioning-scores.png": "Test perplexity, BLEU-4 and CIDEr of each method and seed; figures in the table",
    "captioning-lengths.png": "Validation CIDEr and caption length against the length penalty",
    _DOUBT: "CIDEr of the captions that are left when the most doubtful are left out; figures in the table",
}
"""Pictures by name, and what they show in words; :mod:`docs.build.caption_plots` draws them."""

Runs = dict[str, list[Record]]


def load(results: Path) -> Runs:
    """Records by recipe, in the order of the tables; only those that exist."""
    found = {name: _read(results / name) for name in METHODS}
    return {name: records for name, records in found.items() if records}


def _read(folder: Path) -> list[Record]:
    needs = ("metrics.valid_perplexity", "curves.valid_perplexity", "seed")
    return read_folder(folder, what="the record of a captioning run", needs=needs)


def _mean(values: Sequence[float], pattern: str = "{:.1f}") -> str | None:
    return mean(values, pattern)


def table(runs: Runs) -> str:
    """Test scores of each method, with the posterior mean and with the average over draws; people's below."""
    rows: list[dict[str, Any]] = []
    for name, records in runs.items():
        for suffix, how in WAYS.items():
            values = {key: values_of(records, f"test_{key}{suffix}") for key in ("perplexity", "words", *SCORES)}
            counted = list(values.values())
            if not any(counted):
                continue
            rows.append(
                {
                    "name": f"{METHODS[name]}, {how}",
                    "perplexity": _mean(values.pop("perplexity"), "{:.2f}"),
                    **{key: _mean(each) for key, each in values.items()},
                    "seeds": max(map(len, counted)),
                }
            )
    paper = recipes.load("caption-dropout").paper
    rows.append({"name": "published, plain (arXiv 1411.4555)", **{key: _shown(getattr(paper, key)) for key in SCORES}})
    human = next((h for records in runs.values() for r in records if (h := r.metric("human"))), None)
    if human:
        rows.append({"name": "a person, against the others", **{key: _shown(human[key]) for key in SCORES}})
    columns = (
        Column("name", "test images"),
        Column("perplexity", "perplexity"),
        *(Column(key, name) for key, name in SCORES.items()),
        Column("words", "words"),
        Column("seeds", "seeds"),
    )
    return markdown_table(rows, columns)


def _shown(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def settings_table(runs: Runs) -> str:
    """What validation chose: epoch, beam and length penalty of every run."""
    rows = []
    for name, records in runs.items():
        for record in records:
            found = {"name": f"{METHODS[name]}, seed {record.seed}", "epoch": record.metric("best_epoch")}
            found["perplexity"] = record.metric("valid_perplexity")
            for suffix, how in WAYS.items():
                if (beam := record.metric(f"beam{suffix}")) is not None:
                    found[how] = f"{beam} / {record.metric(f'length_penalty{suffix}'):g}"
                    found[f"score_{how}"] = statistics.fmean(record.metric(f"valid_{key}{suffix}") for key in SCORES)
            found["seconds"] = record.metric("train_seconds")
            found["changed"] = ", ".join(record.changed_settings(name)) or None
            rows.append(found)
    chosen = []
    for how in WAYS.values():
        if any(how in row for row in rows):
            chosen += [Column(how, f"beam / penalty, {how}"), Column(f"score_{how}", "mean of scores", "{:.1f}")]
    changes = [Column("changed", "not as in the recipe")] if any(row["changed"] for row in rows) else []
    columns = (
        Column("name", "validation"),
        Column("epoch", "best epoch"),
        Column("perplexity", "perplexity", "{:.2f}"),
        *chosen,
        Column("seconds", "seconds of training", "{:,.0f}"),
        *changes,
    )
    return markdown_table(rows, columns)


def search_table(records: Sequence[Record]) -> str:
    """All runs of the search, best first within each method."""
    rows = []
    for record in records:
        rows.append(
            {
                "name": METHODS.get(record.recipe, record.recipe),
                "changed": ", ".join(record.changed_settings()) or "nothing",
                "epoch": record.metric("best_epoch"),
                "perplexity": record.metric("valid_perplexity"),
                "score": _validation_score(record),
                "seconds": record.metric("train_seconds"),
            }
        )
    order = list(METHODS.values())
    rows.sort(key=lambda row: (order.index(row["name"]) if row["name"] in order else len(order), row["perplexity"]))
    columns = (
        Column("name", "method"),
        Column("changed", "not as in the recipe now"),
        Column("epoch", "best epoch"),
        Column("perplexity", "validation perplexity", "{:.2f}"),
        Column("score", "validation, mean of scores", "{:.1f}"),
        Column("seconds", "seconds of training", "{:,.0f}"),
    )
    return markdown_table(rows, columns)


def _validation_score(record: Record) -> float | None:
    """The mean of BLEU-1 to BLEU-4 and CIDEr on the validation images, of the posterior mean's captions."""
    values = [value for key in SCORES for value in values_of([record], f"valid_{key}")]
    return statistics.fmean(values) if values else None


def doubt_table(runs: Runs) -> str:
    """CIDEr of the captions that are left when the most doubtful are not shown."""
    rows = []
    for name, records in runs.items():
        for sign, title in SIGNS.items():
            curves = values_of(records, f"selective.{sign}")
            if curves:
                row: dict[str, Any] = {"name": f"{METHODS[name]}, {title}"}
                for points in zip(*curves, strict=True):
                    row[f"{points[0][0]:g}"] = statistics.fmean(value for _, value in points)
                rows.append(row)
    shares = [key for key in rows[0] if key != "name"] if rows else []
    columns = (
        Column("name", "CIDEr, least doubtful captions kept by"),
        *(Column(share, f"{float(share):.0%}", "{:.1f}") for share in shares),
    )
    return markdown_table(rows, columns)


def findings(runs: Runs) -> list[str]:
    """Sentences on what the records say about the Bayesian methods against dropout in its standard use, the mean."""
    said = []
    for bayes, plain in PAIRS:
        if bayes in runs and plain in runs:
            for suffix, how in WAYS.items():
                parts = [_compared(runs[bayes], runs[plain], key, suffix) for key in ("perplexity", "bleu4", "cider")]
                kept = ", ".join(part for part in parts if part)
                if kept:
                    said.append(f"{METHODS[bayes]}, {how}, against {METHODS[plain]}, mean: {kept}.")
    return [sentence[0].upper() + sentence[1:] for sentence in [*said, *_published(runs)]]


def consensus_findings(runs: Runs) -> str:
    """For each method with a consensus: BLEU-4 and CIDEr of it less those of the mean and of the draws, per seed."""
    lines = []
    for name, records in runs.items():
        measured = [record for record in records if record.metric("test_bleu4_consensus") is not None]
        for suffix in ("", "_mc") if measured else ():
            gains = []
            for key in ("bleu4", "cider"):
                each = [r.metric(f"test_{key}_consensus") - r.metric(f"test_{key}{suffix}") for r in measured]
                gains.append(f"{SCORES[key]} {', '.join(f'{gain:+.2f}' for gain in each)}")
            lines.append(f"- {METHODS[name]}, consensus less {WAYS[suffix]}, each seed: {'; '.join(gains)}.")
    return "\n".join(lines) or NOTHING


def _published(runs: Runs) -> list[str]:
    """Which rows have, on average over seeds, at least the published BLEU-1 to BLEU-3."""
    paper = recipes.load("caption-dropout").paper
    goals = {key: value for key in SCORES if (value := getattr(paper, key)) is not None}
    reached = []
    for name, records in runs.items():
        for suffix, how in WAYS.items():
            values = {key: values_of(records, f"test_{key}{suffix}") for key in goals}
            if all(each and statistics.fmean(each) >= goals[key] for key, each in values.items()):
                reached.append(f"{METHODS[name]}, {how}")
    wanted = ", ".join(f"{SCORES[key]} {value:g}" for key, value in goals.items())
    return [f"at least the published scores ({wanted}): {'; '.join(reached) or 'none'}."]


def _compared(bayes: Sequence[Record], plain: Sequence[Record], key: str, suffix: str) -> str | None:
    ours, theirs = values_of(bayes, f"test_{key}{suffix}"), values_of(plain, f"test_{key}")
    if not ours or not theirs:
        return None
    gain = statistics.fmean(ours) - statistics.fmean(theirs)
    better = "the same" if gain == 0 else "better" if (gain < 0) == (key == "perplexity") else "worse"
    apart = max(ours) < min(theirs) or min(ours) > max(theirs)
    seeds = "" if min(len(ours), len(theirs)) < 2 else ", every seed" if apart else ", seeds overlap"
    return f"{SCORES.get(key, key)} {gain:+.2f} ({better}{seeds})"


def _block(make: Callable[[Runs], str]) -> Callable[[Path], str]:
    def block(results: Path) -> str:
        runs = load(results)
        return make(runs) if runs else NOTHING

    return block


def _main(runs: Runs) -> str:
    lines = [table(runs), *(f"- {sentence}" for sentence in findings(runs)), ""]
    lines += [f"![{alt}](figures/{name})\n" for name, alt in FIGURES.items() if name != _DOUBT]
    every = [record for records in runs.values() for record in records]
    return "\n".join([*lines, f"From `results/`: {devices(every)}."])


def _doubt(runs: Runs) -> str:
    return f"{doubt_table(runs)}\n![{FIGURES[_DOUBT]}](figures/{_DOUBT})"


def _search(results: Path) -> str:
    records = _read(results / "caption-search")
    if not records:
        return NOTHING
    counts = Counter(METHODS.get(record.recipe, record.recipe) for record in records)
    return f"{search_table(records)}\nRuns: {', '.join(f'{name} {count}' for name, count in counts.items())}."


BLOCKS: dict[str, Callable[[Path], str]] = {
    "captioning": _block(_main),
    "captioning-settings": _block(settings_table),
    "captioning-search": _search,
    "captioning-doubt": _block(_doubt),
    "captioning-consensus": _block(consensus_findings),
    "captioning-samples": caption_texts.block,
}
"""Names of blocks in the documentation to what fills them, from the folder of records."""


def write_figures(results: Path, folder: Path) -> list[Path]:
    """Draw all pictures that there are records for."""
    from docs.build.caption_plots import DRAWN

    runs = load(results)
    if not runs:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name in FIGURES:
        made.append(folder / name)
        made[-1].write_bytes(DRAWN[name](runs))
    return made
