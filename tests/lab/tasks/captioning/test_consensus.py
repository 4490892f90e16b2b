import pytest

from bayesrnn.lab.tasks.captioning.consensus import grams, most_typical
from bayesrnn.lab.tasks.captioning.consensus import overlap as overlap_of_grams


def overlap(a, b):
    return overlap_of_grams(grams(a), grams(b))


def test_overlap_by_hand():
    assert overlap([1, 2, 3], [1, 2, 3]) == 1
    assert overlap([1, 2, 3], [4, 5, 6]) == 0
    assert overlap([1, 2, 3, 4], [1, 2, 5]) == pytest.approx((2 * 2 / 7 + 2 * 1 / 5) / 2)
    assert overlap([1, 1, 1], [1, 2]) == pytest.approx((2 / 5 + 0) / 2), "a word counts as often as both have it"


def test_overlap_is_symmetric_and_knows_short_captions():
    assert overlap([1, 2], [2, 1, 2]) == overlap([2, 1, 2], [1, 2])
    assert overlap([7], [7]) == 1
    assert overlap([], []) == 1
    assert overlap([], [1]) == 0


def test_the_most_typical():
    assert most_typical([[9, 9], [1, 2, 3], [1, 2, 4], [1, 2, 3]]) == 1
    assert most_typical([[1], [2]]) == 0, "of equal ones the first"
    assert most_typical([[5, 6]]) == 0
