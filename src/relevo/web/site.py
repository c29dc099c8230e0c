"""The site of `relevo web`: the API under /api/v1, /metrics, /healthz, and a start page."""

from __future__ import annotations

from html import escape

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.types import Receive, Scope, Send

from relevo import metrics
from relevo.app import Relevo
from relevo.web.access import Role
from relevo.web.asgi import HEADERS, api_of, refusal
from relevo.web.gate import Gate
from relevo.web.problems import Refused
from relevo.web.refusals import Refusals
from relevo.web.table import ROUTES

#: The page runs no scripts and may not be framed.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>relevo: {app}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 4rem auto; max-width: 40rem; padding: 0 1rem }}</style>
<h1>relevo: {app}</h1>
<p>The HTTP API of this app is at <code>{base}/api/v1</code>; <a href="{base}/api/v1/openapi.json">openapi.json</a>
describes it. <a href="{base}/metrics">metrics</a> are for Prometheus, and <a href="{base}/healthz">healthz</a> says
whether this process lives.</p>
<p>{token}</p>
"""
_WITHOUT = "All but this page and healthz needs a token: send it as <code>Authorization: Bearer TOKEN</code>."
_BELONGS = """\
The token in the address of this page is that of <b>{name}</b>, with the role <b>{role}</b>. Send it to the API as
<code>Authorization: Bearer TOKEN</code>; only this page takes it from an address.\
"""
#: The address of the page may contain a token, so it is neither cached nor sent as a referrer.
_PAGE_HEADERS = {**HEADERS, "Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}


def site(app: Relevo, gate: Gate) -> Router:
    """All that is served for an app."""
    refusals = Refusals(app)

    async def page(request: Request) -> Response:
        """The start page. With ?token=, as `relevo web` prints it, also whether that token is valid."""
        status, about, headers = 200, _WITHOUT, _PAGE_HEADERS
        if (token := request.query_params.get("token")) is not None:
            try:
                caller = await gate.admit(request, Role.PRODUCER, authorization=f"Bearer {token}")
                about = _BELONGS.format(name=escape(caller.name), role=caller.role.label)
            except Refused as refused:
                refusals.note(request, "/", refused)
                status, about = refused.status, escape(refused.problem.message)
                headers = {**_PAGE_HEADERS, **refused.headers}
        base = escape(request.scope.get("root_path", ""), quote=True)
        return HTMLResponse(_PAGE.format(app=escape(app.name), base=base, token=about), status, headers)

    async def healthz(_: Request) -> Response:
        """Answers while the process lives. Redis is not asked: restarting this process would not repair it."""
        return PlainTextResponse("ok\n", headers=HEADERS)

    async def scrape(request: Request) -> Response:
        """Metrics for Prometheus, which needs a token like every client."""
        try:
            await gate.admit(request, Role.VIEWER)
        except Refused as refused:
            refusals.note(request, "/metrics", refused)
            return refusal(refused)
        return Response(await metrics.aexposition(app), headers=HEADERS, media_type=metrics.CONTENT_TYPE)

    routes = [
        Route("/", page),
        Route("/healthz", healthz),
        Route("/metrics", scrape),
        Mount("/api/v1", api_of(app, gate, ROUTES, refusals)),
    ]
    return Router(routes, redirect_slashes=False, default=_nothing)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1000})
        return
    text = "nothing is here; the API is under /api/v1\n"
    await PlainTextResponse(text, 404, headers=HEADERS)(scope, receive, send)
