"""Remove the weights of lowest signal-to-noise from a language model, and train the rest again on request."""

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

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
from bayesrnn.lab.runs.files import as_json, write_file
from bayesrnn.lab.runs.folder import MARKER
from bayesrnn.lab.runs.opening import OpenedRun, WeightsGuard, open_run
from bayesrnn.lab.tasks.language.retraining import SIGMA, Schedule, retrain, schedule
from bayesrnn.pruning import count_of, gaussian_of, removed

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
_FILE = "prune.json"

Row = dict[str, Any]


@dataclass(frozen=True)
class PruneOptions:
    """The options of ``bayesrnn prune``; ``epochs``: of training again, None: not at all."""

    fraction: float
    data: str | None = None
    epochs: int | None = None
    lr: float | None = None
    force: bool = False

    def check(self, run: OpenedRun) -> None:
        """Refuse a run that cannot be pruned, and options that contradict each other."""
        if run.recipe.posterior.kind == "none":
            raise UserError(
                f"{run.path} has no posterior over weights; only Bayes by Backprop recipes have signal-to-noise."
            )
        if "pruned" in run.config:
            raise UserError(f"The weights in {run.path} were pruned before; prune the run that they are from.")
        if self.epochs is None:
            if self.lr is not None:
                raise UserError("--retrain-lr is for training again; add --retrain EPOCHS.")
            return
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise UserError(f"--retrain-lr is {self.lr:g}; it must be a finite number above 0.")
        model: Any = run.model
        total = sum(mask.numel() for mask in removed(model).values())
        if count_of(self.fraction, total) == total:
            raise UserError(
                f"With {_percent(self.fraction)} of the weights removed none is left to train; remove fewer."
            )


@br.kernels.float32_precision()  # as it was, after pruning
def prune(run: Path, options: PruneOptions, device: torch.device, console: Console) -> None:
    """Measure the pruning curve, remove the share that was asked for, and write the results into the run folder."""
    unfinished, guard = (run / MARKER).exists(), WeightsGuard.of(run)
    trained = open_run(run, device)
    options.check(trained)
    set_precision(trained.recipe.train.precision, device)
    task: Any = trained.task(options.data, device)
    not_kept = f"The run in {run} is not finished." if unfinished else trained.other_data(task)
    if not_kept and options.epochs is not None:
        raise UserError(f"{not_kept} Only finished runs are trained again, on their own text.")
    if not_kept:
        console.print(f"{not_kept} The results are shown, and not kept.", soft_wrap=True, markup=False)
    rows = _curve(task, {*FRACTIONS, options.fraction})
    plan = None if options.epochs is None else schedule(trained.recipe, options.epochs, options.lr)
    if plan is not None:
        guard.check()  # a run of its own starts inside the folder
        weights = _retrain(trained, plan, options, console)
    q = task.model
    report = br.prune(q, options.fraction)
    summary = {
        **_about(trained, device, options.data), "fraction": options.fraction, "threshold": report.threshold,
        **_results(q, task), "curve": rows,
    }  # fmt: skip
    message = f"With {_percent(options.fraction)} removed: {_perplexities(summary)}."
    if plan is not None:
        checkpoint.load_model(gaussian_of(q), weights, _folder(run, options.fraction) / checkpoint.BEST)
        about = {"epochs": plan.epochs, "steps": plan.steps, "sigma": SIGMA, "lr": plan.lr}
        summary["retrained"] = {**about, **_results(q, task)}
        message += f" Trained again: {_perplexities(summary['retrained'])}; "
        message += f"a run of its own, {_folder(run, options.fraction)}."
    if not not_kept:
        _write(run, guard, q, summary)
    columns = (
        Column("removed", "weights removed"),
        Column("valid_perplexity", "validation perplexity", "{:.2f}"),
        Column("rise", "rise", "{:+.1%}"),
    )
    console.print(rich_table([{"removed": _percent(row["fraction"]), **row} for row in rows], columns))
    console.print(f"{message} {'Nothing was written.' if not_kept else f'Written to {run}'}", soft_wrap=True)


def _retrain(run: OpenedRun, plan: Schedule, options: PruneOptions, console: Console) -> dict[str, torch.Tensor]:
    """Train again with the share removed; continue where that was begun. Returns the weights of the best epoch."""
    steps = f" in {plan.steps} steps" if plan.steps > 1 else ""
    epochs = counted(plan.epochs, "epoch")
    console.print(f"{_percent(options.fraction)} removed{steps}, {epochs} from rate {plan.lr:g}:", style="bold")
    with reporter(console) as lines:
        try:
            return retrain(
                run, plan, fraction=options.fraction, out=_folder(run.path, options.fraction), reporter=lines,
                data=options.data, force=options.force, command=command_line(),
            )  # fmt: skip
        except KeyboardInterrupt:
            lines.say("Stopped; the same command (without --force) continues.")
            raise


def _results(q: Any, task: Any) -> Row:
    return {
        "valid_perplexity": task.perplexity_of(q, task.streams.valid),
        "test_perplexity": task.perplexity_of(q, task.streams.test),
        "tensors": {name: {"removed": int(mask.sum()), "total": mask.numel()} for name, mask in removed(q).items()},
    }


def _curve(task: Any, shares: set[float]) -> list[Row]:
    """Validation perplexity with each share removed, and its rise over that with none."""
    rows: list[Row] = []
    for share in sorted(shares):
        smaller = copy.deepcopy(task.model)
        br.prune(smaller, share)
        rows.append({"fraction": share, "valid_perplexity": task.perplexity_of(smaller, task.streams.valid)})
    for row in rows:
        row["rise"] = row["valid_perplexity"] / rows[0]["valid_perplexity"] - 1
    return rows


def _write(run: Path, guard: WeightsGuard, q: Any, summary: Row) -> None:
    epochs = summary.get("retrained", {}).get("epochs", 0)
    about = {"run": guard.run, "weights": guard.weights, "fraction": summary["fraction"], "retrained": epochs}
    lines = {"removed": [(row["fraction"], row["valid_perplexity"]) for row in summary["curve"]]}
    if epochs:
        lines["removed, the rest trained again"] = [(summary["fraction"], summary["retrained"]["valid_perplexity"])]
    across = "share of weights removed, lowest |mean| / sigma first"
    picture = plots.lines(lines, across=across, up="validation perplexity", log_y=True)
    with guard.unchanged():
        tensors = {f"model.{key}": value for key, value in q.state_dict().items()}
        checkpoint.save_file(run / "pruned.safetensors", tensors, about)
        write_file(run / _FILE, as_json(summary))
        write_file(run / "prune.png", picture)


def _folder(run: Path, share: float) -> Path:
    """A unique folder name for every pruned fraction."""
    short = f"{share:g}"
    return run / f"pruned-{short if float(short) == share else repr(share)}"


def _percent(share: float) -> str:
    """With as many digits as it has."""
    return f"{100 * share:.10g}%"


def _perplexities(summary: Row) -> str:
    return f"{summary['valid_perplexity']:.2f} validation, {summary['test_perplexity']:.2f} test"


def _about(trained: OpenedRun, device: torch.device, data: str | None) -> Row:
    """Which run was pruned, and where: the results are a record by themselves."""
    config = trained.config
    about = {"recipe": config.get("recipe"), "seed": config.get("seed"), "data": data_name(data or config["data"])}
    settings = {"command": command_line(), "settings": config["settings"]}
    return {**about, "commit": commit(), **environment(device), **settings}
