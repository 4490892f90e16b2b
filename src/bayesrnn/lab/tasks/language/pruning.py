"""Remove the weights of lowest signal-to-noise from a language model, and train the rest again if asked to."""

import copy
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import bayesrnn as br
from bayesrnn.errors import UserError
from bayesrnn.lab.console.lines import reporter
from bayesrnn.lab.console.output import command_line
from bayesrnn.lab.engine.loop import set_precision
from bayesrnn.lab.engine.provenance import commit, environment
from bayesrnn.lab.reading import counted, data_name
from bayesrnn.lab.report import plots
from bayesrnn.lab.report.tables import Column, rich_table
from bayesrnn.lab.runs import checkpoint
from bayesrnn.lab.runs.files import as_json, read_own, write_file
from bayesrnn.lab.runs.folder import MARKER
from bayesrnn.lab.runs.opening import OpenedRun, WeightsGuard, open_run
from bayesrnn.lab.runs.record import RECORD
from bayesrnn.lab.tasks.language import streams
from bayesrnn.lab.tasks.language.retraining import SIGMA, Schedule, retrain, schedule
from bayesrnn.pruning import count_of, gaussian_of, removed, share_of

if TYPE_CHECKING:
    from rich.console import Console

    from bayesrnn.lab.engine.progress import Reporter

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
_FILE = "prune.json"

Row = dict[str, Any]


@dataclass(frozen=True)
class PruneOptions:
    """The options of ``bayesrnn prune``."""

    fraction: float
    data: str | None = None
    epochs: int | None = None
    also_at: str | None = None
    lr: float | None = None
    force: bool = False

    def shares(self) -> list[float]:
        """Further shares to train again with."""
        try:
            found = [float(part) for part in (self.also_at or "").split(",") if self.also_at is not None]
        except ValueError:
            found = [-1.0]
        if not all(0 <= share < 1 for share in found):
            raise UserError(f"--retrain-at is {self.also_at}; it must be shares from 0 to below 1, such as 0,0.9.")
        return found


@br.kernels.float32_precision()  # as it was, after pruning
def prune(run: Path, asked: PruneOptions, device: torch.device, console: "Console") -> None:
    """Measure the pruning curve, remove the share that was asked for, and write the results into the run folder."""
    unfinished, guard = (run / MARKER).exists(), WeightsGuard.of(run)
    trained = open_run(run, device)
    set_precision(trained.recipe.train.precision, device)
    if trained.recipe.posterior.kind == "none":
        raise UserError(f"{run} has no posterior over weights; only Bayes by Backprop recipes have signal-to-noise.")
    plan, more = _plan(trained, asked)
    before = _share_before(trained)
    if asked.fraction < before:
        console.print(
            f"{run} lacks {_percent(before)} of its weights already: {_percent(asked.fraction)} removes no more.",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    fraction, more = max(asked.fraction, before), [max(share, before) for share in more]
    task: Any = trained.task(asked.data, device)
    not_kept = f"The run in {run} is not finished." if unfinished else trained.other_data(task)
    if not_kept and plan is not None:
        raise UserError(f"{not_kept} Only finished runs are trained again, on their own text.")
    if not_kept:
        console.print(f"{not_kept} The results are shown, and not kept.", soft_wrap=True, markup=False)
    elif plan is None and not asked.force and _retrained(run) is not None:
        raise UserError(
            f"{run / _FILE} has results of weights that were trained again; keep them with the same --retrain, "
            "or replace them with --force."
        )
    place = trained.place(asked.data, device) or task.default_data
    again = None if plan is None else Retrained(trained, plan, before, place, console)
    wanted = {fraction, *more}
    kept = set() if again is None else {share for share in again.kept() - wanted if share >= before}
    shares = {before, *(share for share in FRACTIONS if share > before), *wanted, *kept}
    rows = _curve(task, shares)
    summary = {**_about(trained, device, asked.data), "fraction": fraction}
    if again is not None:
        for share in sorted(wanted | kept):
            guard.check()  # a run of its own starts inside the folder
            again.add(share, rows[0], task, force=asked.force and share in wanted)
    q = task.model
    report = br.prune(q, fraction)
    summary |= {"threshold": report.threshold, **_results(q, task), "curve": rows}
    told = f"With {_percent(fraction)} removed: {_perplexities(summary)}."
    if again is not None:
        summary["retrained"] = again.results(fraction, q, task)
        told += f" Trained again: {_perplexities(summary['retrained'])}; a run of its own, {_folder(run, fraction)}."
    if not not_kept:
        _write(run, guard, q, summary)
    _show(console, rows, [] if again is None else again.rows)
    console.print(f"{told} {'Nothing was written.' if not_kept else f'Written to {run}'}", soft_wrap=True)


def _plan(trained: OpenedRun, asked: PruneOptions) -> tuple[Schedule | None, list[float]]:
    """How to train again, and with which further shares removed; None: not at all."""
    if asked.epochs is None:
        if asked.also_at is not None or asked.lr is not None:
            raise UserError("--retrain-at and --retrain-lr are for training again; add --retrain EPOCHS.")
        return None, []
    more = asked.shares()
    if asked.lr is not None and not 0 < asked.lr < float("inf"):
        raise UserError(f"--retrain-lr is {asked.lr:g}; it must be a finite number above 0.")
    model: Any = trained.model
    total, most = sum(mask.numel() for mask in removed(model).values()), max([asked.fraction, *more])
    if count_of(most, total) == total:
        raise UserError(f"With {_percent(most)} of the weights removed none is left to train; remove fewer.")
    return schedule(trained.recipe, asked.epochs, asked.lr), more


def _share_before(trained: OpenedRun) -> float:
    """The share of weights that the run lacks already, if it is a pruned run that was trained again."""
    model: Any = trained.model
    masks = removed(model).values()
    return share_of(sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks))


