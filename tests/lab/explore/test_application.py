"""The page's files and questions: what is served, how answers come, and what ends them."""

import json
import threading
import time

import anyio
import pytest

from bayesrnn.errors import UserError
from bayesrnn.lab.explore.answers import Answer, Worker, as_line
from bayesrnn.lab.explore.guard import HEADERS
from bayesrnn.lab.registry import task_class


def test_the_page_and_its_files_are_served_with_strict_headers(client):
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "<script>" not in page.text
    assert " style=" not in page.text
    for name in ("page.js", "kit.js", "weights.js", "panel.js", "style.css", "words.css", "icon.svg"):
        file = client.get(f"/files/{name}")
        assert file.status_code == 200, name
        assert file.content
        assert "http://" not in file.text.replace("http://www.w3.org/", "")
        assert {key: file.headers[key] for key in HEADERS} == HEADERS
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_files_are_public_and_say_nothing_about_the_run(client, language_runs):
    del client.headers["Authorization"]
    for path in ("/", *(f"/files/{name}" for name in ("page.js", "panel.js"))):
        assert str(language_runs[0].parent) not in client.get(path).text
    assert client.post("/about", json={}).status_code == 401


def test_about_lists_runs_and_panels(client, language_runs):
    about = client.about()
    assert [run["folder"] for run in about["runs"]] == [str(folder) for folder in language_runs[:2]]
    assert [panel["name"] for panel in about["panels"]] == ["task", "weights"]
    assert about["runs"][0]["panels"]["weights"]["posterior"]
    assert not about["runs"][1]["panels"]["weights"]["posterior"]


def test_a_task_without_a_panel_has_its_weights(line_recipe, train, client_of):
    folder = train(line_recipe, None, ["posterior.kind=bayes_by_backprop", "train.epochs=1"])
    client = client_of([folder])
    assert [panel["name"] for panel in client.about()["panels"]] == ["weights"]
    assert client.ask("overview", panel="weights")["total"] > 10
    found = client.ask("prune", {"share": 0.5}, panel="weights")
    assert found["removed"] > 5
    assert "after" not in found


def test_a_task_brings_its_panel_from_its_own_folder(line_recipe, train, client_of, tmp_path, monkeypatch):
    (tmp_path / "line_panel.py").write_text(PANEL)
    (tmp_path / "panel.js").write_text("export function mount(root, page) {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(task_class("line"), "panel", "line_panel:LinePanel")
    folder = train(line_recipe, None, ["posterior.kind=bayes_by_backprop", "train.epochs=1"])
    client = client_of([folder])
    assert [panel["files"] for panel in client.about()["panels"]] == [["panel.js"], ["weights.js"]]
    assert client.get("/files/panel.js").text.startswith("export function mount")
    assert client.ask("add", {"numbers": [1, 2, 4]}) == {"sum": 7}
    assert client.post("/ask/0/task/add", json={"numbers": [1] * 9}).status_code == 422
    found = client.ask("prune", {"share": 0.99}, panel="weights")
    assert found["label"] == "largest weight"
    assert found["after"] <= found["before"]


PANEL = """
from pydantic import Field
from bayesrnn.lab.explore.panel import Handler, Panel, Request


class Add(Request):
    numbers: list[int] = Field(max_length=8)


class LinePanel(Panel):
    title, score_label = "A line", "largest weight"

    def handlers(self):
        return {"add": Handler(Add, self.add)}

    def add(self, asked):
        yield {"sum": sum(asked.numbers)}

    def score(self, model):
        return max(float(mean.abs().max()) for mean in model.means.values())
"""


def test_runs_of_two_tasks_are_not_compared(line_recipe, train, language_runs, client_of):
    folder = train(line_recipe, None, ["train.epochs=1"])
    with pytest.raises(UserError, match="Only runs of one task can be compared"):
        client_of([language_runs[0], folder])


def test_questions_that_do_not_exist(client):
    for path in ("/ask/2/task/words", "/ask/0/other/words", "/ask/0/task/other", "/ask/-1/task/words", "/files/../x"):
        assert client.post(path, json={}).status_code in (404, 405), path
    assert client.get("/files/task.py").status_code == 404
    assert client.get("/ask/0/task/words").status_code == 405


def test_a_wrong_question_is_one_line_without_its_value(client):
    for body in ({"text": 3}, {"text": "secret", "draws": 1e9}, {"text": "a", "secret": 1}, []):
        answer = client.post("/ask/0/task/words", json=body)
        assert answer.status_code == 422
        assert answer.text.count("\n") == 1
        assert answer.text.startswith("The question is not valid")


def test_numbers_that_are_not_finite_become_null():
    assert (
        as_line({"a": [float("nan"), 1.5, (float("inf"),)], "b": "ü"}) == '{"a":[null,1.5,[null]],"b":"ü"}\n'.encode()
    )


class Exchange:
    """One request: what is sent to it, and what it sends; it ends the connection after some parts."""

    def __init__(self, leave_after=None):
        self.sent, self.leave_after, self.left = [], leave_after, anyio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        bodies = [m for m in self.sent if m["type"] == "http.response.body"]
        if self.leave_after is not None and len(bodies) >= self.leave_after:
            self.left.set()

    @property
    def lines(self):
        return [json.loads(m["body"]) for m in self.sent if m.get("body")]


def answered(parts, **options):
    async def main():
        exchange, worker = Exchange(**options), Worker()
        with anyio.fail_after(20):
            await Answer(worker, parts)({"type": "http"}, exchange.receive, exchange.send)
            assert not worker.turn.locked()
            assert worker.waiting == 0
        return exchange

    return anyio.run(main)


def test_work_ends_when_the_page_no_longer_waits():
    ended = []

    def parts():
        try:
            for k in range(1000):
                time.sleep(0.005)
                yield {"k": k}
        finally:
            ended.append(threading.current_thread().name)

    exchange = answered(parts, leave_after=2)
    assert len(exchange.lines) < 20
    assert len(ended) == 1
    assert ended[0].startswith("explore")


def test_an_error_is_the_last_part(capsys):
    def refused():
        yield {"a": 1}
        raise UserError("It is too long.")

    def broken():
        yield {"a": 1}
        raise RuntimeError("secret path")

    assert answered(refused).lines == [{"a": 1}, {"error": "It is too long."}]
    assert answered(broken).lines == [{"a": 1}, {"error": "An error inside bayesrnn; the terminal shows it."}]
    assert "secret path" in capsys.readouterr().err


def test_answers_take_turns():
    """A suspended answer would leave the model in the middle of a draw."""
    order = []

    def parts(name):
        for _ in range(3):
            order.append(name)
            time.sleep(0.01)
            yield {"name": name}

    async def main(background):
        worker = Worker()
        async with anyio.create_task_group() as group:
            for name in "ab":
                exchange = Exchange()
                answer = Answer(worker, lambda name=name: parts(name), background=background)
                group.start_soon(answer, {"type": "http"}, exchange.receive, exchange.send)

    anyio.run(main, False)
    assert order in (list("aaabbb"), list("bbbaaa"))
    order.clear()
    anyio.run(main, True)  # between the parts of a background answer others are answered
    assert order in (list("ababab"), list("bababa"))
