"""The captions that runs said, ``results/caption-texts/*-captions.json``: checked against their records, and shown.

``python benchmarks/captioning.py keep`` writes them. They hold the model's captions of the test images, so that BLEU
and CIDEr of a record can be computed again by anybody who has the references.
"""

from collections.abc import Sequence
from pathlib import Path

from bayesrnn.errors import UserError
from bayesrnn.lab.report.tables import Column, markdown_table
from bayesrnn.lab.runs.record import Record, read
from bayesrnn.lab.tasks.captioning.evaluation import WAYS
from docs.build import archive
from docs.build.archive import Captions

FOLDER = "caption-texts"
SHOWN = "caption-bbb-masks"
"""The recipe whose captions are shown: that with the best scores; its first file."""
NOTHING = "Not measured yet: there are no records in `results/`."


def load(results: Path) -> list[Captions]:
    """All files of captions, each checked: it is of a record, with its settings and its number of words."""
    found = []
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            kept = archive.load(path, Captions)
            record = read(results / kept.record)
            sound = all(_belongs(kept, record, suffix, way) for suffix, way in WAYS.items() if kept.way(way))
        except (UserError, KeyError, TypeError):
            sound = False
        if not sound:
            raise UserError(f"{path} does not hold the captions of a record; make it with benchmarks/captioning.py.")
        found.append(kept)
    return found


def _belongs(kept: Captions, record: Record, suffix: str, way: str) -> bool:
    own = kept.way(way) or {}
    captions = own["captions"]
    words = sum(len(caption.split()) for caption in captions) / len(captions)
    setting = all(own[name] == record.metric(f"{name}{suffix}") for name in ("beam", "length_penalty"))
    return (
        setting and len(captions) == len(set(kept.images)) and abs(words - record.metric(f"test_words{suffix}")) < 1e-9
    )


def with_counts(caption: str, said: Sequence[str]) -> str:
    """Each word, followed by how many of the captions in ``said`` have it too."""
    others = [set(text.split()) for text in said]
    return " ".join(f"{word} ({sum(word in other for other in others)})" for word in caption.split())


def block(results: Path) -> str:
    """A few captions with the doubt about each word, from the surest to the least sure."""
    kept = next((k for k in load(results) if k.record.startswith(f"{SHOWN}/") and k.samples), None)
    if kept is None:
        return NOTHING
    rows = [
        {
            "caption": with_counts(one["caption"], one["said"]),
            "information": one["mutual_information"],
            "entropy": one["entropy"],
            "draw": next((said for said in one["said"] if said != one["caption"]), "the same, all of them"),
        }
        for one in kept.samples
    ]
    columns = (
        Column("caption", "caption of the mean"),
        Column("information", "mutual information", "{:.2f}"),
        Column("entropy", "entropy", "{:.2f}"),
        Column("draw", "what a draw says"),
    )
    about = (
        f"In brackets: how many of the captions of {len(kept.samples[0]['said'])} draws have the word. Of "
        f"{len(kept.images):,} test images these are the ones at even steps in the order of mutual information. "
        f"From `results/{kept.record}`."
    )
    return f"{markdown_table(rows, columns)}\n{about}"
