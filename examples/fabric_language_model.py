"""A Bayesian language model in a training loop with Lightning Fabric: devices, precision and several processes.

    pip install lightning-fabric
    python examples/fabric_language_model.py                            # CPU or one GPU; 11 seconds of CPU time
    torchrun --nproc-per-node 2 examples/fabric_language_model.py       # two processes, each with draws of its own

The model is an ordinary module and the loop an ordinary loop: Fabric is told of both, and nothing else changes.
"""

import argparse
import math
import os

import torch
from lightning_fabric import Fabric
from torch import nn

import bayesrnn as br
from bayesrnn.lab.tasks.language.text import python_docs
from bayesrnn.lab.text import Vocabulary, batchify, windows


class LanguageModel(nn.Module):
    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(words, hidden), nn.LSTM(hidden, hidden), nn.Linear(hidden, words)

    def forward(self, tokens, state=None):
        out, state = self.rnn(self.embed(tokens), state)
        return self.head(out), state


def perplexity(model: nn.Module, stream: torch.Tensor) -> float:
    """At the posterior mean, which is what eval mode gives."""
    model.eval()
    total, state = 0.0, None
    with torch.no_grad():
        for x, y in windows(stream, 100):
            logits, state = model(x, state)
            total += nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()
    model.train()
    return math.exp(total / stream[1:].numel())


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10**9, help="stop an epoch after this many steps")
    parser.add_argument("--precision", default="32-true", help="of Fabric: 32-true, bf16-mixed, ...")
    parser.add_argument("--accelerator", default="auto")
    settings = parser.parse_args()

    processes = int(os.environ.get("WORLD_SIZE", 1))  # torchrun says
    fabric = Fabric(accelerator=settings.accelerator, devices=processes, precision=settings.precision)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)  # the same first weights in every process

    corpus = python_docs()
    vocabulary = Vocabulary(corpus.train, min_count=2)
    rows = 20
    train = batchify(vocabulary.encode(corpus.train), rows * fabric.world_size)
    train = train[:, fabric.global_rank * rows : (fabric.global_rank + 1) * rows].to(fabric.device)  # its own streams
    valid = batchify(vocabulary.encode(corpus.valid), 10).to(fabric.device)

    q = br.BayesByBackprop(LanguageModel(len(vocabulary), settings.hidden), prior=br.ScaleMixture(0.25, 0.4, 0.001))
    targets = train[1:].numel() * fabric.world_size
    elbo = br.ELBO(q, br.Categorical(), num_data=targets)
    model, optimiser = fabric.setup(q, torch.optim.Adam(q.parameters(), lr=5e-3))
    torch.manual_seed(1000 + fabric.global_rank)  # from here on each process has draws of its own

    best = math.inf
    for epoch in range(1, settings.epochs + 1):
        state = None
        for step, (x, y) in enumerate(windows(train, 35)):
            if step == settings.steps:
                break
            logits, state = model(x, state)  # one draw of all weights, held for the window
            state = tuple(part.detach() for part in state)
            loss = elbo(logits, y).loss
            optimiser.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimiser, max_norm=0.5)
            optimiser.step()
        value = perplexity(model, valid)
        best = min(best, value)
        fabric.print(f"epoch {epoch}: validation perplexity {value:.1f}, loss per word {loss.item():.3f}")
    return best


if __name__ == "__main__":
    main()
