"""The same model as `fabric_language_model.py`, as a LightningModule for Lightning's Trainer.

    pip install lightning
    python examples/lightning_language_model.py

Three lines are Bayesian: the wrapper, the objective, and the prediction at the end.
"""

import argparse
import math

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import bayesrnn as br
from bayesrnn.lab.tasks.language.text import python_docs
from bayesrnn.lab.text import Vocabulary, batchify


class Windows(Dataset):
    """Windows (x, y) of parallel streams, in their order: the state is carried from one to the next."""

    def __init__(self, stream: torch.Tensor, length: int = 35) -> None:
        self.stream, self.length = stream, length

    def __len__(self) -> int:
        return (len(self.stream) - 1) // self.length

    def __getitem__(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = k * self.length
        part = self.stream[start : start + self.length + 1]
        return part[:-1], part[1:]


class Plain(nn.Module):
    def __init__(self, words: int, hidden: int) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(words, hidden), nn.LSTM(hidden, hidden), nn.Linear(hidden, words)

    def forward(self, tokens, state=None):
        out, state = self.rnn(self.embed(tokens), state)
        return self.head(out), state


class BayesianLanguageModel(lightning.LightningModule):
    def __init__(self, words: int, hidden: int, targets: int) -> None:
        super().__init__()
        self.q = br.BayesByBackprop(Plain(words, hidden), prior=br.ScaleMixture(0.25, 0.4, 0.001))
        self.elbo = br.ELBO(self.q, br.Categorical(), num_data=targets)
        self.state = None

    def on_train_epoch_start(self) -> None:
        self.state = None

    on_validation_epoch_start = on_train_epoch_start

    def training_step(self, batch, index):
        x, y = batch
        logits, state = self.q(x, self.state)  # train mode: one draw of all weights for this window
        self.state = tuple(part.detach() for part in state)
        return self.elbo(logits, y).loss

    def validation_step(self, batch, index):
        x, y = batch
        logits, self.state = self.q(x, self.state)  # eval mode: the posterior mean
        self.log("nll", br.Categorical().nll(logits, y) / y.numel(), on_epoch=True, batch_size=1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.q.parameters(), lr=5e-3)


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--steps", type=int, default=None, help="stop an epoch after this many steps")
    parser.add_argument("--accelerator", default="auto")
    settings = parser.parse_args()

    lightning.seed_everything(1, verbose=False)
    corpus = python_docs()
    vocabulary = Vocabulary(corpus.train, min_count=2)
    train = Windows(batchify(vocabulary.encode(corpus.train), 20))
    valid = Windows(batchify(vocabulary.encode(corpus.valid), 10))
    model = BayesianLanguageModel(len(vocabulary), settings.hidden, targets=train.stream[1:].numel())
    trainer = lightning.Trainer(
        max_epochs=settings.epochs,
        limit_train_batches=settings.steps,
        accelerator=settings.accelerator,
        gradient_clip_val=0.5,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [DataLoader(data, batch_size=None, shuffle=False) for data in (train, valid)]
    trainer.fit(model, *loaders)
    perplexity = math.exp(trainer.callback_metrics["nll"].item())
    x, _ = valid[0]
    unsure = br.predict(model.q.cpu().eval(), x, samples=8, seed=0).mutual_information.mean().item()
    print(f"validation perplexity {perplexity:.1f}; mutual information {unsure:.3f} nats per word")
    return perplexity


if __name__ == "__main__":
    main()
