"""Hostile requests: whatever is sent, the answer is a refusal or a valid answer, and the server goes on."""

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from bayesrnn.lab.explore.guard import BURST, HEADERS, MOST_BYTES, PER_SECOND, Guard

HERE = "http://127.0.0.1:8123"
MANY = settings(
    max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
GOOD = {"text": "w1 w2", "draws": 2}
QUESTION = "/ask/0/task/words"


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    monkeypatch.setattr("bayesrnn.lab.explore.guard.BURST", 1e9)


def fine(client):
    answer = client.post(QUESTION, json=GOOD)
    return answer.status_code == 200 and "error" not in answer.text


@pytest.mark.parametrize(
    "host",
    "evil.example,evil.example:8123,127.0.0.1,127.0.0.1:80,localhost.evil:8123,,127.0.0.1:8123.evil.example,"
    "[::1]:8123,0.0.0.0:8123,127.1:8123".split(","),
)
def test_another_host_is_refused(client, host):
    for path in ("/", "/files/page.js", "/about", QUESTION):
        for method in ("GET", "POST"):
            answer = client.request(method, path, headers={"Host": host})
            assert answer.status_code == 421
            assert host not in answer.text or not host
            assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]


def test_its_own_names_are_accepted(client):
    assert client.get("/", headers={"Host": "LOCALHOST:8123", "Origin": "http://localhost:8123"}).status_code == 200
    assert fine(client)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8123", "http://127.0.0.1:8124",
                                    "http://localhost:8123", "", "http://127.0.0.1:8123/"])  # fmt: skip
def test_another_origin_is_refused(client, origin):
    assert client.post(QUESTION, json=GOOD, headers={"Origin": origin}).status_code == 403
    assert client.get("/files/panel.js", headers={"Origin": origin}).status_code == 403


def test_a_question_without_an_origin_is_refused(client):
    del client.headers["Origin"]
    assert client.post(QUESTION, json=GOOD).status_code == 403
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_other_sites_load_nothing(client, site):
    for method, path in (("GET", "/"), ("GET", "/files/panel.js"), ("POST", QUESTION)):
        assert client.request(method, path, headers={"Sec-Fetch-Site": site}).status_code == 403


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", f"Bearer {'t' * 42}", f"Bearer {'t' * 44}", "t" * 43,
                                   f"bearer {'t' * 43}", f"Basic {'t' * 43}", "Bearer \xe9"])  # fmt: skip
def test_a_wrong_token_is_refused(client, given):
    answer = client.post(QUESTION, json=GOOD, headers={"Authorization": given.encode("latin-1")})
    assert answer.status_code == 401
    assert client.post("/about", json={}, headers={"Authorization": given.encode("latin-1")}).status_code == 401


def test_repeated_headers_are_refused():
    guard = Guard(None, token="t" * 43, port=8123)
    good = [(b"host", b"127.0.0.1:8123"), (b"origin", HERE.encode()), (b"authorization", b"Bearer " + b"t" * 43)]
    good += [(b"content-type", b"application/json"), (b"content-length", b"2")]
    assert guard.refusal("POST", Headers(raw=good)) is None
    for name, value in good[:3]:
        assert guard.refusal("POST", Headers(raw=[*good, (name, value + b"x")])) is not None, name
    for name in (b"host", b"authorization"):
        assert guard.refusal("POST", Headers(raw=[*good, (name, dict(good)[name])])) is not None


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_other_methods_are_refused(client, method):
    assert client.request(method, "/").status_code == 405
    assert client.request(method, QUESTION).status_code == 405


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", ""])
def test_a_form_is_no_question(client, kind):
    """Other sites could send these without asking first."""
    answer = client.post(QUESTION, content=json.dumps(GOOD), headers={"Content-Type": kind})
    assert answer.status_code == 415


