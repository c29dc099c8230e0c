"""A TCP proxy between a client and a server that can misbehave as networks do.

It runs an event loop in a thread of its own, so it serves blocking and asyncio clients alike. A method
that changes its behaviour returns when the change holds, also for a connection made just before.

A connection that has swallowed bytes never speaks again, not even after `heal()`: a stream with a hole in it
is nothing a network could produce. Its end is a time-out of the peer, a reset, or the end of the proxy.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Self

_CHUNK = 65_536  # bytes
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for no time: close sends RST and drops what is unsent


class _Link:
    """A client's connection, the one to the server that serves it, and the task that joins them."""

    def __init__(self, client: socket.socket, *, silent: bool) -> None:
        self.client = client
        self.server = socket.socket()
        self.silent = silent
        self.has_a_hole = False
        self.sending: asyncio.Event | None = None  # there while requests are held
        self.task: asyncio.Task[None] | None = None
        for end in (self.client, self.server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Proxy:
    """Passes bytes on faithfully until told otherwise.

    with Proxy("127.0.0.1", server.port) as proxy:
        client = connect(proxy.url)
        proxy.drop_replies(1)
        client.push(job)       # done by the server; the client never hears of it
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.accepted = 0  # connections so far: a client that reconnects in a storm shows here
        self.replies_to_drop = 0
        self._target = (target_host, target_port)
        self._links: set[_Link] = set()
        self._silent = False
        self._is_cut = False
        self._delay = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self._passing: asyncio.Event | None = None  # there while replies are held
        self._held: list[asyncio.Event] = []  # of connections whose requests are held
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()
        self._loop.add_reader(self._listener, self._accept)
        self._thread = Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many are open now; silent ones count."""
        return len(self._links)

    def black_hole(self) -> None:
        """Silence the connections that exist, without a FIN or RST to either side; new ones work."""

        def change() -> None:
            for link in self._links:
                link.silent = True

        self._do(change)

    def black_hole_all(self) -> None:
        """Silence the connections that exist and those to come, which are accepted but reach no server."""

        def change() -> None:
            self._silent = True
            for link in self._links:
                link.silent = True

        self._do(change)

    def cut(self) -> None:
        """Reset the connections that exist and, until `heal()`, those to come."""

        def change() -> None:
            self._is_cut = True

        self._do(change)
        self.reset_all()

    def refuse(self) -> None:
        """Reset connections to come, until `heal()`; those that exist go on."""

        def change() -> None:
            self._is_cut = True

        self._do(change)

    def delay(self, seconds: float) -> None:
        """Hold every reply back for so long; requests pass at once."""

        def change() -> None:
            self._delay = seconds

        self._do(change)

    def hold_replies(self) -> None:
        """Hold every reply back until `heal()`; requests pass at once."""

        def change() -> None:
            self._passing = asyncio.Event()

        self._do(change)

    def hold_requests(self) -> None:
        """Hold what the connections that exist send, until `let_requests_go()`; new ones pass at once.

        What was held reaches the server also if its client has hung up meanwhile, as packets in a network may.
        """

        def change() -> None:
            for link in self._links:
                link.sending = asyncio.Event()
                self._held.append(link.sending)

        self._do(change)

    def let_requests_go(self) -> None:
        """Deliver what `hold_requests()` held."""

        def change() -> None:
            for held in self._held:
                held.set()
            self._held.clear()

        self._do(change)

    def drop_replies(self, n: int) -> None:
        """Swallow the next `n` chunks from the server, then reset each connection that lost one.

        The server has done what it was asked, and the client cannot know. Connect before: the replies to a
        client's greeting count, too.
        """

        def change() -> None:
            self.replies_to_drop = n

        self._do(change)

    def reset_all(self) -> None:
        """End the connections that exist with RST, to both sides."""

        def change() -> None:
            for link in list(self._links):
                self._end(link, reset=True)

        self._do(change)

    def heal(self) -> None:
        """Be faithful again: to new connections, and to old ones that were not silenced."""

        def change() -> None:
            self._silent = self._is_cut = False
            self._delay = 0.0
            self.replies_to_drop = 0
            if self._passing is not None:
                self._passing.set()
                self._passing = None
            for link in self._links:
                link.silent |= link.has_a_hole

        self._do(change)

    def close(self) -> None:
        """Refuse new connections and reset the others; a second call does nothing."""
        if self._loop.is_closed():
            return
        self.reset_all()
        asyncio.run_coroutine_threadsafe(self._retire(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, change: Callable[[], None]) -> None:
        async def on_the_loop() -> None:
            self._accept()  # to a client it exists already, so the change is for it as well
            change()

        asyncio.run_coroutine_threadsafe(on_the_loop(), self._loop).result()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                link = _Link(client, silent=self._silent)
                self._links.add(link)
                if not link.silent:
                    link.task = self._loop.create_task(self._join(link))

    async def _join(self, link: _Link) -> None:
        try:
            if self._is_cut:
                raise ConnectionRefusedError
            await self._loop.sock_connect(link.server, self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_requests(link))
                both.create_task(self._pass_replies(link))
        except* OSError:  # the server is down, or one side was reset: the other side hears it as a reset
            if not link.silent:
                self._end(link, reset=True)
        else:
            if not link.silent:
                self._end(link, reset=False)

    async def _pass_requests(self, link: _Link) -> None:
        while data := await self._loop.sock_recv(link.client, _CHUNK):
            if link.sending is not None:
                await link.sending.wait()
            if not link.silent:
                await self._loop.sock_sendall(link.server, data)
        self._pass_end(link, link.server)

    async def _pass_replies(self, link: _Link) -> None:
        while data := await self._loop.sock_recv(link.server, _CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            if self._passing is not None:
                await self._passing.wait()
            if link.silent:  # asked after the delay, which is when the reply would pass
                continue
            if self.replies_to_drop:
                self._drop_reply(link)
            else:
                await self._loop.sock_sendall(link.client, data)
        self._pass_end(link, link.client)

    def _pass_end(self, link: _Link, target: socket.socket) -> None:
        if not link.silent:
            with suppress(OSError):  # it has gone as well
                target.shutdown(socket.SHUT_WR)

    def _drop_reply(self, link: _Link) -> None:
        link.has_a_hole = True
        self.replies_to_drop -= 1
        if self.replies_to_drop == 0:
            for lossy in [each for each in self._links if each.has_a_hole]:
                self._end(lossy, reset=True)

    def _end(self, link: _Link, *, reset: bool) -> None:
        if link not in self._links:
            return
        self._links.remove(link)
        if link.task is not None:
            link.task.cancel()
        for end in (link.client, link.server):
            # Before the close: the number of a closed socket may be the next connection's.
            self._loop.remove_reader(end)
            self._loop.remove_writer(end)
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()

    async def _retire(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
