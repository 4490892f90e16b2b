"""The panel of every run: the posterior of its weights, and what pruning removes and costs."""

import base64
import copy
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.explore.panel import Handler, Options, Panel, Part, Request
from bayesrnn.lab.modules import has_posterior
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.report.weights import gate_names, kept_of, log_histogram, matrices_of
from bayesrnn.lab.runs.opening import OpenedRun

_SIDE = 64  # blocks of a picture, each way
_MATRICES = 40
Share = Annotated[float, Field(ge=0.0, le=0.999)]


class Picture(Request):
    """One matrix: |mean| / sigma (or |weight|) of its blocks, or the share of each block that pruning leaves."""

    matrix: int = Field(ge=0, lt=_MATRICES)
    kind: Literal["size", "left"] = "size"
    share: Share = 0.0


class Prune(Request):
    """Remove this share of the weights."""

    share: Share


class WeightsPanel(Panel):
    """Signal-to-noise of the weights where the run has a posterior, and their sizes elsewhere.

    ``own`` is the panel of the run's task, which may know how to score a pruned model.
    """

    title = "Weights"

    def __init__(self, run: OpenedRun, options: Options, own: Panel | None) -> None:
        super().__init__(run, options)
        self.own = own
        self.model: Any = task_class(run.recipe.task).weights(run.model)
        self.costs: dict[float, float] = {}

    @classmethod
    def files(cls) -> dict[str, Path]:
        script = Path(__file__).parent / "static/weights.js"
        return {script.name: script}

    @property
    def posterior(self) -> bool:
        return has_posterior(self.model)

    def about(self) -> dict[str, Any]:
        return {"posterior": self.posterior, "score": self.own.score_label if self.own else ""}

    def handlers(self) -> Mapping[str, Handler]:
        questions = {"overview": Handler(Request, self.overview), "picture": Handler(Picture, self.picture)}
        return {**questions, "prune": Handler(Prune, self.prune, background=True)} if self.posterior else questions

    @cached_property
    def sizes(self) -> dict[str, Tensor]:
        """|mean| / sigma by parameter; without a posterior |weight|."""
        if self.posterior:
            return {name: ratio.cpu() for name, ratio in br.signal_to_noise(self.model).items()}
        return {name: weight.detach().abs().float().cpu() for name, weight in self.model.named_parameters()}

    @cached_property
    def matrices(self) -> dict[str, Tensor]:
        return dict(list(matrices_of(self.sizes).items())[:_MATRICES])

    def overview(self, asked: Request) -> Iterator[Part]:
        edges, shares, median = log_histogram(self.sizes)
        yield {
            "total": sum(each.numel() for each in self.sizes.values()),
            "edges": edges,
            "shares": shares,
            "median": 10**median,
            "matrices": [
                {"name": name, "shape": list(each.shape), "gates": gate_names(self._settings, name)}
                for name, each in self.matrices.items()
            ],
        }

    @property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.run.config["settings"]
        return settings

    def picture(self, asked: Picture) -> Iterator[Part]:
        names = list(self.matrices)
        if asked.matrix >= len(names):
            raise UserError("There is no such matrix.")
        name = names[asked.matrix]
        if asked.kind == "left":
            shown = kept_of(self.sizes, asked.share)[name].float()
        else:
            logs = self.matrices[name].clamp_min(1e-12).log10()
            low, high = torch.quantile(logs.flatten()[:: max(1, logs.numel() // 100_000)], torch.tensor([0.01, 0.99]))
            shown = ((logs - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)
        gates = gate_names(self._settings, name) or ("",)
        parts = shown.chunk(len(gates)) if len(shown) % len(gates) == 0 else (shown,)
        yield {"name": name, "gates": [_blocks(part, gate) for part, gate in zip(parts, gates, strict=False)]}

    def prune(self, asked: Prune) -> Iterator[Part]:
        """What is removed, at once; then what it costs, if the task can say so quickly."""
        kept = kept_of(self.sizes, asked.share)
        removed = {name: each.numel() - int(each.sum()) for name, each in kept.items()}
        yield {
            "removed": sum(removed.values()),
            "tensors": [{"name": n, "removed": r, "total": kept[n].numel()} for n, r in removed.items()],
        }
        if self.own is None or not self.own.score_label:
            return
        yield {"progress": 0.1}
        if self.own.why_no_data:
            yield {"unscored": self.own.why_no_data}
            return
        before = self._cost(self.own, 0.0)
        yield {"progress": 0.5}
        yield {"before": before, "after": self._cost(self.own, asked.share), "label": self.own.score_label}

    def _cost(self, panel: Panel, share: float) -> float:
        share = round(share, 3)
        if share not in self.costs:
            smaller = copy.deepcopy(self.model)
            br.prune(smaller, share)
            self.costs[share] = panel.score(smaller)
        return self.costs[share]


def _blocks(matrix: Tensor, gate: str) -> Part:
    """Averages over blocks, as bytes from 0 to 255, row by row."""
    rows, columns = (min(_SIDE, size) for size in matrix.shape)
    means = torch.nn.functional.adaptive_avg_pool2d(matrix[None], (rows, columns))[0]
    data = (255 * means).round().to(torch.uint8).numpy().tobytes()
    return {"gate": gate, "rows": rows, "columns": columns, "data": base64.b64encode(data).decode("ascii")}
