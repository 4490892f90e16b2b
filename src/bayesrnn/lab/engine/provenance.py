"""The record of a run that has ended: its metrics, and how it was made."""

import functools
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from bayesrnn import kernels
from bayesrnn._version import __version__
from bayesrnn.lab.engine.loop import Run
from bayesrnn.lab.engine.progress import heartbeat
from bayesrnn.lab.modules import evaluating
from bayesrnn.lab.reading import data_name
from bayesrnn.lab.runs.record import Record


def record_of(
    run: Run, config: dict[str, Any], *, overrides: list[str], command: str, started: float, measure: bool = True,
    **extra: Any,
) -> Record:  # fmt: skip
    """The record of a run that has ended; ``started``: when, in seconds since 1970; ``extra``: more keys."""
    metrics = final_metrics(run, measure=measure)
    wanted = kernels.asked()  # the first path to try, where one was named
    return Record(
        recipe=config["recipe"],
        seed=config["seed"],
        commit=commit(),
        **environment(run.step.device),
        command=command,
        data=data_name(config["data"]),
        overrides=overrides,
        ranks=run.ranks.count,
        cuda_graph=run.step.graph is not None,
        kernel=wanted[0] if wanted else None,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        settings=config["settings"],
        **run.task.about(),
        curves=curves(run),
        metrics=metrics,
        **extra,
    )


def final_metrics(run: Run, *, measure: bool = True) -> dict[str, Any]:
    """The task's final metrics with the best epoch's weights; with ``measure=False`` only those of the epochs."""
    best = run.load_best()
    speed = f"{run.task.unit}_per_second"
    speeds = sorted(line[speed] for line in run.history)
    values = {key: best[key] for key in (run.task.metric, "valid_streams") if key in best}
    if measure:
        with evaluating(run.model), heartbeat(run.reporter.say, f"Evaluation of epoch {best['epoch']}, the best"):
            values = run.task.final()
    return {
        "best_epoch": best["epoch"],
        **values,
        "parameters": sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        speed: speeds[len(speeds) // 2],
        "train_seconds": sum(line["seconds"] for line in run.history),
    }


def curves(run: Run) -> dict[str, list[float]]:
    """The metrics of the epochs that are floats, without times."""
    first = run.history[0]
    times = ("seconds", f"{run.task.unit}_per_second")
    keys = [key for key, value in first.items() if isinstance(value, float) and key not in times]
    return {key: [line[key] for line in run.history] for key in keys}


def environment(device: torch.device) -> dict[str, Any]:
    """Device and versions, for the record."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {"bayesrnn": __version__, "python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return {"device": f"{device.type} ({name})", "versions": versions}


@functools.cache
def commit() -> str | None:
    """The commit of the source that runs, as it was when this was first asked: BAYESRNN_COMMIT, or the checkout's."""
    if named := os.environ.get("BAYESRNN_COMMIT"):
        return named
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
