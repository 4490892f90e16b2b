import random

import pytest


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    """A small made-up language: sentences of a few words that follow each other by rule."""
    folder = tmp_path_factory.mktemp("text")
    source = random.Random(0)
    for split, lines in (("train", 300), ("valid", 40), ("test", 40)):
        text = []
        for _ in range(lines):
            word, sentence = source.randrange(12), []
            for _ in range(source.randrange(4, 9)):
                sentence.append(f"w{word}")
                word = (word * 2 + source.randrange(3)) % 12
            text.append(" ".join(sentence))
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n")
    return folder
