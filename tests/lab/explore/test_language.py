"""The panel of language models: its numbers are those of `bayesrnn predict`, and of the average over draws."""

import math
import threading

import pytest

from bayesrnn.lab.tasks.language import panel
from bayesrnn.lab.tasks.language.words import score_text
from bayesrnn.prediction.weights import HeldDraws

TEXT = "w1 w2\nW3, strange w4"


def test_words_are_scored_as_by_predict(client):
    for run in (0, 1):
        found = client.ask("words", {"text": TEXT, "draws": 6}, run=run)["words"]
        assert [word["word"] for word in found] == ["w1", "w2", "<eos>", "W3,", "strange", "w4"]
        assert [word["known"] for word in found] == [True] * 4 + [False, True]
        lines = score_text(client.runs[run], ["w1", "w2", "<eos>", "w3", "strange", "w4"], samples=6, seed=1)
        for word, line in zip(found, lines, strict=True):
            for key in ("surprisal", "entropy", "mutual_information"):
                assert word[key] == pytest.approx(line[key], rel=1e-4, abs=1e-6)
        assert max(word["mutual_information"] for word in found) > 0


def test_held_draws_give_the_same_numbers(client, monkeypatch):
    """Weights that are drawn once and held, as for large models."""
    expected = client.ask("words", {"text": TEXT, "draws": 6})["words"]
    monkeypatch.setattr(HeldDraws, "serve", staticmethod(lambda model: False))
    made = []
    monkeypatch.setattr(
        panel,
        "module_of_draw",
        lambda model, draw, original=panel.module_of_draw: made.append(1) or original(model, draw),
    )
    for draws in (3, 6, 6):
        found = client.ask("words", {"text": TEXT, "draws": draws})["words"]
    assert len(made) == 6
    for word, same in zip(found, expected, strict=True):
        assert word["surprisal"] == pytest.approx(same["surprisal"], rel=1e-4)
        assert word["mutual_information"] == pytest.approx(same["mutual_information"], rel=1e-3, abs=1e-6)


def test_draws_are_ready_before_the_first_question(client_of, language_runs, monkeypatch):
    """The server makes them when it starts; a question may come in between, and the numbers are the same."""
    expected = client_of(language_runs[:1]).ask("words", {"text": TEXT, "draws": 6})["words"]
    monkeypatch.setattr(HeldDraws, "serve", staticmethod(lambda model: False))
    made, warm, ready = [], panel.LanguagePanel.warm, threading.Event()

    def watched(self):
        yield from warm(self)
        ready.set()

    monkeypatch.setattr(panel.LanguagePanel, "warm", watched)
    monkeypatch.setattr(
        panel,
        "module_of_draw",
        lambda model, draw, original=panel.module_of_draw: made.append(1) or original(model, draw),
    )
    with client_of(language_runs[:1]) as client:
        found = client.ask("words", {"text": TEXT, "draws": 6})["words"]
        assert ready.wait(60)
        assert len(made) == 32
        assert client.ask("words", {"text": TEXT, "draws": 6})["words"] == found
        assert len(made) == 32
    for word, same in zip(found, expected, strict=True):
        assert word["surprisal"] == pytest.approx(same["surprisal"], rel=1e-4)


def test_a_panel_that_cannot_be_prepared_still_answers(client_of, language_runs, monkeypatch):
    def broken(self):
        yield
        raise MemoryError("too large")

    monkeypatch.setattr(panel.LanguagePanel, "warm", broken)
    with client_of(language_runs[:1]) as client:
        assert len(client.ask("words", {"text": TEXT, "draws": 2})["words"]) == 6


def test_the_place_of_a_word_has_the_probability_of_its_surprisal(client):
    words = client.ask("words", {"text": TEXT, "draws": 6})["words"]
    for place in (0, 2, 5):
        found = client.ask("place", {"text": TEXT, "draws": 6, "place": place})
        (came,) = (row for row in found["rows"] if row["came"])
        assert came["average"] == pytest.approx(math.exp(-words[place]["surprisal"]), rel=1e-4)
        assert came["average"] == pytest.approx(sum(came["draws"]) / 6, rel=1e-4)
        assert found["actual"] == words[place]["word"]
        assert len(found["draws"]) == 6
        for draw in found["draws"]:
            values = [one["p"] for one in draw]
            assert values == sorted(values, reverse=True)
    assert client.ask("place", {"text": TEXT, "draws": 3, "place": 6})["actual"] is None
    assert client.ask("place", {"text": TEXT, "place": 7})["error"] == "The text has only 6 words."


def test_the_mean_weights_are_beside_the_average(client):
    rows = client.ask("place", {"text": TEXT, "draws": 6, "place": 1})["rows"]
    (exact,) = client.ask("words", {"text": "w1 w2", "draws": 0})["words"][1:]
    (came,) = (row for row in rows if row["came"])
    assert came["mean"] == pytest.approx(math.exp(-exact["surprisal"]), rel=1e-4)


def test_the_example_is_of_the_runs_own_text(client, text_folder, monkeypatch):
    example = client.about()["runs"][0]["panels"]["task"]["example"]
    assert example in (text_folder / "valid.txt").read_text().splitlines()
    own = panel.LanguagePanel(client.runs[0], panel.Options(data="/nowhere"))
    assert set(own.example.split()) <= set(own.vocabulary.words)


def test_a_model_without_noise_has_no_draws(language_runs, client_of):
    client = client_of(language_runs[2:])
    assert not client.about()["runs"][0]["panels"]["task"]["random"]
    found = client.ask("place", {"text": TEXT, "draws": 6, "place": 1})
    assert found["draws"] == []
    assert all(word["mutual_information"] == 0 for word in client.ask("words", {"text": TEXT})["words"])


def test_empty_and_long_texts(client):
    assert client.ask("words", {"text": " \n\0\n"}) == {}
    assert "at most 1,000" in client.ask("words", {"text": "a " * 1001})["error"]
    assert len(client.ask("words", {"text": "w1 " * 200, "draws": 2})["words"]) == 200
