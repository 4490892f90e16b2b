"""The table of choices where papers and released code disagree, from the records of benchmarks/differences.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bayesrnn.lab import recipes
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, devices, once
from bayesrnn.lab.runs.record import values as values_of
from bayesrnn.lab.tasks.language.published import other_text
from docs.build import archive
from docs.build.archive import ChoiceRun

COMPUTED = "lua-count"
_UNITS = {"tiny": 8, "small": 200, "medium": 650, "large": 1500}
_COLUMNS = (
    Column("question", "question"), Column("choice", "choice"), Column("valid", "valid"), Column("test", "test"),
    Column("change", "valid, change"), Column("epochs", "epochs"), Column("seeds", "seeds"),
)  # fmt: skip

Runs = Sequence[ChoiceRun]


@dataclass(frozen=True)
class Choice:
    """One answer: the run that measures it, and what its figures are called after ``valid_perplexity``."""

    label: str
    run: str
    figure: str = ""


@dataclass(frozen=True)
class Question:
    """What is disagreed on; the first choice is the recipes'."""

    text: str
    choices: tuple[Choice, ...]


QUESTIONS = (
    Question(
        "scale mixture: an indicator for",
        (Choice("a unit's outgoing weights", "brnn"), Choice("every weight", "brnn-per-weight")),
    ),
    Question(
        "KL, beside -log p summed over T",
        (
            Choice("once: / (B C)", "brnn"),
            Choice("at each of the T steps", "brnn-kl-every-step"),
            Choice("/ words", "brnn-kl-per-word"),
        ),
    ),
    Question(
        "clipped is the gradient of",
        (Choice("-log p and KL", "brnn"), Choice("-log p alone", "brnn-clip-data")),
    ),
    Question(
        "BRNN: biases of a gate",
        (
            Choice("one", "brnn-one-bias"),
            Choice("two, added, each random", "brnn"),
            Choice("two, 1 more in forget gates", "brnn-forget-bias"),
        ),
    ),
    Question(
        "sharpening, bound: eta starts at",
        (
            Choice("a tenth of the best constant", "sharpened", "_bound"),
            Choice("0.01", "sharpened-eta-large", "_bound"),
            Choice("0.01, clipped with the weights", "sharpened-eta-large-one-clip", "_bound"),
        ),
    ),
    Question(
        "words are dropped by",
        (Choice("type", "variational"), Choice("token", "variational-per-token")),
    ),
    Question(
        "masks in training are new",
        (
            Choice("in every window", "variational"),
            Choice("at every step", "variational-per-step"),
            Choice("at every step, none on h", "variational-per-step-not-recurrent"),
        ),
    ),
    Question(
        "Monte Carlo: masks are new",
        (
            Choice("in every pass", "variational", "_mc"),
            Choice("in every window", "variational", "_mc_window"),
            Choice("never: the mean", "variational"),
        ),
    ),
    Question(
        "Monte Carlo: words are",
        (Choice("kept", "variational", "_mc"), Choice("dropped", "variational", "_mc_words")),
    ),
    Question(
        "weight decay 1e-7",
        (
            Choice("as it is", "variational"),
            Choice("times the learning rate", "variational-decay-times-rate"),
            Choice("none", "variational-no-decay"),
        ),
    ),
    Question(
        "Zaremba: rate falls after epoch",
        (Choice("7 of 39", "zaremba"), Choice("6 of 39", "zaremba-earlier")),
    ),
    Question(
        "large: the rate falls after epoch",
        (Choice("10 of 55", "variational-after-10"), Choice("14 of 55", "variational-after-14")),
    ),
)


