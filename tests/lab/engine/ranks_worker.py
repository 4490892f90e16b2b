"""Run by torchrun on several ranks: trains every case of CASES into a folder. Also imported, for one rank.

torchrun --standalone --nproc-per-node 2 ranks_worker.py OUT TEXT
"""

import sys
from pathlib import Path

import torch
from torch import nn

import bayesrnn as br
from bayesrnn.lab.engine.launch import launch
from bayesrnn.lab.engine.ranks import join
from bayesrnn.lab.recipes.schema import Count, Rate, Section, Sections
from bayesrnn.lab.tasks.base import TASKS, Minibatches, Task, posterior, recipe_elbo

LANGUAGE = ["hidden=6", "layers=1", "batch_size=8", "window=6", "epochs=2", "save_every=9", "lr=0.2"]
CASES = {
    "plain": ("unregularised-medium", [*LANGUAGE, "shared_draw=true"]),
    "bbb": ("brnn-medium", [*LANGUAGE, "shared_draw=true", "optimizer=adam", "lr=0.01", "average_from=2"]),
    "variational": ("variational-tied-medium", [*LANGUAGE, "shared_draw=true"]),
    "labels": ("labels.yaml", ["kind=bayes_by_backprop", "shared_draw=true", "dropout=0.3"]),
    "own": ("brnn-medium", LANGUAGE),
    "own-labels": ("labels.yaml", ["kind=bayes_by_backprop"]),
    "sharpened": ("brnn-sharpened-medium", [*LANGUAGE, "epochs=1"]),
}


class Model(Section):
    hidden: Count = 5
    dropout: Rate = 0.0


class Data(Section):
    batch_size: Count = 8


class Labels(Task):
    """Several labels for each example, not the same number for all: what is missing is padding."""

    sections = Sections(model=Model, data=Data)
    metric, unit, default_data = "valid_nll", "examples", "made up"

    def __init__(self, recipe, data, device):
        super().__init__(recipe, data, device)
        source = torch.Generator().manual_seed(0)
        x = torch.randn(60, 3, generator=source)
        y = torch.stack([(x[:, i] > 0).long() for i in range(3)], 1)
        y[torch.arange(60).unsqueeze(1) % 4 >= torch.arange(1, 4)] = -100
        self.minibatches = Minibatches(x[20:], y[20:], batch_size=recipe.data.batch_size)
        self.valid, self.counts = (x[:20], y[:20]), (y[20:] != -100).sum(1)
        self.steps, self.batch_size = self.minibatches.steps, recipe.data.batch_size
        self.examples_per_step = 3 * self.batch_size

    @staticmethod
    def build(recipe, files):
        m = recipe.model
        layers = nn.Linear(3, m.hidden), nn.Tanh(), br.Dropout(m.dropout), nn.Linear(m.hidden, 6)
        return posterior(nn.Sequential(*layers, nn.Unflatten(1, (3, 2))), recipe.posterior)

    def attach(self, model):
        super().attach(model)
        count = int(self.counts.sum())
        self.elbo = recipe_elbo(model, br.Categorical(), self.recipe.posterior, num_data=count)

    def tensors(self):
        return self.minibatches.tensors()

    def start_epoch(self, epoch):
        self.minibatches.shuffle()

    def batch(self, position):
        x, y = self.minibatches(position)
        return x, y, self.minibatches.whole(position, self.counts).sum() * (len(x) / self.batch_size)

    def objective(self, batch, state):
        x, y, count = batch
        terms, _ = self.elbo.evaluate(lambda: self.model(x), y, count=count)
        return terms.loss, terms, state

    @torch.no_grad()
    def validate(self):
        x, y = self.valid
        return {"valid_nll": float(br.Categorical().nll(self.model(x), y))}


TASKS["labels"] = Labels
RECIPE = "task: labels\ntrain: {epochs: 2, lr: 0.1, save_every: 2}\n"


class Quiet:
    def say(self, text): ...
    def step(self, progress): ...
    def epoch(self, line, epochs): ...


def train(case, out, text, **kwargs):
    name, overrides = CASES[case]
    data = None if name == "labels.yaml" else str(text)
    if name == "labels.yaml":
        name = str(Path(text) / name)
    return launch(name, out=Path(out) / case, reporter=Quiet(), data=data, overrides=overrides, **kwargs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = join("cpu")
    for case in CASES:
        train(case, sys.argv[1], sys.argv[2], ranks=ranks)
    ranks.leave()
