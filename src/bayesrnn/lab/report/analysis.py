"""What a report computes from a run's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs.opening import open_run

if TYPE_CHECKING:
    from torch import Tensor

    from bayesrnn.lab.tasks.base import Say


@dataclass
class Analysis:
    """What one run's weights say; empty where its model has no such thing."""

    ratios: "dict[str, Tensor]" = field(default_factory=dict)
    """Signal-to-noise of the weights, by parameter."""
    own: dict[str, Any] = field(default_factory=dict)
    """What the task computes for its own sections, see ``Task.analyse``."""
    notes: list[str] = field(default_factory=list)
    """Why something is missing."""


def analyse(folder: Path, known: Mapping[str, Any], say: "Say") -> Analysis:
    """Open the run on the CPU and compute what its task has; ``known`` are the metrics of its record."""
    found = Analysis()
    try:
        run = open_run(folder, torch.device("cpu"))
        model: Any = task_class(run.recipe.task).weights(run.model)
        if any(isinstance(part, br.BayesByBackprop) for part in model.modules()):  # a short series has no network
            found.ratios = br.signal_to_noise(model)
        found.own = task_class(run.recipe.task).analyse(run, known, say)
    except UserError as error:
        found.notes.append(str(error))
    return found
