"""Tables that ``bayesrnn forecast`` writes of a forecaster: forecasts, decisions, and scores of walking forward."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.forecasting import Forecaster, scores
from bayesrnn.forecasting.checks import check_future, check_windows
from bayesrnn.forecasting.columns import Columns
from bayesrnn.forecasting.decisions import check_costs, check_share
from bayesrnn.forecasting.growth import joined
from bayesrnn.forecasting.panel import Panel, panel_of
from bayesrnn.forecasting.tables import read
from bayesrnn.forecasting.training import minutes_of
from bayesrnn.lab.reading import counted
from bayesrnn.lab.runs.files import check_free, write_file
from bayesrnn.lab.tasks.forecast.heading import duration, heading
from bayesrnn.lab.tasks.forecast.source import ROW, Source, newer
from bayesrnn.lab.tasks.forecast.words import Said, Words

PICTURES = 6
"""Series in one picture."""


@dataclass(frozen=True)
class Asked:
    """Options of the command that are about a forecaster's answer.

    ``level`` is in percent; ``date`` is the column of stamps of a run's files.
    """

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
    date: str = ""

    def check(self) -> None:
        """Refuse, before any training, what could not be answered or written."""
        outputs = {"--out": (self.out, (".csv", ".json")), "--plot": (self.plot, (".png",)),
                   "--table": (self.table, (".csv",))}  # fmt: skip
        taken = {path.resolve(): option for option, path in (("--future", self.future), ("--anomalies", self.anomalies))
                 if path is not None}  # fmt: skip
        for option, (path, suffixes) in outputs.items():
            check_file(path, suffixes, option)
            if path is not None and taken.setdefault(path.resolve(), option) != option:
                raise UserError(f"{path} is the file of {taken[path.resolve()]} and of {option}; choose another.")
        if (self.over is None) != (self.under is None):
            raise UserError("--over and --under are the two costs of one decision; give both.")
        if self.table is not None and not self.walk:
            raise UserError("--table is for the forecasts of --walk; give both.")
        with Words().naming():
            if self.over is not None and self.under is not None:
                check_costs(self.over, self.under)
            check_share(self.false_alarms)
        asked = {"--above": self.above, "--below": self.below, "--over": self.over, "--anomalies": self.anomalies}
        names = [name for name, value in asked.items() if value is not None]
        if len(names) > 1:
            raise UserError(f"{' and '.join(names)} are different questions; ask one at a time.")
        for name in names:
            if isinstance(value := asked[name], float) and not math.isfinite(value):
                raise UserError(f"{name} is {value}; give a number.")

    def check_steps(self, horizon: int) -> None:
        if self.steps is not None and self.steps > horizon:
            raise UserError(
                f"--steps is {self.steps}, and the model forecasts {horizon} steps; train with a larger horizon."
            )

    def check_files(self, made: Forecaster, panel: Panel) -> None:
        """Refuse, before a forecaster is trained on a panel, files and windows that do not go with it."""
        horizon = made.horizon
        if self.walk:
            check_windows(panel, horizon, self.walk, horizon)
        if self.anomalies is not None:
            source = newer(self.anomalies, panel, "--anomalies")
            with source.naming():
                resample = made.settings["resample"]
                freq = made.settings["freq"]
                new = panel_of(source.renamed, panel.columns, freq=freq, clock=panel.clock, resample=resample)
                both = joined(panel, new)  # refuses values that contradict
                if len(both.y) == len(panel.y):
                    raise UserError(f"{self.anomalies} has no values after those of the data; give newer rows.")
        elif self.future is None:
            check_future(panel, None, horizon)
        else:
            source = newer(self.future, panel, "--future")
            with source.naming():
                check_future(panel, source.renamed, horizon)

    def answer(self, made: Forecaster) -> Any:
        """The frame that is asked for."""
        if self.anomalies is not None:
            source = newer(self.anomalies, _panel(made), "--anomalies", self.date)
            with source.naming():
                return made.anomalies(source.renamed, false_alarms=self.false_alarms)
        with self._ahead(made) as future:
            if self.above is not None or self.below is not None:
                limits = [limit for limit in (self.above, self.below) if limit is not None]
                return made.crossing(limits[0], above=self.above is not None, future=future)
            if self.over is not None and self.under is not None:
                found = made.newsvendor(self.over, self.under, future=future)
            else:
                found = made.predict(level=self.level, future=future)
            return found if self.steps is None else found.groupby(made.columns.id, sort=False).head(self.steps)

    @contextmanager
    def _ahead(self, made: Forecaster) -> Iterator[Any]:
        """The table of --future; errors inside the block are about it."""
        source = None if self.future is None else newer(self.future, _panel(made), "--future", self.date)
        words = source.words if source is not None else Words(roles=False, columns=made.columns)
        with words.naming():
            yield source.renamed if source is not None else None

    def write(self, made: Forecaster, known: Mapping[str, int] | None = None) -> None:
        """Print a backtest if that is asked for, then print or write the answer.

        ``known`` are the rows of each series that the model was trained on; None: all. A file that cannot be written
        costs no answer: it is printed, and the command fails then.
        """
        self.check_steps(made.horizon)
        failed: list[UserError] = []
        with Words(roles=False, columns=made.columns).naming():
            if self.walk:
                self._backtest(made, known, failed)
            found = self.answer(made)
            as_json = self.as_json or (self.out is not None and self.out.suffix.lower() == ".json")
            text = found.to_json(orient="records", date_format="iso", indent=2) if as_json else (
                found.to_csv(index=False))  # fmt: skip
            if self.out is None or not written(self.out, text.encode(), failed):
                typer.echo(text.rstrip("\n"))
            if self.plot is not None:
                written(self.plot, self._picture(made, found), failed)
        for error in failed[:1]:
            raise error

    def _backtest(self, made: Forecaster, known: Mapping[str, int] | None, failed: list[UserError]) -> None:
        rows = made.rows
        if any(count - self.walk * made.horizon < (known or rows).get(name, 0) for name, count in rows.items()):
            time = duration(minutes_of(made.settings["minutes"], sum(rows.values())))
            typer.echo(f"Training a copy on the rows before the backtest: up to {time}.", err=True)
        found = made.backtest(windows=self.walk, level=self.level)
        if self.table is not None:
            written(self.table, found.to_csv(index=False).encode(), failed)
        shown = scores(found).iloc[0]
        names = [name for name in shown.index if not name.startswith(("msis", "width"))]
        typer.echo(
            f"Backtest on {counted(self.walk, 'window')}: " + ", ".join(f"{n} {shown[n]:.4g}" for n in names) + ".",
            err=True,
        )

    def _picture(self, made: Forecaster, found: Any) -> bytes:
        from bayesrnn.forecasting.plots import alarm_charts, fan_charts

        names = made.ids[:PICTURES]
        if self.anomalies is not None:
            ids = found[made.columns.id].astype(str)
            most = found["score"].groupby(ids).max().sort_values(ascending=False)
            names = most.index[:PICTURES].tolist()
            self._told(names, ids.nunique(), "with the largest scores")
            return alarm_charts(made, found, names)
        self._told(names, len(made.ids), "that come first")
        with self._ahead(made) as future:
            return fan_charts(made, names, level=self.level, future=future)

    @staticmethod
    def _told(names: list[str], count: int, which: str) -> None:
        if count > len(names):
            typer.echo(f"The picture has the {len(names)} of {count:,} series {which}: {', '.join(names)}.", err=True)


def _panel(made: Forecaster) -> Panel:
    assert made.panel is not None
    return made.panel


def written(path: Path, content: bytes, failed: list[UserError]) -> bool:
    """Whether the file could be written; if not, the error is kept."""
    try:
        write_file(path, content)
    except UserError as error:
        failed.append(error)
        return False
    return True


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
    _check_folder(path.resolve().parent, path, option)


def _check_folder(folder: Path, path: Path, option: str) -> None:
    """Refuse a path in a folder that takes no files."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); choose another {option}.") from None


