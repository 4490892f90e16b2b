"""Forecasting recipes on real series: settings chosen before the test parts, then records of eight seeds.

    python benchmarks/forecast.py choose     # writes results/forecast-choice-second.json: every setting's score
    python benchmarks/forecast.py average    # writes results/forecast-choice-average.json: mixtures of several runs
    python benchmarks/forecast.py run        # writes results/RECIPE/SERIES/SEED.json, those that are not there yet

The series are the library's own and some that the statsmodels wheel carries; all are public domain. One setting per
recipe serves all series: that with the lowest geometric mean of CRPS over them, raw and calibrated. ``choose`` sees the
series without their test parts: it trains on the first 70% of the rest, stops by the next 15%, and scores the last 15%,
which are part of what ``run`` validates on. ``run`` uses the recipes as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bayesrnn.forecasting.mixture import measures, running_scale, together
from bayesrnn.lab import recipes
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.provenance import commit
from bayesrnn.lab.runs.opening import open_run
from bayesrnn.lab.runs.record import RECORD
from bayesrnn.lab.tasks.forecast.forecaster import Walk
from bayesrnn.lab.tasks.forecast.plan import Plan
from bayesrnn.lab.tasks.forecast.settings import Data
from bayesrnn.lab.tasks.forecast.task import Forecast, forecaster, read_series

ROOT = Path(__file__).resolve().parent.parent
SEEDS = tuple(range(1, 9))
CHOICE_SEEDS = (11, 12, 13, 14, 15, 16)
CHOICE_KEYS = ("crps", "coverage", "width", "rmse")
# name: (statsmodels' folder, column)
BORROWED = {
    "elnino": ("elnino", "sst"),
    "sunspots": ("sunspots", "SUNACTIVITY"),
    "sunspots-monthly": ("sunspots", "sunspots"),
    "co2-weekly": ("co2", "co2"),
    "electrical-equipment": ("elec_equip", "STS.M.I7.W.TOVT.NS0016.4.000"),
    "treasury-bills": ("macrodata", "tbilrate"),
    "unemployment": ("macrodata", "unemp"),
}
LONG = ("sunspots-monthly", "co2-weekly")  # take minutes, and no part in the choice
# More series for ``average`` alone, and those of them that grow by rates
OTHERS = {
    "inflation": ("macrodata", "infl"),
    "investment": ("macrodata", "realinv"),
    "money": ("macrodata", "m1"),
    "nile": ("nile", "volume"),
}
GROWING = ("investment", "money")
RECIPES = ("forecast", "forecast-mixture", "forecast-plain", "forecast-bbb")
# Other plain LSTMs, by the folder of their records: the runner-up of choosing, whose prior counts less the longer a
# series is, for the long ones; and four at once, whose mean loss has a quarter of the gradient.
VARIANTS = {
    "forecast-plain-prior": ["model.prior_sigma=0.4", "train.l2=0.0"],
    "forecast-plain-mixture": ["model.components=4", "train.clip=0.5", "train.l2=0.00075"],
}
_TRAIN = "train.lr={} train.patience={} train.average_from={} train.average_decay={}"
_DROPOUT = (
    f"model.recurrent_dropout={{}} model.output_dropout={{}} model.linear_dropout={{}} model.prior_sigma={{}} {_TRAIN}"
)
_PLAIN = f"model.prior_sigma={{}} train.l2={{}} {_TRAIN}"
_USUAL, _AVERAGED, _SLOW = (0.003, 25, "null", "null"), (0.003, 25, 1, 0.99), (0.001, 50, "null", "null")
# The second round. The first, results/forecast-choice.json, was run by this file at the commit that the record names.
SETTINGS = {
    "forecast": [
        _DROPOUT.format(0.1, 0.1, 0.05, 0.7, *_USUAL),
        _DROPOUT.format(0.1, 0.1, 0.05, 0.7, *_AVERAGED),
        _DROPOUT.format(0.1, 0.1, 0.0, 0.7, *_USUAL),
        _DROPOUT.format(0.25, 0.25, 0.0, 0.7, *_USUAL),
        _DROPOUT.format(0.1, 0.1, 0.02, 0.5, *_USUAL),
        _DROPOUT.format(0.1, 0.1, 0.05, 0.7, *_SLOW),
    ],
    "forecast-plain": [
        _PLAIN.format(0.0, 0.003, *_USUAL),
        _PLAIN.format(0.0, 0.003, *_AVERAGED),
        _PLAIN.format(0.0, 0.001, *_USUAL),
        _PLAIN.format(0.7, 0.0, *_USUAL),
        _PLAIN.format(0.4, 0.0, *_USUAL),
        _PLAIN.format(0.0, 0.003, *_SLOW),
        _PLAIN.format(0.7, 0.0, *_AVERAGED),
        _PLAIN.format(0.4, 0.0, *_AVERAGED),
    ],
}


class Quiet:
    """A reporter that says nothing."""

    def say(self, text: str) -> None: ...
    def step(self, progress: Any) -> None: ...
    def epoch(self, line: dict[str, Any], epochs: int) -> None: ...


def files(folder: Path, *, others: bool = False) -> dict[str, str | None]:
    """Paths of the series by name; those of statsmodels as it has them, tables of years by months as one column."""
    import statsmodels.datasets

    source = Path(statsmodels.datasets.__file__).parent
    found: dict[str, str | None] = {"default": None}
    for name, (where, column) in (BORROWED | OTHERS if others else BORROWED).items():
        path = source / where / f"{where}.csv"
        if name == "elnino":
            path = _one_column(list(csv.reader(path.open()))[1:], column, folder / "elnino.csv")
        elif name == "sunspots-monthly":
            lines = (source / where / "src/sunspots_monthly.dat").read_text("utf-8").splitlines()
            rows = [line.split() for line in lines if line[:4].isdigit()]
            path = _one_column(rows, column, folder / "sunspots-monthly.csv")
        found[name] = str(path)
    return found


def _one_column(rows: list[list[str]], column: str, path: Path) -> Path:
    """Rows of a year and its months, written as one month per line."""
    lines = [f"{year}-{month:02},{value}" for year, *values in rows for month, value in enumerate(values, start=1)]
    path.write_text(f"month,{column}\n" + "\n".join(lines) + "\n")
    return path


def train(
    recipe: str,
    series: str,
    path: str | None,
    seed: int,
    changes: list[str],
    folder: Path,
    *,
    measure: bool = True,
) -> dict[str, Any]:
    """One run, in ``folder/RECIPE/SERIES/SEED``; its record. ``measure=False``: the test part is not scored."""
    out = folder / recipe / series / str(seed)
    target = [f"data.target={(BORROWED | OTHERS)[series][1]}"] if path is not None and series != "default" else []
    target += ["data.log=true"] if series in GROWING else []
    words = ["bayesrnn", "train", recipe, *(["--data", Path(path).name] if path else []), "--seed", str(seed)]
    return launch(
        recipe,
        out=out,
        reporter=Quiet(),
        data=path,
        overrides=[*target, *changes],
        seed=seed,
        device="cpu",
        force=out.exists(),
        command=" ".join([*words, *target, *changes]),
        measure=measure,
    )


def shortened(paths: dict[str, str | None], folder: Path) -> dict[str, str]:
    """The series without their test parts, as files of the target alone."""
    found = {}
    (folder / "shortened").mkdir()
    for name, path in paths.items():
        data = Data() if path is None else Data(target=(BORROWED | OTHERS)[name][1])
        series = read_series(path, data)
        cut = Plan.of(series, data).cut
        kept = folder / "shortened" / f"{name}.csv"
        kept.write_text(replace(series, values=series.values[: cut.valid]).to_csv(), "utf-8")
        found[name] = str(kept)
    return found


def walked(out: Path, path: str, samples: int | None = None) -> tuple[Walk, slice, Any]:
    """A run's walk through the series it was trained on, the rows of its last part, and how it is measured."""
    cpu = torch.device("cpu")
    trained = open_run(out, cpu)
    task, settings = Forecast(trained.recipe, path, cpu), trained.recipe.evaluate
    walk = forecaster(trained.model, task.plan, task.values, settings).walk(samples=samples or settings.samples, seed=1)
    return walk, walk.rows(task.cut.origins("test", first=task.frame.first, horizon=task.frame.horizon)), settings


