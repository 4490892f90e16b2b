"""One training step on one device; on CUDA the whole of it is one CUDA graph."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

_WARM_UP = 3
TOTALS = ("steps", "loss", "nll", "kl", "sharpening", "gradient_norm")


class Step:
    """Read the next window, run the objective, clip, update, carry the state on.

    Everything a step reads or writes is a tensor with a fixed place: position in the stream, state, learning rate and
    running totals, so that the same code runs eagerly or is recorded once as a CUDA graph and replayed.

    Args:
        model: in train mode; its parameters are updated in place.
        objective: (x, y, (h, c)) to (loss, terms, (h, c)).
        stream: (L, B) tokens, on the device.
        state: shape of h and of c.
        window: steps T.
        carry_state: False: every window starts from the zero state.
        optimizer: "sgd" or "adam".
        clip: largest global norm of the gradient.
        eta_clip: the same for the rates of sharpening, ``eta``, on their own: in the first epochs their gradient is
            so long that together with the others it would leave nothing of those.
        weight_decay: w -= weight_decay * w at every step, not multiplied by the learning rate (arXiv 1512.05287).
        precision: "tf32", "fp32" or "bf16"; a CPU computes in float32 whatever is asked for.
        graph: False: eager on CUDA too.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Callable[..., tuple[Tensor, Any, tuple[Tensor, Tensor]]],
        stream: Tensor,
        *,
        state: tuple[int, int, int],
        window: int,
        carry_state: bool = True,
        optimizer: str = "sgd",
        clip: float = 5.0,
        eta_clip: float = 0.1,
        weight_decay: float = 0.0,
        precision: str = "tf32",
        graph: bool = True,
    ) -> None:
        self.model, self.objective, self.stream = model, objective, stream
        self.clip, self.eta_clip, self.weight_decay, self.carry_state = clip, eta_clip, weight_decay, carry_state
        self.window, self.batch = window, stream.shape[1]
        device = stream.device
        self.device = device
        self.on_cuda = device.type == "cuda"
        self.bf16 = precision == "bf16" and self.on_cuda
        named = dict(model.named_parameters())
        self.etas: list[Tensor] = [p for n, p in named.items() if n.startswith("eta.")]
        self.params: list[Tensor] = [p for n, p in named.items() if not n.startswith("eta.")]
        self.rows = torch.arange(window + 1, device=device)
        self.offset = torch.zeros((), dtype=torch.long, device=device)
        self.h, self.c = torch.zeros(state, device=device), torch.zeros(state, device=device)
        self.lr = torch.ones((), device=device)
        self.totals = torch.zeros(len(TOTALS), dtype=torch.float64, device=device)
        self.moments: dict[str, list[Tensor]] = {}
        if optimizer == "adam":
            both = self.params + self.etas
            self.moments = {k: [torch.zeros_like(p, requires_grad=False) for p in both] for k in ("first", "second")}
            self.moments["count"] = [torch.zeros((), device=device)]
        self.graph: Any = None
        self.reason = "not a CUDA device" if not self.on_cuda else "" if graph else "switched off"
        if self.on_cuda and graph:
            self._record()

    def __call__(self) -> None:
        """One window on."""
        if self.graph is not None:
            self.graph.replay()
        else:
            self._work()

    def start_epoch(self) -> None:
        """Back to the beginning of the streams, with a zero state and empty totals."""
        for tensor in (self.offset, self.h, self.c, self.totals):
            tensor.zero_()

    def read_totals(self) -> dict[str, float]:
        """Means over the steps since the epoch began (``steps`` is their number). Waits for the device."""
        values = dict(zip(TOTALS, self.totals.tolist(), strict=True))
        steps = max(values["steps"], 1.0)
        return {key: value if key == "steps" else value / steps for key, value in values.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on, the model aside, by name. Loading is copying into these."""
        own = {"offset": self.offset, "h": self.h, "c": self.c, "totals": self.totals}
        moments = {f"{k}.{i}": t for k, ts in self.moments.items() for i, t in enumerate(ts)}
        return {**own, **moments}

    def _work(self) -> None:
        tokens = self.stream.index_select(0, self.offset + self.rows)
        with self._precision():
            loss, terms, (h, c) = self.objective(tokens[:-1], tokens[1:], (self.h, self.c))
        both = self.params + self.etas
        found = torch.autograd.grad(loss, both, allow_unused=True)
        with torch.no_grad():
            gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(both, found, strict=True)]
            main, extra = gradients[: len(self.params)], gradients[len(self.params) :]
            main, norm = _clipped(main, self.clip)
            if extra:
                # In the papers' units g is a mean over the batch and eta B times as large: clipped and stepped there.
                extra, _ = _clipped(list(torch._foreach_div(extra, float(self.batch))), self.eta_clip)
                torch._foreach_div_(extra, float(self.batch))
            self._update(both, main + extra)
            if self.carry_state:
                self.h.copy_(h)
                self.c.copy_(c)
            self.offset.add_(self.window)
            parts = (loss, terms.nll, terms.kl, terms.sharpening, norm)
            self.totals.add_(torch.stack([torch.ones_like(self.totals[0]), *(p.detach().double() for p in parts)]))

    def _precision(self) -> AbstractContextManager[Any]:
        # Without the cache: a cast recorded outside the graph would not be replayed.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()

    def _update(self, params: list[Tensor], gradients: list[Tensor]) -> None:
        if self.moments:
            gradients = self._adam(gradients)
        torch._foreach_mul_(gradients, self.lr)
        if self.weight_decay:
            torch._foreach_add_(gradients[: len(self.params)], self.params, alpha=self.weight_decay)
        torch._foreach_sub_(params, gradients)

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
        """Warm up beside the run, record one step, and leave everything as it was."""
        kept = [t.detach().clone() for t in self._written()]
        rng, cpu_rng = torch.cuda.get_rng_state(self.device), torch.get_rng_state()
        stream: Any = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        graph: Any = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self._work()
            torch.cuda.synchronize(self.device)
            with torch.cuda.graph(graph, stream=stream):
                self._work()
            self.graph = graph
        except RuntimeError as error:
            self.reason = f"the step could not be recorded: {str(error).splitlines()[0]}"
        torch.cuda.synchronize(self.device)
        with torch.no_grad():
            for tensor, before in zip(self._written(), kept, strict=True):
                tensor.copy_(before)
        torch.cuda.set_rng_state(rng, self.device)
        torch.set_rng_state(cpu_rng)


def _clipped(gradients: list[Tensor], clip: float) -> tuple[list[Tensor], Tensor]:
    """New tensors: autograd may hand out one and the same for two parameters that are only added up."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return list(torch._foreach_mul(gradients, (clip / (norm + 1e-6)).clamp(max=1.0))), norm
