"""A finished or unfinished run, read back: its recipe, vocabulary, text and best weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bayesrnn import recipes
from bayesrnn.data.text import Vocabulary, python_docs, read_folder
from bayesrnn.errors import UserError
from bayesrnn.tasks import language


@dataclass(frozen=True)
class Trained:
    """What ``evaluate``, ``prune`` and ``predict`` work on. The model is in eval mode."""

    path: Path
    config: dict[str, Any]
    recipe: recipes.Recipe
    vocabulary: Vocabulary
    model: nn.Module

    def streams(self, data: str | None, device: torch.device) -> language.Streams:
        """The run's text; ``data`` where it has moved."""
        source = data or self.config["data"]
        corpus = python_docs() if source == "python-docs" else read_folder(source)
        found = Vocabulary(corpus.train, min_count=self.recipe.data.min_count)
        if found.words != self.vocabulary.words:
            raise UserError(
                f"The vocabulary of this text ({len(found):,} words) is not that of the run "
                f"({len(self.vocabulary):,}); name the text it was trained on with --data."
            )
        return language.streams(corpus, self.recipe, self.vocabulary).to(device)


def open_run(path: str | Path, device: torch.device) -> Trained:
    """Read a run folder; the weights are the best epoch's."""
    from bayesrnn.train import checkpoint

    folder = Path(path)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        words = (folder / "vocabulary.txt").read_text("utf-8").split("\n")[:-1]
        recipe = recipes.from_dict(config["settings"], where="config.json")
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder} is no run of bayesrnn train; its config.json and vocabulary.txt are needed."
        ) from None
    model = language.build(recipe, len(words))
    weights = folder / "best.safetensors"
    tensors, _ = checkpoint.load(weights)
    checkpoint.load_model(model, tensors, weights)
    return Trained(folder, config, recipe, Vocabulary.of_words(words), model.to(device).eval())
