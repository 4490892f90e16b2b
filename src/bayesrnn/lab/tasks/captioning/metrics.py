"""Metrics of captions: perplexity per word, BLEU and CIDEr in percent, and how they were searched for."""

from bayesrnn.lab.metrics import Metric

SCORES = {**{f"bleu{n}": f"BLEU-{n}" for n in range(1, 5)}, "cider": "CIDEr"}
_WAYS = {"": "", "_mc": ", averaged over draws"}
_SPLITS = {"valid": "validation", "test": "test"}

METRICS = (
    *(
        Metric(
            f"{split}_perplexity{way}",
            f"{name} perplexity{text}",
            paper_key=split if split == "test" and not way else "",
        )
        for way, text in _WAYS.items()
        for split, name in _SPLITS.items()
    ),
    *(
        Metric(f"test_{key}{way}", f"test {label}{text}", "%", False, paper_key="" if way else key)
        for way, text in _WAYS.items()
        for key, label in SCORES.items()
    ),
    *(Metric(f"test_words{way}", f"test words{text}", lower_is_better=None) for way, text in _WAYS.items()),
)
DETAILS = (
    *(
        Metric(f"valid_{key}{way}", f"validation {label}{text}", "%", False)
        for way, text in _WAYS.items()
        for key, label in SCORES.items()
    ),
    *(Metric(f"human.{key}", f"people's captions: {label}", "%", False) for key, label in SCORES.items()),
)
CONDITIONS = (
    "samples", "decode_samples", "draws_seed",
    *(f"{key}{way}" for key in ("beam", "length_penalty") for way in _WAYS),
)  # fmt: skip
