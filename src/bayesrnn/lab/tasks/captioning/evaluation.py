"""``bayesrnn evaluate`` for captions: perplexities and captions first, then the BLEU and CIDEr of these captions.

The first part needs the model (and a GPU to be quick), the second pycocoevalcap and no model. The run's
``captions.json`` is between them, so that they can run on different machines.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrnn.errors import UserError
from bayesrnn.lab.reading import counted
from bayesrnn.lab.runs.files import is_own, read_own, write_file
from bayesrnn.lab.tasks.base import Say, weights_digest
from bayesrnn.lab.tasks.captioning import scores as caption_scores
from bayesrnn.lab.tasks.captioning import search as caption_search
from bayesrnn.lab.tasks.captioning.captions import CaptionedImages, References, words
from bayesrnn.lab.tasks.captioning.search import BeamCaption
from bayesrnn.lab.text import UNK, noise_of_draws

if TYPE_CHECKING:
    from bayesrnn.lab.tasks.captioning.task import Captioning

WAYS = {"": "mean", "_mc": "draws"}
"""Suffixes of metrics, and the captions they score: of the posterior mean, or of averaged draws."""
_SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
_SIGNS = ("entropy", "mutual_information", "surprisal")


def evaluate(
    task: "Captioning", *, samples: int, decode_samples: int, seed: int, beams: Sequence[int],
    length_penalties: Sequence[float], again: bool, say: Say,
) -> dict[str, Any]:  # fmt: skip
    """Metrics by name; ``_mc`` is for the average over draws."""
    if min(beams) < 1 or min(length_penalties) < 0:
        raise UserError("A beam is at least 1, a length penalty at least 0.")
    if decode_samples < 0:
        raise UserError(f"--decode-samples must be at least 0, got {decode_samples}.")
    samples = samples if task.random else 0
    decode_samples = min(samples, decode_samples)
    asked = {
        "weights": weights_digest(task.model),
        "samples": samples,
        "decode_samples": decode_samples,
        "seed": seed,
        "max_words": task.recipe.evaluate.max_words,
        "beams": list(beams),
        "length_penalties": list(length_penalties),
    }
    file = None if task.folder is None else task.folder / task.artifacts[0]
    if file is not None and file.exists() and not is_own(file):
        raise UserError(f"{file} was not written by bayesrnn evaluate, and will not be replaced; move it.")
    kept = None if again or file is None else _read_captions(file, asked)
    if kept is None:
        kept = {
            "program": "bayesrnn",
            **asked,
            "metrics": _perplexities(task, samples, seed, say),
            "found": list(_search(task, asked, say)),
        }
        if file is not None:
            write_file(file, json.dumps(kept) + "\n")
            say(f"Captions are in {file}")
    else:
        say(f"Captions are those of {file}")
    if not caption_scores.available():
        kept_too = ": captions are kept" if file is not None else ""
        say(f"BLEU and CIDEr need pycocoevalcap, which is not here; evaluate this run where it is{kept_too}.")
        return _of_draws(kept) | kept["metrics"]
    return score_captions(kept, task.references, say=say)


def score_captions(
    kept: Mapping[str, Any], references: CaptionedImages, *, say: Say = lambda text: None
) -> dict[str, Any]:
    """All metrics from the content of a ``captions.json``; no model is needed."""
    metrics = _of_draws(kept) | kept["metrics"]
    for suffix, found in ways(kept).items():
        say(f"BLEU and CIDEr, {WAYS[suffix]}")
        metrics |= _best_scores(found, references, suffix)
    return metrics | {"human": _human(references.test)}


def _of_draws(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of draws for perplexity and for captions, and their seed; empty without draws."""
    if not kept["samples"]:
        return {}
    seed = {"draws_seed": kept["seed"]} if "seed" in kept else {}
    return {"samples": kept["samples"], "decode_samples": kept.get("decode_samples", kept["samples"]), **seed}


