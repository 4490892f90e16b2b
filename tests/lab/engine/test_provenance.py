"""How a run was made: the commit in its record."""

from bayesrnn.lab.engine import provenance


def test_a_named_commit_goes_before_that_of_the_checkout(monkeypatch):
    provenance.commit.cache_clear()
    monkeypatch.setenv("BAYESRNN_COMMIT", "abc123")
    assert provenance.commit() == "abc123"
    provenance.commit.cache_clear()
    monkeypatch.delenv("BAYESRNN_COMMIT")
    assert provenance.commit() != "abc123"
