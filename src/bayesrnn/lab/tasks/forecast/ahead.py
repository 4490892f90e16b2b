"""Forecasts beyond the end of a run's series."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from rich.markup import escape

from bayesrnn.errors import UserError
from bayesrnn.lab.console.output import plain_console
from bayesrnn.lab.engine.launch import device_of
from bayesrnn.lab.reading import counted
from bayesrnn.lab.report.tables import Column, rich_table
from bayesrnn.lab.runs.files import write_file
from bayesrnn.lab.runs.opening import check_task, open_run
from bayesrnn.lab.tasks.forecast.plan import FRAME, Plan, kept_series
from bayesrnn.lab.tasks.forecast.plots import forecast_plot
from bayesrnn.lab.tasks.forecast.tables import check_file
from bayesrnn.lab.tasks.forecast.task import forecaster, read_series

if TYPE_CHECKING:
    from bayesrnn.lab.runs.opening import OpenedRun


def command(
    run: Path, data: str | None, level: float, steps: int | None, samples: int | None, seed: int, device: str | None,
    picture: Path | None, out: Path | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Forecast a run's series, or one that continues it, and print or write a table or JSON."""
    import pandas as pd

    check_task(run, "forecast")
    check_file(picture, (".png",), "--plot")
    check_file(out, (".csv", ".json"), "--out")
    trained = open_run(run, device_of(device))
    found = forecast(trained, data, steps=steps, level=level, samples=samples, seed=seed)
    if picture is not None:
        plot(found, picture)
    text = json.dumps({key: value for key, value in found.items() if key != "past"}, indent=2)
    if out is not None:
        rows = pd.DataFrame(found["rows"]).to_csv(index=False)
        write_file(out, rows if out.suffix.lower() == ".csv" else f"{text}\n")
    elif as_json:
        typer.echo(text)
    else:
        show(found)


def forecast(
    trained: "OpenedRun", data: str | None, *, steps: int | None, level: float, samples: int | None, seed: int
) -> dict[str, Any]:
    """The forecast as plain values: one row per step, and the last values of the series.

    A row has ``date``, ``mean``, the interval ``low`` to ``high``, and two standard deviations, ``aleatoric_std``
    (noise in the data) and ``epistemic_std`` (uncertainty about the weights). ``method`` is ``direct`` or ``rollout``.
    """
    plan = Plan.from_json(trained.files[FRAME])
    series = own = kept_series(trained.files, plan, name=Path(trained.config["data"]).stem)
    if data is not None:
        series, file = read_series(data, trained.recipe.data), Path(data).name
        if tuple(series.columns) != plan.columns:
            trained_on, has = ", ".join(plan.columns), ", ".join(series.columns)
            raise UserError(f"{file}: The run was trained on {trained_on}; the file has {has}.")
        if series.grid.size != own.grid.size:
            raise UserError(
                f"{file}: The run was trained on steps of {own.grid.size}; the file's are {series.grid.size}."
            )
        if len(series) < plan.frame.first + 1:
            raise UserError(
                f"{file}: The series has {counted(len(series), 'step')}; the model looks back on "
                f"{plan.frame.first + 1}."
            )
        plan = plan.moved(own.grid.step(series.grid.start))
    values = torch.from_numpy(series.values).unsqueeze(1)
    evaluate = trained.recipe.evaluate
    ahead = forecaster(trained.model, plan, values, evaluate).ahead(
        steps or plan.frame.horizon, samples=samples or evaluate.samples, seed=seed, level=level
    )
    columns = {key: getattr(ahead, key).tolist() for key in ("mean", "low", "high", "aleatoric_std", "epistemic_std")}
    rows = [
        {
            "date": series.label(len(series) + i),
            **{key: column[i] for key, column in columns.items()},
            "method": "direct" if i < ahead.direct else "rollout",
        }
        for i in range(len(ahead.mean))
    ]
    shown = min(len(series), max(60, 3 * len(rows)))
    labels = [series.label(i) for i in range(len(series) - shown, len(series))]
    return {
        "series": series.name,
        "target": series.columns[0],
        "level": level,
        "direct": ahead.direct,
        "notes": series.notes if data is not None else [],
        "rows": rows,
        "past": {"labels": labels, "values": series.target[-shown:].tolist()},
    }


def plot(found: dict[str, Any], path: Path) -> None:
    """Write the picture."""
    rows = {key: [row[key] for row in found["rows"]] for key in ("mean", "low", "high", "epistemic_std")}
    labels = [*found["past"]["labels"], *(row["date"] for row in found["rows"])]
    png = forecast_plot(
        found["past"]["values"], rows, labels, name=found["target"], level=found["level"], direct=found["direct"]
    )
    write_file(path, png)


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    console = plain_console()
    for note in found["notes"]:
        console.print(note, soft_wrap=True, markup=False)
    level = f"{found['level']:.0%}"
    columns = (
        Column("date", "date"),
        Column("mean", escape(found["target"]), "{:.5g}"),
        Column("low", f"{level} from", "{:.5g}"),
        Column("high", "to", "{:.5g}"),
        Column("aleatoric_std", "noise (sd)", "{:.3g}"),
        Column("epistemic_std", "model (sd)", "{:.3g}"),
    )
    console.print(rich_table(found["rows"], columns))
    if found["direct"] < len(found["rows"]):
        console.print(f"Steps after the first {found['direct']} are sampled roll-outs of the model.", soft_wrap=True)
