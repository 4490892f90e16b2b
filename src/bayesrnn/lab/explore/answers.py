"""Answers as lines of JSON, computed in one thread and stopped when the page no longer waits."""

import asyncio
import json
import traceback
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
import torch
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bayesrnn.errors import UserError
from bayesrnn.lab.explore.panel import Part
from bayesrnn.lab.reading import lack_of_memory
from bayesrnn.lab.runs.files import finite

WAITING = 12
"""Questions that are being answered or wait for their turn."""
_FAULT = "An error inside bayesrnn; the terminal shows it."


class Worker:
    """The one thread in which models run: a draw changes a model, so two answers must not be mixed."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "explore", torch.set_grad_enabled, (False,))
        self.turn = anyio.Lock()
        self.waiting = 0

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)


class Answer(Response):
    """The parts of an answer, one line of JSON each; an error is the last part."""

    media_type = "application/x-ndjson"

    def __init__(self, worker: Worker, parts: Callable[[], Iterator[Part]], *, background: bool = False) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.worker, self.parts, self.yields_turns = worker, parts, background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.worker.waiting += 1
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with anyio.create_task_group() as group:
                group.start_soon(_wait_for_end, receive, group.cancel_scope)
                await self._send_parts(send)
                group.cancel_scope.cancel()
        finally:
            self.worker.waiting -= 1

    async def _send_parts(self, send: Send) -> None:
        whole, each = (nullcontext(), self.worker.turn) if self.yields_turns else (self.worker.turn, nullcontext())
        async with whole:
            lines = _lines(self.parts)
            try:
                while (line := await self._next(lines, each)) is not None:
                    await send({"type": "http.response.body", "body": line, "more_body": True})
            finally:
                with anyio.CancelScope(shield=True):  # behind the part that is being computed
                    await self.worker.run(lines.close)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, lines: Iterator[bytes], turn: AbstractAsyncContextManager[Any]) -> bytes | None:
        async with turn:
            line: bytes | None = await self.worker.run(next, lines, None)
        return line


async def _wait_for_end(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _lines(parts: Callable[[], Iterator[Part]]) -> Generator[bytes, None, None]:
    try:
        for part in parts():
            yield as_line(part)
    except UserError as error:
        yield as_line({"error": str(error)})
    except Exception as error:
        asked = lack_of_memory(error)
        if asked is None:
            traceback.print_exc()
        yield as_line({"error": _FAULT if asked is None else f"There is not enough memory ({asked}); ask for less."})


def as_line(part: Part) -> bytes:
    """JSON with null for numbers that are not finite."""
    return json.dumps(finite(part), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
