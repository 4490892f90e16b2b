"""Tables on several processes and on faults for the documentation, from records in results/."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, read_folder
from docs.build import archive
from docs.build.archive import Distributed, Torture


@dataclass(frozen=True)
class Links:
    """What connects GPUs: bytes per second in each direction, and seconds from one end to the other.

    Args:
        inside: of one GPU to the others of its machine.
        outside: of one machine to the others; shared by its GPUs.
        fraction: of these that an exchange of many megabytes reaches.
    """

    name: str
    inside: float = 450e9
    outside: float = 400e9
    latency: float = 10e-6
    per_machine: int = 8
    fraction: float = 0.8

    def seconds(self, size: float, ranks: int) -> float:
        """Time to average ``size`` bytes over the ranks: summed inside each machine, then between machines, and back.

        A ring of n moves 2 (n - 1) / n of the bytes over each of its links. Between machines every GPU sends its part
        of the bytes, all at the same time, so that the machine's link carries 2 (m - 1) / m of them.
        """
        inside = min(ranks, self.per_machine)
        machines = math.ceil(ranks / self.per_machine)
        time = _ring(inside) * size / (self.fraction * self.inside)
        time += _ring(machines) * size / (self.fraction * self.outside)
        return time + 2 * self.latency * (math.ceil(math.log2(inside)) + math.ceil(math.log2(machines)))


def _ring(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


LINKS = (Links("NVLink and 8 x 400 Gb/s"), Links("NVLink and 100 Gb/s", outside=12.5e9))
RECIPES = ("variational-tied-medium", "brnn-medium")
RANKS = (8, 64, 1024)


def model(results: Path) -> str:
    """Expected speed of many GPUs with one batch each, from the step of one GPU and the speed of links."""
    rows: list[dict[str, Any]] = []
    for name in RECIPES:
        record = _nearest(results / name)
        words = record.setting("data.batch_size") * record.setting("data.window")
        step = words / record.metric("words_per_second")
        size = 4 * record.metric("parameters")
        for ranks in RANKS:
            row: dict[str, Any] = {"what": f"{name}, {ranks} GPUs", "megabytes": size / 1e6, "step": 1e3 * step}
            for i, links in enumerate(LINKS):
                exchange = links.seconds(size, ranks)
                row[f"exchange{i}"], row[f"efficiency{i}"] = 1e3 * exchange, step / (step + exchange)
            rows.append(row)
    columns = [
        Column("what", "recipe"),
        Column("megabytes", "MB per step", "{:.0f}"),
        Column("step", "step, ms", "{:.1f}"),
    ]
    for i, links in enumerate(LINKS):
        columns += [
            Column(f"exchange{i}", f"exchange, ms: {links.name}", "{:.1f}"),
            Column(f"efficiency{i}", "speed per GPU", "{:.0%}"),
        ]
    return markdown_table(rows, columns)


def _nearest(folder: Path) -> Record:
    """The record whose settings are most like the recipe's; of several, that of the lowest seed."""
    return min(read_folder(folder, needs=("settings",)), key=lambda record: len(record.changed_settings()))


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
    "distributed-model": model,
    "torture": torture,
}
