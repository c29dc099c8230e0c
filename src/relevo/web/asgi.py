"""The table of routes as an ASGI app: each request passes the gate, is read, performed, written down and answered."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from relevo.app import Relevo
from relevo.errors import RelevoError, StoreError
from relevo.model.access import token_of
from relevo.web.asking import arguments
from relevo.web.gate import Gate
from relevo.web.problems import Problem, Refused, refusal_of
from relevo.web.route import Desk, Did, Errands, Route

log = logging.getLogger("relevo.web")

#: Bytes of a body besides the arguments of a job, which it may hold.
ROOM = 2**16
#: Answers tell how things stand now, to the one who asked.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def answer(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(value), status, {**HEADERS, **(headers or {})}, "application/json")


class Endpoint:
    """All that can be asked under one path."""

    def __init__(self, app: Relevo, gate: Gate, errands: Errands, routes: Iterable[Route]) -> None:
        self._app = app
        self._gate = gate
        self._errands = errands
        self._routes = {route.method: route for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            return answer(200, await self._perform(request))
        except Refused as refused:
            return answer(refused.status, refused.problem, refused.headers)
        except RelevoError as error:
            told = refusal_of(error)
            if told.status >= 500:
                log.warning("%s %s: %s", request.method, request.url.path, error)
            return answer(told.status, told.problem, told.headers)
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            return answer(500, Problem("InternalError", "something went wrong here; the log of relevo web tells what"))

    async def _perform(self, request: Request) -> Any:
        method = "GET" if request.method == "HEAD" else request.method
        route = self._routes.get(method)
        if route is None:
            allowed = ", ".join(sorted(self._routes))
            raise Refused(405, "MethodNotAllowed", f"{request.method:.20} is not; use {allowed}", {"Allow": allowed})
        client = request.client.host if request.client else ""
        caller = self._gate.admit(request.headers, client, route.role, changes=route.changes)
        given = await arguments(request, route, self._app.settings.max_payload + ROOM)
        desk = Desk(self._app, caller, request.scope.get("root_path", ""), self._errands)
        found = await route.handler(desk, **given)
        if not isinstance(found, Did):
            return found
        if not found.dry:
            await self._note(caller.name, route.deed, found)
        return found.answer

    async def _note(self, who: str, deed: str, did: Did[Any]) -> None:
        try:
            await self._app.audit.anote(deed, who=who, via="http", count=did.count, **did.about)
        except StoreError as error:  # it is done all the same, and whoever asked must know that
            log.error("%s did %s (%d, %s), which could not be written down: %s", who, deed, did.count, did.about, error)


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":  # a web socket, which we do not have
        await send({"type": "websocket.close", "code": 1000})
        return
    base = scope.get("root_path", "")
    message = f"there is nothing at {scope['path']!r:.80}; {base}/openapi.json says what there is"
    await answer(404, Problem("NotFound", message))(scope, receive, send)


def api_of(app: Relevo, routes: Iterable[Route]) -> Router:
    """The API of an app, to be mounted anywhere."""
    gate = Gate([token_of(text) for text in app.settings.web_tokens])
    errands = Errands()
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    # Names may hold slashes, so the longer paths are asked first: `/queues/a/jobs` is not the queue `a/jobs`.
    order = sorted(by_path, key=lambda path: (-path.count("/"), path.count("{")))
    paths = [Path(_matched(path), Endpoint(app, gate, errands, by_path[path])) for path in order]
    return Router(paths, redirect_slashes=False, default=_nowhere)


def _matched(path: str) -> str:
    return re.sub("{(?!id})([a-z]+)}", r"{\1:path}", path)
