"""Folders in the layout of the Hugging Face Hub: a run's weights, its configuration and a model card."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import nn

from bayesrnn import saving
from bayesrnn.lab import recipes
from bayesrnn.lab.metrics import Metric
from bayesrnn.lab.reading import printable
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import sizes
from bayesrnn.lab.runs.files import check_free, write_file
from bayesrnn.lab.runs.opening import OpenedRun
from bayesrnn.lab.runs.record import RECORD, Record, read

CARD = "README.md"
_POSTERIORS = {
    "bayes_by_backprop": "A Gaussian posterior over the weights, trained by Bayes by Backprop.",
    "sharpened": "A Gaussian posterior over the weights, trained by Bayes by Backprop with posterior sharpening.",
}
Row = tuple[Metric, float]


def export(run: OpenedRun, folder: Path, *, force: bool = False, pruned: bool = False) -> Path:
    """Write the run's posterior, its configuration, the files of its data and a card to a folder."""
    cls = task_class(run.recipe.task)
    files = {name: content for name, content in run.files.items() if name not in cls.private}
    for name in (saving.WEIGHTS, saving.CONFIG, CARD, *files):
        check_free(folder / name, force=force, option="--hub")
    arguments = {"recipe": run.config["recipe"], "settings": run.recipe.model_dump(mode="json"), "pruned": pruned}
    saving.save(run.model, folder, builder="lab", arguments=arguments, files=files)
    record = read(run.path / RECORD) if (run.path / RECORD).is_file() else None
    write_file(folder / CARD, card(run, record, name=folder.absolute().name, pruned=pruned))
    return folder


def builder(
    arguments: Mapping[str, Any], files: Mapping[str, bytes]
) -> tuple[nn.Module | None, Callable[[], nn.Module]]:
    """For `br.load`: the outline of a run's model, and a function that builds it with initial weights."""
    recipe = recipes.from_dict(arguments.get("settings"), where=saving.CONFIG)
    cls = task_class(recipe.task)
    outline = sizes.outline(cls, recipe, files, where=saving.CONFIG)
    if outline is not None:
        sizes.check_memory(outline)
    return outline, lambda: cls.build(recipe, files)


def card(run: OpenedRun, record: Record | None, *, name: str, pruned: bool = False) -> str:
    """The model card: metadata in YAML, then Markdown."""
    cls = task_class(run.recipe.task)
    data = record.data if record is not None and record.data else "unknown data"
    rows = _metric_rows(record, cls.metrics)
    unsure = [row for row in rows if any(part in row[0].key for part in cls.card.uncertainty)]
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    templates.filters["plain"] = _text
    return templates.get_template("card.md").render(
        metadata=_metadata(run, [] if pruned else rows, printable(data)),
        recipe=run.config["recipe"],
        description=run.recipe.description,
        task=run.recipe.task,
        record=record,
        posterior=_posterior(run.recipe),
        about=cls.card,
        name=repr(name),
        data=data,
        results=[row for row in rows if row not in unsure],
        unsure=unsure,
        pruned=pruned,
        changed=_changed(record),
        training=_training(run, record, data) | _conditions(record, cls.conditions),
    )


def _metadata(run: OpenedRun, rows: Sequence[Row], data: str) -> str:
    tag = task_class(run.recipe.task).card.pipeline
    found: dict[str, Any] = {"library_name": "bayesrnn", "tags": ["bayesian", "uncertainty", run.recipe.task]}
    if tag:
        found["pipeline_tag"] = tag
    if rows:
        metrics = [{"type": metric.key, "name": metric.label, "value": value} for metric, value in rows]
        results = {
            "task": {"type": tag or run.recipe.task},
            "dataset": {"name": data, "type": data},
            "metrics": metrics,
        }
        found["model-index"] = [{"name": printable(run.config["recipe"]), "results": [results]}]
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True)


def _posterior(recipe: recipes.Recipe) -> str:
    if recipe.posterior.kind in _POSTERIORS:
        return _POSTERIORS[recipe.posterior.kind]
    if any(value for key, value in recipe.model if key.endswith("dropout")):
        return "Its draws are masks of dropout."
    return "It has no posterior: all draws are the same."


def _metric_rows(record: Record | None, metrics: Sequence[Metric]) -> list[Row]:
    found = [] if record is None else [(metric, record.number(metric.key)) for metric in metrics]
    return [(metric, value) for metric, value in found if value is not None]


def _conditions(record: Record | None, keys: Sequence[str]) -> dict[str, str]:
    found = {key: record.number(key) for key in keys if "." not in key} if record is not None else {}
    text = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in found.items() if value is not None)
    return {"measured with": text} if text else {}


def _changed(record: Record | None) -> str:
    return ", ".join(word for word in record.overrides if "/" not in word) if record is not None else ""


def _training(run: OpenedRun, record: Record | None, data: str) -> dict[str, Any]:
    rows = {"recipe": run.config["recipe"], "data": data, "seed": run.config["seed"]}
    if record is not None:
        rows |= {"changed settings": _changed(record) or "none", "parameters": record.number("parameters")}
        rows |= {"best epoch": record.number("best_epoch"), "device": record.device}
        rows["versions"] = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return rows


def _text(value: Any) -> str:
    """A value of a run, which may come from anyone, as plain text of one line of Markdown."""
    text = printable(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text[:300])
