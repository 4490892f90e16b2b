"""Sources of noise: fresh noise, one held draw, several draws in one batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from bayesrnn.checks import check_seed
from bayesrnn.draws.noise import Distribution, Noise

Make = Callable[[torch.Generator | None], Any]


class Unfoldable(Exception):
    """The noise of a layer cannot be made for several draws at once; the caller runs draw after draw instead."""


class Source(Protocol):
    """Where a random layer takes its noise from."""

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        """Multipliers held for the sequence: `(rows, *shape)`, or `shape` where one set serves the whole batch."""
        ...

    def steps(
        self, key: str, noise: Distribution, shape: Sequence[int], like: Tensor, *, batch_dim: int | None
    ) -> Tensor:
        """Noise that is new on every call (ordinary dropout), of this shape. `batch_dim` None: no batch axis."""
        ...

    def weights(self, key: str, make: Make, device: torch.device) -> Any:
        """Noise of whole weights, made once per draw by `make(generator)`."""
        ...


class Fresh:
    """New noise on every call, from torch's global generator."""

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        return noise.sample(shape if shared else (rows, *shape), like)

    def steps(
        self, key: str, noise: Distribution, shape: Sequence[int], like: Tensor, *, batch_dim: int | None
    ) -> Tensor:
        return noise.sample(shape, like)

    def weights(self, key: str, make: Make, device: torch.device) -> Any:
        return make(None)


FRESH = Fresh()


