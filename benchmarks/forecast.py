"""Forecasting recipes on real series: settings chosen before the test parts, then records of three seeds.

    python benchmarks/forecast.py choose     # writes results/forecast-choice.json: every setting's score
    python benchmarks/forecast.py run        # writes results/RECIPE/SERIES/SEED.json

The series are the library's own and some that the statsmodels wheel carries; all are public domain. One setting per
recipe serves all series: that with the lowest geometric mean of CRPS over them. ``choose`` sees the series without
their test parts: it trains on the first 70% of the rest, stops by the next 15%, and scores the last 15%, which are part
of what ``run`` validates on. ``run`` uses the recipes as they are.
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

from bayesrnn import recipes
from bayesrnn.tasks.forecast import Data, Forecast, Plan, forecaster, read_series
from bayesrnn.tasks.forecaster import measures
from bayesrnn.tasks.trained import open_run
from bayesrnn.train.launch import commit, launch
from bayesrnn.train.run_folder import RECORD

ROOT = Path(__file__).resolve().parent.parent
SEEDS = (1, 2, 3)
CHOICE_SEEDS = (11, 12)
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
_DROPOUT = (
    "model.recurrent_dropout={} model.output_dropout={} model.linear_dropout={} model.prior_sigma={} train.l2={}"
).format
_PLAIN = "model.hidden={} model.noise={} train.l2={}".format
SETTINGS = {
    "forecast": [
        _DROPOUT(0.1, 0.1, 0.1, 0.0, 1e-4),
        _DROPOUT(0.1, 0.02, 0.01, 0.7, 0.0),
        _DROPOUT(0.1, 0.1, 0.05, 0.7, 0.0),
        _DROPOUT(0.2, 0.2, 0.05, 0.7, 0.0),
        _DROPOUT(0.2, 0.2, 0.05, 0.5, 0.0),
        _DROPOUT(0.1, 0.1, 0.05, 0.5, 0.0),
    ],
    "forecast-plain": [
        _PLAIN(64, "varying", 1e-4), _PLAIN(32, "varying", 1e-4), _PLAIN(64, "same", 1e-4), _PLAIN(64, "varying", 3e-3),
        _PLAIN(64, "varying", 1e-2),
    ],
    "forecast-bbb": [f"model.hidden={h} posterior.log_sigma1={s}" for h, s in ((64, -1.2), (64, -2.0), (32, -2.0))],
}  # fmt: skip


class Quiet:
    """A reporter that says nothing."""

    def say(self, text: str) -> None: ...
    def step(self, progress: Any) -> None: ...
    def epoch(self, line: dict[str, Any], epochs: int) -> None: ...


def files(folder: Path) -> dict[str, str | None]:
    """Paths of the series by name; those of statsmodels as it has them, tables of years by months as one column."""
    import statsmodels.datasets

    source = Path(statsmodels.datasets.__file__).parent
    found: dict[str, str | None] = {"default": None}
    for name, (where, column) in BORROWED.items():
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
    target = [f"data.target={BORROWED[series][1]}"] if path is not None and series in BORROWED else []
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
        data = Data() if path is None else Data(target=BORROWED[name][1])
        series = read_series(path, data)
        cut = Plan.of(series, data).cut
        kept = folder / "shortened" / f"{name}.csv"
        kept.write_text(replace(series, values=series.values[: cut.valid]).to_csv(), "utf-8")
        found[name] = str(kept)
    return found


def scored(out: Path, path: str) -> dict[str, float]:
    """Scores of a run on the last part of the series it was trained on, walking forward."""
    cpu = torch.device("cpu")
    trained = open_run(out, cpu)
    task, settings = Forecast(trained.recipe, path, cpu), trained.recipe.evaluate
    walk = forecaster(trained.model, task.plan, task.values, settings).walk(samples=settings.samples, seed=1)
    rows = walk.rows(task.cut.origins("test", first=task.frame.first, horizon=task.frame.horizon))
    return measures(walk.forecast[rows], walk.actual[rows], settings.level)


def _tried(path: Path, recipe: str) -> list[dict[str, Any]]:
    """Settings that the record holds already; they are not run again."""
    found = json.loads(path.read_text("utf-8"))["recipes"] if path.exists() else {}
    rows: list[dict[str, Any]] = found.get(recipe, {"settings": []})["settings"]
    return rows


def choose(folder: Path, only: list[str]) -> None:
    """Scores every setting that the record does not hold yet."""
    paths = shortened({name: path for name, path in files(folder).items() if name not in LONG}, folder)
    target = ROOT / "results/forecast-choice.json"
    for recipe in only or SETTINGS:
        rows = _tried(target, recipe)
        for setting in SETTINGS[recipe]:
            changes = setting.split()
            if any(row["changes"] == changes for row in rows):
                continue
            crps, coverage = {}, {}
            for name, path in paths.items():
                scores = []
                for seed in CHOICE_SEEDS:
                    train(recipe, name, path, seed, changes, folder, measure=False)
                    scores.append(scored(folder / recipe / name / str(seed), path))
                crps[name] = fmean(s["crps"] for s in scores)
                coverage[name] = fmean(s["coverage"] for s in scores)
            mean = math.exp(fmean(math.log(v) for v in crps.values()))
            rows.append({"changes": changes, "crps": crps, "coverage": coverage, "geometric_mean": mean})
            told = (f"{k} {v:.4g} ({coverage[k]:.1%})" for k, v in crps.items())
            print(recipe, *changes, *told, f"mean {mean:.4g}", flush=True)
        best = min(rows, key=lambda row: row["geometric_mean"])
        found = json.loads(target.read_text("utf-8")) if target.exists() else {"recipes": {}}
        found["recipes"][recipe] = {"chosen": best["changes"], "settings": rows}
        found |= {"command": "python benchmarks/forecast.py choose", "seeds": list(CHOICE_SEEDS), "commit": commit()}
        found["torch"] = torch.__version__
        target.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def run(folder: Path, only: list[str], series: list[str]) -> None:
    for name, path in files(folder).items():
        if series and name not in series:
            continue
        for recipe in only or SETTINGS:
            for seed in SEEDS:
                record = train(recipe, name, path, seed, [], folder)
                own = record["series"]["name"] if path is None else name
                kept = ROOT / "results" / recipe / own / f"{seed}.json"
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / recipe / name / str(seed) / RECORD, kept)
                m = record["metrics"]
                print(
                    f"{own:22} {recipe:15} {seed} CRPS {m['test_crps']:.4g} coverage {m['test_coverage']:.3f} "
                    f"valid CRPS {m['valid_crps']:.4g}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Choose settings on validation parts, or write records of the recipes."
    )
    parser.add_argument("what", choices=("choose", "run"))
    parser.add_argument("recipes", nargs="*", help=f"default: {' '.join(SETTINGS)}")
    parser.add_argument("--series", nargs="*", default=[], help="run: these alone, such as default elnino")
    arguments = parser.parse_args()
    for name in arguments.recipes:
        recipes.load(name)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "choose":
            choose(Path(folder), arguments.recipes)
        else:
            run(Path(folder), arguments.recipes, arguments.series)


if __name__ == "__main__":
    main()
