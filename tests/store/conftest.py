"""Queues on a real server, in a time that only the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clock import Clock, TimedApp
from tests.conftest import PATIENT, AppFactory, Store, apps_on
from tests.eventually import PATIENCE
from tests.proxy import Proxy
from tests.servers import Server
from tests.store.desk import Desk
from tests.store.lines import AsyncLine, BlockingLine, Line, OpenLine, patient


@pytest.fixture
def clock(server: Server) -> Clock:
    """The clock of this test, which stands still."""
    clock = Clock(server)
    clock.start()
    return clock


@pytest.fixture
def app_factory(server: Server, clock: Clock) -> Iterator[AppFactory]:
    """Makes apps whose scripts read the test's clock."""
    yield from apps_on(server, TimedApp)


@pytest.fixture
def desk(store: Store, server: Server) -> Desk:
    """A queue of this test's own."""
    return Desk(store.run, store.keys, server)


@pytest.fixture
def own_server(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may fill, change and break."""
    with Server(engine, directory=tmp_path / "own") as server:
        Clock(server).start()
        yield server


@pytest.fixture
def own_desk(own_server: Server) -> Iterator[Desk]:
    """A queue on such a server."""
    app = TimedApp("own", url=own_server.url, env="test", **PATIENT)
    yield Desk(app.engine.client.run, app.engine.keys_of("default"), own_server)
    app.close()


@pytest.fixture(params=["blocking", "asyncio"])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenLine]:
    """Opens drivers on a URL. `call_timeout` is also for how long a call is repeated while the server is away."""
    opened: list[Line] = []

    def make(url: str, *, call_timeout: float = PATIENCE) -> Line:
        source = patient(url, tmp_path, call_timeout)
        made: Line = BlockingLine(source) if request.param == "blocking" else AsyncLine(source)
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A way to the server that the test may disturb."""
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy
