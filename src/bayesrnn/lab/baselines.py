"""What `bayesrnn bench` compares with: models of torch.nn, and of other libraries' LSTM layers where installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesrnn import kernels

if TYPE_CHECKING:
    from bayesrnn.lab.bench import Options, Size

Layer = Callable[[nn.LSTM, int], nn.Module]
"""`layer(lstm, batch)`: a layer of another library with the weights of torch's."""


class Plain(nn.Module):
    """Embedding, LSTM and softmax weights of torch.nn, nothing of ours; layers of one width are one `nn.LSTM`.

    Args:
        layer: makes a layer of another library from torch's: `layer(lstm, batch)`.
    """

    def __init__(self, size: Size, dropout: float = 0.0, layer: Layer | None = None):
        super().__init__()
        first, *_, last = widths = size.layers
        self.embed, self.drop = nn.Embedding(size.words, first), nn.Dropout(dropout)
        if layer is None and not size.widths:
            rnn = [nn.LSTM(first, first, len(widths) - 1, dropout=dropout)]
        else:
            rnn = [nn.LSTM(*pair) for pair in pairwise(widths)]
        self.sizes = [(one.num_layers, one.hidden_size) for one in rnn]
        self.rnn, self.head = nn.ModuleList(rnn), nn.Linear(last, size.words)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.05, 0.05)
        if layer is not None:
            self.rnn = nn.ModuleList(layer(one, size.batch) for one in rnn)

    def zero_state(self, batch: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """That of each module."""
        shapes = [(layers, batch, units) for layers, units in self.sizes]
        return [(torch.zeros(shape, device=device), torch.zeros(shape, device=device)) for shape in shapes]

    def forward(self, x: Tensor, states: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[Any]]:
        out, after = self.embed(x), []
        for layer, state in zip(self.rnn, states, strict=True):
            out, new = layer(self.drop(out), state)
            after.append(new)
        return self.head(self.drop(out)), after


def plain_step(
    size: Size,
    options: Options,
    dropout: float = 0.0,
    layer: Layer | None = None,
    *,
    graph: bool = True,
) -> Callable[[], None]:
    """A training step in torch alone: its own clipping, its fused SGD, and a CUDA graph of all of it."""
    torch.manual_seed(0)
    device = torch.device(options.device)
    model = Plain(size, dropout, layer).to(device)
    x, y = torch.randint(size.words, (2, size.window, size.batch), device=device)
    state = model.zero_state(size.batch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=device.type == "cuda")

    def work() -> None:
        optimizer.zero_grad()
        with autocast(options.precision, device):
            logits, after = model(x, state)
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / size.batch
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        with torch.no_grad():
            for own, new in zip(_flat(state), _flat(after), strict=True):
                own.copy_(new)

    return _recorded(work) if device.type == "cuda" and graph else work


def _flat(states: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [tensor for pair in states for tensor in pair]


def autocast(precision: str, device: torch.device) -> Any:
    lower = precision == "bf16" and device.type == "cuda"
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if lower else nullcontext()


def _recorded(work: Callable[[], None]) -> Callable[[], None]:
    (graph,) = kernels.record([work], lambda: (), warm_up=work, device=torch.device("cuda"))

    def replay(kept: Callable[[], None] = work) -> None:  # the graph works on tensors that `work` alone keeps alive
        graph.replay()

    return replay


class _Haste(nn.Module):
    """The LSTM of haste (https://github.com/lmnt-com/haste), in float32."""

    def __init__(self, lstm: nn.LSTM, batch: int) -> None:
        super().__init__()
        self.rnn = import_module("haste_pytorch").LSTM(lstm.input_size, lstm.hidden_size)
        self.rnn.from_native_weights(*(p.detach() for p in lstm.parameters()))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        with torch.autocast(x.device.type, enabled=False):
            found: tuple[Tensor, Any] = self.rnn(x.float(), state)
        return found


class _FlashRNN(nn.Module):
    """The LSTM of FlashRNN (arXiv 2412.07752), step by step ("cuda"), one head; filled up to sizes that it takes."""

    def __init__(self, lstm: nn.LSTM, batch: int, dtype: str) -> None:
        super().__init__()
        units = lstm.hidden_size
        self.units, self.batch, self.wide, self.rows = units, batch, -(-units // 16) * 16, -(-batch // 8) * 8
        w_ih, w_hh, b_ih, b_hh = (p.detach().unflatten(0, (4, units)) for p in lstm.parameters())
        more = self.wide - units
        self.inputs = nn.Linear(lstm.input_size, 4 * self.wide, bias=False)
        self.inputs.weight = nn.Parameter(F.pad(w_ih, (0, 0, 0, more)).flatten(0, 1))
        self.recurrent = nn.Parameter(F.pad(w_hh, (0, more, 0, more)).unsqueeze(1))
        self.bias = nn.Parameter(F.pad(b_ih + b_hh, (0, more)).unsqueeze(1))
        package = import_module("flashrnn.flashrnn.flashrnn")
        self._run, self._config = package.flashrnn, package.FlashRNNConfig(
            head_dim=self.wide, num_heads=1, batch_size=self.rows, function="lstm", backend="cuda", dtype=dtype,
            input_shape="TBGHD", output_shape="STBHD",
        )  # fmt: skip

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Any]:
        more = (0, self.wide - self.units, 0, self.rows - self.batch)
        begin = F.pad(torch.stack(state), more).unsqueeze(3)  # (2, 1, B, 1, H)
        products = F.pad(self.inputs(x), (0, 0, 0, self.rows - self.batch)).unflatten(2, (4, 1, self.wide))
        out, last = (
            t[..., : self.batch, 0, : self.units]
            for t in self._run(products, self.recurrent, self.bias, begin, config=self._config)
        )
        return out[0], (last[0].to(x.dtype), last[1].to(x.dtype))


def _flashrnn(precision: str) -> Layer:
    dtype = "bfloat16" if precision == "bf16" else "float32"
    return lambda lstm, batch: _FlashRNN(lstm, batch, dtype)


PEERS: dict[str, Callable[[str], Layer]] = {"FlashRNN": _flashrnn, "haste": lambda precision: _Haste}
"""Rows of other libraries: a function of the precision."""
_PACKAGES = {"FlashRNN": "flashrnn", "haste": "haste_pytorch"}


def installed_peers(device: torch.device) -> list[str]:
    """Those that can be measured here: they are installed, and there is a GPU."""
    return [name for name in PEERS if device.type == "cuda" and find_spec(_PACKAGES[name]) is not None]


def layer_error(layer: Layer, size: Size, precision: str, device: torch.device) -> float:
    """The largest relative error of a layer's outputs, last state and gradients, to torch's in float32."""
    torch.manual_seed(0)
    features, units = size.layers[-2:]
    theirs = nn.LSTM(features, units).to(device)
    ours = layer(theirs, size.batch).to(device)
    x = torch.randn(size.window, size.batch, features, device=device, requires_grad=True)
    state = tuple(0.1 * torch.randn(1, size.batch, units, device=device).requires_grad_() for _ in "hc")

    def outcome(module: nn.Module) -> list[Tensor]:
        out, (h, c) = module(x, state)
        found = [out.float(), h.reshape(h.shape[-2:]).float(), c.reshape(c.shape[-2:]).float()]
        return [*found, *torch.autograd.grad(sum(t.square().sum() for t in found), [x, *state])]  # type: ignore[arg-type]

    with autocast(precision, device):
        found = outcome(ours)
    with kernels.float32_precision(False):
        wanted = outcome(theirs)
    return worst_error(found, wanted)


def worst_error(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest relative error of some tensors; infinite where one is no number."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(found, wanted, strict=True)]
    errors = [float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs]
    return max(errors) if all(map(math.isfinite, errors)) else math.inf
