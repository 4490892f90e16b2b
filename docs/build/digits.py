"""Records of digit runs, ``results/digits-*/SEED.json``, as tables, sentences and pictures for the documentation.

Runs that compare sharpening with its absence, all else equal, are in ``results/digits-sharpening/RECIPE/SEED.json``,
with larger first sigmas in ``results/digits-sharpening-noisy/``. Those among which validation chose the settings are
in ``results/digits-search/*.json``.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bayesrnn.lab.metrics import mean
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, devices, read_folder
from bayesrnn.lab.runs.record import values as values_of

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
    "digits-bbb-sharpened-800": "Bayes by Backprop, MLP 800, sharpened",
    "digits-bbb-sharpened-1200": "Bayes by Backprop, MLP 1200, sharpened",
}
PLAIN, SHARPENED = "digits-bbb-400", "digits-bbb-sharpened-400"
LEVELS = (50.0, 30.0, 20.0, 15.0, 10.0, 7.0, 5.0, 4.0, 3.0, 2.5, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3)
TENTHS = tuple(level / 10 for level in range(500, 12, -1))
"""Every tenth of a percent: LEVELS are what a table has room for, and may miss where curves cross."""
PAIRS = ("digits-sharpening", "digits-sharpening-noisy")
NO_RECORD = "No run is recorded yet."
TURNED = "digits-lenet-all"

Runs = dict[str, list[Record]]


def load(results: Path) -> Runs:
    """Records by recipe, in the order of the tables; only those that exist."""
    found = {name: _read(results / name) for name in NAMES}
    return {name: records for name, records in found.items() if records}


def _read(folder: Path) -> list[Record]:
    needs = ("metrics.test_error", "curves.test_error", "seed")
    return read_folder(folder, what="the record of a digits run", needs=needs)


def _mean(values: Sequence[float], pattern: str = "{:.2f}") -> str | None:
    return mean(values, pattern)


def _epochs(records: Sequence[Record]) -> str:
    return ", ".join(map(str, sorted({len(r.curve("test_error")) for r in records})))


def error_table(runs: Runs) -> str:
    """Errors of the weights with the lowest validation error, with one pass and with draws, beside the papers'."""
    from bayesrnn.lab import recipes

    rows = []
    for name, records in runs.items():
        paper = recipes.load(name).paper
        rows.append(
            {
                "name": NAMES[name],
                "paper": paper.test_error,
                "valid": _mean(values_of(records, "valid_error")),
                "test": _mean(values_of(records, "test_error")),
                "valid_mc": _mean(values_of(records, "valid_error_mc")),
                "test_mc": _mean(values_of(records, "test_error_mc")),
                "epochs": _epochs(records),
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
        Column("epochs", "epochs"),
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
                row[key + suffix] = _mean(values_of(records, key + suffix), pattern)
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
                for line in record.metric(key) or []:
                    found.setdefault(line["kind"], []).append(line[field])
            if found:
                kinds = list(found)
                rows.append({"name": f"{NAMES[name]}: {label}", **{k: _mean(v, "{:.3f}") for k, v in found.items()}})
    return markdown_table(rows, (Column("name", "area under the ROC curve"), *(Column(k, k) for k in kinds)))


def first_epoch(curve: Sequence[float], level: float) -> int | None:
    """The first epoch (from 1) whose error is at most the level."""
    return next((epoch for epoch, error in enumerate(curve, 1) if error <= level), None)


def levels_reached(runs: Runs, levels: Sequence[float] = LEVELS, curve: str = "test_error") -> list[dict[str, Any]]:
    """For each level of error that every run of both kinds reached: its first epoch, as a mean over seeds.

    Levels that all runs reach in their first epoch say nothing, and are left out.
    """
    rows = []
    for level in levels:
        row: dict[str, Any] = {"level": level}
        for name in (PLAIN, SHARPENED):
            epochs = [first_epoch(r.curve(curve), level) for r in runs.get(name, [])]
            if not epochs or None in epochs:
                break
            row[name] = statistics.fmean(e for e in epochs if e is not None)
        else:
            if max(row[PLAIN], row[SHARPENED]) > 1:
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
        curves = [{p["fraction"]: p["test_error"] for p in r.metric("pruning") or []} for r in records]
        curves = [curve for curve in curves if curve]
        if curves:
            rows.append({"name": NAMES[name], **{str(s): _mean([c[s] for c in curves]) for s in shares}})
    return markdown_table(rows, (Column("name", "test error, %"), *(Column(str(s), f"{s:.0%}") for s in shares)))


def findings(runs: Runs) -> list[str]:
    """What the records say about the claims, each a sentence with its numbers."""
    said = []
    both = [r for r in runs.get(TURNED, []) if r.metric("test_error_mc") is not None]
    if both:
        standard, mc = (values_of(both, key) for key in ("test_error", "test_error_mc"))
        below = sum(b < a for a, b in zip(standard, mc, strict=True))
        reached = "at most" if statistics.fmean(mc) <= 0.7 else "MORE than"
        said.append(
            f"Dropout after every convolution: MC is below the standard error in {below} of {len(mc)} seeds "
            f"({statistics.fmean(mc):.2f}% against {statistics.fmean(standard):.2f}%), {reached} 0.7%."
        )
    ip = values_of(runs.get("digits-lenet-ip", []), "test_error")
    if both and ip:
        hurts = "hurts" if statistics.fmean(standard) > statistics.fmean(ip) else "does NOT hurt"
        helps = "helps" if statistics.fmean(mc) < statistics.fmean(ip) else "does NOT help"
        said.append(
            f"Against dropout after the inner product alone ({statistics.fmean(ip):.2f}%, standard), dropout after "
            f"convolutions {hurts} with one standard pass and {helps} with draws."
        )
    bbb = runs.get(PLAIN)
    if bbb:
        errors = values_of(bbb, "test_error")
        reached = "at most" if statistics.fmean(errors) <= 1.4 else "MORE than"
        said.append(f"Bayes by Backprop, 400 units: {statistics.fmean(errors):.2f}% (mean weights), {reached} 1.4%.")
    return said


def winner_findings(results: Path) -> list[str]:
    """Names the seeds of a recipe that are themselves a run of the search: validation chose among those."""
    tried = {(r.recipe, r.seed, tuple(r.curve("test_error"))) for r in _read(results / "digits-search")}
    said = []
    for name, records in load(results).items():
        won = [r for r in records if (name, r.seed, tuple(r.curve("test_error"))) in tried]
        rest = values_of([r for r in records if r not in won], "test_error")
        if won:
            own = ", ".join(f"seed {r.seed}, {r.metric('test_error'):.2f}%" for r in won)
            others = f"; the others have {_mean(rest)}%" if rest else ""
            said.append(
                f"{NAMES[name]}: {own}, is of the search on validation, and the recipe is its settings{others}."
            )
    return said


def sharpening_finding(runs: Runs) -> str | None:
    """Whether each level of error is reached in no more epochs with sharpening."""
    rows = levels_reached(runs)
    if not rows:
        return None
    return f"Sharpening reaches the {_compared(rows, 'test')} (mean of first epochs over seeds)."


def _compared(rows: Sequence[dict[str, Any]], split: str) -> str:
    later = [f"{row['level']:g}%" for row in rows if row[SHARPENED] > row[PLAIN]]
    earlier = sum(row[SHARPENED] < row[PLAIN] for row in rows)
    verdict = f"LATER at {', '.join(later)}" if later else "never later"
    span = f"from {rows[0]['level']:g}% to {rows[-1]['level']:g}% {split} error"
    return f"{len(rows)} levels {span} {verdict}, earlier at {earlier} of them"


def tenths_findings(runs: Runs) -> list[str]:
    """The same at every tenth of a percent, on test and on validation images; and for the pairs that ran longest."""
    said = []
    for split, curve in (("test", "test_error"), ("validation", "valid_error")):
        rows = levels_reached(runs, TENTHS, curve)
        if rows:
            said.append(f"At every tenth of a percent: the {_compared(rows, split)}.")
    longest = max(len(r.curve("test_error")) for records in runs.values() for r in records)
    long = {n: [r for r in rs if len(r.curve("test_error")) == longest] for n, rs in runs.items()}
    rows = levels_reached(long, TENTHS)
    if rows and any(len(long[n]) < len(runs[n]) for n in runs):
        count = len(long[PLAIN])
        said.append(f"The {count} pair{'s' * (count != 1)} of {longest} epochs alone: the {_compared(rows, 'test')}.")
    return said


def sources(runs: Runs) -> str:
    """Where the runs were made, and every setting that differs from the recipe."""
    every = [r for records in runs.values() for r in records]
    changed = sorted({text for r in every for text in r.changed_settings()})
    samples = sorted({r.metric("samples") or 0 for r in every} - {0})
    settings = f" Not as in the recipes: {', '.join(changed)}." if changed else ""
    return (
        f"Of all epochs validation chose one; MC: {' or '.join(map(str, samples)) or 'no'} draws; ± is the standard "
        f"deviation over seeds. From `results/`, on {devices(every)}.{settings}"
    )


def block(results: Path) -> str:
    """The main table of the page with its findings."""
    runs = load(results)
    if not runs:
        return NO_RECORD
    said = [*findings(runs), *winner_findings(results)]
    return "\n".join([error_table(runs), *(f"- {sentence}" for sentence in said), "", sources(runs)])


def search_block(results: Path) -> str:
    """Validation errors of the runs that settings were chosen from, best first within each recipe."""
    rows: list[dict[str, Any]] = []
    for record in _read(results / "digits-search"):
        rows.append(
            {
                "name": NAMES[record.recipe],
                "changed": ", ".join(record.changed_settings()) or "nothing",
                "epoch": record.metric("best_epoch"),
                "valid": record.metric("valid_error"),
                "valid_mc": record.metric("valid_error_mc"),
            }
        )
    rows.sort(key=lambda row: (row["name"], row["valid"]))
    columns = (
        Column("name", "validation error, %"),
        Column("changed", "not as in the recipe now"),
        Column("epoch", "best epoch"),
        Column("valid", "standard", "{:.2f}"),
        Column("valid_mc", "MC", "{:.2f}"),
    )
    return markdown_table(rows, columns).rstrip("\n") if rows else NO_RECORD


def sharpening_block(results: Path, pair: str) -> str:
    """Epochs to each level of error, plain and sharpened, the picture, and the final errors of both."""
    runs = load(results / pair)
    found = sharpening_finding(runs)
    if found is None:
        return NO_RECORD
    alt = "Test error per epoch, and the first epoch of each error level"
    said = "".join(f"- {sentence}\n" for sentence in [found, *tenths_findings(runs)])
    parts = [level_table(runs), said, f"![{alt}](figures/{pair}.png)\n", error_table(runs), sources(runs)]
    return "\n".join(parts)


EARLY = slice(1, 20)  # epochs 2 to 20


def sharpening_search_block(results: Path) -> str:
    """Mean validation error of the early epochs: settings of sharpening, beside plain runs of the same seeds."""
    tried = _read(results / "digits-sharpening-search")
    seeds = sorted({record.seed for record in tried})
    plain = [record for record in load(results).get(PLAIN, []) if record.seed in seeds]
    rows: dict[str, dict[str, Any]] = {}
    for record in [*plain, *tried]:
        changed = [text for text in record.changed_settings() if not text.startswith("train.epochs=")]
        setting = "plain" if record.recipe == PLAIN else "sharpened, " + (", ".join(changed) or "as the recipe")
        error = statistics.fmean(record.curve("valid_error")[EARLY])
        rows.setdefault(setting, {"setting": setting})[str(record.seed)] = error
    columns = [Column("setting", "mean validation error of epochs 2 to 20, %")]
    columns += [Column(str(seed), f"seed {seed}", "{:.3f}") for seed in seeds]
    return markdown_table(list(rows.values()), columns).rstrip("\n") if tried else NO_RECORD


def pictures(runs: Runs) -> list[str]:
    """Names of the pictures that these records are enough for; :mod:`docs.build.digits_plots` draws them."""
    found = []
    if any(values_of(records, "test_error_mc") for records in runs.values()):
        found.append("digits-errors.png")
    if any(r.metric("pruning") for records in runs.values() for r in records):
        found.append("digits-pruning.png")
    if any(r.metric("turning") for r in runs.get(TURNED, [])):
        found.append("digits-turning.png")
    return found


def _block_of(results: Path, table: Callable[[Runs], str] | None, picture: str | None = None, alt: str = "") -> str:
    runs = load(results)
    parts = [table(runs).rstrip("\n")] if table is not None and runs else []
    if picture is not None and picture in pictures(runs):
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
    "digits-search": search_block,
    "digits-sharpening-search": sharpening_search_block,
    **{pair: partial(sharpening_block, pair=pair) for pair in PAIRS},
}
"""Blocks of docs/digits.md by name: results folder to Markdown."""
