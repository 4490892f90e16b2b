"""Forecasts of other libraries on a task of forecasting_tasks.py; runs in a Python that has them.

    PEERS_PYTHON benchmarks/forecasting_peers.py m4-hourly auto-ets --data FOLDER --out forecasts.npz --minutes 10

Needs statsforecast, neuralforecast, darts or lightgbm: the library of the method. benchmarks/forecasting.py runs this
program, computes the metrics and writes the record. Seconds are CPU seconds. A method that runs out of ``--minutes``
answers for the origins that it has finished, which are drawn at random.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from forecasting_tasks import LEVELS, Task, load

HISTORY = {"m4-hourly": 960, "m4-weekly": 2600}
"""Steps of the past that a local model is fitted to at each origin; eight weeks of hours elsewhere."""


def past_of(task: Task, item: int, length: int | None = None) -> np.ndarray:
    """The values before an origin, at most ``length``."""
    s, o = task.origins[item]
    return task.values[s][max(0, o - (length or o)) : o]


def panel(task: Task, items: np.ndarray, length: int) -> pd.DataFrame:
    """The past of each origin as a series of its own, with the dates it has."""
    parts = []
    for item in items:
        s, o = task.origins[item]
        values = past_of(task, item, length)
        stamps = pd.date_range(task.starts[s], periods=o, freq=task.freq)[-len(values) :]
        parts.append(pd.DataFrame({"unique_id": f"{item:05d}", "ds": stamps, "y": values}))
    return pd.concat(parts, ignore_index=True)


class Answer:
    """Forecasts of one method, filled in as they come."""

    def __init__(self, task: Task) -> None:
        shape = (len(task.origins), task.horizon)
        self.quantiles = np.full((*shape, len(LEVELS)), np.nan)
        self.point = np.full(shape, np.nan)
        self.train_seconds = self.predict_seconds = 0.0
        self.note = ""

    def from_frame(self, found: pd.DataFrame, items: np.ndarray, horizon: int, columns: list[str], mean: str) -> None:
        """Rows of a long frame whose ids are those of `panel`."""
        found = found.sort_values(["unique_id", "ds"])
        self.quantiles[items] = found[columns].to_numpy(float).reshape(len(items), horizon, -1)
        self.point[items] = found[mean].to_numpy(float).reshape(len(items), horizon)


def local(make: Callable[[Task], Any]) -> Callable[[Task, int, float], Answer]:
    """A statistical model fitted to each series alone, by statsforecast on one core."""

    def run(task: Task, seed: int, minutes: float) -> Answer:
        from statsforecast import StatsForecast

        model, answer = make(task), Answer(task)
        name, levels = model.alias, [10, 20, 30, 40, 50, 60, 70, 80, 90, 95]
        columns = [f"{name}-lo-{v}" for v in levels[::-1]] + [name] + [f"{name}-hi-{v}" for v in levels]
        length = HISTORY.get(task.name, 8 * 168)
        order = np.random.default_rng(0).permutation(len(task.origins))
        started, chunk = time.process_time(), 10
        for first in range(0, len(order), chunk):
            if time.process_time() - started > 60 * minutes:
                answer.note = f"stopped after {minutes:g} minutes: {first} of {len(order)} origins, drawn at random"
                break
            items = np.sort(order[first : first + chunk])
            fallback = _naive() if task.season == 1 else None
            found = StatsForecast([model], freq=task.freq, n_jobs=1, fallback_model=fallback).forecast(
                df=panel(task, items, length), h=task.horizon, level=levels
            )
            answer.from_frame(found, items, task.horizon, columns, name)
        answer.predict_seconds = time.process_time() - started  # fitting and forecasting are one
        return answer

    return run


def _naive() -> Any:
    from statsforecast.models import Naive

    return Naive()


def _auto_ets(task: Task) -> Any:
    from statsforecast.models import AutoETS

    return AutoETS(season_length=task.season)


def _auto_theta(task: Task) -> Any:
    from statsforecast.models import AutoTheta

    return AutoTheta(season_length=task.season)


def _seasonal_naive(task: Task) -> Any:
    from statsforecast.models import SeasonalNaive

    return _naive() if task.season == 1 else SeasonalNaive(season_length=task.season)


def _mstl(task: Task) -> Any:
    from statsforecast.models import MSTL

    return MSTL(season_length=[52] if task.freq == "W" else [24, 168])


def _limit(minutes: float) -> Any:
    """Ends training after this much CPU time."""
    from pytorch_lightning import Callback

    class Limit(Callback):
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if time.process_time() > 60 * minutes:
                trainer.should_stop = True

    return Limit()


def deepar(task: Task, seed: int, minutes: float) -> Answer:
    """NeuralForecast's DeepAR (Student's t) with its default sizes, one model for all series, stopped by time."""
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import DistributionLoss
    from neuralforecast.models import DeepAR

    answer = Answer(task)
    context = 52 if task.freq == "W" else 2 * max(task.horizon, 84)
    train = task.frame(train=True)
    model = DeepAR(
        h=task.horizon, input_size=context, loss=DistributionLoss("StudentT", quantiles=list(LEVELS), num_samples=200),
        lstm_hidden_size=128, lstm_n_layers=2, max_steps=1000, windows_batch_size=128, batch_size=32, random_seed=seed,
        trajectory_samples=100, scaler_type="standard", start_padding_enabled=True, inference_windows_batch_size=256,
        enable_progress_bar=False, logger=False, enable_checkpointing=False, enable_model_summary=False,
        accelerator="cpu", callbacks=[_limit(minutes)],
    )  # fmt: skip
    library = NeuralForecast([model], freq=task.freq)
    started = time.process_time()
    library.fit(train)
    answer.train_seconds = time.process_time() - started
    started = time.process_time()
    items = np.arange(len(task.origins))
    found = library.predict(df=panel(task, items, context + task.horizon))
    answer.predict_seconds = time.process_time() - started
    columns = [c for c in found.columns if c not in ("unique_id", "ds", "DeepAR")]
    columns = [c for c in columns if "ql" in c or "lo" in c or "median" in c or "hi" in c][: len(LEVELS)]
    answer.from_frame(
        found.reset_index(), items, task.horizon, columns, "DeepAR-median" if "DeepAR-median" in columns else "DeepAR"
    )
    answer.note = f"at most 1,000 steps of 128 windows of {context} and {minutes:g} min"
    return answer


def darts_rnn(task: Task, seed: int, minutes: float) -> Answer:
    """darts' RNNModel: an LSTM with a Gaussian likelihood on standardised series, 100 sample paths, stopped by time."""
    import torch
    from darts import TimeSeries
    from darts.models import RNNModel
    from darts.utils.likelihood_models.torch import GaussianLikelihood

    answer = Answer(task)
    context = 52 if task.freq == "W" else 2 * max(task.horizon, 84)
    length = context + task.horizon

    def series(values: np.ndarray, start: pd.Timestamp) -> TimeSeries:
        index = pd.date_range(start, periods=len(values), freq=task.freq)
        return TimeSeries.from_times_and_values(index, values.astype(np.float32)[:, None])

    parts = [v[:end] for v, end in zip(task.values, task.train_ends, strict=True)]
    stats = [(v.mean(), v.std() + 1e-8) for v in parts]
    train = [
        series((v - m) / sd, start)
        for v, (m, sd), start in zip(parts, stats, task.starts, strict=True)
        if len(v) > length + 1
    ]
    model = RNNModel(
        input_chunk_length=context, training_length=length, model="LSTM", hidden_dim=40, n_rnn_layers=1, batch_size=128,
        n_epochs=100, likelihood=GaussianLikelihood(), random_state=seed, optimizer_kwargs={"lr": 1e-3},
        pl_trainer_kwargs={
            "accelerator": "cpu", "enable_progress_bar": False, "callbacks": [_limit(minutes)], "logger": False,
            "enable_model_summary": False,
        },
    )  # fmt: skip
    torch.manual_seed(seed)
    started = time.process_time()
    model.fit(train, max_samples_per_ts=max(8, 16_000 // len(train)))
    answer.train_seconds = time.process_time() - started
    started = time.process_time()
    items = [i for i, (_, o) in enumerate(task.origins) if o >= context]
    pasts = []
    for i in items:
        s, o = task.origins[i]
        m, sd = stats[s]
        stamp = pd.date_range(task.starts[s], periods=o, freq=task.freq)[-context]
        pasts.append(series((past_of(task, i, context) - m) / sd, stamp))
    found = model.predict(task.horizon, series=pasts, num_samples=100, random_state=seed)
    for i, one in zip(items, found, strict=True):
        m, sd = stats[task.origins[i][0]]
        draws = one.all_values()[:, 0, :] * sd + m
        answer.quantiles[i] = np.quantile(draws, LEVELS, axis=1).T
        answer.point[i] = np.median(draws, axis=1)
    answer.predict_seconds = time.process_time() - started
    answer.note = f"windows of {context}, at most 100 epochs and {minutes:g} min"
    return answer


TREES = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)


def lightgbm_quantiles(task: Task, seed: int, minutes: float) -> Answer:
    """One LightGBM per quantile: lags, seasonal lags, rolling moments, hour, place in the week, step ahead."""
    import lightgbm

    answer, rng = Answer(task), np.random.default_rng(seed)
    long = 52 if task.season == 1 else 168
    ends = task.train_ends
    least = long + 2 if task.season > 1 else 14
    pool = [s for s in range(len(task.values)) if ends[s] - task.horizon > least]
    started = time.process_time()
    rows, goals = [], []
    for s in rng.choice(pool, 60_000 // task.horizon * 4 if len(pool) == 1 else 12_000):
        o = int(rng.integers(least, ends[s] - task.horizon + 1))
        steps = np.sort(rng.choice(task.horizon, min(8, task.horizon), replace=False))
        x, base, scale = _features(task, s, o, steps, long)
        rows.append(x)
        goals.append((task.values[s][o + steps] - base) / scale)
    inputs, goal = np.concatenate(rows), np.concatenate(goals)
    known = ~np.isnan(goal)
    models = [
        lightgbm.LGBMRegressor(
            objective="quantile", alpha=q, n_estimators=300, learning_rate=0.05, num_leaves=31, min_child_samples=40,
            subsample=0.8, subsample_freq=1, random_state=seed, n_jobs=1, verbose=-1,
        ).fit(inputs[known], goal[known])
        for q in TREES
    ]  # fmt: skip
    answer.train_seconds = time.process_time() - started
    started = time.process_time()
    steps = np.arange(task.horizon)
    for i, (s, o) in enumerate(task.origins):
        x, base, scale = _features(task, s, o, steps, long)
        found = np.sort(np.stack([m.predict(x) for m in models], 1), 1)
        full = np.stack([np.interp(LEVELS, TREES, row) for row in found])
        answer.quantiles[i] = base[:, None] + scale * full
        answer.point[i] = answer.quantiles[i][:, 10]
    answer.predict_seconds = time.process_time() - started
    answer.note = f"{len(goal):,} rows, 300 trees for each of 9 quantiles, interpolated between them"
    return answer


def _features(task: Task, s: int, o: int, steps: np.ndarray, long: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Inputs (steps, F), what the model adds to (last season's value), and the scale of the window."""
    values, season = task.values[s], task.season
    past = values[max(0, o - 2 * long) : o]
    scale = float(np.nanmean(np.abs(np.diff(past, n=1))) + 1e-3 * np.nanmean(np.abs(past)) + 1e-8)
    level = past[-1]

    def at(lag: np.ndarray) -> np.ndarray:
        index = o + steps - lag
        return np.where(index >= 0, (values[np.maximum(index, 0)] - level) / scale, np.nan)

    def ago(period: int, more: int = 0) -> np.ndarray:
        return (steps // period + 1 + more) * period

    recent = [np.full(len(steps), (past[-k] - level) / scale if len(past) >= k else np.nan) for k in (2, 3, 4, 6, 13)]
    seasonal = [at(ago(season)), at(ago(season, 1)), at(ago(long)), at(ago(long, 1))]
    means = [np.full(len(steps), (np.nanmean(past[-k:]) - level) / scale) for k in (max(season, 4), long)]
    spread = np.full(len(steps), np.nanstd(past[-long:]) / scale)
    place = [(o + steps) % 24, (o + steps) % long, steps]
    inputs = np.stack([*recent, *seasonal, *means, spread, *place], 1)
    base = np.where(np.isnan(values[o + steps - ago(season)]), level, values[o + steps - ago(season)])
    return inputs, base, scale


METHODS: dict[str, tuple[str, Callable[[Task, int, float], Answer]]] = {
    "auto-ets": ("statsforecast", local(_auto_ets)),
    "auto-theta": ("statsforecast", local(_auto_theta)),
    "seasonal-naive": ("statsforecast", local(_seasonal_naive)),
    "mstl": ("statsforecast", local(_mstl)),
    "deepar": ("neuralforecast", deepar),
    "darts-rnn": ("darts", darts_rnn),
    "lightgbm": ("lightgbm", lightgbm_quantiles),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fold", choices=("test", "valid"), default="test")
    parser.add_argument("--minutes", type=float, default=8.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    library, run = METHODS[options.method]
    answer = run(load(options.task, options.data, options.fold), options.seed, options.minutes)
    about = {
        "train_seconds": answer.train_seconds, "predict_seconds": answer.predict_seconds, "note": answer.note,
        "versions": {name: version(name) for name in (library, "numpy", "pandas", "torch")},
    }  # fmt: skip
    np.savez(options.out, quantiles=answer.quantiles, point=answer.point, about=json.dumps(about))


if __name__ == "__main__":
    main()
