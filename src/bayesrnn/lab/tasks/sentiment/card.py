"""What the card of a rating model says."""

from bayesrnn.lab.cards import Card

CARD = Card(
    pipeline="text-classification",
    inputs="The module takes tokens (T, B), positions in `words` of `words.json`, and returns standardised ratings "
    "(B, 1); `mean` and `sd` of `words.json` give ratings.",
    example="""
about = json.loads((folder / "words.json").read_text("utf-8"))
tokens = torch.tensor([[about["words"].index(word)] for word in about["words"][-3:]])
p = br.predict(model, tokens, samples=32, seed=1)
print(about["mean"] + about["sd"] * p.mean, about["sd"] * p.variance.sqrt())
""",
    use="The rating of a film from a piece of its review, with the doubt about it.",
    limits="It was trained on English film reviews of a few critics. Words that `words.json` lacks are not read.",
    uncertainty=("likelihood", "slope", "coverage"),
)
