"""The four forecasting recipes on the same series: what a posterior over the networks' weights changes.

    python benchmarks/forecast.py --data FOLDER --seeds 1 2 3

Records go to ``results/RECIPE/SERIES/SEED.json``; those that exist are kept. Recipes are used as they are, and the last
15% of each series are the test part. The series are the library's own, ETTh1 (``FOLDER/ett/ETTh1.csv.gz``), and two
that `benchmarks/forecasting_tasks.py` makes up.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from forecasting_tasks import load

from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.progress import Silent
from bayesrnn.lab.runs.record import RECORD

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ("forecast", "forecast-mixture", "forecast-bbb", "forecast-plain")
SERIES = ("mauna_loa", "daily", "gaps", "etth1-24")


def file_of(name: str, source: Path, folder: Path) -> tuple[str | None, list[str]]:
    """A series as a CSV file, and the settings for it; None: the library's own."""
    if name == "mauna_loa":
        return None, []
    task = load(name, source)
    stamps = pd.date_range(task.starts[0], periods=len(task.values[0]), freq=task.freq)
    path = folder / f"{name}.csv"
    pd.DataFrame({"ds": stamps, "y": task.values[0]}).to_csv(path, index=False)
    return str(path), [f"data.horizon={task.horizon}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--series", nargs="+", default=SERIES, choices=SERIES)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {name: file_of(name, given.data, folder) for name in given.series}
        for seed in given.seeds:
            for name, (data, settings) in files.items():
                for recipe in RECIPES:
                    target = ROOT / "results" / recipe / name / f"{seed}.json"
                    if target.exists():
                        continue
                    out = folder / "run"
                    command = f"python benchmarks/forecast.py --data FOLDER --seeds {seed}"
                    record = launch(
                        recipe, out=out, reporter=Silent(), data=data, overrides=settings, seed=seed, device="cpu",
                        command=command,
                    )  # fmt: skip
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(out / RECORD, target)
                    shutil.rmtree(out)
                    print(f"{name}, {recipe}, seed {seed}: CRPS {record.metrics['test_crps']:.4g}", flush=True)


if __name__ == "__main__":
    main()
