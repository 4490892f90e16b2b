"""From a recipe's name and a folder of text to a finished run folder with its record."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from bayesrnn import recipes
from bayesrnn.data.text import Corpus, python_docs, read_folder
from bayesrnn.errors import UserError
from bayesrnn.recipes import Recipe
from bayesrnn.tasks import language
from bayesrnn.train import engine
from bayesrnn.train.run_folder import MARKER, RunFolder


def device_of(name: str | None) -> torch.device:
    """The device asked for; None: CUDA where there is one."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.split(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UserError(f"There is no device {name}; choose cpu or cuda.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("torch sees no CUDA device here; choose --device cpu.")
    return torch.device(name)


def corpus_of(data: str | None) -> Corpus:
    """The text of a folder; None: the documentation that Python carries."""
    return python_docs() if data is None else read_folder(data)


def launch(
    name: str,
    *,
    out: Path,
    reporter: engine.Reporter,
    data: str | None = None,
    overrides: list[str] | None = None,
    seed: int = 1,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    graph: bool = True,
    command: str = "",
) -> dict[str, Any]:
    """Train, measure and record; returns the record."""
    recipe = recipes.override(recipes.load(name), overrides or [])
    where = device_of(device)
    corpus = corpus_of(data)
    streams = language.streams(corpus, recipe)
    config = engine.config(recipe, name=Path(name).stem, data=data or "python-docs", seed=seed)
    folder = RunFolder(out, files=engine.FILES, force=force, resume=resume)
    if resume:
        _check_resumed(folder, config, streams)
        folder.write(MARKER, f"{os.getpid()}\n")
    else:
        folder.write("config.json", json.dumps(config, indent=2) + "\n")
        folder.write("vocabulary.txt", "\n".join(streams.vocabulary.words) + "\n")
    _describe(recipe, streams, where, reporter)
    started = time.time()
    run = engine.Run(recipe, streams.to(where), seed=seed, folder=folder, reporter=reporter, graph=graph)
    reporter.say("One step is one CUDA graph." if run.step.graph else f"Steps run eagerly: {run.step.reason}.")
    if resume and (folder.path / "last.safetensors").exists():
        run.resume()
        reporter.say(f"Resumed in epoch {run.epoch}, after step {run.done}.")
    run.train()
    metrics = engine.final_metrics(run)
    record = {
        "recipe": config["recipe"],
        "seed": seed,
        "commit": commit(),
        **engine.environment(where),
        "command": command,
        "data": Path(config["data"]).name,
        "overrides": overrides or [],
        "cuda_graph": run.step.graph is not None,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "settings": config["settings"],
        "unknown_words": streams.unknown,
        "curves": {
            key: [line[key] for line in run.history]
            for key in ("train_perplexity", "valid_perplexity", "kl_per_sequence", "sharpening_per_sequence", "lr")
        },
        "metrics": metrics,
    }
    folder.finish(record)
    return record


def _describe(recipe: Recipe, streams: language.Streams, device: torch.device, reporter: engine.Reporter) -> None:
    unknown = ", ".join(f"{count:,} in {split}" for split, count in streams.unknown.items())
    reporter.say(
        f"{streams.train.numel():,} words to train on, {len(streams.valid):,} to validate, {len(streams.test):,} to "
        f"test; {len(streams.vocabulary):,} word types; unknown words: {unknown}. "
        f"{streams.windows:,} windows of {recipe.data.window} per epoch on {device}."
    )


def _check_resumed(folder: RunFolder, config: dict[str, Any], streams: language.Streams) -> None:
    try:
        before = json.loads((folder.path / "config.json").read_text("utf-8"))
        words = (folder.path / "vocabulary.txt").read_text("utf-8").split("\n")[:-1]
    except (OSError, ValueError):
        raise UserError(f"{folder.path} has no readable config.json and vocabulary.txt; start over.") from None
    for key in ("recipe", "seed"):
        if before.get(key) != config[key]:
            raise UserError(f"{folder.path} was started with {key} {before.get(key)}, not {config[key]}.")
    old = recipes.flatten(recipes.from_dict(before.get("settings"), where="config.json"))
    new = recipes.flatten(recipes.from_dict(config["settings"], where="recipe"))
    for key, value in new.items():
        if old[key] != value:
            raise UserError(f"{folder.path} was started with {key}={old[key]}, not {value}; resume with the same.")
    if words != streams.vocabulary.words:
        raise UserError(
            f"The vocabulary of this text ({len(streams.vocabulary):,} words) is not the run's ({len(words):,}); "
            "resume with the text it was started on."
        )


def commit() -> str | None:
    """The commit of the source that runs, where it is a checkout."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("BAYESRNN_COMMIT")
    return found.stdout.strip()
