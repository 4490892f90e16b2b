"""Tables that ``bayesrnn forecast`` writes of a forecaster: forecasts, decisions, and scores of walking forward."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, scores
from bayesrnn.forecasting.checks import check_future, check_windows
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.decisions import check_costs, check_share
from bayesrnn.forecasting.panel import panel_of
from bayesrnn.forecasting.tables import read
from bayesrnn.lab.runs.files import check_free, write_file
from bayesrnn.lab.tasks.forecast.source import Source, ahead_option


@dataclass(frozen=True)
class Asked:
    """Options of the command that are about a forecaster's answer. ``level`` is in percent."""

    level: list[float]
    future: Path | None
    walk: int
    table: Path | None
    above: float | None
    below: float | None
    over: float | None
    under: float | None
    anomalies: Path | None
    false_alarms: float
    out: Path | None
    plot: Path | None
    as_json: bool
    steps: int | None = None

    def check(self) -> None:
        """Refuse, before any training, what could not be answered or written."""
        for path, suffixes, option in (
            (self.out, (".csv", ".json"), "--out"), (self.plot, (".png",), "--plot"), (self.table, (".csv",), "--table")
        ):  # fmt: skip
            check_file(path, suffixes, option)
        if (self.over is None) != (self.under is None):
            raise UserError("--over and --under are the two costs of one decision; give both.")
        if self.table is not None and not self.walk:
            raise UserError("--table is for the forecasts of --walk; give both.")
        if self.over is not None and self.under is not None:
            check_costs(self.over, self.under)
        check_share(self.false_alarms)
        asked = {"--above": self.above, "--below": self.below, "--over": self.over, "--anomalies": self.anomalies}
        names = [name for name, value in asked.items() if value is not None]
        if len(names) > 1:
            raise UserError(f"{' and '.join(names)} are different questions; ask one at a time.")

    def check_files(self, made: Forecaster, frame: Any) -> None:
        """Refuse, before a forecaster is trained on a frame, files and windows that do not go with it."""
        if self.future is None and self.anomalies is None and not self.walk:
            return
        panel, horizon = made.panel_of(frame), made.horizon
        if self.walk:
            check_windows(panel, horizon, self.walk, horizon)
        if self.anomalies is not None:
            freq, resample = made.settings["freq"], made.settings["resample"]
            panel_of(self.anomalies, panel.columns, freq=freq, clock=panel.clock, resample=resample)
        else:
            check_future(panel, self.future, horizon)

    def answer(self, made: Forecaster) -> Any:
        """The frame that is asked for."""
        if self.anomalies is not None:
            return made.anomalies(self.anomalies, false_alarms=self.false_alarms)
        if self.above is not None or self.below is not None:
            limits = [limit for limit in (self.above, self.below) if limit is not None]
            return made.crossing(limits[0], above=self.above is not None, future=self.future)
        if self.over is not None and self.under is not None:
            return made.newsvendor(self.over, self.under, future=self.future)
        found = made.predict(level=self.level, future=self.future)
        return found if self.steps is None else found.groupby(made.columns.id, sort=False).head(self.steps)

    def write(self, made: Forecaster) -> None:
        """Walk forward if that is asked for, then print or write the answer."""
        if self.steps is not None and self.steps > made.horizon:
            raise UserError(
                f"--steps is {self.steps}, and the model forecasts {made.horizon} steps; train with a larger horizon."
            )
        if self.walk:
            found = made.backtest(windows=self.walk, level=self.level)
            if self.table is not None:
                write_file(self.table, found.to_csv(index=False).encode())
            shown = scores(found).iloc[0]
            names = [name for name in shown.index if not name.startswith(("msis", "width"))]
            typer.echo(
                f"Walking forward, {self.walk} windows: " + ", ".join(f"{n} {shown[n]:.4g}" for n in names) + ".",
                err=True,
            )
        found = self.answer(made)
        if self.plot is not None:
            from bayesrnn.forecasting.plots import fan_chart

            write_file(self.plot, fan_chart(made, level=self.level, future=self.future))
        as_json = self.as_json or (self.out is not None and self.out.suffix.lower() == ".json")
        text = found.to_json(orient="records", date_format="iso", indent=2) if as_json else found.to_csv(index=False)
        if self.out is None:
            typer.echo(text.rstrip("\n"))
        else:
            write_file(self.out, text.encode())


def percentages(levels: list[float]) -> list[float]:
    """Each once; below 1 they are fractions."""
    for value in levels:
        if not 0 < value < 100 or value == 1:
            raise UserError(f"--level is {value:g}; it must be between 0 and 100%, such as 80 or 0.8.")
    return list(dict.fromkeys(round(100 * value, 9) if value < 1 else value for value in levels))


def check_file(path: Path | None, suffixes: tuple[str, ...], option: str) -> None:
    """Refuse a file that could not be written."""
    if path is None:
        return
    if path.suffix.lower() not in suffixes or not path.resolve().parent.is_dir():
        kinds = " or ".join(suffixes)
        raise UserError(f"{path} cannot be written; {option} names a {kinds} file in a folder that exists.")
    check_free(path, force=True, option=option)


def from_file(data: Path, asked: Asked, *, target: str | None, date: str | None, series: str | None,
              save: Path | None, freq: str | None, **settings: Any) -> None:  # fmt: skip
    """Fit a forecaster to a file, and answer."""
    if settings["resample"] not in (None, "mean", "sum", "last"):
        raise UserError(f"--resample is {settings['resample']}; choose mean, sum or last.")
    if save is not None and save.exists() and not (save / "forecaster.json").is_file():
        raise UserError(f"{save} exists and is no saved forecaster; choose another --save.")
    time = date if date not in (None, "none") else Columns.time
    source = Source.of(data, target, date, time=time, series=series)
    columns = source.columns
    with source.naming():
        frame = source.frame()
        if target is None:
            names = [columns.target] if columns.target in source.table else frame[columns.id].unique().tolist()
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            typer.echo(f"Forecasts {', '.join(names[:8])}{more}; --target chooses one column.", err=True)
        made = Forecaster(
            verbose=True, id_col=columns.id, time_col=columns.time, target_col=columns.target,
            future=_ahead(asked.future, frame, columns), freq=int(freq) if freq and freq.isdigit() else freq,
            **settings,
        )  # fmt: skip
        with ahead_option():
            asked.check_files(made, frame)
        made.fit(frame)
        if save is not None:
            made.save(save)
            typer.echo(f"The forecaster is in {save}: bayesrnn explore {save}", err=True)
        asked.write(made)


def _ahead(future: Path | None, frame: Any, columns: Columns) -> list[str]:
    """Columns that are known ahead: those of the file that the data have too."""
    if future is None:
        return []
    known = read(future)
    names = [name for name in known if name in frame and name not in (columns.id, columns.time, columns.target)]
    if not names:
        raise UserError(
            f"{future} has no column of {', '.join(map(str, frame))}; --future is a file with columns of the data that "
            "are known ahead."
        )
    return names


def from_folder(folder: Path, asked: Asked, data: str | None) -> None:
    """Open a saved forecaster, append newer rows, and answer."""
    made = Forecaster.load(folder)
    made.settings["verbose"] = True
    with ahead_option():
        asked.write(made.update(data) if data is not None else made)
