"""One asyncio connection for any number of tasks.

Commands given in one turn of the event loop leave in few writes; replies come back in order and resolve futures. One
socket therefore carries what a pool of a hundred could not: 185,000 calls a second against 22,000.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis

from relevo.store.call_numbers import Numbers
from relevo.store.endpoint import Endpoint
from relevo.store.link import ASKING, keep_alive
from relevo.store.peers import check_peer
from relevo.store.plan import Argument
from relevo.store.replies import ConnectionLost, refusal

#: Seconds without an answer after which this connection counts as dead, too, once another one was found dead.
DOUBT_AFTER = 0.5
#: Commands per write. With all of them in one, the server would stand idle while they are packed, and the caller while
#: the server works: a hundred tasks that enqueue got half the rate.
CROWD = 32


class Wire(asyncio.Protocol):
    """A connection. Made by `open_wire`."""

    def __init__(self, endpoint: Endpoint, *, timeout: float, numbers: Numbers) -> None:
        self.endpoint = endpoint
        self.numbers = numbers
        self.closed: ConnectionLost | None = None
        #: Whether the server was found fit to keep jobs (server_check.py).
        self.is_checked = False
        #: Called with (channel, payload) for messages of a subscription.
        self.on_message: Callable[[bytes, bytes], None] | None = None
        #: Called with the reply to a command that was posted.
        self.on_reply: Callable[[Any], None] | None = None
        #: Called once when the connection is gone.
        self.on_closed: Callable[[], None] | None = None
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        #: The futures of the next replies; None: `on_reply` takes it.
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        self._out: list[bytes] = []
        #: how many commands recent writes contained
        self._crowd = 0
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._replies = 0
        self._silent_since = (0.0, 0)
        self._look_every = min(1.0, timeout / 4)
        self._silent_looks = 0

    def send(self, command: Sequence[Argument] | bytes, *, asking: bool = False) -> asyncio.Future[Any]:
        """Send a command, packed or not; the future gives its reply, or an error reply as a value (see `request`).

        `asking`: the slot of its key is moving to this node, by the answer (ASK) of the node it moves from.
        """
        if self.closed is not None:
            raise ConnectionLost(str(self.closed), sent=False)
        if asking:
            self._put(ASKING, None)  # for the very next command
        future: asyncio.Future[Any] = self._loop.create_future()
        self._put(command, future)
        return future

    def post(self, command: Sequence[Argument]) -> None:
        """Send a command whose reply is for `on_reply`, at once and without a task to wake. Nothing if it is closed."""
        if self.closed is None:
            self._put(command, None)

    def _put(self, command: Sequence[Argument] | bytes, future: asyncio.Future[Any] | None) -> None:
        packed = command if isinstance(command, bytes) else hiredis.pack_command(command)  # type: ignore[arg-type]
        self._waiting.append(future)
        if len(self._waiting) == 1 and self._crowd < 2 and self._transport is not None:
            self._transport.write(packed)  # a single command need not wait for others
        else:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(packed)
            if len(self._out) == CROWD:
                self._flush()
        if self._watch is None:
            self._start_watch()

    async def request(self, command: Sequence[Argument], *, asking: bool = False) -> Any:
        """Send a command and wait for its reply; an error reply is raised."""
        reply = await self.send(command, asking=asking)
        if isinstance(reply, Exception):
            raise refusal(str(reply))
        return reply

    def close(self) -> None:
        """Close the connection; callers that wait for a reply get ConnectionLost."""
        if self._transport is not None:
            self._transport.abort()
        self._lost("closed")

    def verify(self) -> None:
        """Close the connection after another one got no answer, unless a reply is arriving on this one."""
        since, replies = self._silent_since
        if not self._waiting or (replies == self._replies and self._loop.time() - since > DOUBT_AFTER):
            self.close()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its behaviour only
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            keep_alive(sock)  # TCP_NODELAY is set by asyncio

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        self._replies += 1
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not Ellipsis:
                if type(reply) is list and reply and reply[0] == b"message" and self.on_message is not None:
                    self.on_message(reply[1], reply[2])
                    continue
                future = waiting.popleft()
                if future is None:
                    if self.on_reply is not None:
                        self.on_reply(reply)
                elif not future.done():  # its task may have been cancelled
                    future.set_result(reply)
        except (hiredis.HiredisError, IndexError) as error:
            self._lost(f"unreadable reply: {error}")
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(str(exc) if exc else "closed by the server")

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._crowd = len(out)
        # The connection may be lost between a command and this flush; uvloop raises on a write to a closed transport.
        if self._transport is not None and self.closed is None and out:
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def _lost(self, why: str) -> None:
        if self.closed is not None:
            return
        self.closed = ConnectionLost(f"connection to {self.endpoint} lost: {why}", sent=True)
        if self._watch is not None:
            self._watch.cancel()
        for future in self._waiting:
            if future is not None and not future.done():
                future.set_exception(self.closed)
        self._waiting.clear()
        if self.on_closed is not None:
            self.on_closed()

    # A peer that vanished silently: while replies are owed, a byte must arrive within the timeout. Silence is counted
    # in looks and not by the clock, because a process that was stopped, or whose loop was blocked, did not listen.
    def _start_watch(self) -> None:
        self._silent_since = (self._loop.time(), self._replies)
        self._silent_looks = 0
        self._watch = self._loop.call_later(self._look_every, self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._waiting or self.closed is not None:
            return
        if self._silent_since[1] != self._replies:
            self._start_watch()
            return
        self._silent_looks += 1
        if self._silent_looks * self._look_every < self._timeout:
            self._watch = self._loop.call_later(self._look_every, self._look)
            return
        if self._transport is not None:
            self._transport.abort()
        self._lost(f"no answer for {self._timeout:g} s")


async def open_wire(endpoint: Endpoint, *, connect_timeout: float, timeout: float, numbers: Numbers) -> Wire:
    """Connect and greet."""
    loop = asyncio.get_running_loop()

    def protocol() -> Wire:
        return Wire(endpoint, timeout=timeout, numbers=numbers)

    try:
        async with asyncio.timeout(connect_timeout):
            if endpoint.path:
                sock = await _connected(endpoint)
                _, wire = await loop.create_unix_connection(protocol, sock=sock)
            else:
                context = endpoint.tls.context() if endpoint.tls else None
                _, wire = await loop.create_connection(protocol, endpoint.host, endpoint.port, ssl=context)
            try:
                for command in endpoint.greeting():
                    await wire.request(command)
            except ConnectionLost as error:  # only the greeting was under way
                raise ConnectionLost(str(error), sent=False) from error
            except BaseException:
                wire.close()
                raise
    except OSError as error:  # TimeoutError is one
        raise ConnectionLost(f"cannot connect to {endpoint}: {str(error) or 'timed out'}", sent=False) from error
    return wire


async def _connected(endpoint: Endpoint) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, endpoint.path)
        if endpoint.is_own:
            check_peer(sock, endpoint.path)
    except BaseException:
        sock.close()
        raise
    return sock
