"""Requests to the page of `bayesrnn explore`: any path, headers and body, most of them with the right token."""

from __future__ import annotations

import asyncio
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import fuzz_runs as runs
from fuzz_inputs import ODD, altered, as_json, changed, mixed, st, values

TOKEN, PORT = "t" * 43, 8123
GOOD = {
    "host": f"127.0.0.1:{PORT}",
    "origin": f"http://127.0.0.1:{PORT}",
    "authorization": f"Bearer {TOKEN}",
    "content-type": "application/json",
}
QUESTIONS = {
    "/ask/0/task/words": {"text": "a b\nc d", "draws": 2},
    "/ask/0/task/place": {"text": "a b", "draws": 2, "place": 1},
    "/ask/0/weights/overview": {},
    "/ask/0/weights/picture": {"matrix": 0, "kind": "left", "share": 0.5},
    "/ask/0/weights/prune": {"share": 0.5},
    "/about": {},
}
PATHS = [
    *QUESTIONS,
    "/",
    "/files/page.js",
    "/files/../guard.py",
    "/ask/1/task/words",
    "/ask/0/task/__init__",
    "//",
    "/ask",
]
REFUSALS = {400, 401, 403, 404, 405, 413, 415, 421, 422}


@cache
def served() -> tuple[Any, asyncio.AbstractEventLoop]:
    """The application on a small language model, and the loop that all requests run in."""
    import torch

    from bayesrnn.lab.explore.application import application
    from bayesrnn.lab.explore.panel import Options
    from bayesrnn.lab.runs.opening import open_run

    with tempfile.TemporaryDirectory() as folder:
        for name, content in runs.tiny_run().items():
            (Path(folder) / name).write_bytes(content)
        run = open_run(folder, torch.device("cpu"))
    app = application([run], Options(data="/nowhere"), token=TOKEN, port=PORT)
    return app, asyncio.new_event_loop()


def request_inputs() -> Any:
    served()  # slow, and not the fault of the first input
    odd = mixed(st.sampled_from(ODD), st.text(max_size=20), st.sampled_from(list(GOOD.values())))
    names = st.sampled_from([*GOOD, "content-length", "sec-fetch-site", "x-forwarded-host"])
    headers = mixed(st.just({}), st.just({}), st.just({}), st.dictionaries(names, odd, max_size=3))
    large = [b"[" * 50_000, b'{"text":' * 20_000, b'{"text":"' + b"a " * 140_000 + b'"}', b"NaN", b""]
    any_body = mixed(values().map(as_json), st.binary(max_size=60), st.sampled_from(large))
    any_path = mixed(st.sampled_from(PATHS), st.text(max_size=12).map("/{}".format))
    methods = st.sampled_from("POST GET HEAD PUT OPTIONS".split())
    asked = [
        st.tuples(
            st.just("POST"), st.just(path), headers, mixed(altered(body).map(as_json), changed(st.just(as_json(body))))
        )
        for path, body in QUESTIONS.items()
    ]
    return mixed(
        *asked, st.tuples(st.just("POST"), any_path, headers, any_body), st.tuples(methods, any_path, headers, any_body)
    )


def read_request(given: tuple[str, str, dict[str, str], bytes], folder: Path) -> object:
    from bayesrnn.errors import UserError
    from bayesrnn.lab.explore import guard

    method, path, headers, body = given
    app, loop = served()
    raw = [(k.encode(), v.encode("utf-8", "replace")) for k, v in {**GOOD, **headers}.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "query_string": b"", "root_path": "",
             "scheme": "http", "http_version": "1.1", "asgi": {"version": "3.0"},
             "server": ("127.0.0.1", PORT), "client": ("127.0.0.1", 1)}  # fmt: skip
    messages, parts = [{"type": "http.request", "body": body, "more_body": False}], []

    async def receive() -> dict[str, Any]:
        return messages.pop() if messages else await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: dict[str, Any]) -> None:
        parts.append(message)

    with mock.patch.object(guard, "BURST", 1e12):  # no limit to the rate
        loop.run_until_complete(app(scope, receive, send))
    status, content = parts[0]["status"], b"".join(part.get("body", b"") for part in parts[1:])
    assert dict(parts[0]["headers"])[b"x-content-type-options"] == b"nosniff"
    if status != 200:
        assert status in REFUSALS, status
        raise UserError(content.decode())
    if method == "POST":
        for line in content.splitlines():
            error = json.loads(line).get("error")
            assert error is None or "inside bayesrnn" not in error, line
            if error:
                raise UserError(error)
    return content
