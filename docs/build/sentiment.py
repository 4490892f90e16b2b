"""Records of sentiment runs as tables and sentences for the documentation; ``sentiment_plots.py`` has the pictures.

Records are ``results/sentiment-CELL-VARIANT/SEED.json`` (divided by review), ``results/sentiment-CELL-VARIANT-chunk/…``
(the authors' division); ``sentiment_grid.py`` has the runs that compare settings.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrnn.errors import UserError
from bayesrnn.lab.metrics import mean
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, devices
from bayesrnn.lab.runs.record import values as values_of
from docs.build.sentiment_grid import NOTHING, grid_block, picture, read, trial_block, value_range

CELLS = {"lstm": "LSTM", "gru": "GRU"}
VARIANTS = {
    "plain": "no dropout",
    "naive": "naive dropout",
    "variational": "variational",
    "bbb": "Bayes by Backprop",
}
TREND = 20  # epochs: what the error did in the last of them
_AROUND = 5  # epochs that a point of that comparison is the mean of

Runs = dict[tuple[str, str], list[Record]]


def load(results: Path, *, division: str = "review") -> Runs:
    """Records by (cell, variant), in the order of the tables; only those that exist."""
    suffix = "" if division == "review" else f"-{division}"
    found: Runs = {}
    for cell in CELLS:
        for variant in VARIANTS:
            records = read(results / f"sentiment-{cell}-{variant}{suffix}")
            if records:
                found[cell, variant] = records
    for key, records in found.items():
        for record in records:
            if record.setting("data.split") != division:
                raise UserError(f"A record of {'-'.join(key)} is not divided by {division}; it belongs elsewhere.")
    return found


def name_of(key: tuple[str, str]) -> str:
    return f"{CELLS[key[0]]}, {VARIANTS[key[1]]}"


def _mean(values: Sequence[float], pattern: str = "{:.4f}") -> str | None:
    return mean(values, pattern)


def table(runs: Runs) -> str:
    """Test errors at the end of training and at the epoch of least validation error."""
    rows = [
        {
            "name": name_of(key),
            "end": _mean(values_of(records, "end.test_rmse")),
            "end_mc": _mean(values_of(records, "end.test_rmse_mc")),
            "epoch": ", ".join(str(r.metric("best_epoch")) for r in records),
            "best": _mean(values_of(records, "test_rmse")),
            "best_mc": _mean(values_of(records, "test_rmse_mc")),
            "review": _mean(values_of(records, "end.test_review_rmse")),
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
        for at, level in enumerate(levels_of(records)):
            row[f"{level:g}"] = _mean([r.metric("end.intervals")[at]["coverage"] for r in records], "{:.3f}")
            if level == 0.9:
                widths = [r.metric("end.intervals")[at]["width"] for r in records]
                row["width"] = _mean(widths, "{:.3f}")
        row["likelihood"] = _mean(values_of(records, "end.test_log_likelihood"), "{:.3f}")
        row["correlation"] = _mean(values_of(records, "end.uncertainty.rank_correlation"), "{:.3f}")
        halves = [_kept([record], "uncertainty", 0.5) for record in records if record.metric("end.uncertainty")]
        row["half"] = _mean(halves)
        rows.append(row)
    levels = levels_of(next(iter(runs.values()))) if runs else []
    columns = (
        Column("name", "share of test ratings inside"),
        *(Column(f"{level:g}", f"{level:.0%}") for level in levels),
        Column("width", "width of 90%"),
        Column("likelihood", "log likelihood"),
        Column("half", "RMSE of the more certain half"),
        Column("correlation", "rank correlation of spread and error"),
    )
    return markdown_table(rows, columns)


def levels_of(records: Sequence[Record]) -> list[float]:
    return [figure["level"] for figure in records[0].metric("end.intervals")]


def findings(runs: Runs) -> list[str]:
    """What the records say about the claims, each a sentence with its numbers."""
    said = []
    for cell, cell_name in CELLS.items():
        variational = runs.get((cell, "variational"))
        if variational is None:
            continue
        ours = values_of(variational, "end.test_rmse_mc")
        for other in ("plain", "naive"):
            if (cell, other) in runs:
                theirs = _end(runs[cell, other])
                here, there = statistics.fmean(ours), statistics.fmean(theirs)
                spread = max(value_range(ours), value_range(theirs))
                said.append(
                    f"{cell_name}, end of training: variational is {abs(there - here):.4f} "
                    f"{'below' if here < there else 'ABOVE'} {VARIANTS[other]} ({here:.4f} against {there:.4f}), "
                    f"{'more' if there - here > spread else 'NOT more'} than the largest range of seeds, {spread:.4f}."
                )
        said += [f"{cell_name}, {text}" for text in _rises({v: runs[cell, v] for v in VARIANTS if (cell, v) in runs})]
        said += [f"{cell_name}, variational: {text}" for text in _monte_carlo(variational)]
        at = levels_of(variational).index(0.9)
        covered = [r.metric("end.intervals")[at]["coverage"] for r in variational]
        inside = "all" if all(0.85 <= c <= 0.95 for c in covered) else "NOT all"
        said.append(
            f"{cell_name}, variational: 90% intervals cover {min(covered):.1%} to {max(covered):.1%} of the test "
            f"ratings, {inside} between 85% and 95%."
        )
    return said


def _monte_carlo(records: Sequence[Record]) -> list[str]:
    """Whether the mean of the draws is at least as good as the standard approximation; also without word dropout."""
    said = []
    for figure, draws in (
        ("test_rmse_mc", "the mean of the draws (MC)"),
        ("test_rmse_mc_all_words", "the mean of draws that keep all words"),
    ):
        measured = [record for record in records if values_of([record], f"end.{figure}")]  # not all records have it
        errors, standard = values_of(measured, f"end.{figure}"), values_of(measured, "end.test_rmse")
        if not errors:
            continue
        better = sum(mc <= mean for mc, mean in zip(errors, standard, strict=True))
        verdict = "holds" if better == len(errors) else "does NOT hold"
        said.append(
            f"that {draws} is at least as good as the standard approximation {verdict}: {better} of {len(errors)} "
            f"seeds ({statistics.fmean(errors):.4f} against {statistics.fmean(standard):.4f})."
        )
    slopes = [values_of(records, f"end.test_slope{way}") for way in ("", "_mc", "_mc_all_words")]
    if all(slopes):
        one, drawn, words = (statistics.fmean(values) for values in slopes)
        said.append(
            f"slope of the ratings on the predictions (below 1: too bold, above 1: too near the mean) {one:.2f} of the "
            f"standard approximation, {drawn:.2f} of MC, {words:.2f} of MC that keeps all words."
        )
    return said


def _end(records: Sequence[Record]) -> list[float]:
    """Test errors at the end of training: with draws averaged where there are draws, else as they are."""
    return values_of(records, "end.test_rmse_mc") or values_of(records, "end.test_rmse")


def curve_of(record: Record, *, draws: bool = True) -> list[float]:
    """Test error per epoch: of the mean of draws, where there are draws and they are wanted."""
    curve: list[float] = (record.curve("test_rmse_mc") if draws else None) or record.curve("test_rmse")
    return curve


def _rises(of: Mapping[str, Sequence[Record]]) -> list[str]:
    """How the errors of the variants of one cell rise: from their lowest epoch, and in the last epochs."""
    said = []
    samples = of["variational"][0].setting("evaluate.epoch_samples")
    for draws, way in ((True, f"MC of {samples or 'the'} draws after each epoch"), (False, "standard")):
        rises = {v: _mean_of(rs, lambda c: c[-1] - min(c), draws) for v, rs in of.items()}
        listed = ", ".join(f"{VARIANTS[v]} {rise:+.4f}" for v, rise in rises.items())
        said.append(f"rise of the test error from its lowest epoch to the last, {way}: {listed}.")
    epochs = min(len(curve_of(record)) for records in of.values() for record in records)
    if "naive" not in of or epochs < TREND + _AROUND:
        return said
    for draws, way in ((True, "MC"), (False, "standard")):
        then = {v: _mean_of(of[v], lambda c: statistics.fmean(c[:-TREND][-_AROUND:]), draws) for v in _PAIR}
        now = {v: _mean_of(of[v], lambda c: statistics.fmean(c[-_AROUND:]), draws) for v in _PAIR}
        moves = ", ".join(f"{VARIANTS[v]} {now[v] - then[v]:+.4f}" for v in _PAIR)
        lead = [at["naive"] - at["variational"] for at in (then, now)]
        said.append(
            f"epoch {epochs - TREND} to {epochs}, {way} (means of {_AROUND} epochs): {moves}; the lead of variational "
            f"{'shrinks' if lead[1] < lead[0] else 'grows'} from {lead[0]:.4f} to {lead[1]:.4f}."
        )
    return said


_PAIR = ("variational", "naive")


def _mean_of(records: Sequence[Record], figure: Callable[[list[float]], float], draws: bool) -> float:
    return statistics.fmean(figure(curve_of(record, draws=draws)) for record in records)


def sources(runs: Runs) -> str:
    """Where the runs were made, and every setting that differs from the recipe."""
    every = [record for records in runs.values() for record in records]
    changed = sorted({o for r in every for o in r.overrides})
    settings = f" Changed settings: {', '.join(changed)}." if changed else ""
    constants = sorted({f"{r.extra['constant_rmse']:.4f}" for r in every})
    epochs = sorted({len(r.curve("test_rmse")) for r in every})
    samples = sorted({r.metric("samples") for r in every} - {0})
    return (
        f"{' or '.join(map(str, epochs))} epochs; MC of {' or '.join(map(str, samples)) or 'no'} draws; ± is the "
        f"standard deviation over seeds; a constant gives {' or '.join(constants)}. "
        f"From `results/`, on {devices(every)}.{settings}"
    )


def block(results: Path) -> str:
    """Errors: table, claims and curves."""
    runs = load(results)
    if not runs:
        return NOTHING
    curves = picture("sentiment-curves.png", "Test RMSE per epoch of all models, mean and range over seeds")
    return "\n".join([table(runs), *(f"- {said}" for said in findings(runs)), "", curves, "", sources(runs)])


def interval_block(results: Path) -> str:
    """Coverage, and error against uncertainty."""
    runs = load(results)
    if not runs:
        return NOTHING
    lines = [interval_table(runs), picture("sentiment-intervals.png", "Coverage of intervals less their level")]
    if any_spread(runs):
        lines += ["", picture("sentiment-uncertainty.png", "Test RMSE against the spread of draws")]
    return "\n".join(lines)


def any_spread(runs: Runs) -> bool:
    return any(r.metric("end.uncertainty") for records in runs.values() for r in records)


def division_block(results: Path) -> str:
    """The authors' division beside the one by review: errors at the end of training."""
    apart = load(results, division="chunk")
    if not apart:
        return NOTHING
    whole = load(results)
    rows: list[dict[str, Any]] = []
    for key, records in apart.items():
        row: dict[str, Any] = {"name": name_of(key), "seeds": len(records)}
        for way, runs in (("chunk", records), ("review", whole.get(key, []))):
            for figure in ("test_rmse", "test_rmse_mc"):
                row[f"{way}_{figure}"] = _mean(values_of(runs, f"end.{figure}"))
            row[f"{way}_best"] = _mean(values_of(runs, "test_rmse"))
            lengths = sorted({len(record.curve("test_rmse")) for record in runs})
            row[f"{way}_epochs"] = ", ".join(map(str, lengths)) or None
        rows.append(row)
    columns = (
        Column("name", "test RMSE"),
        Column("chunk_test_rmse", "by piece: end, standard"),
        Column("chunk_test_rmse_mc", "end, MC"),
        Column("chunk_best", "best epoch, standard"),
        Column("chunk_epochs", "epochs"),
        Column("seeds", "seeds"),
        Column("review_test_rmse", "by review: end, standard"),
        Column("review_test_rmse_mc", "end, MC"),
        Column("review_best", "best epoch, standard"),
        Column("review_epochs", "epochs"),
    )
    return "\n".join([markdown_table(rows, columns), f"Of the division by piece: {sources(apart)}"])