def ways(kept: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The captions of each way in a ``captions.json``, by the suffix of its metrics."""
    draws = kept.get("decode_samples", kept["samples"])
    # Files of earlier versions also have the captions of single draws, marked as a consensus.
    found = [one for one in kept["found"] if not one.get("consensus", False)]
    counts = {"": 0, "_mc": draws} if draws else {"": 0}
    return {suffix: [one for one in found if one["draws"] == count] for suffix, count in counts.items()}


def _read_captions(file: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The saved results, if they match the current options."""
    kept = read_own(file)
    return kept if all(kept.get(key) == value for key, value in asked.items()) else None


def _perplexities(task: "Captioning", samples: int, seed: int, say: Say) -> dict[str, float]:
    found = {}
    for split in ("valid", "test"):
        say(f"perplexity, {split}")
        found[f"{split}_perplexity"] = task.perplexity(split)
        if samples:
            with noise_of_draws(task.model):
                found[f"{split}_perplexity_mc"] = task.perplexity(split, samples=samples, seed=seed)
    return found


def _search(task: "Captioning", asked: Mapping[str, Any], say: Say) -> Iterator[dict[str, Any]]:
    """Captions of both splits with every setting: of the mean, and of averaged draws."""
    drawn = caption_search.seeds(asked["decode_samples"], asked["seed"])
    for split, held, beam, length_penalty in itertools.product(
        ("valid", "test"), [[], drawn] if drawn else [[]], asked["beams"], asked["length_penalties"]
    ):
        way = counted(len(held), "draw") if held else "no draws"
        say(f"captions, {split}, {way}, beam {beam}, length penalty {length_penalty:g}")
        with noise_of_draws(task.model):
            found = caption_search.find_captions(
                task.model, task.splits[split].features, end=task.end, vocabulary=len(task.vocabulary), beam=beam,
                length_penalty=length_penalty, max_words=task.recipe.evaluate.max_words,
                banned=task.vocabulary.encode([UNK]).tolist(), held=held,
            )  # fmt: skip
        captions = _captions_by_image(task, split, found, asked["samples"], asked["seed"])
        about = {"split": split, "draws": len(held), "beam": beam, "length_penalty": length_penalty}
        yield {**about, "captions": captions}


def _captions_by_image(
    task: "Captioning", split: str, found: Sequence[BeamCaption], samples: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Captions by image; those of test images with their uncertainty per word (the end is one)."""
    part, vocabulary, ids = task.splits[split], task.vocabulary, [one.words for one in found]
    made: dict[str, dict[str, Any]] = {
        name: {"caption": " ".join(vocabulary.decode(words))} for name, words in zip(part.names, ids, strict=True)
    }
    if split != "test":
        return made
    with noise_of_draws(task.model):
        unsure = caption_search.word_uncertainty(
            task.model, part.features, ids, end=task.end, vocabulary=len(vocabulary), samples=samples, seed=seed
        )
    for about, one, each in zip(made.values(), found, unsure, strict=True):
        about["surprisal"] = round(-one.log_probability / len(each), 4)
        about["entropy"] = round(sum(entropy for _, entropy, _ in each) / len(each), 4)
        about["mutual_information"] = round(sum(information for _, _, information in each) / len(each), 5)
    return made


def _best_scores(found: Sequence[dict[str, Any]], references: CaptionedImages, suffix: str) -> dict[str, Any]:
    """Scores with the setting that does best on validation (mean of all five), and those of all settings there."""
    rows, tests = [], {}
    for one in found:
        setting = (one["beam"], one["length_penalty"])
        if one["split"] == "test":
            tests[setting] = one
            continue
        corpus, _ = _score(one, references)
        rows.append({"beam": one["beam"], "length_penalty": one["length_penalty"], **corpus, "words": _mean_words(one)})
    best = max(rows, key=lambda row: sum(row[name] for name in caption_scores.SCORES))
    test = tests[best["beam"], best["length_penalty"]]
    corpus, each = _score(test, references)
    values = {name: best[name] for name in ("beam", "length_penalty")}
    values |= {f"valid_{name}": best[name] for name in caption_scores.SCORES}
    values |= {f"test_{name}": value for name, value in corpus.items()}
    values |= {"test_words": _mean_words(test), "decoding": rows}
    if all(sign in about for about in test["captions"].values() for sign in _SIGNS):
        values["selective"] = _selective(test["captions"], each)
    return {f"{name}{suffix}": value for name, value in values.items()}


def _human(references: References) -> dict[str, float]:
    """The first caption of each image scored against its other captions; empty if an image has only one."""
    if any(len(captions) < 2 for captions in references.values()):
        return {}
    first = {name: captions[0] for name, captions in references.items()}
    return caption_scores.scores(first, {name: captions[1:] for name, captions in references.items()})[0]


def _score(one: dict[str, Any], references: CaptionedImages) -> tuple[dict[str, float], dict[str, float]]:
    captions = {name: words(about["caption"]) for name, about in one["captions"].items()}
    return caption_scores.scores(captions, references.split(one["split"]))


def _mean_words(one: dict[str, Any]) -> float:
    captions = [about["caption"].split() for about in one["captions"].values()]
    return sum(map(len, captions)) / len(captions)


def _selective(captions: Mapping[str, Mapping[str, Any]], cider: Mapping[str, float]) -> dict[str, list[list[float]]]:
    """For each sign of doubt, [share of captions kept, mean CIDEr of these], the least doubtful kept first."""
    found: dict[str, list[list[float]]] = {}
    for sign in _SIGNS:
        order = sorted(captions, key=lambda name: (captions[name][sign], name))
        found[sign] = []
        for share in _SHARES:
            kept = order[: max(1, round(share * len(order)))]
            found[sign].append([share, sum(cider[name] for name in kept) / len(kept)])
    return found
