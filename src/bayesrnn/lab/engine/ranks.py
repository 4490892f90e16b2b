"""Processes that train one model together, one per device, and all communication between them.

torchrun starts them, and restarts them if one dies; or ``--devices`` does, through lightning-fabric, which also knows
the processes of a cluster's scheduler. They communicate through torch.distributed: gloo on CPUs, NCCL on GPUs.
"""

import hashlib
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bayesrnn.draws import Noise
from bayesrnn.draws.noise import Distribution
from bayesrnn.errors import AlreadyTold, UserError

T = TypeVar("T")


class Ranks:
    """This process among those that train one model. ``Ranks()``: it is the only one, and nothing is sent.

    All ranks must call every method that communicates, in the same order.

    Args:
        rank: this process's number, from 0. Rank 0 writes the run folder and reports.
        count: number of processes.
        device: this process's device; None: chosen elsewhere.
        launch: identifies the torchrun that started this process, also after a restart; empty: there is none.
        restarted: torchrun has restarted the processes after one died.
    """

    def __init__(
        self, rank: int = 0, count: int = 1, *, device: str | None = None, launch: str = "", restarted: bool = False
    ) -> None:
        self.rank, self.count, self.device, self.launch, self.restarted = rank, count, device, launch, restarted

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.count > 1

    def rows(self, batch_size: int) -> slice:
        """This rank's rows of a batch; all ranks have equally many."""
        if batch_size % self.count:
            raise UserError(
                f"Batches of {batch_size} cannot be shared equally by {self.count} processes; "
                "choose another number of processes or another data.batch_size."
            )
        own = batch_size // self.count
        return slice(self.rank * own, (self.rank + 1) * own)

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace the tensor by its sum over all ranks: the same bits on each."""
        if self.several:
            _communicate(lambda: dist.all_reduce(tensor))
        return tensor

    def average(self, tensor: Tensor) -> Tensor:
        """Replace the tensor by its mean over all ranks."""
        return self.sum(tensor).div_(self.count) if self.several else tensor

    def gather(self, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of every rank, on rank 0 and on the CPU; elsewhere nothing. Names and shapes must agree."""
        if not self.several:
            return [dict(tensors)]
        found: list[dict[str, Tensor]] = [{} for _ in range(self.count)]
        for name, tensor in tensors.items():
            own = tensor.detach().cpu().contiguous()
            parts = [torch.empty_like(own) for _ in found] if self.first else None
            _communicate(partial(dist.gather, own, parts, dst=0))
            for rank, part in enumerate(parts or []):
                found[rank][name] = part
        return found if self.first else []

    def from_first(self, make: Callable[[], T]) -> T:
        """Run ``make`` on rank 0 and return its result on all ranks. A :class:`UserError` there is raised on all."""
        if not self.several:
            return make()
        box: list[Any] = [None, None]
        error: UserError | None = None
        if self.first:
            try:
                box[0] = make()
            except UserError as found:
                error, box[1] = found, str(found)
        _communicate(lambda: dist.broadcast_object_list(box, src=0, device=torch.device("cpu")))
        if error is not None:
            raise error
        if box[1] is not None:
            raise AlreadyTold(box[1])
        result: T = box[0]
        return result

    def together(self, make: Callable[[], T]) -> T:
        """Run ``make`` on each rank. A :class:`UserError` on any rank is raised on all."""
        if not self.several:
            return make()
        result, error = None, None
        try:
            result = make()
        except UserError as found:
            error = str(found)
        errors: list[Any] = [None] * self.count
        _communicate(lambda: dist.all_gather_object(errors, error))
        for rank, wrong in enumerate(errors):
            if wrong is not None:
                raise UserError(wrong) if rank == self.rank else AlreadyTold(wrong)
        return result  # type: ignore[return-value]

    def everyone(self, own: T) -> list[T]:
        """The values of all ranks, on every rank."""
        found = [own] * self.count
        if self.several:
            _communicate(lambda: dist.all_gather_object(found, own))
        return found

    def check_data(self, digest: str, where: str) -> None:
        """Refuse to train where ranks have read different data."""
        each = self.everyone(digest)
        if others := [rank for rank, found in enumerate(each) if found != each[0]]:
            who = f"process{'es' if len(others) > 1 else ''} {', '.join(map(str, others))}"
            line = f"The data in {where} are not the same everywhere: {who} of {self.count} read other data than "
            line += "process 0; give every machine the same copy."
            raise UserError(line) if self.first else AlreadyTold(line)

    def check_same(self, tensors: Sequence[Tensor]) -> None:
        """Check that the tensors are the same on all ranks, bit by bit."""
        if not self.several:
            return
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}
        sums = [t.detach().contiguous().view(whole[t.element_size()]).sum(dtype=torch.int64) for t in tensors]
        own = torch.stack(sums).cpu()
        theirs = self.sum(own.clone())
        if not self.together(lambda: torch.equal(theirs, own * self.count)):
            raise UserError("The processes hold different weights; check the hardware.")

    def leave(self) -> None:
        """Leave the group of processes."""
        if dist.is_initialized():
            dist.destroy_process_group()


def is_distributed() -> bool:
    """Whether this process is one of several."""
    return dist.is_initialized()


