"""Forecasts on M4, ETTh1 and other series: `bayesrnn.forecasting.Forecaster` and other libraries by the same metrics.

    python benchmarks/forecasting.py ours TASK... --data FOLDER --seeds 1 2 3
    python benchmarks/forecasting.py peers TASK... --data FOLDER --peers-python PATH --methods auto-ets lightgbm
    python benchmarks/forecasting.py scale

Tasks and metrics: benchmarks/forecasting_tasks.py. A forecast is 21 quantiles per step. Records go to
``results/forecasting/TASK/METHOD/SEED.json``; those that exist are kept unless ``--force`` is given. ``--fold valid``
forecasts the end of the training part instead and only prints: settings are chosen there. Seconds are CPU seconds of
one thread, so that methods compare on a busy machine. ``scale`` measures time and memory: 10,000 hourly rows to a first
answer, and 100,000 series of 200 rows through a trained model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from forecasting_tasks import LEVELS, Task, load, metrics, seasonal_quantiles

from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.runs.record import Record

ROOT = Path(__file__).resolve().parent.parent
OURS, BASELINE = "bayesrnn", "seasonal-quantiles"


def ours(task: Task, seed: int, settings: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """Quantiles (N, H, Q) by a Forecaster with these settings, and the seconds it took."""
    from bayesrnn.forecasting import Forecaster

    forecaster = Forecaster(task.horizon, task.freq, seed=seed, **settings)
    started = time.process_time()
    forecaster.fit(task.frame(train=True))
    trained = time.process_time()
    levels = [float(p) for p in LEVELS]
    if len(task.origins) == len(task.values):
        table = forecaster.predict(quantiles=levels).set_index("unique_id").loc[task.names]
    else:
        step = task.origins[1][1] - task.origins[0][1]
        table = forecaster.backtest(task.frame(), len(task.origins), step, quantiles=levels, refit=False)
        table = table.sort_values(["cutoff", "ds"])
    about = {"train_seconds": trained - started, "predict_seconds": time.process_time() - trained}
    columns = [f"q-{p:g}" for p in levels]
    return table[columns].to_numpy(float).reshape(len(task.origins), task.horizon, -1), about


def theirs(task: Task, method: str, seed: int, options: argparse.Namespace) -> tuple[np.ndarray, Any, dict[str, Any]]:
    """Quantiles and point forecasts of a peer, made by another Python."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "forecasts.npz"
        words = [
            options.peers_python, str(ROOT / "benchmarks/forecasting_peers.py"), task.name, method, "--seed", str(seed),
            "--data", str(options.data), "--out", str(out), "--fold", options.fold, "--minutes", str(options.minutes),
        ]  # fmt: skip
        subprocess.run(
            words, check=True, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        )
        found = np.load(out)
        return found["quantiles"], found["point"], json.loads(str(found["about"]))


def record(
    task: Task, method: str, seed: int, found: dict[str, Any], about: dict[str, Any], settings: dict[str, Any]
) -> Record:
    """The record of one method on one task."""
    made = environment(torch.device("cpu"))
    made["versions"] = {**made["versions"], **about.pop("versions", {})}
    seconds = {key: about.pop(key) for key in ("train_seconds", "predict_seconds")}
    return Record(
        recipe=method, seed=seed, commit=commit(), **made, command=_command(), data=task.name,
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), settings=settings,
        **{key: value for key, value in about.items() if value},
        origins=len(task.origins), horizon=task.horizon, season=task.season, threads=torch.get_num_threads(),
        metrics={**found, **seconds},
    )  # fmt: skip


def _command() -> str:
    """The command line without the folders of one machine."""
    words = ["python", "benchmarks/forecasting.py"]
    hidden = {"--data": "FOLDER", "--peers-python": "PEERS_PYTHON", "--out": "RESULTS"}
    for before, word in zip(["", *sys.argv[1:]], sys.argv[1:], strict=False):
        words.append(hidden.get(before, word))
    return shlex.join(words)


def run(options: argparse.Namespace) -> None:
    """All tasks by all methods and seeds asked for."""
    chosen = json.loads(options.settings)
    for name in options.tasks:
        task = load(name, options.data, options.fold)
        for method in options.methods:
            for seed in options.seeds:
                path = options.out / name / (method + options.suffix) / f"{seed}.json"
                if path.exists() and not options.force and options.fold == "test":
                    continue
                point, part = None, task
                if method == OURS:
                    quantiles, about = ours(task, seed, chosen)
                elif method == BASELINE:
                    started = time.process_time()
                    quantiles = seasonal_quantiles(task)
                    about = {"train_seconds": 0.0, "predict_seconds": time.process_time() - started}
                else:
                    quantiles, point, about = theirs(task, method, seed, options)
                    done = np.flatnonzero(~np.isnan(point).any(1))
                    part, quantiles, point = task.part(done), quantiles[done], point[done]
                    if len(done) < len(task.origins):
                        about["origins_done"] = done.tolist()
                found = metrics(part, quantiles, point)
                _print(name, method, seed, found, about)
                if options.fold == "test":
                    path.parent.mkdir(parents=True, exist_ok=True)
                    record(part, method, seed, found, about, chosen if method == OURS else {}).write(path)


