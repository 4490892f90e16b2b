"""The five numbers of the README, each with a link to its page."""

import os
from pathlib import Path
from statistics import fmean

from bayesrnn.lab import recipes
from bayesrnn.lab.quickstart import Quickstart
from docs.build import archive, m4, penn_treebank, speed
from docs.build.seeds import mean

_DROPOUT = "variational-untied-medium"


def block(root: Path, page: Path) -> str:
    """Calibration, a published row, forecasts, the speed of training and of many draws."""
    results = root / "results"
    found = [
        ("results/quickstart.md", "Calibration", _calibration(results)),
        ("results/penn-treebank.md", "Published results", _row(results, _DROPOUT, "Untied variational LSTM")),
        ("results/forecasting-benchmarks.md", "Forecasts", _forecasts(results)),
        ("results/speed.md", "Training speed", _step(results)),
        ("results/speed.md", "Prediction speed", _draws(results)),
    ]
    lines = []
    for target, title, text in found:
        address = os.path.relpath(root / "docs" / target, page.parent).replace(os.sep, "/")
        lines.append(f"- [{title}]({address}): {text}")
    return "\n".join(lines)


def _calibration(results: Path) -> str:
    command = "bayesrnn quickstart --out results/quickstart --force"
    record = archive.required(results / "quickstart/record.json", Quickstart, command)
    return record.findings[0]


def _row(results: Path, name: str, title: str) -> str:
    own = [r for r in penn_treebank.load(results).get(name, []) if not r.changed_settings()]
    values = [r.metric("test_perplexity") for r in own]
    paper = recipes.load(name).paper.test
    apart = fmean(values) / paper - 1
    return (
        f"{title} on Penn Treebank, test perplexity {mean(values, '{:.2f}')}; the paper has {paper:.1f} ({apart:+.1%})."
    )


def _forecasts(results: Path) -> str:
    found = m4.records_of(results, "m4-hourly")
    mase, covered = ([r.metrics[key] for r in found[m4.OURS]] for key in ("mase", "coverage_95"))
    naive = fmean(r.metrics["mase"] for r in found["seasonal-naive"])
    return (
        f"`Forecaster` on M4's hourly series, MASE {mean(mase, '{:.3f}')}; seasonal naive has "
        f"{naive:.3f}. The 95% intervals cover {fmean(covered):.1%}."
    )


def _step(results: Path) -> str:
    record = speed.records(results)[0]
    rows = {row["kind"]: row for row in record.training}
    base, own = rows[speed.BASE], rows["variational, tied"]
    return (
        f"a training step with variational dropout runs at {own['ratio'] / base['ratio']:.2f}x the speed of "
        f"`torch.nn.LSTM` with dropout ({own['hidden']} units, batch {own['batch']}, {record.made_on})."
    )


def _draws(results: Path) -> str:
    record = speed.records(results)[0]
    row = next(row for row in record.prediction if row["kind"] == "variational, tied")
    return (
        f"`br.predict` with {row['draws']} draws takes as long as {row['passes']:.1f} passes with one "
        f"({row['hidden']} units, one sequence)."
    )