def end(line: str, status: int) -> None:
    """End this process, one of several, at once; ``line`` says why.

    Closing the connections needs the other processes, which may be gone; torch's threads abort an ordinary exit.
    """
    if report := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        # torchrun prints this last.
        about = {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(report).write_text(json.dumps({"message": about}), "utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _communicate(exchange: Callable[[], Any]) -> None:
    try:
        exchange()
    except RuntimeError as error:  # DistBackendError is one
        raise UserError(
            f"Another process of this run has ended ({_reason(error)}), so this one ends too. "
            "Its own last line says why; continue with --resume."
        ) from None


def _reason(error: RuntimeError) -> str:
    """The first sentence, without the source location that gloo prepends."""
    return str(error).splitlines()[0].rpartition("] ")[2].split(". ")[0][:200]


class Share:
    """A draw that is the same on all ranks, each of which takes its own rows.

    The values are those that one process would draw for the whole batch, whatever the number of ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.rank, self.count = ranks.rank, ranks.count

    def units(
        self, key: str, noise: Noise, shape: Sequence[int], like: Tensor, *, rows: int, shared: bool = False
    ) -> Tensor:
        if shared:
            return noise.sample(shape, like)
        return noise.sample((rows * self.count, *shape), like)[self.rank * rows : (self.rank + 1) * rows]

    def steps(
        self, key: str, noise: Distribution, shape: Sequence[int], like: Tensor, *, batch_dim: int | None
    ) -> Tensor:
        if batch_dim is None:
            return noise.sample(shape, like)
        own = shape[batch_dim]
        size = [n * self.count if d == batch_dim else n for d, n in enumerate(shape)]
        return noise.sample(size, like).narrow(batch_dim, self.rank * own, own)

    def weights(self, key: str, make: Callable[[torch.Generator | None], Any], device: torch.device) -> Any:
        return make(None)


def seed_of(seed: int, rank: int) -> int:
    """The seed of a rank's own draws, unrelated to those of other ranks and seeds."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/rank {rank}".encode(), digest_size=8).digest(), "little") >> 1


def join(device: str | None = None, devices: int | None = None) -> Ranks:
    """Join the processes that torchrun has started, or start ``devices`` of them; otherwise this process is alone.

    Args:
        device: cpu or cuda; each process takes the device with its number on its machine.
        devices: processes on this machine, through lightning-fabric. Under SLURM: those that srun has started.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if devices is not None:
            raise UserError("torchrun has started the processes; omit --devices.")
        return _of_torchrun(device)
    if devices is None or devices == 1:
        return Ranks(device=device)
    return _by_fabric(device, devices)


def _of_torchrun(device: str | None) -> Ranks:
    where = _own_device(device, int(os.environ["LOCAL_RANK"]))
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    options: dict[str, Any] = {"device_id": where} if where.type == "cuda" else {}
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # torchrun's store outlives a restart: without a name of its own this start would read the addresses of the
        # dead. On several machines the count differs; docs/development/distributed.md says what helps there.
        store, rank, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        options |= {"store": dist.PrefixStore(f"start {start}", store), "rank": rank, "world_size": count}
    _join_group(partial(dist.init_process_group, _backend(where), **options))
    return Ranks(dist.get_rank(), dist.get_world_size(), device=str(where), launch=_starter(), restarted=start > 0)


def _starter() -> str:
    """Identifies the torchrun that started this process: the same after a restart, different for a new job.

    A job's name (--rdzv-id) is not enough: a user may give it to many jobs, and without one all are "none".
    """
    parent, began = os.getppid(), ""
    with suppress(OSError, IndexError):  # process numbers are reused; the start time is in /proc where there is one
        began = Path(f"/proc/{parent}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    words = (os.environ["TORCHELASTIC_RUN_ID"], socket.gethostname(), str(parent), began)
    return hashlib.blake2b("\n".join(words).encode(), digest_size=8).hexdigest()


def _join_group(join_group: Callable[[], Any]) -> None:
    try:
        join_group()
    except RuntimeError as error:
        raise UserError(f"The processes could not find each other ({_reason(error)}).") from None


def _by_fabric(device: str | None, devices: int) -> Ranks:
    kind = _own_device(device, 0).type
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments import SLURMEnvironment
        from lightning_fabric.strategies import DDPStrategy
    except ModuleNotFoundError:
        needs = "--devices needs lightning-fabric: pip install 'bayesrnn[distributed]'; or start with torchrun."
        raise UserError(needs) from None
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # we report it ourselves
    if kind == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"There are {torch.cuda.device_count()} GPUs here, fewer than --devices {devices}.")
    nodes = int(os.environ.get("SLURM_NNODES", "1")) if SLURMEnvironment.detect() else 1
    strategy = DDPStrategy(process_group_backend=_backend(torch.device(kind)))
    fabric = Fabric(accelerator=kind, devices=devices, num_nodes=nodes, strategy=strategy)
    _join_group(fabric.launch)
    return Ranks(fabric.global_rank, fabric.world_size, device=str(_own_device(device, fabric.local_rank)))


def _own_device(device: str | None, local_rank: int) -> torch.device:
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind not in ("cpu", "cuda"):
        raise UserError(f"Each process has its own device here; choose --device cpu or cuda, not {kind}.")
    if kind == "cpu":
        return torch.device(kind)
    if local_rank >= torch.cuda.device_count():
        raise UserError(f"There are {torch.cuda.device_count()} GPUs here, too few for process {local_rank}.")
    own = torch.device(kind, local_rank)
    torch.cuda.set_device(own)
    return own


def _backend(device: torch.device) -> str:
    """gloo for the CPU (random states, messages), also where gradients go through NCCL."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
