"""The API and the page: each command as an address that takes its flags as JSON and returns its answer."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from starlette.exceptions import HTTPException

from capplan import __version__
from capplan.cli.api.declared import FORMATS, Offered, offered, words
from capplan.cli.api.guard import PROBLEM, problem
from capplan.cli.api.jobs import BusyError, Done, Jobs, Limits, TooLongError, say_bug
from capplan.errors import CapplanError, InputError
from capplan.readers.catalogue.scenarios import shipped_scenarios
from capplan.readers.text_file import data_folder

_PAGE = Path(__file__).with_name("page")
PAGES = {
    **{name: _PAGE / name for name in ("index.html", "page.css", "page.js", "yaml.min.js")},
    "review.css": Path(__file__).parents[2] / "review" / "page.css",
    "scenario.json": data_folder("docs/schema") / "scenario.json",
}
"""Name of a file of the page -> where it lies."""
LISTS = ("scenarios", "models", "hardware", "machines", "engines", "prices", "apis")
EVENTS = "text/event-stream"
EXIT_CODE = "capplan-exit-code"
_CLIENT_GONE = 499
_MEDIA = {form: media for media, form in FORMATS.items()}
_PLACE = re.compile(r"(?P<place>--[a-z-]+|[\w.-]+(?:: line \d+)?(?:: [\w.\[\]-]+)*)(?=: )")


def application(limits: Limits, *, offline: bool) -> FastAPI:
    """Return the application."""
    jobs = Jobs(limits, offline=offline)

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        await jobs.warm_up()
        yield

    app = FastAPI(
        title="capplan",
        version=__version__,
        description="Capacity planning for LLM serving. Numbers are in base units: seconds, bytes, tokens, dollars.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    for command in offered().values():
        app.add_api_route(
            f"/v1/{command.name}",
            _answering(command, jobs),
            methods=["POST"],
            summary=command.says,
            operation_id=command.name.replace("-", "_"),
            response_class=Response,
            openapi_extra={
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": command.schema()}},
                }
            },
            responses=_responses(command),
        )
    for kind in LISTS:
        app.add_api_route(
            f"/v1/{kind}",
            _listing(kind, jobs),
            methods=["GET"],
            summary=f"List shipped {kind}.",
            operation_id=f"list_{kind}",
            response_class=Response,
        )
    _add_pages(app)
    app.add_exception_handler(HTTPException, _http_problem)
    return app


def _responses(command: Offered) -> dict[int | str, dict[str, Any]]:
    media = [_MEDIA[form] for form in command.formats if form in _MEDIA] or ["text/plain"]
    answers = {
        name: {"schema": {"type": "object" if name.endswith("json") else "string"}}
        for name in (*media, EVENTS)
    }
    said = f"The answer. The header {EXIT_CODE} is 3 if it does not fit and 4 if a target is missed."
    wrong = {PROBLEM: {"schema": {"type": "object"}}}
    return {
        200: {"description": said, "content": answers},
        400: {"description": "The body is not a JSON object.", "content": wrong},
        413: {"description": "The body is too large.", "content": wrong},
        422: {"description": "A flag or a key is wrong; place says which.", "content": wrong},
        503: {"description": "Too many requests wait.", "content": wrong},
        504: {"description": "The answer takes too long.", "content": wrong},
    }


def _answering(command: Offered, jobs: Jobs) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            given = _object(await request.body())
            form = _form(command, request.headers.get("accept", ""))
        except InputError as error:
            return _problem(400, str(error))

        def line(folder: Path) -> Sequence[str]:
            return _with_format(words(command, given, folder, offline=jobs.offline), form)

        if EVENTS in request.headers.get("accept", ""):
            return StreamingResponse(_events(command, jobs, line, form), media_type=EVENTS)
        work = asyncio.ensure_future(_response(command, jobs, line, form, lambda _: None))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=_CLIENT_GONE)
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait({work})
        return work.result()

    return answered


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _object(body: bytes) -> Mapping[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not a JSON number")

    try:
        given = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InputError("the body is not a JSON object of flags")
    return given


def _form(command: Offered, accepted: str) -> str:
    """Return the format that is asked for; empty for a command that prints a text."""
    if not command.formats:
        return ""
    wanted = [part.split(";")[0].strip() for part in accepted.split(",")]
    return next((FORMATS[w] for w in wanted if FORMATS.get(w) in command.formats), "json")


def _with_format(line: Sequence[str], form: str) -> list[str]:
    return [line[0], *([f"--format={form}"] if form else []), *line[1:]]


async def _response(
    command: Offered,
    jobs: Jobs,
    line: Callable[[Path], Sequence[str]],
    form: str,
    told: Callable[[Mapping[str, Any]], None],
) -> Response:
    """Return the answer of a command, or the problem with it."""
    try:
        done = await jobs.run(line, told, lane=command.lane)
    except BusyError as error:
        return _problem(503, str(error), {"retry-after": "5"})
    except TooLongError as error:
        return _problem(504, str(error))
    except CapplanError as error:
        return _problem(422, str(error), exit_code=2)
    if done.out.strip():
        media = _MEDIA.get(form, "text/plain")
        return Response(done.out, media_type=media, headers={EXIT_CODE: str(done.code)})
    return _failed(done)


def _failed(done: Done) -> Response:
    message = done.errors.strip()
    if done.code in (0, 1):
        say_bug(done)
        return _problem(500, "a bug of ours; the server's log has its traceback")
    return _problem(422, message, exit_code=done.code)


def _problem(status: int, message: str, headers: Mapping[str, str] | None = None, **more: object) -> Response:
    lines = [line for line in message.splitlines() if not line.startswith("warning: ")]
    place = _PLACE.match(lines[0]) if lines else None
    named = {"place": place["place"]} if place else {}
    body = problem(status, "\n".join(lines), **named, **more)
    return Response(body, status_code=status, media_type=PROBLEM, headers=dict(headers or {}))


async def _http_problem(_request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    return _problem(status, str(getattr(error, "detail", error)), getattr(error, "headers", None))


async def _events(
    command: Offered, jobs: Jobs, line: Callable[[Path], Sequence[str]], form: str
) -> AsyncIterator[str]:
    """Yield progress and rows found so far, then the result or the problem, as server-sent events; the work ends with the connection."""
    heard: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
    work = asyncio.ensure_future(_response(command, jobs, line, form, heard.put_nowait))
    work.add_done_callback(lambda _: heard.put_nowait(None))
    try:
        while (step := await heard.get()) is not None:
            found = step.get("found")
            yield (
                _event("progress", json.dumps(step)) if found is None else _event("found", json.dumps(found))
            )
        response = await work
        kind = "problem" if response.media_type == PROBLEM else "result"
        yield _event(kind, bytes(response.body).decode())
    finally:
        work.cancel()
        await asyncio.wait({work})


def _event(kind: str, text: str) -> str:
    return f"event: {kind}\n" + "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"


def _listing(kind: str, jobs: Jobs) -> Callable[..., Awaitable[Response]]:
    command = offered()["list"]

    async def listed(word: str | None = None) -> Response:
        given = {"kind": kind, "word": word}

        def line(folder: Path) -> Sequence[str]:
            return _with_format(words(command, given, folder, offline=jobs.offline), "json")

        return await _response(command, jobs, line, "json", lambda _: None)

    return listed


def _add_pages(app: FastAPI) -> None:
    async def page(name: str = "index.html") -> Response:
        if name not in PAGES:
            raise HTTPException(404)
        return FileResponse(PAGES[name])

    async def scenario(name: str) -> Response:
        path = shipped_scenarios().get(name)
        if path is None:
            raise HTTPException(404, f"no shipped scenario is called {name!r}: see /v1/scenarios")
        return FileResponse(path, media_type="text/yaml")

    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/page/{name}", page, methods=["GET"], include_in_schema=False)
    app.add_api_route(
        "/v1/scenarios/{name}",
        scenario,
        methods=["GET"],
        summary="A shipped scenario as YAML.",
        response_class=Response,
    )
