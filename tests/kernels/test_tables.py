"""Tables that CUDA graphs read stay in their place; those made inside a capture are not given to others."""

import pytest

from bayesrnn.kernels.shared import tables


@pytest.fixture
def capturing(monkeypatch):
    state = {"now": False}
    monkeypatch.setattr(tables, "_capturing", lambda: state["now"])
    return state


def test_a_table_is_made_once_and_the_latest_are_kept(capturing):
    made = []
    table = tables.kept(lambda size: made.append(size) or object())
    first = table(0)
    assert table(0) is first
    for size in range(1, 200):
        table(size)
    assert table(0) is not first
    assert len(made) == 201


def test_a_table_that_a_graph_has_read_stays(capturing):
    table = tables.kept(lambda size: object())
    first = table(0)
    capturing["now"] = True
    assert table(0) is first
    capturing["now"] = False
    for size in range(1, 200):
        table(size)
    assert table(0) is first


def test_a_table_made_inside_a_capture_is_its_own(capturing):
    table = tables.kept(lambda size: object())
    capturing["now"] = True
    inside = table(0)
    capturing["now"] = False
    assert table(0) is not inside
