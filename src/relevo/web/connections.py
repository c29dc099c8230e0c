"""Limits the number of connections of `relevo web`, and their idle time.

uvicorn closes a connection that is idle after an answer. This adds the limits that it lacks: for a client that does
not send its request or does not read the answer, and for more connections than file descriptors. An answer that comes
before the whole body keeps the connection open until the client can read it.

A new connection may close one without a request, the longest idle first. Requests never take all connections: beyond
`most - RESERVE` of them only `/healthz` is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from relevo.web.gate import PEER_UID
from relevo.web.problems import Refused
from relevo.web.unix_socket import peer_uid

#: Seconds in which a request must arrive with all its headers, from its first byte or from the connection. A phone on
#: a slow network needs two.
HEADERS = 10.0
#: Seconds without a request after an answer: as long as uvicorn keeps them.
IDLE = 5
#: Seconds without data of a body, and the bytes that extend the limit by a second: a slower client is refused.
BODY, BODY_RATE = 20.0, 1024
#: Seconds in which a slow client must read 48 KiB of its answer.
ANSWER = 30.0
#: Seconds to continue reading a body after the answer: many clients read only after they have sent everything.
LINGER = 10.0
#: Connections reserved for health checks and new clients.
RESERVE = 16
#: Maximum of connections of one process: each may be a request that waits for a job.
MOST = 1000
#: Connections that asyncio accepts in one iteration, before they are counted here.
ACCEPTED = 16
#: The path that is always answered.
HEALTH = "/healthz"

_CONNECTION = "relevo.connection"
_CLOSE = (b"connection", b"close")


def most_connections() -> int:
    """Less than half of the process's file descriptors: as many connections may be accepted but not counted yet."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
    except ImportError:  # Windows
        return MOST
    soft, _ = getrlimit(RLIMIT_NOFILE)
    return MOST if soft == RLIM_INFINITY else max(2 * RESERVE, min(MOST, soft // 2 - ACCEPTED // 2))


class Connections:
    """The open connections of a server: those with a request are counted, the idle ones can be closed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Connection, None] = {}
        self._serving = 0

    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol factory for uvicorn."""
        return cast("type[asyncio.Protocol]", partial(Connection, self))

    def add(self, one: Connection) -> None:
        """Add an open connection. If there are too many, close the longest idle one."""
        self._waiting[one] = None
        if len(self._waiting) + self._serving > self._most:
            next(iter(self._waiting)).give_up()

    def remove(self, one: Connection) -> None:
        """Remove a connection that is closed or closing."""
        self._waiting.pop(one, None)

    @contextmanager
    def request(self, one: Connection) -> Iterator[bool]:
        """Count a request while it is handled; whether there is room for it."""
        self._waiting.pop(one, None)
        self._serving += 1
        try:
            yield self._serving <= self._most - RESERVE
        finally:
            self._serving -= 1
            if not one.is_lost:
                self._waiting[one] = None

    def limited(self, app: ASGIApp) -> ASGIApp:
        """The app, with as many requests at once as there is room for, and with time limits for their bodies."""

        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            connection: Connection = scope["state"][_CONNECTION]
            with connection.request() as has_room:
                answering = partial(_send, connection, send)
                if has_room or scope["path"] == HEALTH:
                    await app(scope, _Body(receive).receive, answering)
                else:
                    await _busy(answering)

        return served


class Connection(H11Protocol):
    """One connection, which closes itself if its client stops."""

    def __init__(self, all: Connections, config: Any, server_state: Any, app_state: dict[str, Any], _loop: Any) -> None:
        super().__init__(config, server_state, {**app_state, _CONNECTION: self}, _loop)
        self._all = all
        self._timer: asyncio.TimerHandle | None = None
        self._requests = 0
        self._is_stalled = False
        self._socket: asyncio.Transport
        self._is_closing = False
        self.is_lost = False

    # called by asyncio
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for a request."""
        self._socket = transport
        self.app_state[PEER_UID] = peer_uid(transport.get_extra_info("socket"))
        super().connection_made(cast("asyncio.Transport", _Lingering(transport, self)))
        self._give(HEADERS)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, or drop the rest of a body that was answered."""
        if self._is_closing:
            return
        if self._timer is None and not self._requests:
            self._give(HEADERS)
        super().data_received(data)

    def pause_writing(self) -> None:
        """Start the time limit for a client that does not read."""
        super().pause_writing()
        self._is_stalled = True
        self._give(ANSWER)

    def resume_writing(self) -> None:
        """End that time limit."""
        super().resume_writing()
        self._is_stalled = False
        if not self._is_closing:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers and remove the connection."""
        self.is_lost = True
        self._stop()
        self._all.remove(self)
        super().connection_lost(exc)

    # called by requests and by the server
    @contextmanager
    def request(self) -> Iterator[bool]:
        """Count the request of this connection; whether there is room for it."""
        if not self._is_stalled:  # otherwise it waits until the client has read the previous answer
            self._stop()
        self._requests += 1
        try:
            with self._all.request(self) as has_room:
                yield has_room
        finally:
            self._requests -= 1

    @property
    def is_closing(self) -> bool:
        """Whether no further request is answered."""
        return self._is_closing or self._socket.is_closing()

    @property
    def is_body_unread(self) -> bool:
        """Whether a part of the request is still to come."""
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def close(self) -> None:
        """Close it when all is written; if the client still sends, when that ends or after a time limit."""
        if self.is_closing:
            return
        self._is_closing = True
        if self.is_body_unread and self._socket.can_write_eof():
            self._socket.write_eof()
            self._socket.resume_reading()
            self._give(LINGER)
        else:
            self._socket.close()
            self._give(ANSWER)

    def give_up(self) -> None:
        """Close it at once."""
        self._all.remove(self)
        self._socket.abort()

    def _give(self, seconds: float) -> None:
        self._stop()
        self._timer = self.loop.call_later(seconds, self.give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Lingering:
    """The transport for uvicorn: `close` closes the connection in order."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self._connection.close()


class _Body:
    """Receives a body in time: each part must arrive within the rest of `BODY`, which grows with the bytes received."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = BODY
        self._has_more = True

    async def receive(self) -> Message:
        if not self._has_more:
            return await self._receive()
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            raise Refused(408, "TooSlow", f"the body is too slow: {BODY_RATE:,} bytes per second are needed") from None
        self._has_more = bool(message.get("more_body"))
        earned = len(message.get("body", b"")) / BODY_RATE
        self._left = min(BODY, self._left - (loop.time() - began) + earned)
        return message


async def _send(connection: Connection, send: Send, message: Message) -> None:
    """Send; an answer that comes before the whole body is the last on its connection."""
    if message["type"] == "http.response.start" and connection.is_body_unread:
        headers = [one for one in message.get("headers", ()) if one[0] != b"connection"]
        message = {**message, "headers": [*headers, _CLOSE]}
    await send(message)


async def _busy(send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"1"), _CLOSE]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"too many requests at once\n"})
