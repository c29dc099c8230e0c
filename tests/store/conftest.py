"""Desks: queues on a real server, in real time or in a time that the test moves."""

from __future__ import annotations

import pytest

from relevo import Relevo
from relevo.store.keys import QueueKeys
from tests.conftest import Store
from tests.servers import Server
from tests.store.desk import Desk


@pytest.fixture
def desk(store: Store, server: Server) -> Desk:
    """A queue of this test's own."""
    return Desk(store.run, store.keys, server)


@pytest.fixture
def late_desk(app: Relevo, server: Server) -> Desk:
    """A queue whose scripts read a clock that the test can move on, so that nothing has to wait."""
    address = app.keys_of("default").address
    return Desk(app.client.run, QueueKeys(address, clock_key=f"{{{address}}}:shift"), server)