def scored(out: Path, path: str) -> dict[str, float]:
    """Scores of a run on the last part of the series it was trained on, walking forward, calibrated and raw."""
    walk, rows, settings = walked(out, path)
    found = {}
    for ending, forecast in (("", walk.forecast), ("_raw", walk.raw)):
        scores = measures(forecast[rows], walk.actual[rows], settings.level)
        found |= {f"{key}{ending}": scores[key] for key in CHOICE_KEYS}
    return found


def mixed(walks: list[tuple[Walk, slice, Any]]) -> dict[str, float]:
    """CRPS and coverage of the even mixture of several runs' forecasts, raw and recalibrated as one forecast is."""
    first, rows, settings = walks[0]
    raw = together([walk.raw for walk, _, _ in walks])
    scaled = raw.scaled(running_scale(raw.standardised(first.actual), memory=settings.memory))
    found = {}
    for ending, forecast in (("", scaled), ("_raw", raw)):
        scores = measures(forecast[rows], first.actual[rows], settings.level)
        found |= {f"{key}{ending}": scores[key] for key in ("crps", "coverage")}
    return found


def average(folder: Path, kept: Path | None) -> None:
    """Even mixtures of 1, 2, 3 and 6 runs of two recipes, before the test parts; runs in ``kept`` are not redone."""
    paths = shortened({n: p for n, p in files(folder, others=True).items() if n not in LONG}, folder)
    runs = kept or folder
    found: dict[str, Any] = {}
    for recipe in ("forecast", "forecast-plain"):
        for name, path in paths.items():
            for seed in CHOICE_SEEDS:
                if not (runs / recipe / name / str(seed) / RECORD).exists():
                    train(recipe, name, path, seed, [], runs, measure=False)
            walks = [walked(runs / recipe / name / str(seed), path, samples=25) for seed in CHOICE_SEEDS]
            for size in (1, 2, 3, 6):
                groups = [mixed(walks[k : k + size]) for k in range(0, len(walks), size)]
                at = found.setdefault(recipe, {}).setdefault(str(size), {})
                at[name] = {key: [group[key] for group in groups] for key in groups[0]}
            print(recipe, name, *(f"{fmean(found[recipe][k][name]['crps']):.4g}" for k in found[recipe]), flush=True)
    about = {"command": "python benchmarks/forecast.py average", "seeds": list(CHOICE_SEEDS), "commit": commit()}
    text = json.dumps({"mixtures": found, **about, "torch": torch.__version__}, indent=1)
    (ROOT / "results/forecast-choice-average.json").write_text(text + "\n", "utf-8")


