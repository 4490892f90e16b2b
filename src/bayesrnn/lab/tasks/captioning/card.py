"""What the card of a captioning model says."""

from bayesrnn.lab.cards import Card

CARD = Card(
    pipeline="image-to-text",
    inputs="The module takes tokens (T, B), line numbers of `vocabulary.txt` from 0, and features of images (B, F); it "
    "returns logits (T, B, V) and the state of its LSTM. `features.json` has F.",
    example="""
size = json.loads((folder / "features.json").read_text("utf-8"))["size"]
features, tokens = torch.rand(1, size), torch.zeros(1, 1, dtype=torch.long)
p = br.predict(model, tokens, samples=32, seed=1, kwargs={"features": features}, batch_dim=1)
print(p.mean.argmax(-1), p.mutual_information)
""",
    use="Captions of photographs of everyday scenes, with the doubt about each word.",
    limits="Captions repeat the prejudices of those who wrote the training captions, above all about people. Features "
    "must come from the network that the training features came from. Do not use it to identify or judge people.",
    uncertainty=("_mc", "_consensus"),
)
