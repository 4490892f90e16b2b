"""Sections of a report about captions."""

from collections.abc import Mapping, Sequence

from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.labels import part
from bayesrnn.lab.report.parts import Page
from bayesrnn.lab.report.uncertainty import answers, point_pairs
from bayesrnn.lab.runs.collection import SeedGroup
from bayesrnn.lab.runs.record import Record


def selective(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """CIDEr of the captions that the model is surest of."""
    found = {group.label: _by_entropy(group.first) for group in groups}
    answers(page, groups, {name: points for name, points in found.items() if points}, up="CIDEr")


def _by_entropy(run: Record) -> list[tuple[float, float]]:
    """The score of each share, with draws if it was measured with them."""
    for key in ("selective_mc", "selective"):
        pairs = part(run.metrics, key).get("entropy")
        if isinstance(pairs, list):
            sound = [p for p in pairs if isinstance(p, list) and len(p) == 2]
            if points := point_pairs([p[0] for p in sound], [p[1] for p in sound]):
                return points
    return []
