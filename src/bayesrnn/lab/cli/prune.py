"""``bayesrnn prune``: how many weights can go, and a model without them."""

import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesrnn.lab.cli.errors import one_line

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from bayesrnn.lab.engine.progress import Reporter
    from bayesrnn.lab.runs.opening import OpenedRun
    from bayesrnn.lab.tasks.language.retraining import Schedule

FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
_RETRAINING = "Training again"

Row = dict[str, Any]


@one_line
def command(
    run: Annotated[Path, typer.Argument(help="A run folder of a Bayes by Backprop recipe.")],
    fraction: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of weights to remove.")] = 0.8,
    data: Annotated[str | None, typer.Option(help="The text, where it has moved since.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    retrain: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Epochs to train on; in the first half of them the weights go, by steps.",
            rich_help_panel=_RETRAINING,
        ),
    ] = None,
    retrain_at: Annotated[
        str | None,
        typer.Option(
            help="More shares to remove and train again, with commas, for the curve; 0 is the whole model.",
            rich_help_panel=_RETRAINING,
        ),
    ] = None,
    retrain_lr: Annotated[
        float | None,
        typer.Option(
            help="Rate while weights go; then it falls to a hundredth. Default: half the recipe's.",
            rich_help_panel=_RETRAINING,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what was trained again before.", rich_help_panel=_RETRAINING)
    ] = False,
) -> None:
    """Remove the weights of lowest signal-to-noise; writes prune.json, prune.png and pruned.safetensors.

    Of an unfinished run, or with another text than the run's, the figures are shown and nothing is written.

    With --retrain the weights go by steps, at the beginning of an epoch each, and the rest is trained on, in a run
    folder of its own inside this one, pruned-FRACTION. Stopped, the same command goes on.
    """
    import bayesrnn as br
    from bayesrnn.errors import UserError
    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.engine.launch import device_of
    from bayesrnn.lab.engine.loop import set_precision
    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.runs.files import as_json, write_file
    from bayesrnn.lab.runs.folder import MARKER
    from bayesrnn.lab.runs.opening import WeightsGuard, check_task, open_run
    from bayesrnn.lab.tasks.language.pruning import picture
    from bayesrnn.pruning import gaussian_of, removed

    check_task(run, "language")
    where, console = device_of(device), plain_console()
    unfinished = (run / MARKER).exists()
    measured = WeightsGuard.of(run)
    trained = open_run(run, where)
    set_precision(trained.recipe.train.precision, where)
    if trained.recipe.posterior.kind == "none":
        raise UserError(f"{run} has no posterior over weights; only Bayes by Backprop recipes have signal-to-noise.")
    plan, more = _plan(trained, fraction, retrain, retrain_at, retrain_lr)
    before = _share_before(trained)
    if fraction < before:
        console.print(
            f"{_percent(before)} of the weights in {run} are gone already: {_percent(fraction)} removes no more.",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    fraction, more = max(fraction, before), [max(share, before) for share in more]
    task: Any = trained.task(data, where)
    not_kept = trained.other_data(task)
    if unfinished:
        not_kept = f"The run in {run} is not finished."
    if not_kept and plan is not None:
        raise UserError(f"{not_kept} Only finished runs are trained again, on their own text.")
    if not_kept:
        console.print(f"{not_kept} The figures are shown, and not kept.", soft_wrap=True, markup=False)
    elif plan is None and not force:
        _check_replaced(run)
    streams, q, perplexity = task.streams, task.model, _measure(trained)
    place = trained.place(data, where) or task.default_data
    asked = {fraction, *more}
    valid_still = set() if plan is None else _still_valid(trained, plan, place, console) - asked
    valid_still = {share for share in valid_still if share >= before}
    shares = {before, *(share for share in FRACTIONS if share > before), *asked, *valid_still}
    rows = _curve(q, shares, lambda model: perplexity(model, streams.valid))
    again: list[Row] = []
    weights: Any = None
    if plan is not None:
        for share in sorted(asked | valid_still):
            measured.check()  # a run of its own is begun inside the folder
            anew = force and share in asked
            smaller = _trained_again(trained, plan, share, before, place, anew, console)
            valid = perplexity(smaller, streams.valid)
            rise = valid / rows[0]["valid_perplexity"] - 1
            again.append({"fraction": share, "valid_perplexity": valid, "rise": rise})
            weights = smaller.state_dict() if share == fraction else weights
    report = br.prune(q, fraction)
    summary = {
        **_about(trained, where, data),
        "fraction": fraction,
        "threshold": report.threshold,
        "valid_perplexity": perplexity(q, streams.valid),
        "test_perplexity": perplexity(q, streams.test),
        "tensors": _tensors(q),
        "curve": rows,
    }
    told = f"With {_percent(fraction)} removed: {_figures(summary)}."
    if plan is not None:
        from bayesrnn.lab.tasks.language.retraining import SIGMA

        gaussian_of(q).load_state_dict(weights)
        summary["retrained"] = {
            "epochs": plan.epochs,
            "steps": plan.steps,
            "sigma": SIGMA,
            "lr": plan.lr,
            "valid_perplexity": perplexity(q, streams.valid),
            "test_perplexity": perplexity(q, streams.test),
            "tensors": _tensors(q),
            "curve": again,
        }
        told += f" OpenedRun again: {_figures(summary['retrained'])}; a run of its own, {_folder(run, fraction)}."
    if not not_kept:
        tensors = {f"model.{key}": value for key, value in q.state_dict().items()}
        about = {
            "run": measured.run,
            "weights": measured.weights,
            "fraction": fraction,
            "retrained": 0 if plan is None else plan.epochs,
        }
        kept = {name: ~mask.cpu() for name, mask in removed(q).items()}
        drawn = picture(rows, kept, again)
        with measured.unchanged():
            checkpoint.save_file(run / "pruned.safetensors", tensors, about)
            write_file(run / "prune.json", as_json(summary))
            write_file(run / "prune.png", drawn)
    _show(console, rows, again)
    console.print(f"{told} {'Nothing was written.' if not_kept else f'Written to {run}'}", soft_wrap=True)


def _check_replaced(run: Path) -> None:
    """Pruning alone does not take away the figures and weights of what was trained again."""
    from bayesrnn.errors import UserError

    if _retrained(run) is not None:
        raise UserError(
            f"{run / 'prune.json'} has figures of weights that were trained again; keep them with the same --retrain, "
            "or replace them with --force."
        )


def _retrained(run: Path) -> Any:
    """What prune.json has of weights that were trained again; None: nothing."""
    import json

    try:
        before = json.loads((run / "prune.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return before.get("retrained") if isinstance(before, dict) else None


def _still_valid(trained: "OpenedRun", plan: "Schedule", data: str, console: "Console") -> set[float]:
    """Which shares of prune.json were trained again from these weights, by the same plan, and are there still."""
    from bayesrnn.errors import UserError
    from bayesrnn.lab.cli.train import reporter
    from bayesrnn.lab.runs.folder import MARKER
    from bayesrnn.lab.runs.record import RECORD

    before = _retrained(trained.path)
    curve = before.get("curve") if isinstance(before, dict) else None
    shares = [row.get("fraction") for row in curve if isinstance(row, dict)] if isinstance(curve, list) else []
    found: set[float] = set()
    for share in {share for share in shares if isinstance(share, float)}:
        out = _folder(trained.path, share)
        if (out / MARKER).exists() or not (out / RECORD).exists():
            continue
        with reporter(console) as told, suppress(UserError):  # of other weights, or with other settings
            _posterior(trained, plan, share, data, False, told)
            found.add(share)
    return found


def _share_before(trained: "OpenedRun") -> float:
    """Which share of the run's weights is gone already: it is that of pruned ones, trained again."""
    from bayesrnn.pruning import removed, share_of

    model: Any = trained.model
    masks = removed(model).values()
    return share_of(sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks))


def _plan(
    trained: "OpenedRun", fraction: float, epochs: int | None, at: str | None, lr: float | None
) -> "tuple[Schedule | None, list[float]]":
    """How to train again, and with which further shares removed; None: not at all."""
    from bayesrnn.errors import UserError
    from bayesrnn.lab.tasks.language.retraining import schedule
    from bayesrnn.pruning import count_of, removed

    if epochs is None:
        if at is not None or lr is not None:
            raise UserError("--retrain-at and --retrain-lr are for training again; add --retrain EPOCHS.")
        return None, []
    try:
        more = [float(part) for part in (at or "").split(",") if at is not None]
    except ValueError:
        more = [-1.0]
    if not all(0 <= share < 1 for share in more):
        raise UserError(
            f"--retrain-at is {at}; it must be shares from 0 to below 1 with commas between, such as 0,0.9."
        )
    if lr is not None and not 0 < lr < float("inf"):
        raise UserError(f"--retrain-lr is {lr:g}; it must be a finite number above 0.")
    model: Any = trained.model
    total = sum(mask.numel() for mask in removed(model).values())
    most = max([fraction, *more])
    if count_of(most, total) == total:
        raise UserError(f"With {_percent(most)} of the weights removed none is left to train; remove fewer.")
    return schedule(trained.recipe, epochs, lr), more


def _measure(trained: "OpenedRun") -> Callable[[Any, Any], float]:
    """Perplexity of the posterior mean on one stream, its state carried as the run's recipe does."""
    from bayesrnn.lab.tasks.language import task as language
    from bayesrnn.lab.tasks.language.evaluation import reset_of

    reset = reset_of(trained)

    def perplexity(model: Any, stream: Any) -> float:
        window = reset or language.evaluation_window(stream, len(language.vocabulary_of(trained.files)))
        return language.perplexity(model, stream, window=window, carry_state=reset is None)

    return perplexity


def _curve(q: Any, shares: set[float], perplexity: Callable[[Any], float]) -> list[Row]:
    """Validation perplexity with each share removed, and its rise over that with none."""
    import copy

    import bayesrnn as br

    rows: list[Row] = []
    for share in sorted(shares):
        smaller = copy.deepcopy(q)
        br.prune(smaller, share)
        rows.append({"fraction": share, "valid_perplexity": perplexity(smaller)})
    for row in rows:
        row["rise"] = row["valid_perplexity"] / rows[0]["valid_perplexity"] - 1
    return rows


def _folder(run: Path, share: float) -> Path:
    """Of its own for every share, however alike two of them are."""
    short = f"{share:g}"
    return run / f"pruned-{short if float(short) == share else repr(share)}"


def _percent(share: float) -> str:
    """With as many digits as it has."""
    return f"{100 * share:.10g}%"


def _trained_again(
    trained: "OpenedRun", plan: "Schedule", share: float, before: float, data: str, force: bool, console: "Console"
) -> Any:
    """As :func:`_posterior`, and it is told how it goes; ``before`` is the share gone from the beginning."""
    from bayesrnn.lab.cli.train import reporter
    from bayesrnn.lab.reading import counted

    steps = f" in {plan.steps} steps" if share > before and plan.steps > 1 else ""
    epochs = counted(plan.epochs, "epoch")
    console.print(f"{_percent(share)} removed{steps}, {epochs} from rate {plan.lr:g}:", style="bold")
    with reporter(console) as told:
        try:
            return _posterior(trained, plan, share, data, force, told)
        except KeyboardInterrupt:
            told.say("Stopped; the same command (without --force) goes on.")
            raise


def _posterior(
    trained: "OpenedRun", plan: "Schedule", share: float, data: str, force: bool, reporter: "Reporter"
) -> Any:
    """The run's posterior with this share removed by steps and the rest trained, in eval mode."""
    import copy

    from bayesrnn.lab.runs import checkpoint
    from bayesrnn.lab.tasks.language.retraining import retrain
    from bayesrnn.pruning import gaussian_of

    model: Any = trained.model
    smaller, out = copy.deepcopy(gaussian_of(model)), _folder(trained.path, share)
    found = retrain(
        trained, plan, fraction=share, out=out, reporter=reporter, data=data, force=force,
        command=shlex.join(["bayesrnn", *sys.argv[1:]]),
    )  # fmt: skip
    checkpoint.load_model(smaller, found, out / checkpoint.BEST)
    return smaller.eval()


def _tensors(q: Any) -> Row:
    from bayesrnn.pruning import removed

    return {name: {"removed": int(mask.sum()), "total": mask.numel()} for name, mask in removed(q).items()}


def _figures(summary: Row) -> str:
    return f"{summary['valid_perplexity']:.2f} validation, {summary['test_perplexity']:.2f} test"


def _show(console: "Console", rows: list[Row], again: list[Row]) -> None:
    from bayesrnn.lab.report.tables import Column, rich_table

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


def _about(trained: "OpenedRun", device: "torch.device", data: str | None) -> Row:
    """Which run was pruned, and where; ``data`` is what was given: the figures are then a record by themselves."""
    from bayesrnn.lab.engine.provenance import commit, environment
    from bayesrnn.lab.reading import data_name

    config = trained.config
    return {
        "recipe": config.get("recipe"),
        "seed": config.get("seed"),
        "data": data_name(data or config.get("data", "")),
        "commit": commit(),
        **environment(device),
        "command": shlex.join(["bayesrnn", *sys.argv[1:]]),
        "settings": config["settings"],
    }