def _retrained(run: Path) -> Any:
    """The part of prune.json on weights that were trained again; None: there is none."""
    return read_own(run / _FILE).get("retrained")


def _perplexity(model: Any, stream: torch.Tensor, task: Any) -> float:
    """Perplexity of the posterior mean on one stream; its state is carried as the recipe says."""
    reset = streams.reset_of(task.recipe)
    window = reset or streams.evaluation_window(stream, len(task.streams.vocabulary))
    return streams.perplexity(model, stream, window=window, carry_state=reset is None)


def _results(q: Any, task: Any) -> Row:
    return {
        "valid_perplexity": _perplexity(q, task.streams.valid, task),
        "test_perplexity": _perplexity(q, task.streams.test, task),
        "tensors": {name: {"removed": int(mask.sum()), "total": mask.numel()} for name, mask in removed(q).items()},
    }


def _curve(task: Any, shares: set[float]) -> list[Row]:
    """Validation perplexity with each share removed, and its rise over that with none."""
    rows: list[Row] = []
    for share in sorted(shares):
        smaller = copy.deepcopy(task.model)
        br.prune(smaller, share)
        rows.append({"fraction": share, "valid_perplexity": _perplexity(smaller, task.streams.valid, task)})
    for row in rows:
        row["rise"] = row["valid_perplexity"] / rows[0]["valid_perplexity"] - 1
    return rows


