"""Tables on several processes and on faults for the documentation, from records in results/."""

from collections.abc import Callable
from pathlib import Path

from bayesrnn.lab.report.tables import Column, markdown_table
from docs.build import archive
from docs.build.archive import Distributed, Torture

_MEASURED = (
    Column("processes", "processes"), Column("share_ratio", "one batch shared out", "{:.2f}x"),
    Column("share_exchange", "exchange", "{:.0%} of a step"), Column("grow_ratio", "a batch each", "{:.2f}x"),
    Column("grow_exchange", "exchange", "{:.0%} of a step"),
)  # fmt: skip


def measured(results: Path) -> str:
    """Ratios of several processes to one."""
    record = archive.load(results / "distributed.json", Distributed)
    return "\n".join(
        [
            markdown_table(record.table, _MEASURED),
            f"{record.table[0]['parameters']:,} parameters, {record.rows} rows, windows of {record.window}; "
            f"{record.cores} cores, load average {record.load:.0f}. "
            f"Written by `{record.command}` ({record.made_on}).",
        ]
    )


def torture(results: Path) -> str:
    """Faults that training survived."""
    record = archive.load(results / "torture.json", Torture)
    rows = [{"fault": name, **fault} for name, fault in record.faults.items()]
    rows[0]["fault"] += f" ({rows[0]['inside_a_write']} of them inside a write)"
    rows.append({"fault": "all", "survived": record.survived, "total": record.total})
    columns = (Column("fault", "fault"), Column("survived", "survived"), Column("total", "total"))
    return "\n".join(
        [
            markdown_table(rows, columns),
            f"Written by `{record.command}` in {record.seconds:.0f} seconds ({record.made_on}).",
        ]
    )


BLOCKS: dict[str, Callable[[Path], str]] = {
    "distributed": measured,
    "torture": torture,
}