def _print(name: str, method: str, seed: int, found: dict[str, Any], about: dict[str, Any]) -> None:
    keys = ("smape", "mase", "msis", "crps", "scaled_crps", "coverage_80", "coverage_90", "coverage_95")
    values = " ".join(f"{key} {found[key]:.4g}" for key in keys)
    print(
        f"{name} {method} {seed}: {values}; {about['train_seconds']:.0f} + {about['predict_seconds']:.0f} s", flush=True
    )


def scale(options: argparse.Namespace) -> None:
    """Time to a first answer, and many series through a trained model."""
    from bayesrnn.forecasting import Forecaster

    rng = np.random.default_rng(1)
    t = np.arange(10_000)
    values = 50 + 10 * np.sin(2 * np.pi * t / 24) + rng.normal(0, 2, t.size).cumsum() * 0.1 + rng.normal(0, 1, t.size)
    frame = pd.DataFrame({"unique_id": "one", "ds": pd.date_range("2020-01-01", periods=t.size, freq="h"), "y": values})
    started = time.process_time()
    forecaster = Forecaster(24, "h", seed=1).fit(frame)
    trained = time.process_time()
    forecaster.predict(level=[80, 95])
    first = {"rows": t.size, "train_seconds": trained - started, "seconds": time.process_time() - started}
    print(first, flush=True)
    rows: list[dict[str, float]] = []
    for count in options.counts:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        started = time.process_time()
        for begin in range(0, count, options.chunk):
            chunk = _many(min(options.chunk, count - begin), begin)
            forecaster.predict(chunk, level=[90])
        seconds = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append(
            {
                "series": count, "rows": 200, "chunk": options.chunk, "seconds": seconds,
                "milliseconds_per_series": 1000 * seconds / count, "peak_mib": peak, "peak_mib_before": before,
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    made = environment(torch.device("cpu"))
    (options.out / "scale").mkdir(parents=True, exist_ok=True)
    Record(
        recipe="scale", seed=1, commit=commit(), **made, command=_command(), data="made up",
        started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), metrics={"first_answer": first, "stream": rows},
    ).write(options.out / "scale/1.json")  # fmt: skip


def _many(count: int, first: int) -> pd.DataFrame:
    """Hourly series of 200 rows."""
    rng = np.random.default_rng(first)
    t = np.arange(200)
    values = rng.uniform(5, 500, (count, 1)) * (
        1 + 0.3 * np.sin(2 * np.pi * t / 24) + 0.05 * rng.normal(size=(count, 200))
    )
    stamps = pd.date_range("2024-01-01", periods=200, freq="h")
    ids = np.repeat([f"s{first + i:06d}" for i in range(count)], 200)
    return pd.DataFrame({"unique_id": ids, "ds": np.tile(stamps, count), "y": values.ravel()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for command in ("ours", "peers"):
        sub = commands.add_parser(command)
        sub.add_argument("tasks", nargs="+")
        sub.add_argument("--data", type=Path, required=True, help="folder with m4/ and ett/, or statsmodels' data sets")
        sub.add_argument("--methods", nargs="+", default=[OURS] if command == "ours" else [BASELINE])
        sub.add_argument("--peers-python", default=sys.executable)
        sub.add_argument("--seeds", type=int, nargs="+", default=[1])
        sub.add_argument("--fold", choices=("test", "valid"), default="test")
        sub.add_argument("--minutes", type=float, default=8.0, help="limit of one peer on one task")
        sub.add_argument("--settings", default="{}", help="JSON: arguments of the Forecaster")
        sub.add_argument("--suffix", default="", help="after the method's name, in the folder of the record")
        sub.add_argument("--force", action="store_true")
        sub.add_argument("--out", type=Path, default=ROOT / "results/forecasting")
        sub.set_defaults(run=run)
    sub = commands.add_parser("scale")
    sub.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    sub.add_argument("--chunk", type=int, default=5_000)
    sub.add_argument("--out", type=Path, default=ROOT / "results/forecasting")
    sub.set_defaults(run=scale)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
