"""The captions behind records: what is kept of a run, and the files of this repository."""

import json
from pathlib import Path

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.captioning.evaluation import texts
from docs.build import caption_texts, captioning

ROOT = Path(__file__).resolve().parents[4]


def captions_file():
    """As ``evaluate`` writes it: five images, two penalties, with the mean, with three draws, and what each says."""
    images = [f"{i}.jpg" for i in range(5)]
    found = []
    for split in ("valid", "test"):
        for penalty in (0.5, 0.7):
            about = {"split": split, "beam": 3, "length_penalty": penalty}
            tail = " far away" if penalty == 0.7 else ""
            for draws, word in ((0, "dog"), (3, "cat")):
                captions = {
                    image: {"caption": f"a {word} {i}{tail}", "entropy": 1.0, "mutual_information": 0.5 - i / 10}
                    for i, image in enumerate(images)
                }
                found.append({**about, "draws": draws, "consensus": False, "captions": captions})
            said = {image: {"said": ["a dog", "a dog runs", "the sea"]} for image in images}
            found.append({**about, "draws": 3, "consensus": True, "captions": said})
    return {"weights": "abc", "samples": 8, "decode_samples": 3, "found": found}


METRICS = {
    "beam": 3, "length_penalty": 0.7, "test_words": 5.0,
    "beam_mc": 3, "length_penalty_mc": 0.5, "test_words_mc": 3.0,
    "beam_consensus": 3, "length_penalty_consensus": 0.5, "test_words_consensus": 2.0,
}  # fmt: skip


def test_what_is_kept_is_what_validation_chose_on_the_test_images():
    made = texts(captions_file(), METRICS, samples=3)
    assert made["images"] == [f"{i}.jpg" for i in range(5)]
    assert made["mean"]["captions"][1] == "a dog 1 far away"
    assert made["draws"] == {"beam": 3, "length_penalty": 0.5, "captions": [f"a cat {i}" for i in range(5)]}
    assert made["consensus"]["captions"] == ["a dog"] * 5
    assert [one["image"] for one in made["samples"]] == ["4.jpg", "2.jpg", "0.jpg"], "the surest first"
    assert made["samples"][0]["said"] == ["a dog", "a dog runs", "the sea"]
    alone = captions_file() | {"decode_samples": 0}
    alone["found"] = [one for one in alone["found"] if not one["draws"]]
    assert set(texts(alone, METRICS)) == {"program", "weights", "split", "images", "mean"}


@pytest.fixture
def results(tmp_path):
    (tmp_path / "caption-bbb-masks").mkdir()
    (tmp_path / "caption-bbb-masks/1.json").write_text(json.dumps({"metrics": METRICS}))
    (tmp_path / caption_texts.FOLDER).mkdir()
    made = {"record": "caption-bbb-masks/1.json", **texts(captions_file(), METRICS, samples=2)}
    (tmp_path / caption_texts.FOLDER / "a-captions.json").write_text(json.dumps(made))
    return tmp_path


def test_a_caption_with_the_doubt_of_its_words(results, tmp_path):
    text = captioning.BLOCKS["captioning-samples"](results)
    assert "| a (2) dog (2) 4 (0) far (0) away (0) | 0.10 | 1.00 | a dog |" in text
    assert "captions of 3 draws" in text
    assert captioning.BLOCKS["captioning-samples"](tmp_path / "none") == caption_texts.NOTHING


@pytest.mark.parametrize("change", ["words", "setting", "images", "record"])
def test_captions_of_another_record_are_refused(results, change):
    path = results / caption_texts.FOLDER / "a-captions.json"
    made = json.loads(path.read_text())
    if change == "words":
        made["mean"]["captions"][0] += " twice"
    elif change == "setting":
        made["draws"]["length_penalty"] = 0.7
    elif change == "images":
        made["images"][0] = made["images"][1]
    else:
        made["record"] = "caption-bbb-masks/2.json"
    path.write_text(json.dumps(made))
    with pytest.raises(UserError, match=r"a-captions\.json does not hold the captions of a record"):
        caption_texts.load(results)


def test_every_record_of_the_tables_has_its_captions():
    found = caption_texts.load(ROOT / "results")
    records = [f"{name}/{r['seed']}.json" for name, rs in captioning.load(ROOT / "results").items() for r in rs]
    assert sorted(kept["record"] for kept in found) == sorted(records)
    assert all(len(kept["images"]) == 1000 for kept in found)
    ways = {"": "mean", "_mc": "draws", "_consensus": "consensus"}
    for kept in found:
        metrics = json.loads((ROOT / "results" / kept["record"]).read_text())["metrics"]
        assert {way for way in ways.values() if way in kept} == {
            way for suffix, way in ways.items() if f"test_cider{suffix}" in metrics
        }


def test_what_a_consensus_changes(tmp_path):
    metrics = {"best_epoch": 1, "valid_perplexity": 9.0}
    for key, values in (("bleu4", (20.0, 21.0, 22.5)), ("cider", (50.0, 49.0, 48.0))):
        metrics |= {f"test_{key}{s}": v for s, v in zip(("", "_mc", "_consensus"), values, strict=True)}
    (tmp_path / "caption-dropout").mkdir()
    made = {"seed": 1, "metrics": metrics, "curves": {"valid_perplexity": [9.0]}}
    (tmp_path / "caption-dropout/1.json").write_text(json.dumps(made))
    text = captioning.BLOCKS["captioning-consensus"](tmp_path)
    assert "- dropout, consensus less mean, each seed: BLEU-4 +2.50; CIDEr -2.00." in text
    assert "- dropout, consensus less draws, each seed: BLEU-4 +1.50; CIDEr -1.00." in text
