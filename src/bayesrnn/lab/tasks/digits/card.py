"""What the card of a classifier of digits says."""

from bayesrnn.lab.cards import Card

CARD = Card(
    pipeline="image-classification",
    inputs="The module takes images (B, 1, 28, 28), scaled as in MNIST's readers to 0 (paper) to 1 (ink), and returns "
    "logits (B, 10) of the digits 0 to 9.",
    example="""
p = br.predict(model, torch.zeros(1, 1, 28, 28), samples=32, seed=1)
print(p.mean, p.mutual_information)
""",
    use="A benchmark of posteriors over weights: classification of handwritten digits, with the doubt about each.",
    limits="It gives one of ten digits to any image. Reject images of high entropy; some pictures of other things "
    "have a low one.",
    uncertainty=("calibration", "entropy", "nll"),
)
