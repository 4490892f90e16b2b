"""Where a language model is unsure, and why: words that could be many things, and text that it does not know.

A small model of the documentation that Python carries. After each word it predicts the next one, with 32 draws of its
weights. Entropy is all of its uncertainty, in nats. Where the draws agree, the next word is ambiguous (aleatoric);
where they do not, the model has not seen enough of such text (epistemic).

    python examples/ambiguous_words.py
"""

import torch
from torch import Tensor, nn

import bayesrnn as br
from bayesrnn.lab.tasks.language.text import python_docs
from bayesrnn.lab.text import Vocabulary, batchify, windows

SENTENCES = (
    "if the class defines a method",
    "the value of the attribute is not",
    "name the of if to not",
)


class LanguageModel(nn.Module):
    def __init__(self, words: int, hidden: int = 64) -> None:
        super().__init__()
        self.embed = br.Embedding(words, hidden, word_dropout=0.1)
        self.rnn = br.LSTM(hidden, hidden, input_dropout=0.2, recurrent_dropout=0.2)
        self.drop = br.SequenceDropout(0.2)
        self.head = nn.Linear(hidden, words)
        self.head.weight = self.embed.weight
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(
        self, tokens: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.head(self.drop(hidden)), state


def trained(vocabulary: Vocabulary, tokens: list[str], epochs: int) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(len(vocabulary))
    stream = batchify(vocabulary.encode(tokens), 20)
    elbo = br.ELBO(model, br.Categorical(), num_data=stream.numel(), length_scale=0.03)
    optimizer = torch.optim.Adam(elbo.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in windows(stream, 20):
            optimizer.zero_grad()
            elbo(model(x), y).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return model


def main(epochs: int = 7) -> dict[str, float]:
    corpus = python_docs()
    vocabulary = Vocabulary(corpus.train, min_count=5)
    model = trained(vocabulary, corpus.train, epochs)
    for sentence in SENTENCES:
        words = sentence.split()
        p = br.predict(model, vocabulary.encode(words).unsqueeze(1), samples=32, seed=0)
        print(f"\n{'after':12} {'entropy':>8} {'aleatoric':>10} {'epistemic':>10}   most probable next words")
        for i, word in enumerate(words):
            best = vocabulary.decode(p.mean[i, 0].topk(3).indices)
            row = (float(part[i, 0]) for part in (p.entropy, p.aleatoric, p.epistemic))
            print(f"{word:12} {next(row):8.2f} {next(row):10.2f} {next(row):10.2f}   {', '.join(best)}")

    test = vocabulary.encode(corpus.test[:600])
    result = {}
    for name, tokens in (("text", test), ("backwards", test.flip(0))):
        p = br.predict(model, tokens.view(20, 30).T, samples=32, seed=0, keep_samples=False)
        result[name] = float(p.epistemic.mean())
    print(f"\nepistemic, mean: {result['text']:.3f} on new text, {result['backwards']:.3f} on the same text backwards")
    return result


if __name__ == "__main__":
    main()