def differences(results: Path) -> str:
    """A table for every size that was run, and what the Lua code's count makes of a perplexity."""
    found = archive.load_all(results / "differences", "*.json", ChoiceRun)
    records = [record for record in found.values() if not other_text(record)]
    parts = []
    for size, units in _UNITS.items():
        own = [r for r in records if r.size == size and r.run != COMPUTED]
        if own:
            rows = [row for question in QUESTIONS for row in _rows(question, own)]
            parts.append(f"2 x {units} units:\n\n{markdown_table(rows, _COLUMNS)}")
    if not parts:
        return markdown_table([], _COLUMNS)
    parts += [_counted(r) for r in records if r.run == COMPUTED][:1]
    made = devices(r for r in records if r.run != COMPUTED)
    return "\n".join([*parts, f"Written by `python benchmarks/differences.py` ({made})."])


def _rows(question: Question, records: Runs) -> list[dict[str, Any]]:
    """Those choices that were run; nothing where only one was: there is nothing to compare."""
    chosen = [(c, [r for r in records if r.run == c.run]) for c in question.choices]
    chosen = [(c, found) for c, found in chosen if found]
    if len(chosen) < 2:
        return []
    first = _values(chosen[0][1], f"valid_perplexity{chosen[0][0].figure}")
    rows = []
    for k, (choice, found) in enumerate(chosen):
        valid = _values(found, f"valid_perplexity{choice.figure}")
        rows.append(
            {
                "question": "" if k else question.text,
                "choice": choice.label,
                "valid": _shown(valid),
                "test": _shown(_values(found, f"test_perplexity{choice.figure}")),
                "change": f"{fmean(valid) / fmean(first) - 1:+.1%}" if k and valid and first else None,
                "epochs": ", ".join(str(e) for e in sorted({r.epochs for r in found})),
                "seeds": len(found),
            }
        )
    return rows


def _values(records: Sequence[Record], key: str) -> list[float]:
    """Of the seeds that did not diverge."""
    return values_of(records, key)


def _shown(values: Sequence[float]) -> str:
    """Their mean, and ± their standard deviation."""
    if not values:
        return "diverged"
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def _counted(lua: ChoiceRun) -> str:
    real = 77.9 ** (1 / lua.metric("exponent"))
    return (
        f"The Lua code's count: {lua.metric('words'):,} validation words in 20 rows are {lua.metric('windows')} whole "
        f"windows of 35, and their losses are divided by {lua.metric('divided_by'):.2f}. It prints 77.9 where the "
        f"perplexity is {real:.1f}.\n"
    )


_FALL = (
    Column("epoch", "rate falls after epoch"), Column("valid", "valid"), Column("test", "test"),
    Column("change", "valid, change"), Column("seeds", "seeds"),
)  # fmt: skip


def first_fall(results: Path, name: str = "zaremba-medium") -> str:
    """Whole runs of a recipe that differ in nothing but the epoch after which the rate falls; the recipe's first."""
    groups: dict[int, list[Record]] = {}
    for record in once(archive.records(results / name)):
        changed = record.changed_settings()
        if not other_text(record) and all(setting.startswith("train.decay_after=") for setting in changed):
            groups.setdefault(record.setting("train.decay_after"), []).append(record)
    own = recipes.load(name).train.decay_after
    if own not in groups or len(groups) < 2:
        return markdown_table([], _FALL)
    first = fmean(_values(groups[own], "valid_perplexity"))
    rows = []
    for epoch in sorted(groups, key=lambda epoch: (epoch != own, epoch)):
        found = groups[epoch]
        valid = _values(found, "valid_perplexity")
        rows.append(
            {
                "epoch": epoch,
                "valid": _shown(valid),
                "test": _shown(_values(found, "test_perplexity")),
                "change": f"{fmean(valid) / first - 1:+.1%}" if epoch != own else None,
                "seeds": len(found),
            }
        )
    records = [record for found in groups.values() for record in found]
    made = f"{name}, {records[0].setting('train.epochs')} epochs ({devices(records)})."
    return "\n".join([markdown_table(rows, _FALL), made])


BLOCKS: dict[str, Callable[[Path], str]] = {"differences": differences, "first-fall": first_fall}
