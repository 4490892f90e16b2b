"""BLEU and CIDEr against plain re-derivations from the papers, written out here."""

import math
import random
import sys
from collections import Counter

import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.tasks.captioning import scores as caption_scores

pytest.importorskip("pycocoevalcap.bleu.bleu")


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu(captions, references, n):
    """Papineni et al. 2002: clipped precisions of the corpus, their geometric mean, and the brevity penalty."""
    log_precision, length, wanted = 0.0, 0, 0
    for k in range(1, n + 1):
        hits = total = 0
        for name, words in captions.items():
            own = grams(words, k)
            most = Counter()
            for reference in references[name]:
                most |= grams(reference, k)
            hits += sum((own & most).values())
            total += sum(own.values())
        log_precision += math.log(hits / total) / n
    for name, words in captions.items():
        length += len(words)
        wanted += min((abs(len(r) - len(words)), len(r)) for r in references[name])[1]
    return 100 * math.exp(log_precision + min(0.0, 1 - wanted / length))


def cider_d(captions, references, sigma=6.0):
    """Vedantam et al. 2015, section 5, CIDEr-D: clipped tf-idf cosine of n-grams with a Gaussian penalty on length."""
    seen = Counter()
    for each in references.values():
        for n in range(1, 5):
            seen.update(set().union(*(grams(reference, n) for reference in each)))

    def vector(words, n):
        return {g: c * (math.log(len(references)) - math.log(max(1, seen[g]))) for g, c in grams(words, n).items()}

    def norm(v):
        return math.sqrt(sum(x * x for x in v.values()))

    found = {}
    for name, words in captions.items():
        total = 0.0
        for reference in references[name]:
            # The released code measures length in bigrams, one less than words unless a caption is empty.
            gap = max(len(words) - 1, 0) - max(len(reference) - 1, 0)
            for n in range(1, 5):
                a, b = vector(words, n), vector(reference, n)
                if norm(a) and norm(b):
                    dot = sum(min(a[g], b[g]) * b[g] for g in a.keys() & b.keys())
                    total += dot / (norm(a) * norm(b)) * math.exp(-(gap**2) / (2 * sigma**2))
        found[name] = 100 * 10 * total / 4 / len(references[name])
    return found


def made_up(seed, images=12, each=4):
    source = random.Random(seed)

    def sentence():
        return [source.choice("abcdefg") for _ in range(source.randrange(4, 12))]

    references = {f"{i}.jpg": [sentence() for _ in range(each)] for i in range(images)}
    captions = {}
    for name, known in references.items():
        words = list(source.choice(known))
        for _ in range(3):
            words[source.randrange(len(words))] = source.choice("abcdefg")
        captions[name] = words[: source.randrange(4, 12)]
    return captions, references


@pytest.mark.parametrize("seed", range(5))
def test_against_the_papers(seed):
    captions, references = made_up(seed)
    corpus, each = caption_scores.scores(captions, references)
    for n in range(1, 5):
        assert corpus[f"bleu{n}"] == pytest.approx(bleu(captions, references, n), rel=1e-6)
    expected = cider_d(captions, references)
    assert each == pytest.approx(expected, rel=1e-6)
    assert corpus["cider"] == pytest.approx(sum(expected.values()) / len(expected), rel=1e-6)


def test_a_reference_itself_is_perfect_in_bleu():
    _, references = made_up(0)
    corpus, _ = caption_scores.scores({name: each[0] for name, each in references.items()}, references)
    assert corpus["bleu4"] == pytest.approx(100, rel=1e-6)
    assert corpus["cider"] > 100


def test_no_java_and_no_output(capfd, monkeypatch):
    monkeypatch.setenv("PATH", "")
    caption_scores.scores(*made_up(1))
    assert capfd.readouterr() == ("", "")


def test_bad_input(monkeypatch):
    captions, references = made_up(2)
    captions.pop("3.jpg")
    with pytest.raises(UserError, match=r"not of the same images: 3.jpg"):
        caption_scores.scores(captions, references)
    with pytest.raises(UserError, match="no captions"):
        caption_scores.scores({}, {})
    assert caption_scores.available()
    monkeypatch.setitem(sys.modules, "pycocoevalcap.bleu.bleu", None)
    assert not caption_scores.available()
    captions, references = made_up(2)
    with pytest.raises(UserError, match=r"not here \(pycocoevalcap.bleu.bleu\): pip install pycocoevalcap"):
        caption_scores.scores(captions, references)
