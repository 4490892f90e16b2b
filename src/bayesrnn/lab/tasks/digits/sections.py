"""Sections of a report about digits."""

from collections.abc import Mapping, Sequence

from bayesrnn.lab.report import html
from bayesrnn.lab.report.analysis import Analysis
from bayesrnn.lab.report.parts import Page
from bayesrnn.lab.report.uncertainty import points
from bayesrnn.lab.runs.collection import SeedGroup


def unfamiliar(page: Page, groups: Sequence[SeedGroup], analyses: Mapping[str, Analysis]) -> None:
    """Whether the entropy of predictions tells inputs of another kind from the test data."""
    found: dict[str, dict[str, float]] = {}
    for group in groups:
        for key, end in (("unfamiliar", ""), ("unfamiliar_mc", ", averaged over draws")):
            for point in points(group.first.metrics.get(key), "entropy_auroc", "entropy_auroc"):
                found.setdefault(str(point.get("kind", "?"))[:60] + end, {})[group.label] = point["entropy_auroc"]
    if not found:
        return
    labels = [group.label for group in groups]
    rows = [
        [kind, *(f"{own[label]:.1%}" if label in own else "–" for label in labels)]
        for kind, own in sorted(found.items())
    ]
    page.add(
        "unfamiliar",
        "Inputs unlike the training data",
        html.paragraphs(
            "How often such an input is less certain than one of the test data (AUROC of the prediction's entropy): "
            "100% tells them all apart, 50% is chance."
        ),
        html.wide(html.table(["kind of input", *labels], rows)),
    )