def add_seeds(row: dict[str, Any], recipe: str, seeds: tuple[int, ...], paths: dict[str, str], folder: Path) -> bool:
    """Runs of the seeds that a row of the record lacks; whether there were any."""
    missing = [seed for seed in seeds if seed not in row["seeds"]]
    for seed in missing:
        row["seeds"].append(seed)
        for name, path in paths.items():
            train(recipe, name, path, seed, row["changes"], folder, measure=False)
            for key, value in scored(folder / recipe / name / str(seed), path).items():
                row.setdefault(key, {}).setdefault(name, []).append(value)
    both = [fmean(row[key][name]) for key in ("crps", "crps_raw") for name in paths]
    row["geometric_mean"] = math.exp(fmean(math.log(value) for value in both))
    return bool(missing)


def choose(folder: Path, only: list[str]) -> None:
    """Scores settings that the record does not hold yet: all with two seeds, the best two of each recipe with six."""
    paths = shortened({name: path for name, path in files(folder).items() if name not in LONG}, folder)
    target = ROOT / "results/forecast-choice-second.json"
    found = json.loads(target.read_text("utf-8")) if target.exists() else {"recipes": {}}
    for recipe in only or SETTINGS:
        rows: list[dict[str, Any]] = found["recipes"].setdefault(recipe, {"settings": []})["settings"]
        rows += [
            {"changes": s, "seeds": []}
            for s in map(str.split, SETTINGS[recipe])
            if all(s != r["changes"] for r in rows)
        ]

        def score(row: dict[str, Any], seeds: tuple[int, ...], recipe: str = recipe) -> None:
            if add_seeds(row, recipe, seeds, paths, folder):
                print(
                    recipe, *row["changes"], f"{len(row['seeds'])} seeds, mean {row['geometric_mean']:.4f}", flush=True
                )

        for row in rows:
            score(row, CHOICE_SEEDS[:2])
        for row in sorted(rows, key=lambda row: float(row["geometric_mean"]))[:2]:
            score(row, CHOICE_SEEDS)
        best = min((r for r in rows if len(r["seeds"]) == len(CHOICE_SEEDS)), key=lambda r: float(r["geometric_mean"]))
        found["recipes"][recipe]["chosen"] = best["changes"]
        found |= {"command": "python benchmarks/forecast.py choose", "seeds": list(CHOICE_SEEDS), "commit": commit()}
        found["torch"] = torch.__version__
        target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def run(folder: Path, only: list[str], series: list[str], seeds: list[int]) -> None:
    """Records that are not there yet; delete those of a recipe that has changed."""
    for name, path in files(folder).items():
        if series and name not in series:
            continue
        for recipe in only or RECIPES:
            source, changes = ("forecast-plain", VARIANTS[recipe]) if recipe in VARIANTS else (recipe, [])
            for seed in seeds:
                own = "mauna_loa" if path is None else name
                kept = ROOT / "results" / recipe / own / f"{seed}.json"
                if kept.exists():
                    continue
                record = train(source, name, path, seed, changes, folder)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / source / name / str(seed) / RECORD, kept)
                crps, coverage, valid = map(record.metric, ("test_crps", "test_coverage", "valid_crps"))
                print(
                    f"{own:22} {recipe:15} {seed} CRPS {crps:.4g} coverage {coverage:.3f} valid CRPS {valid:.4g}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Choose settings on validation parts, or write records of the recipes."
    )
    parser.add_argument("what", choices=("choose", "average", "run"))
    parser.add_argument(
        "recipes",
        nargs="*",
        help=f"default: all, which are {' '.join(RECIPES)}; choose: those of SETTINGS; run: or {' '.join(VARIANTS)}",
    )
    parser.add_argument("--series", nargs="*", default=[], help="run: these alone, such as default elnino")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS), help="run: these alone")
    parser.add_argument("--runs", type=Path, help="average: a folder for its runs; those that are there are used")
    arguments = parser.parse_args()
    for name in arguments.recipes:
        if name not in VARIANTS:
            recipes.load(name)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "choose":
            choose(Path(folder), arguments.recipes)
        elif arguments.what == "average":
            average(Path(folder), arguments.runs)
        else:
            run(Path(folder), arguments.recipes, arguments.series, arguments.seeds)


if __name__ == "__main__":
    main()