def length_block(results: Path) -> str:
    """Error, spread and coverage of the variational models by the words of a piece, at the end of training."""
    runs = {name_of(key): with_lengths(records) for key, records in load(results).items() if key[1] == "variational"}
    measured = {name: records for name, records in runs.items() if records}
    if not measured:
        return NOTHING
    rows, said = [], []
    for name, found in measured.items():
        low = 0
        for at, first in enumerate(found[0].metric("end.lengths")):
            lines = [one.metric("end.lengths")[at] for one in found]
            shown = {key: statistics.fmean(line[key] for line in lines) for key in first if first[key] is not None}
            words = f"{low + 1} to {first['words']}" if low + 1 < first["words"] else f"{first['words']}"
            rows.append({**shown, "name": f"{name}, {words} words"})
            low = first["words"]
        tenth = [_kept(found, figure, 0.1) for figure in ("uncertainty", "uncertainty_with_noise")]
        said.append(
            f"{name}, RMSE of the most certain tenth: {tenth[0]:.4f} by the spread of the draws, {tenth[1]:.4f} with "
            f"the noise of its length beside it; of all {_kept(found, 'uncertainty', 1.0):.4f}. "
            f"{len(found)} seed{'s' * (len(found) > 1)}, {found[0].metric('end.samples')} draws."
        )
    columns = (
        Column("name", "test pieces"),
        Column("count", "pieces", "{:.0f}"),
        Column("rmse", "RMSE", "{:.4f}"),
        Column("targets_sd", "sd of ratings", "{:.4f}"),
        Column("predictions_sd", "sd of predictions", "{:.4f}"),
        Column("spread", "spread of draws", "{:.4f}"),
        Column("coverage", "inside 90%, one noise", "{:.3f}"),
        Column("noise", "noise of its own", "{:.4f}"),
        Column("coverage_own", "inside 90% with it", "{:.3f}"),
    )
    return "\n".join([markdown_table(rows, columns), *(f"- {sentence}" for sentence in said), "", "End of training."])


def with_lengths(records: Sequence[Record]) -> list[Record]:
    """Records with results by length; older ones lack them."""
    return [record for record in records if record.metric("end.lengths")]


def _kept(records: Sequence[Record], figure: str, share: float) -> float:
    """Mean RMSE of that share of the predictions with the least uncertainty."""
    errors = []
    for record in records:
        risk = record.metric(f"end.{figure}.risk")
        at = min(range(len(risk["coverage"])), key=lambda i: abs(risk["coverage"][i] - share))
        errors.append(risk["rmse"][at])
    return statistics.fmean(errors)


BLOCKS: dict[str, Callable[[Path], str]] = {
    "sentiment": block,
    "sentiment-intervals": interval_block,
    "sentiment-lengths": length_block,
    "sentiment-division": division_block,
    "sentiment-grid": grid_block,
    "sentiment-trials": trial_block,
}
