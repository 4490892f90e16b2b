"""The record of fuzzing, results/fuzz.json, as a table for the documentation."""

from pathlib import Path

from bayesrnn.lab.report.tables import Column, markdown_table
from docs.build import archive

NO_RECORD = "No run is recorded yet."


def table(results: Path) -> str:
    path = results / "fuzz.json"
    if not path.is_file():
        return NO_RECORD
    rows = [
        {**found, "name": f"{name}: {found['what']}"}
        for name, found in archive.load(path, archive.Fuzz).readers.items()
    ]
    columns = (
        Column("name", "reader: input"),
        Column("inputs", "inputs", "{:,}"),
        Column("read", "read", "{:,}"),
        Column("refused", "refused", "{:,}"),
        Column("extra_memory_mb", "memory, MB", "{:,}"),
    )
    versions = sorted({f"{name} {v}" for found in rows for name, v in found["versions"].items()})
    return "\n".join([markdown_table(rows, columns), f"No other outcome. {', '.join(versions)}."])


BLOCKS = {"fuzz": table}
