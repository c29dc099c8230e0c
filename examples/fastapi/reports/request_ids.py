"""Request ids: from the HTTP request into the job that it enqueues, and into the logs of both."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextvars import ContextVar
from uuid import uuid4

from relevo.middleware import Call, Middleware
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class OfHttp:
    """For FastAPI: takes the id of the proxy, or makes one, and gives it back with the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        id = Headers(scope=scope).get("x-request-id") or uuid4().hex[:12]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = id
            await send(message)

        token = request_id.set(id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            request_id.reset(token)


class OfJobs(Middleware):
    """For relevo: the id travels with the job, and is set around each of its attempts."""

    def enqueue(self, call: Call) -> Iterator[None]:
        """Around each enqueue."""
        call.headers["request_id"] = request_id.get()
        yield

    def attempt(self, call: Call) -> Iterator[None]:
        """Around each attempt, where it runs."""
        token = request_id.set(call.headers.get("request_id", "-"))
        try:
            yield
        finally:
            request_id.reset(token)


class InLogs(logging.Filter):
    """Puts the id before each message of a logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; none is left out."""
        record.msg = f"[{request_id.get()}] {record.msg}"
        return True
