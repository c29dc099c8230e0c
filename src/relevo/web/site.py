"""What `relevo web` serves: the API under /api/v1, metrics, a sign of life, and a page that says what is here."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from relevo import metrics
from relevo.app import Relevo
from relevo.model.access import Role, token_of
from relevo.web.asgi import HEADERS, answer, api_of
from relevo.web.gate import Gate
from relevo.web.problems import Refused
from relevo.web.table import ROUTES

#: The page runs nothing and is shown in no frame.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>relevo: {app}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 4rem auto; max-width: 40rem; padding: 0 1rem }}</style>
<h1>relevo: {app}</h1>
<p>The HTTP API of this app is at <code>{base}/api/v1</code>; <a href="{base}/api/v1/openapi.json">openapi.json</a>
describes it. <a href="{base}/metrics">metrics</a> are for Prometheus, and <a href="{base}/healthz">healthz</a> says
whether this process lives.</p>
"""


def site(app: Relevo) -> Router:
    """Everything that is served for an app."""

    async def page(request: Request) -> Response:
        base = escape(request.scope.get("root_path", ""), quote=True)
        text = _PAGE.format(app=escape(app.name), base=base)
        return HTMLResponse(text, headers={**HEADERS, "Content-Security-Policy": _POLICY})

    async def healthz(_: Request) -> Response:
        """The process lives and answers. It asks the server nothing: a restart of this process would not mend that."""
        return PlainTextResponse("ok\n", headers=HEADERS)

    gate = Gate([token_of(text) for text in app.settings.web_tokens])

    async def scrape(request: Request) -> Response:
        """For Prometheus, which sends a token as anybody does."""
        try:
            gate.admit(request.headers, request.client.host if request.client else "", Role.VIEWER, changes=False)
        except Refused as refused:
            return answer(refused.status, refused.problem, refused.headers)
        return Response(await metrics.aexposition(app), headers=HEADERS, media_type=metrics.CONTENT_TYPE)

    routes = [
        Route("/", page),
        Route("/healthz", healthz),
        Route("/metrics", scrape),
        Mount("/api/v1", api_of(app, ROUTES)),
    ]
    return Router(routes, redirect_slashes=False, default=_nothing)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1000})
        return
    text = "nothing is here; the API is under /api/v1\n"
    await PlainTextResponse(text, 404, headers=HEADERS)(scope, receive, send)
