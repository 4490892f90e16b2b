"""Folders in the layout of the Hugging Face Hub: a run's weights, its configuration and a model card."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from bayesrnn import saving
from bayesrnn.lab import recipes
from bayesrnn.lab.metrics import Metric
from bayesrnn.lab.reading import printable
from bayesrnn.lab.registry import task_class
from bayesrnn.lab.runs import sizes
from bayesrnn.lab.runs.files import check_free, write_file
from bayesrnn.lab.runs.record import RECORD, Record, read

if TYPE_CHECKING:
    from bayesrnn.lab.runs.opening import OpenedRun

CARD = "README.md"
_POSTERIORS = {
    "bayes_by_backprop": "A Gaussian posterior over the weights, trained by Bayes by Backprop.",
    "sharpened": "A Gaussian posterior over the weights, trained by Bayes by Backprop with posterior sharpening.",
}
_EVERY_LIMIT = (
    "The model was trained and measured on the data named below. On other data it may be wrong and sure of it. Its "
    "uncertainty is about the weights of this network under this prior; it is no guarantee. Measure it on your own "
    "data before you rely on it."
)
_UNMEASURED = "The record has no values. `bayesrnn evaluate RUN` measures them."

Row = tuple[Metric, float]


def export(run: "OpenedRun", folder: Path, *, force: bool = False, pruned: bool = False) -> Path:
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


def card(run: "OpenedRun", record: Record | None, *, name: str, pruned: bool = False) -> str:
    """The model card: metadata in YAML, then Markdown."""
    cls = task_class(run.recipe.task)
    about = cls.card
    data = record.data if record is not None and record.data else "unknown data"
    rows = _measured(record, cls.metrics)
    unsure = [row for row in rows if any(part in row[0].key for part in about.uncertainty)]
    results = [row for row in rows if row not in unsure]
    before = " The values are those before weights were removed." if pruned else ""
    conditions = _conditions(record, cls.conditions)
    imports = f"{'import json' * ('json.' in about.example)}\nfrom pathlib import Path".lstrip()
    parts = [
        f"---\n{_metadata(run, [] if pruned else rows, printable(data))}---\n\n# {_text(run.config['recipe'])}",
        f"{_text(run.recipe.description) or 'A model'} (task: {run.recipe.task}){_changed(record)}. "
        f"{_posterior(run.recipe)}",
        "## Load",
        f"```python\n{imports}\n\nimport torch\n\nimport bayesrnn as br  # pip install 'bayesrnn[lab]'\n\n"
        f"folder = Path({name!r})\nmodel = br.load(folder)\n{about.example}```",
        f"{about.inputs} No code from the folder is run. `br.draw(model, seed=1)` holds one draw of the weights.",
        "## Results",
        f"On {_text(data)}.{before}\n\n{_table(results)}" if results else "The run has no record of results.",
        "## Uncertainty",
        f"On {_text(data)}{conditions}.{before}\n\n{_table(unsure)}" if unsure else _UNMEASURED,
        f"## Intended use\n\n{about.use}",
        f"## Limits\n\n{' '.join(filter(None, (about.limits, _EVERY_LIMIT)))}",
        f"## Training\n\n{_training(run, record, data)}",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(run: "OpenedRun", rows: Sequence[Row], data: str) -> str:
    import yaml

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


def _measured(record: Record | None, metrics: Sequence[Metric]) -> list[Row]:
    found = [] if record is None else [(metric, record.number(metric.key)) for metric in metrics]
    return [(metric, value) for metric, value in found if value is not None]


def _table(rows: Sequence[Row]) -> str:
    lines = [f"| {metric.label} | {value:.4g} | {metric.unit} |" for metric, value in rows]
    return "\n".join(["| metric | value | unit |", "|---|---|---|", *lines])


def _changed(record: Record | None) -> str:
    """The recipe's description may not fit a run with other settings."""
    return ", with the changed settings below" if record is not None and record.overrides else ""


def _conditions(record: Record | None, keys: Sequence[str]) -> str:
    found = {key: record.number(key) for key in keys} if record is not None else {}
    told = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in found.items() if value is not None)
    return f", with {told}" if told else ""


def _training(run: "OpenedRun", record: Record | None, data: str) -> str:
    rows = {"recipe": run.config["recipe"], "data": data, "seed": run.config["seed"]}
    if record is not None:
        changed = [word for word in record.overrides if "/" not in word]
        rows |= {"changed settings": ", ".join(changed) or "none", "parameters": record.number("parameters")}
        rows |= {"best epoch": record.number("best_epoch"), "device": record.device}
        rows["versions"] = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {_text(value)} |" for key, value in rows.items())])


def _text(value: Any) -> str:
    """A value of a run, which may come from anyone, as plain text of one line of Markdown."""
    text = printable(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text[:300])
