"""Tasks under the middleware that comes with relevo. In a module of their own: a child process imports it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import sentry_sdk
import structlog
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from relevo import Relevo, Retry, current_job
from relevo.middleware import ContextVars, Sentry, Structlog

locale: ContextVar[str] = ContextVar("locale", default="en")
user: ContextVar[str] = ContextVar("user")


class FileTransport(Transport):
    """Sends to a file."""

    def capture_envelope(self, envelope: Envelope) -> None:
        with open(os.environ["SENTRY_FILE"], "a") as file:
            for item in envelope.items:
                if item.type in ("event", "transaction"):
                    file.write(json.dumps(item.payload.json) + "\n")


def start_sentry() -> None:
    """As an app does before its worker starts."""
    sentry_sdk.init(
        dsn="http://key@localhost/1", transport=FileTransport, traces_sample_rate=1.0, default_integrations=False
    )


app = Relevo("ready", url="redis://127.0.0.1:1", middleware=[ContextVars(locale, user), Structlog(), Sentry()])


@app.lifespan
def lifespan() -> Iterator[None]:
    start_sentry()
    yield


def _act(kind: str) -> dict[str, Any]:
    sentry_sdk.set_tag("kind", kind)
    match kind:
        case "fail":
            raise ValueError("it failed")
        case "retry":
            raise Retry("not yet")
        case "log":
            return structlog.contextvars.get_contextvars()
    return {"locale": locale.get(), "user": user.get("none"), "headers": current_job().headers}


@app.task(name="on_loop", retries=1, backoff=0)
async def on_loop(kind: str) -> dict[str, Any]:
    return _act(kind)


@app.task(name="in_thread", retries=1, backoff=0)
def in_thread(kind: str) -> dict[str, Any]:
    return _act(kind)


@app.task(name="in_process", retries=1, backoff=0, executor="process")
def in_process(kind: str) -> dict[str, Any]:
    return _act(kind)


@app.task(name="permanent", retries=3, give_up_on=(ValueError,))
def permanent(kind: str) -> dict[str, Any]:
    return _act(kind)
