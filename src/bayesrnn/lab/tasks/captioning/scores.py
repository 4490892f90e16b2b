"""BLEU and CIDEr of captions against references, by the COCO captions' own code (pycocoevalcap; no Java is needed).

Both sides are cut by :func:`.captions.words`, the same rule as the training captions, so the scores do
not depend on a tokeniser of another program.
"""

import importlib
from collections.abc import Mapping, Sequence

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import not_imported

Caption = Sequence[str]
SCORES = ("bleu1", "bleu2", "bleu3", "bleu4", "cider")


def available() -> bool:
    """Whether pycocoevalcap can be imported here."""
    try:
        importlib.import_module("pycocoevalcap.bleu.bleu")
    except ImportError:
        return False
    return True


def scores(
    captions: Mapping[str, Caption], references: Mapping[str, Sequence[Caption]]
) -> tuple[dict[str, float], dict[str, float]]:
    """BLEU-1 to BLEU-4 of the corpus and mean CIDEr, in percent; and CIDEr of each image.

    Args:
        captions: image name to the words of its caption.
        references: image name to the words of its reference captions; the same images.
    """
    if captions.keys() != references.keys():
        odd = min(captions.keys() ^ references.keys())
        raise UserError(f"Captions and references are not of the same images: {odd} is in one of them only.")
    if not captions:
        raise UserError("There are no captions to score.")
    try:
        bleu = importlib.import_module("pycocoevalcap.bleu.bleu").Bleu(4)
        cider = importlib.import_module("pycocoevalcap.cider.cider").Cider()
    except ImportError as error:
        raise UserError(f"BLEU and CIDEr need {not_imported(error)}: pip install pycocoevalcap.") from None
    truth = {image: [" ".join(one) for one in references[image]] for image in captions}
    made = {image: [" ".join(one)] for image, one in captions.items()}
    bleus, _ = bleu.compute_score(truth, made, verbose=0)
    mean, each = cider.compute_score(truth, made)
    corpus = {name: 100 * float(value) for name, value in zip(SCORES, [*bleus, mean], strict=True)}
    return corpus, {image: 100 * float(value) for image, value in zip(captions, each, strict=True)}
