"""The captions behind a record: what is kept of a run."""

from bayesrnn.lab.tasks.captioning.evaluation import texts


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
