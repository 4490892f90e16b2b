import itertools
import math

import pytest
import torch

from bayesrnn.lab.tasks.captioning.search import beam_search

END, WORDS = 0, 4  # of four symbols one is the end


class Made:
    """A made-up language: log-probabilities of the next word by image and by all words before it.

    The state is (1, R, 1 + max): the image, and the words so far as one number.
    """

    def __init__(self, images, beam, seed, peaked=1.0, size=WORDS):
        self.images, self.beam, self.size, self.peaked, self.seed = images, beam, size, peaked, seed
        self.table = {}

    def logs(self, image, history):
        key = (image, history)
        if key not in self.table:
            generator = torch.Generator().manual_seed(hash((self.seed, *key)) % 2**31)
            logits = self.peaked * torch.randn(self.size, generator=generator)
            self.table[key] = logits.log_softmax(-1)
        return self.table[key]

    def step(self, words, state):
        rows = self.images * self.beam
        if state is None:
            assert (words == END).all(), "the first word is the start"
            image = torch.arange(self.images).repeat_interleave(self.beam)
            history = torch.zeros(rows, dtype=torch.long)
        else:
            image, history = state[0, :, 0], state[0, :, 1] * self.size + words
        out = torch.stack([self.logs(int(i), int(h)) for i, h in zip(image, history, strict=True)])
        return out, torch.stack([image, history], -1).unsqueeze(0)

    def log_probability(self, image, words):
        history, total = 0, 0.0
        for word in (*words, END):
            total += float(self.logs(image, history)[word])
            history = history * self.size + word
        return total


def exhaustive(made, image, max_words, length_penalty, banned=()):
    """The best of all captions, by trying each."""
    allowed = [w for w in range(made.size) if w != END and w not in banned]
    best = None
    for length in range(1, max_words + 1):
        for words in itertools.product(allowed, repeat=length):
            score = made.log_probability(image, words) / (length + 1) ** length_penalty
            if best is None or score > best[0]:
                best = (score, list(words))
    return best


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_is_exhaustive_search(seed, length_penalty):
    beam, max_words = 27, 4  # 3^3 unfinished captions before the last word
    made = Made(3, beam, seed)
    found = beam_search(
        made.step, None, 3, start=END, end=END, beam=beam, max_words=max_words, length_penalty=length_penalty
    )
    for image, one in enumerate(found):
        score, words = exhaustive(made, image, max_words, length_penalty)
        assert one.words == words
        assert one.score == pytest.approx(score, abs=1e-5)
        assert one.log_probability == pytest.approx(made.log_probability(image, words), abs=1e-5)


def test_length_penalty_prefers_longer_captions():
    lengths = []
    for length_penalty in (0.0, 2.0):
        made = Made(40, 5, seed=9, peaked=1.5)
        found = beam_search(made.step, None, 40, start=END, end=END, beam=5, max_words=6, length_penalty=length_penalty)
        lengths.append(sum(len(one.words) for one in found))
    assert lengths[1] > lengths[0] + 20


def test_banned_words_are_in_no_caption():
    made = Made(6, 9, seed=3)
    found = beam_search(made.step, None, 6, start=END, end=END, beam=9, max_words=3, banned=[2])
    for image, one in enumerate(found):
        assert 2 not in one.words
        assert one.words == exhaustive(made, image, 3, 0.0, banned=(2,))[1]


def test_a_beam_of_one_is_greedy():
    made = Made(5, 1, seed=7, peaked=3.0)
    found = beam_search(made.step, None, 5, start=END, end=END, beam=1, max_words=5)
    for image, one in enumerate(found):
        path, history, ends = [], 0, []
        for _ in range(5):
            logs = made.logs(image, history).clone()
            if path:
                ends.append((made.log_probability(image, path), list(path)))
            logs[END] = -math.inf
            path.append(int(logs.argmax()))
            history = history * WORDS + path[-1]
        ends.append((made.log_probability(image, path), path))
        assert one.words == max(ends)[1], "of the greedy path, the best place to end"


def test_images_do_not_see_each_other():
    many = Made(4, 3, seed=5)
    together = beam_search(many.step, None, 4, start=END, end=END, beam=3, max_words=5, length_penalty=0.5)
    for image in range(4):
        alone = Made(1, 3, seed=5)
        alone.logs = lambda _, history, image=image: many.logs(image, history)
        (one,) = beam_search(alone.step, None, 1, start=END, end=END, beam=3, max_words=5, length_penalty=0.5)
        assert one == together[image]


def test_it_stops_when_nothing_can_improve():
    calls = []
    made = Made(2, 3, seed=1)

    def sure(words, state):
        """The first word is 1, then comes the end, for sure."""
        logs, after = made.step(words, state)
        calls.append(1)
        best = END if len(calls) > 1 else 1
        out = torch.full_like(logs, -20.0)
        out[:, best] = 0.0
        return out.log_softmax(-1), after

    found = beam_search(sure, None, 2, start=END, end=END, beam=3, max_words=15)
    assert [one.words for one in found] == [[1], [1]]
    assert len(calls) <= 3


def test_no_caption_is_empty_and_none_is_too_long():
    made = Made(30, 2, seed=4, peaked=0.1)
    for max_words in (1, 2, 7):
        found = beam_search(made.step, None, 30, start=END, end=END, beam=2, max_words=max_words, length_penalty=3.0)
        assert {len(one.words) for one in found} <= set(range(1, max_words + 1))
        assert max(len(one.words) for one in found) == max_words
