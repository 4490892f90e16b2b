"""Draws: one setting of all random weights of a model, held for a whole sequence.

Every random layer asks `source(module)` where its noise comes from:

- inside `draw(model)`: from the held draw, the same noise on every call;
- inside `mean(model)`: from nowhere (`None`): the posterior mean is used;
- otherwise: fresh noise from torch's global generator when `module.training`, the posterior mean when not.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral, Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesrnn.compilation import uncompiled

_SLOT = "_bayesrnn_source"
_open_blocks = 0
_any_open = False  # read by compiled code, which goes another way as soon as it changes
_lock = threading.Lock()


class Unfoldable(Exception):
    """A layer's draws cannot be folded into the batch; the caller runs draw after draw instead."""


@cache
def _in_one_launch(kind: str) -> Callable[..., Tensor] | None:
    """What makes the masks of several draws at once on this kind of device, if anything does."""
    if kind != "cuda":
        return None
    try:
        from bayesrnn.kernels.gpu.masks import masks
    except ImportError:  # no Triton
        return None
    return masks


@dataclass(frozen=True)
class Noise:
    """Multiplicative noise of mean 1: Bernoulli(1-p)/(1-p), or N(1, p/(1-p)), which has the same variance."""

    p: float
    kind: str = "bernoulli"

    def sample(self, shape: Sequence[int], like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        out = torch.empty(tuple(shape), device=like.device, dtype=torch.float32)  # same numbers in any dtype
        self._fill(out, generator)
        return self._scale(out).to(like.dtype)

    def seeded(self, seeds: Sequence[int], shape: Sequence[int], device: torch.device) -> Tensor:
        """(draws, *shape) of float32, each draw from its seed: on a GPU all in one launch, if Triton is there."""
        masks = _in_one_launch(device.type)
        if masks is not None and self.p < 1:
            return masks(seeds, shape, self.p, gaussian=self.kind == "gaussian", device=device)
        out = torch.empty((len(seeds), *shape), device=device, dtype=torch.float32)
        generator = torch.Generator(device)
        for seed, part in zip(seeds, out.unbind(), strict=True):
            self._fill(part, generator.manual_seed(seed))
        return self._scale(out)

    def _fill(self, out: Tensor, generator: torch.Generator | None) -> None:
        if self.p == 1:
            out.zero_()  # torch's own dropout layers allow it
        elif self.kind == "bernoulli":
            out.bernoulli_(1 - self.p, generator=generator)
        else:
            out.normal_(1.0, (self.p / (1 - self.p)) ** 0.5, generator=generator)

    def _scale(self, out: Tensor) -> Tensor:
        return out.div_(1 - self.p) if self.kind == "bernoulli" and self.p < 1 else out


class Source(Protocol):
    """Where a random layer takes its noise from."""

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        """Multipliers held for the sequence: `(rows, *shape)`, or just `shape` where one set serves the batch."""
        ...

    def steps(self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, batch_dim: int | None) -> Tensor:
        """Multipliers that are new on every call (ordinary dropout), of the given shape."""
        ...

    def weights(self, key: str, make: Callable[[torch.Generator | None], Any], device: torch.device) -> Any:
        """Noise of whole weights, made once per draw by `make(generator)`."""
        ...


class Fresh:
    """New noise on every call, from torch's global generator."""

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        return noise.sample(shape if shared else (rows, *shape), like)

    def steps(self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, batch_dim: int | None) -> Tensor:
        return noise.sample(shape, like)

    def weights(self, key: str, make: Callable[[torch.Generator | None], Any], device: torch.device) -> Any:
        return make(None)


FRESH = Fresh()


@contextmanager
def _noise_to_keep() -> Iterator[None]:
    """Noise made here serves later calls of any kind, also where this one is in `torch.inference_mode`."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Draw:
    """One draw of all random weights. Made by `bayesrnn.draw`; the same `seed` gives the same draw again."""

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and not isinstance(seed, Integral):
            raise ValueError(f"seed must be a whole number, or None for a new draw, got {seed!r}")
        self.seed = int(torch.randint(2**62, ()).item()) if seed is None else int(seed)
        self._held: dict[str, Any] = {}

    def number(self, key: str) -> int:
        """The seed of the noise of this name: neither call order nor other layers matter."""
        digest = hashlib.blake2b(f"{self.seed}/{key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _generator(self, key: str, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(self.number(key))

    def stream(self, key: str, device: torch.device) -> torch.Generator:
        """A generator that goes on from call to call."""
        generator: torch.Generator = self._held.setdefault(key, None) or self._generator(key, device)
        self._held[key] = generator
        return generator

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        size = tuple(shape) if shared else (rows, *shape)
        held = self._held.get(key)
        if held is None:
            with _noise_to_keep():
                if _in_one_launch(like.device.type) is not None:
                    held = noise.seeded([self.number(key)], size, like.device)[0]
                else:
                    plain = like.new_empty(0, dtype=torch.float32)
                    held = noise.sample(size, plain, self._generator(key, like.device))
        else:
            _check_size(held.shape, size, len(shape))
        self._held[key] = held.to(like.device)  # kept in float32: a move to a smaller dtype and back loses nothing
        return self._held[key].to(like.dtype)

    def steps(self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, batch_dim: int | None) -> Tensor:
        first = batch_dim or 0
        size = (*shape[first : first + 1], *shape[:first], *shape[first + 1 :])
        if _in_one_launch(like.device.type) is not None:
            made = _next_steps([self], self._held, key, noise, size, like)[0]
        else:
            made = noise.sample(size, like, self.stream(key, like.device))
        return made.movedim(0, first) if first else made

    def weights(self, key: str, make: Callable[[torch.Generator | None], Any], device: torch.device) -> Any:
        if key not in self._held:
            with _noise_to_keep():
                self._held[key] = make(self._generator(key, device))
        return self._held[key]


def _next_steps(
    draws: Sequence[Draw], kept: dict[str, Any], key: str, noise: Noise, size: Sequence[int], like: Tensor
) -> Tensor:
    """(draws, *size), new at every call: the number of the call is part of the name that noise is seeded by."""
    calls = kept[key] = kept.get(key, 0) + 1
    return noise.seeded([draw.number(f"{key}/{calls}") for draw in draws], size, like.device).to(like.dtype)


def _check_size(held: Sequence[int], size: Sequence[int], dims: int) -> None:
    """That held noise is of the wanted size, of which the last `dims` are a unit's shape."""
    if len(size) > dims and held[0] != size[0]:
        raise ValueError(
            f"this draw was made for a batch of {held[0]} but the input is a batch of {size[0]}: "
            "inside one br.draw every call takes the same sequences; start a new draw for another batch"
        )
    if tuple(held) != tuple(size):
        raise ValueError(
            f"this draw has noise for units of shape {tuple(held[len(size) - dims :])} but the input "
            f"has {tuple(size[len(size) - dims :])}: use one layer for each size, or a new draw"
        )


class Stacked:
    """Several draws side by side in one folded batch: rows `s*B .. (s+1)*B` belong to draw `s`."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        self.draws = list(draws)
        self._held: dict[str, Any] = {}

    def _each(self, key: str, rows: int) -> int:
        each, rest = divmod(rows, len(self.draws))
        if rest:
            raise Unfoldable(f"{key} sees {rows} rows for {len(self.draws)} draws")
        return each

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        each = self._each(key, rows)
        size = tuple(shape) if shared else (each, *shape)
        held = self._held.get(key)
        if held is None:
            with _noise_to_keep():
                held = noise.seeded([draw.number(key) for draw in self.draws], size, like.device)
            self._held[key] = held
        else:
            _check_size(held.shape[1:], size, len(shape))
        if shared:
            held = held.unsqueeze(1).expand(len(self.draws), each, *shape)
        made: Tensor = held.reshape(rows, *shape)
        return made.to(like.dtype)

    def steps(self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, batch_dim: int | None) -> Tensor:
        if batch_dim is None:
            raise Unfoldable(f"{key} has no batch axis to fold draws into")
        each = self._each(key, shape[batch_dim])
        if _in_one_launch(like.device.type) is not None:
            rest = (*shape[:batch_dim], *shape[batch_dim + 1 :])
            made = _next_steps(self.draws, self._held, key, noise, (each, *rest), like)
            return made.reshape(-1, *rest).movedim(0, batch_dim)
        size = (*shape[:batch_dim], each, *shape[batch_dim + 1 :])
        return torch.cat([d.steps(key, noise, size, like, batch_dim=batch_dim) for d in self.draws], dim=batch_dim)

    def weights(self, key: str, make: Callable[[torch.Generator | None], Any], device: torch.device) -> Any:
        raise Unfoldable(f"{key} draws whole weights")


class Bound:
    """A source seen from one module of the model: the module's name becomes part of every key.

    It is `live` until its block ends; a copy of the module made inside the block shares the draw until then.
    """

    def __init__(self, source: Source | None, name: str, outer: Bound | None = None, *, live: bool = True) -> None:
        self.source, self.name, self.outer, self.live = source, name, outer, live

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Bound, None, self.name, live=False), ()  # a saved module is outside the block

    @uncompiled
    def units(self, key: str, *args: Any, **kwargs: Any) -> Tensor:
        assert self.source is not None
        return self.source.units(f"{self.name}.{key}", *args, **kwargs)

    @uncompiled
    def steps(self, key: str, *args: Any, **kwargs: Any) -> Tensor:
        assert self.source is not None
        return self.source.steps(f"{self.name}.{key}", *args, **kwargs)

    @uncompiled
    def weights(self, key: str, *args: Any) -> Any:
        assert self.source is not None
        return self.source.weights(f"{self.name}.{key}", *args)


def source(module: nn.Module) -> Source | None:
    """Where `module` takes its noise from now; None: it uses the posterior mean."""
    if not _any_open:
        return FRESH if module.training else None
    return _source_in_a_block(module)


@uncompiled
def _source_in_a_block(module: nn.Module) -> Source | None:
    bound: Bound | None = module.__dict__.get(_SLOT)
    while bound is not None and not bound.live:
        bound = bound.outer
    if bound is not None:
        return bound if bound.source is not None else None
    return FRESH if module.training else None


@contextmanager
def bind(model: nn.Module, to: Source | None) -> Iterator[None]:
    """Bind every module of `model` to a source (None: the mean) for the length of a `with` block."""
    changed: list[tuple[nn.Module, Bound]] = []
    _count_blocks(1)
    try:
        for name, module in model.named_modules():
            bound = Bound(to, name_before_compiling(name), module.__dict__.get(_SLOT))
            changed.append((module, bound))
            module.__dict__[_SLOT] = bound
        yield
    finally:
        for module, bound in changed:
            bound.live = False
            module.__dict__.pop(_SLOT, None)
            if bound.outer is not None:
                module.__dict__[_SLOT] = bound.outer
        _count_blocks(-1)


def name_before_compiling(name: str) -> str:
    """The module's name without the part that `torch.compile` puts in, so that a seed gives the same draw."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _count_blocks(change: int) -> None:
    global _open_blocks, _any_open
    with _lock:
        _open_blocks += change
        _any_open = _open_blocks > 0


@contextmanager
def draw(model: nn.Module, seed: int | None = None) -> Iterator[Draw]:
    """Hold one draw of the model's weights over every call inside the block, in train and in eval mode.

    Ordinary `torch.nn.Dropout` layers have no weights to hold; inside the block they are on, and their noise
    comes from the draw's seed, new at every call.

    Args:
        model: any module; its random layers and posteriors, however deep, share the draw.
        seed: the same seed gives the same draw again, whatever else was called in between. None: a new one,
            taken from torch's global generator (so `torch.manual_seed` still rules).

    Example::

        with br.draw(model, seed=1):
            a, state = model(first_window)
            b, state = model(second_window, state)   # the same weights
    """
    held = Draw(seed)
    with using(model, held):
        yield held


@contextmanager
def using(model: nn.Module, held: Draw | None) -> Iterator[None]:
    """As `draw`, with a draw made before (so that several can take turns); None: as `mean`."""
    from bayesrnn.draws.torch_noise import seeded_torch_noise

    with ExitStack() as stack:
        if held is None:
            stack.enter_context(mean(model))
        else:
            stack.enter_context(bind(model, held))
            stack.enter_context(seeded_torch_noise(model, held))
        yield


@contextmanager
def mean(model: nn.Module) -> Iterator[None]:
    """Use the posterior mean for every call inside the block, also in train mode."""
    from bayesrnn.draws.torch_noise import no_torch_noise

    with bind(model, None), no_torch_noise(model):
        yield


def mix(seed: int, k: int) -> int:
    """The seed of the k-th of several draws: distinct for distinct (seed, k), so neighbouring seeds share no draw."""
    return (seed * 0x9E3779B97F4A7C15 + k * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % (1 << 62)


def is_number(value: Any) -> bool:
    """A real number of Python or numpy; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """A whole number of Python or numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_probability(name: str, p: float) -> float:
    if not is_number(p) or not 0 <= p < 1:
        raise ValueError(f"{name} must be a number in [0, 1), got {p!r}: it is the probability of dropping")
    return float(p)


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
