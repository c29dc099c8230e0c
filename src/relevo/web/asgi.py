"""The routes as an ASGI app: each request is admitted, parsed, performed, audited and answered."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from relevo.app import Relevo
from relevo.audit.trail import Doing
from relevo.errors import RelevoError, message_of
from relevo.web.asking import JSON, LINES, PROBLEM, SLASH, arguments
from relevo.web.connections import most_connections
from relevo.web.gate import Gate
from relevo.web.problems import Refused, refusal_of
from relevo.web.refusals import Refusals
from relevo.web.route import Created, Desk, Did, Errands, Lines, Route, Waits

log = logging.getLogger("relevo.web")

#: Some lines in one piece, and their number.
Piece = tuple[bytes, int]

#: Bytes of a body in addition to the arguments of a job.
ROOM = 2**16
#: Bytes of lines that are sent in one piece.
PIECE = 2**16
#: Answers are current, and for one caller only: they must not be cached.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def answer(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(value), status, {**HEADERS, **(headers or {})}, JSON)


def refusal(refused: Refused) -> Response:
    """The answer to a request that is refused."""
    body = msgspec.json.encode(refused.problem)
    return Response(body, refused.status, {**HEADERS, **refused.headers}, PROBLEM)


class Shared(NamedTuple):
    """What all endpoints of an API share."""

    errands: Errands
    waits: Waits
    refusals: Refusals


class Endpoint:
    """All methods of one path."""

    def __init__(self, app: Relevo, gate: Gate, shared: Shared, routes: Iterable[Route]) -> None:
        self._app = app
        self._gate = gate
        self._errands, self._waits, self._refusals = shared
        self._routes = {route.method: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> ASGIApp:
        route = self._routes.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = ", ".join(sorted(self._routes))
            message = f"{request.method:.20} is not; use {allowed}"
            return refusal(Refused(405, "MethodNotAllowed", message, {"Allow": allowed}))
        try:
            found = await self._perform(route, request)
        except Refused as refused:
            self._refusals.note(request, route.path, refused)
            return refusal(refused)
        except RelevoError as error:
            as_refused = refusal_of(error)
            if as_refused.status >= 500:
                log.warning("%s %s: %s", request.method, request.url.path, message_of(error))
            return refusal(as_refused)
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            return refusal(Refused(500, "InternalError", "internal error; the log of relevo web has the details"))
        match found:
            case Streamed():
                return found
            case Created():
                headers = {"Location": found.location} if found.location else None
                return answer(201 if found.is_new else 200, found.answer, headers)
            case _:
                return answer(200, found)

    async def _perform(self, route: Route, request: Request) -> Any:
        caller = await self._gate.admit(request, route.role, changes=route.changes, producers=route.producers)
        given = await arguments(request, route, self._app.settings.max_payload + ROOM)
        doing = self._app.audit.doing(route.deed, who=caller.name, via="http", later=self._errands.go)
        desk = Desk(
            app=self._app,
            caller=caller,
            doing=doing,
            base=request.scope.get("root_path", ""),
            errands=self._errands,
            waits=self._waits,
        )
        async with doing:
            found = await route.handler(desk, **given)
            if isinstance(found, Did) and not (found.dry or found.goes_on):
                doing.what = found.deed or route.deed
                doing.tell(found.count, **found.about)
        if isinstance(found, Lines):
            pieces = _pieces(found.lines)
            first = await anext(pieces, None)  # an invalid request is refused before the answer begins
            return Streamed(first, pieces, doing, found.about)
        return found.answer if isinstance(found, Did) else found


class Streamed:
    """An answer of lines, sent as fast as they are read: at most one piece is held in memory."""

    def __init__(self, first: Piece | None, pieces: AsyncIterator[Piece], doing: Doing, about: dict[str, Any]) -> None:
        self._first = first
        self._pieces = pieces
        self._doing = doing
        self._about = about

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**HEADERS, "Content-Type": LINES}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        reader = Request(scope, receive)
        piece, count = self._first, 0
        try:
            async with self._doing as doing:
                doing.tell(0, **self._about)
                while piece is not None:
                    await send({"type": "http.response.body", "body": piece[0], "more_body": True})
                    count += piece[1]
                    doing.tell(count)
                    if await reader.is_disconnected():
                        doing.tell(count, broken_off=True)
                        break
                    piece = await anext(self._pieces, None)
        except RelevoError as error:
            # The answer is left without its end, so that the client sees that it is incomplete.
            log.warning("%s %s: %s", scope["method"], scope["path"], message_of(error))
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pieces(lines: AsyncIterator[bytes]) -> AsyncIterator[Piece]:
    """Lines joined into pieces, each with their number."""
    held, size = [], 0
    async for line in lines:
        held.append(line)
        size += len(line)
        if size >= PIECE:
            yield b"".join(held), len(held)
            held, size = [], 0
    if held:
        yield b"".join(held), len(held)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":  # a web socket, which is not supported
        await send({"type": "websocket.close", "code": 1000})
        return
    base = scope.get("root_path", "")
    message = f"there is nothing at {scope['path'].replace(SLASH, '/')!r:.80}; {base}/openapi.json lists all paths"
    await refusal(Refused(404, "NotFound", message))(scope, receive, send)


def api_of(app: Relevo, gate: Gate, routes: Iterable[Route], refusals: Refusals | None = None) -> ASGIApp:
    """The API of an app, to be mounted anywhere; `refusals` of the site around it, if that writes down its own."""
    shared = Shared(Errands(), Waits(most_connections() // 2), refusals or Refusals(app))
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    # Names may contain slashes, so longer paths are matched first: `/queues/a/jobs` is not the queue `a/jobs`, which is
    # `/queues/a%2Fjobs`.
    order = sorted(by_path, key=lambda path: (-path.count("/"), path.count("{")))
    paths = [Path(_matched(path), Endpoint(app, gate, shared, by_path[path])) for path in order]
    router = Router(paths, redirect_slashes=False, default=_nowhere)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await router(_with_marked_slashes(scope), receive, send)

    return served


def _with_marked_slashes(scope: Scope) -> Scope:
    """The scope with percent-encoded slashes marked: they are part of a name and do not separate path segments."""
    raw = scope.get("raw_path") or b""  # not every server provides it
    if b"%2f" not in raw.lower() or unquote(raw.decode("latin-1")) != scope["path"]:
        return scope
    return {**scope, "path": unquote(re.sub("%2f", SLASH, raw.decode("latin-1"), flags=re.IGNORECASE))}


def _matched(path: str) -> str:
    return re.sub("{(?!id})([a-z]+)}", r"{\1:path}", path)