def _check_save(save: Path) -> None:
    if save.exists() and not (save / "forecaster.json").is_file():
        raise UserError(f"{save} exists and is no saved forecaster; choose another --save.")
    there = next(folder for folder in (save.resolve(), *save.resolve().parents) if folder.exists())
    _check_folder(there, save, "--save")


def from_file(data: Path, asked: Asked, *, target: str | None, date: str | None, series: str | None,
              save: Path | None, freq: str | None, **settings: Any) -> None:  # fmt: skip
    """Fit a forecaster to a file, and answer."""
    if settings["resample"] not in (None, "mean", "sum", "last"):
        raise UserError(f"--resample is {settings['resample']}; choose mean, sum or last.")
    asked.check_steps(settings["horizon"])
    if save is not None:
        _check_save(save)
    for path, option in ((asked.out, "--out"), (asked.table, "--table")):
        if path is not None and path.resolve() == data.resolve():
            raise UserError(f"{option} would replace {data}, the file with the data; choose another.")
    time = ROW if date == "none" else date or Columns.time
    words = Words(threshold="above" if asked.below is None else "below")
    source = Source.of(data, target, date, time=time, series=series, words=words)
    columns, failed = source.columns, list[UserError]()
    with source.naming():
        frame = source.frame()
        made = Forecaster(
            verbose=True, id_col=columns.id, time_col=columns.time, target_col=columns.target,
            future=_ahead(asked.future, frame, columns), freq=int(freq) if freq and freq.isdigit() else freq,
            **settings,
        )  # fmt: skip
        panel = made.panel_of(frame)
        said = heading(source, frame, panel, made.settings["minutes"], chosen=target is not None, walk=asked.walk)
        typer.echo(said, err=True)
        asked.check_files(made, panel)
        made.fit(panel)
    if save is not None:
        try:
            made.save(save)
            typer.echo(f"The forecaster is in {save}: bayesrnn explore {save}", err=True)
        except (UserError, OSError) as error:
            failed.append(UserError(f"{save} cannot be written ({error}); the forecaster is not saved."))
    asked.write(made)
    for unsaved in failed:
        raise unsaved


def _ahead(future: Path | None, frame: Any, columns: Columns) -> list[str]:
    """Columns that are known ahead: those of the file that the data have too."""
    if future is None:
        return []
    known = read(future)
    names = [name for name in known if name in frame and name not in (columns.id, columns.time, columns.target)]
    if not names:
        raise Said(
            f"{future} has no column of {', '.join(map(str, frame))}; --future is a file with columns of the data that "
            "are known ahead."
        )
    return names


def from_folder(folder: Path, asked: Asked, data: str | None) -> None:
    """Open a saved forecaster, append newer rows, and answer."""
    made = Forecaster.load(folder)
    made.settings["verbose"] = True
    known = made.rows
    if data is not None:
        update(made, data)
    asked.write(made, known)


def update(made: Forecaster, data: str, date: str = "") -> None:
    """Append the rows of a file."""
    source = newer(Path(data), _panel(made), "--data", date)
    with source.naming():
        made.update(source.renamed)
