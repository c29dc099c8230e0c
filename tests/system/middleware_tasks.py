"""An app with middleware, and tasks for every executor. In a module of their own: a child process imports it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar

from relevo import Relevo, current_job
from relevo.middleware import Call, Middleware

app = Relevo("middle", url="redis://127.0.0.1:1")
request_id: ContextVar[str] = ContextVar("request_id", default="none")
#: What happened in this process.
seen: list[str] = []


class RequestId(Middleware):
    """As users write it."""

    def enqueue(self, call: Call) -> Iterator[None]:
        call.headers["request_id"] = request_id.get()
        yield

    def attempt(self, call: Call) -> Iterator[None]:
        token = request_id.set(call.headers.get("request_id", "lost"))
        try:
            yield
        finally:
            request_id.reset(token)


class Watch(Middleware):
    """Sees what happens and changes the arguments."""

    async def aattempt(self, call: Call) -> AsyncIterator[None]:
        for _ in self.attempt(call):
            yield

    def attempt(self, call: Call) -> Iterator[None]:
        assert call.job is current_job()
        call.kwargs["note"] = f"{call.target} {call.args} {request_id.get()}"
        yield


app.middleware(RequestId())
app.middleware(Watch())

Told = tuple[str, str, bool]


def _told(note: str, parent: int) -> Told:
    return note, request_id.get(), parent == os.getpid()


@app.task(name="on_loop")
async def on_loop(parent: int, note: str = "") -> Told:
    return _told(note, parent)


@app.task(name="in_thread")
def in_thread(parent: int, note: str = "") -> Told:
    return _told(note, parent)


@app.task(name="in_process", executor="process")
def in_process(parent: int, note: str = "") -> Told:
    return _told(note, parent)


@app.task(name="loop_in_process", executor="process")
async def loop_in_process(parent: int, note: str = "") -> Told:
    return _told(note, parent)


@app.task(name="failing", retries=0, executor="process")
def failing(parent: int, note: str = "") -> None:
    raise ValueError(note)
