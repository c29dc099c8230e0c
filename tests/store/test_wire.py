"""The asyncio connection: what it does when it is lost in a bad moment, and when the process itself stood still."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relevo.store.call_numbers import Numbers, ServerClock
from relevo.store.endpoint import read_url
from relevo.store.replies import ConnectionLost
from relevo.store.wire import Wire, open_wire
from tests.servers import Server

uvloop = pytest.importorskip("uvloop")


async def connected(server: Server, *, timeout: float = 30.0) -> Wire:
    (endpoint,) = read_url(server.url).seeds
    return await open_wire(endpoint, connect_timeout=30.0, timeout=timeout, numbers=Numbers(ServerClock(), timeout))


def test_commands_given_while_the_connection_is_lost_fail_and_log_nothing(server: Server) -> None:
    """uvloop raises on a write to a closed transport, and reports the error of a callback as a traceback."""
    reported: list[dict[str, Any]] = []

    async def story() -> list[Any]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        wire = await connected(server)
        assert wire._transport is not None
        wire._transport.abort()  # the loop reports it in its next iteration, before it flushes what is given now
        return await asyncio.gather(*(wire.send((b"PING",)) for _ in range(3)), return_exceptions=True)

    outcomes = uvloop.run(story())
    assert [type(one) for one in outcomes] == [ConnectionLost] * 3
    assert reported == []


class SuspendedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can jump, as it does for a process whose machine was suspended."""

    jumped = 0.0

    def time(self) -> float:
        return super().time() + self.jumped


def test_a_machine_that_stood_still_does_not_take_its_server_for_silent(engine: str, tmp_path: Path) -> None:
    """Both stood still for longer than the timeout; the server answers when it goes on."""

    async def story(server: Server) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SuspendedLoop)
        wire = await connected(server)
        server.pause()
        reply = wire.send((b"PING",))
        loop.jumped += 3600.0
        for _ in range(10):
            await asyncio.sleep(0)  # the watch looks
        server.resume()
        try:
            return await reply
        finally:
            wire.close()

    with Server(engine, directory=tmp_path) as server, asyncio.Runner(loop_factory=SuspendedLoop) as runner:
        assert runner.run(story(server)) == b"PONG"


def test_a_server_that_never_answers_is_given_up_after_the_timeout(engine: str, tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        wire = await connected(server, timeout=0.2)
        server.pause()
        with pytest.raises(ConnectionLost, match=r"no answer for 0\.2 s"):
            await wire.request((b"PING",))

    with Server(engine, directory=tmp_path) as server:
        asyncio.run(story(server))
