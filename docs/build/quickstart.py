"""The block of ``bayesrnn quickstart`` in the documentation."""

import os
from pathlib import Path

from bayesrnn.lab.quickstart import COLUMNS, Quickstart
from bayesrnn.lab.report.tables import markdown_table
from docs.build import archive


def block(root: Path, page: Path) -> str:
    """The table of three models, what it says, and how often each model is right."""
    path = root / "results/quickstart/record.json"
    record = archive.required(path, Quickstart, "bayesrnn quickstart --out results/quickstart --force")
    if record.fast:
        raise SystemExit("results/quickstart/record.json is of a --fast run, which compares nothing: run it in full")
    picture = root / "results/quickstart/calibration.png"
    if not picture.is_file():
        raise SystemExit(f"{picture.relative_to(root)} is missing: it is written with the record, commit both")
    address = os.path.relpath(picture, page.parent).replace(os.sep, "/")
    return "\n".join(
        [
            markdown_table([row.model_dump() for row in record.table], COLUMNS),
            record.findings[0],
            "",
            f"![How often each model is right, against how sure it is]({address})",
            "",
            f"Written by `{record.command}` in {record.cpu_seconds:.0f} CPU seconds "
            f"({archive.environment(record.versions, 1)} per model).",
        ]
    )
