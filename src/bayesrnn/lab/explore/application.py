"""The web application: the files of the page, and the questions that its panels answer."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from bayesrnn.errors import UserError
from bayesrnn.lab.explore import guard
from bayesrnn.lab.explore.answers import WAITING, Answer, Worker
from bayesrnn.lab.explore.panel import Handler, Options, Panel, Part
from bayesrnn.lab.explore.panel import Request as Question
from bayesrnn.lab.explore.weights import WeightsPanel
from bayesrnn.lab.registry import Saved, resolve, task_class
from bayesrnn.lab.report.html import render
from bayesrnn.lab.runs.opening import OpenedRun

STATIC = Path(__file__).parent / "static"
PAGE = "index.html"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_BODY_SECONDS = 5.0


def panels_of(run: OpenedRun | Saved, options: Options) -> dict[str, Panel]:
    """The panels of a run by name: its task's, if there is one, and its weights'. A saved model has its own."""
    if not isinstance(run, OpenedRun):
        return run.panels()
    declared = task_class(run.recipe.task).panel
    own: Panel | None = None if declared is None else resolve(declared)(run, options)
    weights = WeightsPanel(run, options, own)
    return {"weights": weights} if own is None else {"task": own, "weights": weights}


def application(runs: Sequence[OpenedRun | Saved], options: Options, *, token: str, port: int) -> Starlette:
    """The page on one run, or on two runs of one task."""
    if len({_kind(run) for run in runs}) > 1:
        named = ", ".join(f"{run.path} ({_kind(run)})" for run in runs)
        raise UserError(f"Only runs of one task can be compared; these are {named}.")
    panels = [panels_of(run, options) for run in runs]
    files = _files(panels[0])
    worker = Worker()

    async def file(request: Request) -> Response:
        name = request.path_params.get("name", PAGE)
        found = files.get(name)
        return PlainTextResponse("There is no such file.\n", 404) if found is None else found

    async def question(request: Request) -> Response:
        asked = request.path_params
        if asked["run"] >= len(panels) or asked["panel"] not in panels[asked["run"]]:
            return PlainTextResponse("There is no such panel.\n", 404)
        handler = panels[asked["run"]][asked["panel"]].handlers().get(asked["handler"])
        return (
            PlainTextResponse("There is no such question.\n", 404)
            if handler is None
            else await answer(request, handler)
        )

    async def about(request: Request) -> Response:
        return await answer(request, Handler(Question, lambda _: _about(runs, panels)))

    async def answer(request: Request, handler: Handler) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            asked = handler.request.model_validate_json(body or b"{}")
        except ValidationError as error:
            return PlainTextResponse(_wrong(error), 422)
        if worker.waiting >= WAITING:
            return PlainTextResponse("Too many questions are waiting.\n", 429)
        return Answer(worker, lambda: handler.answer(asked), background=handler.background)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(_warm, worker, [panel for own in panels for panel in own.values()])
            yield
            group.cancel_scope.cancel()

    made = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/", file),
            Route("/files/{name}", file),
            Route("/about", about, methods=["POST"]),
            Route("/ask/{run:int}/{panel}/{handler}", question, methods=["POST"]),
        ],
        middleware=[Middleware(guard.Guard, token=token, port=port)],
    )
    made.router.redirect_slashes = False
    return made


async def _warm(worker: Worker, panels: Sequence[Panel]) -> None:
    """Let panels prepare their first answers, one step at a time, so that a question waits for one step at most."""
    for panel in panels:
        steps = panel.warm()
        going = True
        while going:
            async with worker.turn:
                going = await worker.run(_step, steps)


def _step(steps: Iterator[None]) -> bool:
    """Whether there may be another one. What fails here fails again, and is told, when it is asked for."""
    try:
        return next(steps, True) is None
    except Exception:
        return False


def _files(panels: Mapping[str, Panel]) -> dict[str, Response]:
    """What can be fetched, by name. Nothing else is read later, whatever a browser asks for."""
    paths = {path.name: path for path in STATIC.iterdir() if path.suffix in _TYPES}
    paths |= {name: path for panel in panels.values() for name, path in panel.files().items()}
    found = {name: Response(path.read_bytes(), media_type=_TYPES[path.suffix]) for name, path in paths.items()}
    return {**found, "words.css": Response(render("words.css"), media_type="text/css")}


def _kind(run: OpenedRun | Saved) -> str:
    return run.recipe.task if isinstance(run, OpenedRun) else f"saved {run.task}"


def _name(run: OpenedRun | Saved) -> str:
    return f"{run.config.get('recipe')}, seed {run.config.get('seed')}" if isinstance(run, OpenedRun) else run.title


def _about(runs: Sequence[OpenedRun | Saved], panels: Sequence[Mapping[str, Panel]]) -> Iterator[Part]:
    first = panels[0]
    yield {
        "task": _kind(runs[0]),
        "panels": [{"name": name, "title": panel.title, "files": list(panel.files())} for name, panel in first.items()],
        "runs": [
            {
                "name": _name(run),
                "folder": str(run.path),
                "panels": {name: panel.about() for name, panel in own.items()},
            }
            for run, own in zip(runs, panels, strict=True)
        ],
    }


async def _body(request: Request) -> bytes | Response:
    """The body, or a refusal: a client may send more than it announced, or send it slowly."""
    body = bytearray()
    try:
        with anyio.fail_after(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > guard.MOST_BYTES:
                    return PlainTextResponse(f"A question has at most {guard.MOST_BYTES} bytes.\n", 413)
    except TimeoutError:
        return PlainTextResponse("The question took too long to arrive.\n", 408)
    except ClientDisconnect:
        return PlainTextResponse("", 400)
    return bytes(body)


def _wrong(error: ValidationError) -> str:
    """The first fault in one line, without the value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))[:80]
    return f"The question is not valid: {where + ': ' if where else ''}{first['msg'][:200]}.\n"