def test_large_questions_are_refused_however_they_come(client):
    announced = client.post(QUESTION, content=b" " * (MOST_BYTES + 1), headers={"Content-Type": "application/json"})
    assert announced.status_code == 413
    parts = (b" " * 10_000 for _ in range(MOST_BYTES // 10_000 + 2))
    assert client.post(QUESTION, content=parts, headers={"Content-Type": "application/json"}).status_code == 413
    for length in ("-1", "1e3", "99999999999999999999", "²", "0x10"):
        raw = [(b"content-length", length.encode("utf-8"))]
        assert Guard(None, token="", port=1)._question(Headers(raw=raw), ["x"]) is not None
    assert fine(client)


def test_questions_have_a_rate():
    now = [0.0]
    guard = Guard(None, token="t" * 43, port=8123, clock=lambda: now[0])
    guard.left = BURST
    assert sum(guard._in_time() for _ in range(500)) == BURST
    now[0] += 1.0
    assert sum(guard._in_time() for _ in range(500)) == PER_SECOND


def test_paths_lead_to_no_file(client):
    names = "../guard.py %2e%2e%2fguard.py ..%5cguard.py /etc/passwd %00 page.js%00.txt page.js/ PAGE.JS application.py"
    for path in (*(f"/files/{name}" for name in names.split()), "/files/", "/files", "/about/", "/index.html"):
        assert client.get(path, follow_redirects=False).status_code == 404, path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.sampled_from(["text", "draws", "place", "matrix", "kind", "share", "x"]), JSON, max_size=5)
NAMES = st.sampled_from(["words", "place", "overview", "picture", "prune", "task", "weights", "__init__", "score", ""])


def test_any_json_is_answered_or_refused(client):
    @MANY
    @given(st.integers(-1, 3), NAMES, NAMES, FIELDS | JSON)
    def one(run, panel, handler, body):
        answer = (
            client.post(f"/ask/{run}/{panel}/{handler}", json=body)
            if _finite(body)
            else client.post(
                f"/ask/{run}/{panel}/{handler}", content=json.dumps(body), headers={"Content-Type": "application/json"}
            )
        )
        _check(answer)

    one()
    assert fine(client)


def test_any_bytes_are_answered_or_refused(client):
    nested = [b"[" * 100_000, b'{"a":' * 50_000, b'{"text":"\\ud800"}', b'{"text":"\xff"}', b"NaN", b'{"draws":1e999}']

    @MANY
    @given(st.binary(max_size=200) | st.sampled_from(nested), st.sampled_from(["words", "place"]))
    def one(body, handler):
        _check(client.post(f"/ask/0/task/{handler}", content=body, headers={"Content-Type": "application/json"}))

    one()
    for body in nested:
        answer = client.post(QUESTION, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, body[:20]
    assert fine(client)


def test_any_text_is_scored(client):
    @MANY
    @given(st.text(max_size=60), st.integers(0, 3), st.integers(0, 5))
    def one(text, draws, place):
        _check(client.post(QUESTION, json={"text": text, "draws": draws}))
        _check(client.post("/ask/1/task/place", json={"text": text, "draws": draws, "place": place}))

    one()


def test_any_headers_are_answered_or_refused(client):
    values = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
    name = st.text(string.ascii_letters + "-", min_size=1, max_size=20)
    known = st.sampled_from(["Host", "Origin", "Authorization", "Content-Type", "Sec-Fetch-Site", "X-Forwarded-Host"])

    @MANY
    @given(st.dictionaries(known | name, values, max_size=4), st.sampled_from(["GET", "POST", "HEAD"]))
    def one(headers, method):
        sent = {key: value.encode("latin-1") for key, value in headers.items() if key.lower() != "content-length"}
        answer = client.request(method, "/about" if method == "POST" else "/", headers=sent)
        assert answer.status_code in (200, 401, 403, 415, 421, 422)

    one()


def _finite(body):
    try:
        json.dumps(body, allow_nan=False)
    except ValueError:
        return False
    return True


def _check(answer):
    assert answer.status_code in (200, 404, 405, 422), answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Traceback" not in answer.text
    if answer.status_code == 200:
        for line in answer.text.splitlines():
            assert "inside bayesrnn" not in json.loads(line, parse_constant=pytest.fail).get("error", "")
