"""One training step; on CUDA the whole step is one CUDA graph.

When several processes train one model, each computes the gradient of its own rows; the gradients are averaged, and
each process makes the same update. On CUDA that is two graphs, with the exchange between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesrnn import draws, kernels
from bayesrnn.kernels.shared import beside
from bayesrnn.lab.engine import contract
from bayesrnn.lab.engine.ranks import Ranks, Share
from bayesrnn.lab.recipes.schema import Train
from bayesrnn.posteriors.sharpening import PosteriorSharpening

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.base import Task

TOTALS = ("steps", "loss", "nll", "kl", "sharpening", "gradient_norm")
_SUMS = ("nll", "sharpening")  # sums over rows: added over ranks; the others are averaged


class Step:
    """Read the next batch, compute the objective, clip, update, and keep the state.

    Everything a step reads or writes is a tensor at a fixed address: position in the epoch, state, learning rate and
    running totals. So the same code runs eagerly, or is recorded once as a CUDA graph and replayed.

    Args:
        task: its model is attached, on the device and in train mode; parameters are updated in place.
        settings: of the optimiser. The caller sets ``lr`` and ``averaging`` for each epoch.
        eta_clip: largest global norm of the gradient of sharpening's step sizes, ``eta``. They are clipped separately:
            their gradient is so large in the first epochs that it would take over the common norm.
        graph: False: run eagerly on CUDA too.
        ranks: the processes that train together; the task is split already.
    """

    def __init__(
        self, task: Task, settings: Train, *, eta_clip: float = 0.1, graph: bool = True, ranks: Ranks | None = None
    ) -> None:  # fmt: skip
        self.task, self.model, self.settings, self.eta_clip = task, task.model, settings, eta_clip
        self.ranks = ranks or Ranks()
        device = task.device
        self.device = device
        self.on_cuda = device.type == "cuda"
        self.bf16 = settings.precision == "bf16" and self.on_cuda
        rates = {id(p) for m in self.model.modules() if isinstance(m, PosteriorSharpening) for p in m.eta.parameters()}
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.etas: list[Tensor] = [p for p in trained if id(p) in rates]
        self.params: list[Tensor] = [p for p in trained if id(p) not in rates]
        both = self.params + self.etas
        places = {id(p): k for k, p in enumerate(self.params)}
        self.masks = [(places[id(self.model.get_parameter(name))], mask) for name, mask in task.masks.items()]
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.state = task.state()
        self.lr = torch.ones((), device=device)
        self.averaging = torch.zeros((), device=device)
        self.totals = torch.zeros(len(TOTALS), dtype=torch.float64, device=device)
        self.moments: dict[str, list[Tensor]] = {}
        if settings.optimizer != "sgd":
            self.moments = {k: _zeros(both) for k in ("first", "second")}
            self.moments["count"] = [torch.zeros((), device=device)]
        elif settings.momentum:
            self.moments["velocity"] = _zeros(both)
        if settings.inverse_gamma:
            self.moments["iteration"] = [torch.zeros((), dtype=torch.float64, device=device)]
        if settings.averages:
            self.moments["average"] = _zeros(both)
            self.moments["averaged"] = [torch.zeros((), device=device)]
        # plain SGD with clipping: one kernel over all parameters on CUDA
        self.fused = self.on_cuda and not self.moments.keys() - {"average", "averaged"} and not settings.l2
        # functions of the step, not bound to it: a CUDA graph in a reference cycle would be freed at any time
        self.pieces: list[Callable[[Step], object]] = [Step._work]
        if self.ranks.several:
            self.flat = torch.zeros(sum(p.numel() for p in both), dtype=both[0].dtype, device=device)
            parts = self.flat.split([p.numel() for p in both])
            self.views = [part.view_as(p) for part, p in zip(parts, both, strict=True)]
            self.pieces = [Step._contribute, Step._exchange, Step._take]
        self.graph: Any = None
        self.reason = "not a CUDA device" if not self.on_cuda else "" if graph else "switched off"
        if settings.precision == "bf16" and not self.bf16:
            self.reason += "; in float32, since bf16 needs one"
        if self.on_cuda and graph:
            self._record()

    def __call__(self) -> None:
        """Train on the next batch."""
        for piece in self.pieces:
            piece(self)

    def start_epoch(self) -> None:
        """Return to the first batch, with a zero state and empty totals."""
        for tensor in (self.position, *self.state, self.totals):
            tensor.zero_()

    def read_totals(self) -> dict[str, float]:
        """Means per step since the epoch began, over all ranks (``steps`` is their number). Waits for the device."""
        values = dict(zip(TOTALS, self.ranks.sum(self.totals.clone()).tolist(), strict=True))
        values = {key: value if key in _SUMS else value / self.ranks.count for key, value in values.items()}
        steps = max(values["steps"], 1.0)
        return {key: value if key == "steps" else value / steps for key, value in values.items()}

    def rate(self) -> Tensor:
        """The learning rate of the next step."""
        if not self.settings.inverse_gamma:
            return self.lr
        (iteration,) = self.moments["iteration"]
        factor = (1 + self.settings.inverse_gamma * iteration) ** -self.settings.inverse_power
        return self.lr * factor.to(self.lr.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Everything besides the model that the next step depends on, by name. Loading copies into these tensors."""
        own = {"position": self.position, "totals": self.totals}
        own |= {f"state.{i}": t for i, t in enumerate(self.state)}
        own |= {f"{k}.{i}": t for k, ts in self.moments.items() for i, t in enumerate(ts)}
        return own | {f"task.{k}": t for k, t in self.task.tensors().items()}

    @property
    def has_average(self) -> bool:
        """Whether the average includes any step. Waits for the device."""
        return "averaged" in self.moments and float(self.moments["averaged"][0]) > 0

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside, the model has the averaged weights, if there are any."""
        if not self.has_average:
            yield
            return
        both = self.params + self.etas
        kept = [p.detach().clone() for p in both]
        with torch.no_grad():
            torch._foreach_copy_(both, self.moments["average"])
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(both, kept)

    @torch.no_grad()
    def restart_average(self) -> None:
        """Continue from the averaged weights, if any, and restart the average."""
        if self.has_average:
            torch._foreach_copy_(self.params + self.etas, self.moments["average"])
            self.moments["averaged"][0].zero_()

    def _work(self) -> None:
        self._apply(self._gradients())

    def _contribute(self) -> None:
        torch._foreach_copy_(self.views, self._gradients())

    def _exchange(self) -> None:
        self.ranks.average(self.flat)

    def _take(self) -> None:
        self._apply(self.views)

    def _gradients(self) -> list[Tensor]:
        """The gradients of the next batch; keeps its state and adds up its terms."""
        batch, both = self.task.batch(self.position), self.params + self.etas
        leaves = beside.leaves(both)
        with self._precision(), self._noise():
            loss, terms, after = contract.check_objective(self.task.objective(batch, self.state), self.task)
        found = torch.autograd.grad(loss, both, allow_unused=True)
        del leaves
        with torch.no_grad():
            for own, new in zip(self.state, after, strict=True):
                own.copy_(new)
            self.position.add_(1)
            parts = (loss, terms.nll, terms.kl, terms.sharpening)
            ones = torch.ones_like(self.totals[0])
            self.totals[:-1].add_(torch.stack([ones, *(p.detach().double() for p in parts)]))
            return [torch.zeros_like(p) if g is None else g for p, g in zip(both, found, strict=True)]

    @torch.no_grad()
    def _apply(self, gradients: list[Tensor]) -> None:
        main, extra = gradients[: len(self.params)], gradients[len(self.params) :]
        for k, mask in self.masks:
            main[k] = main[k] * mask
        # In the papers g is a mean over the batch, and eta B times as large: clip and step in those units.
        rows = self.task.batch_size / self.ranks.count
        if self.fused:
            step, settings = kernels.kernel("update", self.device.type), self.settings
            norm = step(self.params, main, rate=self.lr, clip=settings.clip, decay=settings.weight_decay)
            if extra:
                step(self.etas, extra, rate=self.lr / rows**2, clip=self.eta_clip * rows)
            if "average" in self.moments:
                self._average(self.params + self.etas)
        else:
            main, norm = _clip(main, self.settings.clip)
            if extra:
                extra, _ = _clip(list(torch._foreach_div(extra, rows)), self.eta_clip)
                torch._foreach_div_(extra, rows)
            self._update(self.params + self.etas, main + extra)
        for k, mask in self.masks:  # moments of earlier gradients may have moved them
            self.params[k].mul_(mask)
        self.totals[-1].add_(norm.double())

    def _noise(self) -> AbstractContextManager[Any]:
        shared = self.ranks.several and self.settings.shared_draw
        return draws.bind(self.model, Share(self.ranks)) if shared else nullcontext()

    def _precision(self) -> AbstractContextManager[Any]:
        # No cache: a cast recorded outside the graph would not be replayed.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()

    def _update(self, params: list[Tensor], gradients: list[Tensor]) -> None:
        settings = self.settings
        decoupled = settings.optimizer == "adamw"
        if settings.l2 and not decoupled:
            torch._foreach_add_(gradients[: len(self.params)], self.params, alpha=settings.l2)
        if "first" in self.moments:
            gradients = self._adam(gradients)
            if settings.l2 and decoupled:
                torch._foreach_add_(gradients[: len(self.params)], self.params, alpha=settings.l2)
        elif "velocity" in self.moments:
            velocity = self.moments["velocity"]
            torch._foreach_mul_(velocity, settings.momentum)
            torch._foreach_add_(velocity, gradients)
            torch._foreach_copy_(gradients, velocity)
        torch._foreach_mul_(gradients, self.rate())
        if settings.weight_decay:
            torch._foreach_add_(gradients[: len(self.params)], self.params, alpha=settings.weight_decay)
        torch._foreach_sub_(params, gradients)
        if settings.inverse_gamma:
            self.moments["iteration"][0].add_(1)
        if "average" in self.moments:
            self._average(params)

    def _average(self, params: list[Tensor]) -> None:
        """The n-th averaged step has weight 1 / n, or 1 - decay if that is larger; 0 before averaging begins."""
        (count,) = self.moments["averaged"]
        count.add_(self.averaging)
        share = self.averaging / count.clamp_min(1.0)
        if self.settings.average_decay is not None:
            share = torch.maximum(share, self.averaging * (1 - self.settings.average_decay))
        for average, weight in zip(self.moments["average"], params, strict=True):
            average.lerp_(weight, share)

    def _adam(self, gradients: list[Tensor], beta1: float = 0.9, beta2: float = 0.999) -> list[Tensor]:
        (count,) = self.moments["count"]
        count.add_(1)
        first, second = self.moments["first"], self.moments["second"]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        scale = torch._foreach_sqrt(second)
        torch._foreach_div_(scale, (1 - beta2**count).sqrt())
        torch._foreach_add_(scale, 1e-8)
        step = torch._foreach_div(first, scale)
        torch._foreach_div_(step, 1 - beta1**count)
        return list(step)

    def _written(self) -> Iterator[Tensor]:
        yield from self.model.parameters()
        yield from self.model.buffers()
        yield from self.tensors().values()

    def _record(self) -> None:
        """Record one step, the exchange between ranks left out; without a recording it runs eagerly."""
        pieces = [piece for piece in self.pieces if piece is not Step._exchange]
        try:
            found = kernels.record(
                [partial(piece, self) for piece in pieces], self._written, warm_up=self._warm_up, device=self.device
            )
        except RuntimeError as error:
            self.reason = f"the step could not be recorded: {str(error).splitlines()[0]}"
            return
        graphs = dict(zip(pieces, found, strict=True))
        self.pieces = [partial(_replay, graphs[piece]) if piece in graphs else piece for piece in self.pieces]
        self.graph = found

    def _warm_up(self) -> None:
        self()
        self.position.zero_()  # an epoch may have fewer steps than a warm-up


def _replay(graph: torch.cuda.CUDAGraph, step: Step) -> None:
    graph.replay()


def _zeros(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.zeros_like(t, requires_grad=False) for t in tensors]


def _clip(gradients: list[Tensor], clip: float | None) -> tuple[list[Tensor], Tensor]:
    """New tensors: autograd may return one tensor for two parameters that are only added up."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    factor = torch.ones_like(norm) if clip is None else (clip / (norm + 1e-6)).clamp(max=1.0)
    return list(torch._foreach_mul(gradients, factor)), norm