class HeldNoise(Fresh):
    """One draw from torch's global generator, which a CUDA graph can record; held as long as this object lives."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._held:
            self._held[key] = make()
        return self._held[key]

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        held: Tensor = self._once(key, lambda: noise.sample(shape if shared else (rows, *shape), like))
        return held

    def weights(self, key: str, make: Make, device: torch.device) -> Any:
        return self._once(key, lambda: make(None))


def _kept(make: Callable[[], Any]) -> Any:
    """Noise that serves later calls of any kind: real tensors, without gradients, made outside tracers and vmap."""
    if torch.jit.is_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot record a held draw: trace br.to_torch(model), or the model inside br.mean(model)"
        )
    around: list[AbstractContextManager[Any]] = []
    if torch._C._functorch.peek_interpreter_stack() is not None:
        around.append(torch._C._DisableFuncTorch())
    if torch._C._len_torch_function_stack() > 0:
        around.append(torch._C.DisableTorchFunction())
    if torch.is_inference_mode_enabled():
        around.append(torch.inference_mode(False))
    if torch.is_grad_enabled():
        around.append(torch.no_grad())
    if _traced():
        around.append(_disable_current_modes())
    with ExitStack() as stack:
        for one in around:
            stack.enter_context(one)
        return make()


def _traced() -> bool:
    """Whether `make_fx` records operations on real tensors; among fake tensors noise is fake too."""
    if torch._C._len_torch_dispatch_stack() == 0:
        return False
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None


class Draw:
    """One draw of all random weights. Made by `br.draw`; the same `seed` gives the same draw again.

    Noise is seeded by the draw's seed and the name of the module: neither the order of the calls nor other layers
    change it.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed_or_new(seed)
        self._held: dict[str, Any] = {}

    def number(self, key: str) -> int:
        """The seed of the noise of this name."""
        digest = hashlib.blake2b(f"{self.seed}/{key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def generator(self, key: str, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(self.number(key))

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        size = tuple(shape) if shared else (rows, *shape)
        held = self._held.get(key)
        if held is None:
            held = _kept(lambda: noise.seeded([self.number(key)], size, like.device)[0])
        else:
            _check_size(held.shape, size, len(shape))
        self._held[key] = held.to(like.device)  # kept in float32: a move to a smaller dtype and back loses nothing
        return self._held[key].to(like.dtype)

    def steps(
        self, key: str, noise: Distribution, shape: Sequence[int], like: Tensor, *, batch_dim: int | None
    ) -> Tensor:
        made: Tensor = _kept(lambda: _next_steps([self], self._held, key, noise, shape, like)[0])
        return made

    def weights(self, key: str, make: Make, device: torch.device) -> Any:
        if key not in self._held:
            self._held[key] = _kept(lambda: make(self.generator(key, device)))
        return self._held[key]


def _next_steps(
    draws: Sequence[Draw], kept: dict[str, Any], key: str, noise: Distribution, size: Sequence[int], like: Tensor
) -> Tensor:
    """(draws, *size), new at every call: the number of the call is part of the name that noise is seeded by."""
    calls = kept[key] = kept.get(key, 0) + 1
    return noise.seeded([draw.number(f"{key}/{calls}") for draw in draws], size, like.device).to(like.dtype)


def _check_size(held: Sequence[int], size: Sequence[int], dims: int) -> None:
    """Check that held noise has the wanted size; the last `dims` axes are the shape of a unit."""
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
    """Several draws side by side in one folded batch: rows `s*B .. (s+1)*B` belong to draw `s`.

    Args:
        draws: one `Draw` per part of the batch.
        rows: size of the folded batch; None: taken from each call.
        batch_dim: axis of the model's input that holds the batch.
    """

    def __init__(self, draws: Sequence[Draw], *, rows: int | None = None, batch_dim: int = 0) -> None:
        self.draws = list(draws)
        self.rows, self.batch_dim = rows, batch_dim
        self._held: dict[str, Any] = {}

    def _each(self, key: str, rows: int) -> int:
        each, rest = divmod(rows, len(self.draws))
        if rest:
            raise Unfoldable(f"{key} sees {rows} rows for {len(self.draws)} draws")
        return each

    def batch_axis(self, key: str, shape: Sequence[int]) -> int:
        """The batch axis of a tensor inside the model: that of the model's input, else the first or the second."""
        for axis in (self.batch_dim, 0, 1):
            if axis < len(shape) and shape[axis] == self.rows:
                return axis
        raise Unfoldable(f"{key} has no batch axis of {self.rows} rows")

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        each = self._each(key, rows)
        size = tuple(shape) if shared else (each, *shape)
        held = self._held.get(key)
        if held is None:
            held = _kept(lambda: noise.seeded([draw.number(key) for draw in self.draws], size, like.device))
            self._held[key] = held
        else:
            _check_size(held.shape[1:], size, len(shape))
        if shared:
            held = held.unsqueeze(1).expand(len(self.draws), each, *shape)
        made: Tensor = held.reshape(rows, *shape)
        return made.to(like.dtype)

    def steps(
        self, key: str, noise: Distribution, shape: Sequence[int], like: Tensor, *, batch_dim: int | None
    ) -> Tensor:
        if batch_dim is None:
            raise Unfoldable(f"{key} has no batch axis to fold draws into")
        each = self._each(key, shape[batch_dim])
        size = (*shape[:batch_dim], each, *shape[batch_dim + 1 :])
        made: Tensor = _kept(lambda: _next_steps(self.draws, self._held, key, noise, size, like))
        return made.movedim(0, batch_dim).flatten(batch_dim, batch_dim + 1)

    def weights(self, key: str, make: Make, device: torch.device) -> Any:
        raise Unfoldable(f"{key} draws whole weights")


class NoNoise:
    """A source for passes without noise: any request raises an error."""

    def units(self, key: str, *args: Any, **kwargs: Any) -> NoReturn:
        raise Unfoldable(f"{key} has noise of its own")

    steps = weights = units


def seed_or_new(seed: Any) -> int:
    """The seed, checked; for None a new one from torch's generator of the CPU, whatever the default device is."""
    given = seed if type(seed) is int else check_seed(seed)
    return int(torch.randint(2**62, (), device="cpu").item()) if given is None else given


def mix(seed: int, k: int) -> int:
    """The seed of the k-th of several draws: distinct for distinct (seed, k), so neighbouring seeds share no draw."""
    return (seed * 0x9E3779B97F4A7C15 + k * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % (1 << 62)
