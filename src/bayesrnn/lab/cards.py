"""What a task says about its models on a model card."""

from pathlib import Path

from pydantic import BaseModel

from bayesrnn.lab.reading import load_yaml


class Card(BaseModel, frozen=True):
    """Words for the card of an exported model; a task declares one, or has a file ``card.yaml``.

    Args:
        pipeline: the tag of the Hugging Face Hub for such models, such as ``text-generation``; empty: none fits.
        inputs: what the module takes and returns, with shapes.
        example: Python code that follows ``model = br.load(folder)``; it ends with a prediction.
        use: what such models are for.
        limits: what they cannot do, besides the limits of every model.
        uncertainty: parts of the keys of metrics that say how good the uncertainty is.
        reading: how to read these metrics.
    """

    pipeline: str = ""
    inputs: str = "See the task's own documentation."
    example: str = ""
    use: str = "Predictions with uncertainty, on data like the data it was trained on."
    limits: str = ""
    uncertainty: tuple[str, ...] = ("calibration", "entropy", "coverage", "nll", "likelihood")
    reading: str = ""


def card_of(module: str) -> Card:
    """The card in ``card.yaml`` beside a module, by its ``__file__``."""
    file = Path(module).with_name("card.yaml")
    return Card.model_validate(load_yaml(file.read_text("utf-8"), where=str(file)))
