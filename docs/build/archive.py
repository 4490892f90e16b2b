"""Every kind of file in ``results/``, each with the model that reads it.

| files | kind |
|---|---|
| ``RECIPE/SEED.json``, ``ablation/RECIPE/``, ``grid/``, ``chance/``, ``same-training/``, ``*-search/``, … | `Record` |
| ``differences/*.json`` | `ChoiceRun`, a record of benchmarks/differences.py |
| ``pruning/*.json`` | `Pruning`, the prune.json of ``bayesrnn prune`` |
| ``caption-texts/*.json`` | `Captions`, what a record's model said |
| ``quickstart/record.json`` | `Quickstart` |
| ``cpu*.json``; ``gpu-SIZE.json``; ``gpu-layers*.json``; ``gradients/*.json``; ``distributed.json`` | benchmarks |
| ``gpu-tests.json`` | the GPU suite |
| ``fuzz.json``, ``torture.json`` | `Fuzz`, `Torture` |

A sweep.json (`Sweep`) may take the place of the records of a grid. Models keep keys that they do not name.
"""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bayesrnn.errors import UserError
from bayesrnn.lab.quickstart import Quickstart
from bayesrnn.lab.reading import read_json
from bayesrnn.lab.runs.record import Record, read

Row = dict[str, Any]
M = TypeVar("M", bound=BaseModel)


class ChoiceRun(Record):
    """A run, or a computation, that answers a question on which papers and code disagree."""

    run: str
    size: str
    epochs: int
    written: str = ""


class Pruning(Record):
    """What ``bayesrnn prune`` measured: perplexity against the share of weights removed."""

    fraction: float | None = None
    threshold: float | None = None
    points: list[dict[str, float]] = Field(alias="curve")
    tensors: dict[str, dict[str, int]] = Field(default_factory=dict)
    valid_perplexity: float | None = None
    test_perplexity: float | None = None
    retrained: Row | None = None


class _Made(BaseModel):
    """What every other file says about its making."""

    model_config = ConfigDict(extra="allow", frozen=True)

    command: str = ""
    commit: str = ""
    device: str = ""
    versions: dict[str, str] = {}

    @property
    def made_on(self) -> str:
        """Device and version of torch."""
        return f"{self.device}, torch {self.versions['torch']}"


class GpuTests(_Made):
    """tests/gpu.py: every test that needs a GPU, in one process."""

    passed: int
    failed: int
    failures: dict[str, str]


class CpuBench(_Made):
    """benchmarks/cpu.py: ratios of training steps, draws and memory to torch.nn."""

    threads: int
    training: list[Row]
    prediction: list[Row]
    memory: Row
    peers: list[Row] = []


class BeforeBench(_Made):
    """benchmarks/before.py: CPU time relative to another checkout of this library."""

    before: str
    threads: int
    ratios: list[Row]


class GpuBench(_Made):
    """``bayesrnn bench``: milliseconds of training steps and predictions."""

    precision: str
    steps: int = 0
    training: list[Row]
    prediction: list[Row]


class LayerBench(_Made):
    """benchmarks/recurrent.py: one recurrent layer on each path."""

    precision: str
    steps: int
    layers: list[Row]


class Gradients(_Made):
    """benchmarks/gradients.py: errors of gradients on each path."""

    recipe: str
    epochs: int
    windows: int
    paths: dict[str, Row]
    recurrent: dict[str, Row] = {}
    valid_perplexity: dict[str, float]


class Distributed(_Made):
    """benchmarks/distributed.py: several processes against one."""

    cores: int
    load: float
    rows: int
    window: int
    table: list[Row]


class Torture(_Made):
    """tests/torture/run.py: faults that training survived."""

    seconds: float
    survived: int
    total: int
    faults: dict[str, Row]


class Fuzz(BaseModel):
    """tests/fuzz/run.py: what readers made of random inputs."""

    readers: dict[str, Row]


class Captions(BaseModel):
    """benchmarks/captioning.py: captions of the test images, in up to three ways."""

    model_config = ConfigDict(extra="allow", frozen=True)

    record: str
    images: list[str]
    mean: Row
    draws: Row
    consensus: Row | None = None
    samples: list[Row] = []

    def way(self, name: str) -> Row | None:
        """One way of captioning: ``mean``, ``draws`` or ``consensus``."""
        found = {"mean": self.mean, "draws": self.draws, "consensus": self.consensus}
        return found[name]


class Sweep(_Made):
    """``bayesrnn sweep``: the values of every trial."""

    recipe: str
    seed: int | None = None
    settings: Row = {}
    space: dict[str, list[Any]] = {}
    trials: list[Row]
    best: Row = {}


KINDS: dict[str, type[BaseModel]] = {
    "differences/*.json": ChoiceRun,
    "pruning/*.json": Pruning,
    "caption-texts/*.json": Captions,
    "quickstart/record.json": Quickstart,
    "cpu.json": CpuBench,
    "cpu-before.json": BeforeBench,
    "gpu-layers*.json": LayerBench,
    "gpu-tests.json": GpuTests,
    "gpu-*.json": GpuBench,
    "gradients/*.json": Gradients,
    "distributed.json": Distributed,
    "torture.json": Torture,
    "fuzz.json": Fuzz,
}
"""Files that are not plain run records, by pattern below ``results/``; the first that matches counts."""


def load(path: Path, kind: type[M]) -> M:
    """A file of this kind."""
    values = read_json(path)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path} is not a {kind.__name__} record ({key}: {first['msg']}).") from None


def required(path: Path, kind: type[M], command: str) -> M:
    """Like :func:`load`; names the command that writes a missing file."""
    if not path.is_file():
        raise SystemExit(f"{path} is missing: make it with `{command}` and commit it")
    return load(path, kind)


def environment(versions: dict[str, Any], threads: int) -> str:
    """Versions and threads in words."""
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{named}, {threads} CPU thread{'s' * (threads != 1)}"


def load_all(folder: Path, pattern: str, kind: type[M]) -> dict[str, M]:
    """All files of this kind by their names without suffix, in order."""
    return {path.stem: load(path, kind) for path in sorted(folder.glob(pattern), key=lambda path: path.stem)}


def records(folder: Path) -> list[Record]:
    """All run records of a folder by file name, copies of a run included."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def load_any(path: Path, results: Path) -> BaseModel:
    """Any file of the archive; its place says what it is."""
    place = path.relative_to(results)
    for pattern, kind in KINDS.items():
        if place.match(pattern) and len(place.parts) == pattern.count("/") + 1:
            return load(path, kind)
    return read(path)
