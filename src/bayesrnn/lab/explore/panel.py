"""A panel: what a task shows on the page of ``bayesrnn explore``, and the questions that the page may ask.

A task declares ``panel = "package.panel:Class"``. The class lies in the task's folder, beside its JavaScript::

    class Words(Request):
        text: str = Field(max_length=10_000)

    class LanguagePanel(Panel):
        title = "Words"

        def handlers(self):
            return {"words": Handler(Words, self.words)}

        def words(self, asked: Words) -> Iterator[Part]:
            yield {"progress": 0.5}
            yield {"words": [...]}

``panel.js`` exports ``mount(root, page)``, which fills the element ``root``. ``await page.ask(run, "words", {text},
part => ...)`` calls the handler of one of ``page.runs`` and gets its parts as they come. A new question cancels the
previous one of the same name. ``/files/kit.js`` has elements, charts and sliders.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from bayesrnn.errors import UserError
from bayesrnn.uncertainty import risk_coverage

if TYPE_CHECKING:
    from bayesrnn.lab.registry import Task
    from bayesrnn.lab.runs.opening import OpenedRun

Part = dict[str, Any]
"""One part of an answer, sent as a line of JSON. ``progress``, from 0 to 1, is shown by the page itself."""
MOST_DRAWS = 128
_RISKS = 200  # points of a risk curve
Draws = Annotated[int, Field(ge=0, le=MOST_DRAWS)]


class Request(BaseModel):
    """A question: its fields state their limits, since anything may ask. A handler without fields takes this class."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


@dataclass(frozen=True)
class Handler:
    """A question that the page may ask.

    ``answer`` gives parts. It runs in a thread of its own, one question at a time. It is closed between two parts if
    the page no longer waits, so it should yield several times a second. ``background``: others may be answered between
    two of its parts, which therefore must not lie inside a draw or a changed model.
    """

    request: type[Request]
    answer: Callable[[Any], Iterator[Part]]
    background: bool = False


@dataclass(frozen=True)
class Options:
    """What the command was given: where the data is now; None: where the run says."""

    data: str | None = None


class Panel:
    """The panel of one run. Nothing here writes to disk."""

    title: ClassVar[str]
    """The heading on the page."""
    score_label: ClassVar[str] = ""
    """What :meth:`score` measures; empty: the task cannot be scored quickly."""

    def __init__(self, run: "OpenedRun", options: Options) -> None:
        self.run, self.options = run, options

    def about(self) -> dict[str, Any]:
        """What the page needs before the first question."""
        return {}

    def handlers(self) -> Mapping[str, Handler]:
        """The questions by name."""
        return {}

    def warm(self) -> Iterator[None]:
        """Prepare the first answers, in short steps, while nobody asks."""
        yield from ()

    def score(self, model: nn.Module) -> float:
        """How good a changed copy of the run's model is, on a small part of the validation data; lower is better."""
        raise NotImplementedError

    @classmethod
    def files(cls) -> dict[str, Path]:
        """``panel.js``, and ``panel.css`` if there is one, beside the class."""
        folder = Path(inspect.getfile(cls)).parent
        return {path.name: path for path in (folder / "panel.js", folder / "panel.css") if path.is_file()}

    @property
    def device(self) -> torch.device:
        return next(self.run.model.parameters()).device

    @cached_property
    def task(self) -> "Task":
        """The run's task with its data, which is read at the first use."""
        return self.run.task(self.options.data, self.device)

    @property
    def why_no_data(self) -> str:
        """Why :attr:`task`, which :meth:`score` needs, cannot be had, in one line; empty: it can."""
        try:
            _ = self.task
        except UserError as error:
            return str(error)
        return ""


def risk_curve(uncertainty: Tensor, losses: Tensor, *, root: bool = False) -> Part:
    """For ``riskChooser`` of the page: threshold of the uncertainty, share of predictions below it, and their risk.

    Args:
        uncertainty, losses: (N,), of predictions on validation data.
        root: the risk is the root of the mean loss, as for squared errors.
    """
    found = risk_coverage(uncertainty, losses)
    step = -(-len(uncertainty) // _RISKS)
    rows = list(range(len(uncertainty) - 1, -1, -step))[::-1]
    risk = found.risk.sqrt() if root else found.risk
    columns = {"threshold": uncertainty.sort().values, "coverage": found.coverage, "risk": risk}
    return {"count": len(uncertainty), **{key: column[rows].tolist() for key, column in columns.items()}}
