"""What the card of a language model says."""

from bayesrnn.lab.cards import Card

CARD = Card(
    pipeline="text-generation",
    inputs="The module takes tokens (T, B), line numbers of `vocabulary.txt` from 0, and returns logits (T, B, V) and "
    "the state of its LSTM.",
    example="""
words = (folder / "vocabulary.txt").read_text("utf-8").splitlines()
tokens = torch.tensor([[words.index(word)] for word in ("<eos>", "<unk>")])
p = br.predict(model, tokens, samples=32, seed=1)
print(words[p.mean[-1, 0].argmax()], p.mutual_information[-1, 0])
""",
    use="Scoring and completing text of the kind it was trained on, and finding words that it is unsure of.",
    limits="It knows the words of `vocabulary.txt`; all others are `<unk>`. It repeats errors and prejudices of its "
    "training text, and is too small to write for readers.",
    uncertainty=("calibration", "entropy", "mutual_information"),
)