class Retrained:
    """The run with shares of its weights removed and the rest trained again, each in a run folder of its own.

    ``before`` is the share that the run itself lacks, ``data`` where the text is.
    """

    def __init__(self, run: OpenedRun, plan: Schedule, before: float, data: str, console: "Console") -> None:
        self.run, self.plan, self.before, self.data, self.console = run, plan, before, data, console
        self.rows: list[Row] = []
        self.weights: dict[float, Any] = {}

    def kept(self) -> set[float]:
        """Shares in prune.json that were trained again from these weights, by the same plan, and are still there."""
        before = _retrained(self.run.path)
        curve = before.get("curve") if isinstance(before, dict) else None
        shares = [row.get("fraction") for row in curve if isinstance(row, dict)] if isinstance(curve, list) else []
        found: set[float] = set()
        for share in {share for share in shares if isinstance(share, float)}:
            out = _folder(self.run.path, share)
            if (out / MARKER).exists() or not (out / RECORD).exists():
                continue
            with reporter(self.console) as told, suppress(UserError):  # made from other weights or settings
                self._posterior(share, told, force=False)
                found.add(share)
        return found

    def add(self, share: float, whole: Row, task: Any, *, force: bool) -> None:
        """Train again with this share removed; continue where that was begun."""
        steps = f" in {self.plan.steps} steps" if share > self.before and self.plan.steps > 1 else ""
        epochs = counted(self.plan.epochs, "epoch")
        self.console.print(f"{_percent(share)} removed{steps}, {epochs} from rate {self.plan.lr:g}:", style="bold")
        with reporter(self.console) as told:
            try:
                smaller = self._posterior(share, told, force=force)
            except KeyboardInterrupt:
                told.say("Stopped; the same command (without --force) continues.")
                raise
        valid = _perplexity(smaller, task.streams.valid, task)
        rise = valid / whole["valid_perplexity"] - 1
        self.rows.append({"fraction": share, "valid_perplexity": valid, "rise": rise})
        self.weights[share] = smaller.state_dict()

    def _posterior(self, share: float, told: "Reporter", *, force: bool) -> Any:
        """The run's posterior with this share removed by steps and the rest trained, in eval mode."""
        model: Any = self.run.model
        smaller, out = copy.deepcopy(gaussian_of(model)), _folder(self.run.path, share)
        found = retrain(
            self.run, self.plan, fraction=share, out=out, reporter=told, data=self.data, force=force,
            command=command_line(),
        )  # fmt: skip
        checkpoint.load_model(smaller, found, out / checkpoint.BEST)
        return smaller.eval()

    def results(self, share: float, q: Any, task: Any) -> Row:
        """For prune.json; ``q`` gets the weights with this share removed."""
        gaussian_of(q).load_state_dict(self.weights[share])
        about = {"epochs": self.plan.epochs, "steps": self.plan.steps, "sigma": SIGMA, "lr": self.plan.lr}
        return {**about, **_results(q, task), "curve": self.rows}


def _write(run: Path, guard: WeightsGuard, q: Any, summary: Row) -> None:
    again = summary.get("retrained", {"epochs": 0, "curve": []})
    about = {"run": guard.run, "weights": guard.weights, "fraction": summary["fraction"], "retrained": again["epochs"]}
    lines = {"removed": summary["curve"], "removed, the rest trained again": again["curve"]}
    drawn = plots.lines(
        {name: [(row["fraction"], row["valid_perplexity"]) for row in rows] for name, rows in lines.items() if rows},
        across="share of weights removed, lowest |mean| / sigma first", up="validation perplexity", log_y=True,
    )  # fmt: skip
    with guard.unchanged():
        tensors = {f"model.{key}": value for key, value in q.state_dict().items()}
        checkpoint.save_file(run / "pruned.safetensors", tensors, about)
        write_file(run / _FILE, as_json(summary))
        write_file(run / "prune.png", drawn)


def _folder(run: Path, share: float) -> Path:
    """A folder of its own for every share, however alike two of them are."""
    short = f"{share:g}"
    return run / f"pruned-{short if float(short) == share else repr(share)}"


def _percent(share: float) -> str:
    """With as many digits as it has."""
    return f"{100 * share:.10g}%"


def _perplexities(summary: Row) -> str:
    return f"{summary['valid_perplexity']:.2f} validation, {summary['test_perplexity']:.2f} test"


def _show(console: "Console", rows: list[Row], again: list[Row]) -> None:
    columns = [
        Column("removed", "weights removed"),
        Column("valid_perplexity", "validation perplexity", "{:.2f}"),
        Column("rise", "rise", "{:+.1%}"),
    ]
    if again:
        columns += [Column("again", "trained again", "{:.2f}"), Column("rise_again", "rise", "{:+.1%}")]
    found = {row["fraction"]: {"again": row["valid_perplexity"], "rise_again": row["rise"]} for row in again}
    none = {"again": None, "rise_again": None}
    shown = [{"removed": _percent(row["fraction"]), **row, **found.get(row["fraction"], none)} for row in rows]
    console.print(rich_table(shown, columns))


def _about(trained: OpenedRun, device: torch.device, data: str | None) -> Row:
    """Which run was pruned, and where: the results are a record by themselves."""
    config = trained.config
    about = {"recipe": config.get("recipe"), "seed": config.get("seed"), "data": data_name(data or config["data"])}
    settings = {"command": command_line(), "settings": config["settings"]}
    return {**about, "commit": commit(), **environment(device), **settings}
