"""Forecasting recipes on real series: settings chosen on validation parts, then records of three seeds.

    python benchmarks/forecast.py choose     # writes results/forecast-choice.json: every setting's validation CRPS
    python benchmarks/forecast.py run        # writes results/RECIPE/SERIES/SEED.json

The series are the library's own and some that the statsmodels wheel carries; all are public domain. One setting per
recipe serves all series: that with the lowest geometric mean, over series, of the validation CRPS. No figure of a test
part is looked at by ``choose``; ``run`` uses the recipes as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from bayesrnn import recipes
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
_DROPOUT = ("model.recurrent_dropout={} model.output_dropout={} model.linear_dropout={}").format
SETTINGS = {
    "forecast": [_DROPOUT(r, o, w) for r, o in ((0.1, 0.1), (0.1, 0.3), (0.3, 0.3)) for w in (0.0, 0.1)],
    "forecast-plain": [f"model.hidden={h} model.noise={n}" for h in (32, 64) for n in ("same", "varying")],
    "forecast-bbb": [f"model.hidden={h} posterior.log_sigma1={s}" for h in (16, 32) for s in (-2.0, -1.0)],
}


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


def train(recipe: str, series: str, path: str | None, seed: int, changes: list[str], folder: Path) -> dict[str, Any]:
    """One run; its record."""
    out = folder / recipe / series / str(seed)
    target = [f"data.target={BORROWED[series][1]}"] if path is not None else []
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
    )


def choose(folder: Path, only: list[str]) -> None:
    paths = {name: path for name, path in files(folder).items() if name not in LONG}
    target = ROOT / "results/forecast-choice.json"
    found = json.loads(target.read_text("utf-8")) if target.exists() else {"recipes": {}}
    for recipe in only or SETTINGS:
        rows = []
        for setting in SETTINGS[recipe]:
            changes = setting.split()
            valid = {}
            for name, path in paths.items():
                metrics = [train(recipe, name, path, seed, changes, folder)["metrics"] for seed in CHOICE_SEEDS]
                valid[name] = sum(m["valid_crps"] for m in metrics) / len(metrics)
            mean = math.exp(sum(math.log(v) for v in valid.values()) / len(valid))
            rows.append({"changes": changes, "valid_crps": valid, "geometric_mean": mean})
            print(recipe, *changes, *(f"{k} {v:.4g}" for k, v in valid.items()), f"mean {mean:.4g}", flush=True)
        best = min(rows, key=lambda row: row["geometric_mean"])
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
