"""Accept or reject at a chosen risk: what uncertainty a prediction may have, measured on validation data."""

from torch import Tensor

from bayesrnn.lab.explore.panel import Part
from bayesrnn.uncertainty import risk_coverage

_POINTS = 200


def risk_curve(uncertainty: Tensor, losses: Tensor, *, root: bool = False) -> Part:
    """For ``riskChooser`` of the page: threshold of the uncertainty, share of predictions below it, and their risk.

    Args:
        uncertainty, losses: (N,), of predictions on validation data.
        root: the risk is the root of the mean loss, as for squared errors.
    """
    found = risk_coverage(uncertainty, losses)
    step = -(-len(uncertainty) // _POINTS)
    rows = list(range(len(uncertainty) - 1, -1, -step))[::-1]
    risk = found.risk.sqrt() if root else found.risk
    columns = {"threshold": uncertainty.sort().values, "coverage": found.coverage, "risk": risk}
    return {"count": len(uncertainty), **{key: column[rows].tolist() for key, column in columns.items()}}
