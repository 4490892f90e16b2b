"""What other programs receive while a run trains: callbacks of the engine, and those for TensorBoard and W&B.

A callback overrides the methods it needs::

    class Slack(Callback):
        def on_end(self, record):
            send("stopped" if record is None else f"{record.recipe}: {record.metrics}")

    launch("small-plain", out=Path("runs/small"), reporter=Silent(), callbacks=[Slack()])

Only rank 0 calls callbacks. An error in one stops the run, which can then be resumed.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from bayesrnn.errors import UserError
from bayesrnn.lab.engine.loop import Run
from bayesrnn.lab.engine.progress import Progress, Reporter
from bayesrnn.lab.reading import is_number, not_imported
from bayesrnn.lab.runs.record import Record


@dataclass(frozen=True)
class Start:
    """The run that starts. ``config``: the content of its config.json; ``step``: 0, or the step it is resumed after."""

    folder: Path
    config: Mapping[str, Any]
    step: int


class Callback:
    """Receives the values of one run. A step is a step of the optimiser, counted from 1 over the whole run."""

    def on_start(self, start: Start) -> None:
        """Before the first step of this process."""

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """About once per second: metrics of the epoch so far, on the training data."""

    def on_epoch(self, step: int, values: Mapping[str, float]) -> None:
        """After an epoch and its checkpoint; ``values`` is its line of metrics.jsonl."""

    def on_end(self, record: Record | None) -> None:
        """At the end, after record.json; None: the run was stopped or failed."""


class Calls:
    """A reporter that passes everything on to another one, and values to callbacks."""

    def __init__(self, reporter: Reporter, callbacks: Sequence[Callback]) -> None:
        self._reporter, self._callbacks, self._steps = reporter, callbacks, 0
        self.record: Record | None = None

    @contextmanager
    def around(self, run: Run, folder: Path, config: Mapping[str, Any]) -> Iterator[None]:
        """Call ``on_start`` now and ``on_end`` afterwards, with the record where it was set."""
        self._steps = run.task.steps
        start = Start(folder, config, (run.epoch - 1) * self._steps + run.done)
        begun: list[Callback] = []
        try:
            for callback in self._callbacks:
                callback.on_start(start)
                begun.append(callback)
            yield
        finally:
            for callback in begun:
                callback.on_end(self.record)

    def say(self, text: str) -> None:
        self._reporter.say(text)

    def step(self, progress: Progress) -> None:
        self._reporter.step(progress)
        for callback in self._callbacks:
            callback.on_step((progress.epoch - 1) * self._steps + progress.step, progress.metrics)

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        self._reporter.epoch(line, epochs)
        for callback in self._callbacks:
            callback.on_epoch(line["epoch"] * self._steps, _numbers(line))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in values.items() if is_number(value)}


def _tag(key: str) -> str:
    """``valid_rmse`` is shown as ``valid/rmse``; metrics without a split belong to training."""
    split, _, name = key.partition("_")
    return f"{split}/{name}" if split in ("train", "valid", "test") else f"train/{key}"


class _Log(Callback):
    """Tagged values for another program; ``name`` is that of ``--log``."""

    def __init__(self, name: str, module: str) -> None:
        try:
            self.program = importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"--log {name} needs {not_imported(error)}; pip install 'bayesrnn[{name}]'") from None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        self.write(step, {f"step/{key}": value for key, value in values.items()})

    def on_epoch(self, step: int, values: Mapping[str, float]) -> None:
        self.write(step, {_tag(key): value for key, value in values.items()})


class TensorBoard(_Log):
    """Writes event files to the folder ``tensorboard`` of the run: ``tensorboard --logdir runs``."""

    def __init__(self) -> None:
        super().__init__("tensorboard", "torch.utils.tensorboard")

    def on_start(self, start: Start) -> None:
        # Events after this step, of a run that was killed or replaced, no longer count.
        purge = start.step + 1 if start.step else 0
        self._writer = self.program.SummaryWriter(str(start.folder / "tensorboard"), purge_step=purge)
        self._last = start.step

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._last = step

    def on_end(self, record: Record | None) -> None:
        if record is not None:
            self.write(self._last, {f"final/{key}": value for key, value in _numbers(record.metrics).items()})
        self._writer.close()


class WandB(_Log):
    """Logs to Weights & Biases, project ``bayesrnn``; its own settings, such as WANDB_MODE=offline, apply."""

    def __init__(self) -> None:
        super().__init__("wandb", "wandb")

    def on_start(self, start: Start) -> None:
        kept = start.folder / "wandb" / "bayesrnn-run-id"  # a resumed run goes on in the same plot
        if not (start.step and kept.is_file()):
            kept.parent.mkdir(exist_ok=True)
            kept.write_text(uuid4().hex[:16], "utf-8")
        about = start.config
        self._run = self.program.init(
            project="bayesrnn", name=f"{about['recipe']}, seed {about['seed']}", config=about["settings"],
            dir=str(start.folder), id=kept.read_text("utf-8"), resume="allow",
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def on_end(self, record: Record | None) -> None:
        if record is not None:
            self._run.summary.update({f"final/{key}": value for key, value in _numbers(record.metrics).items()})
        self._run.finish(exit_code=int(record is None))


LOGS: dict[str, type[Callback]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""What ``bayesrnn train --log`` takes."""


def logs(names: Sequence[str]) -> list[Callback]:
    """The callbacks of these names."""
    if unknown := [name for name in names if name not in LOGS]:
        raise UserError(f"--log {unknown[0]} is unknown; choose {' or '.join(LOGS)}.")
    return [LOGS[name]() for name in dict.fromkeys(names)]
