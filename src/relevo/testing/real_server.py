"""A real server to test against: the one you name, or an embedded one for as long as it is needed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relevo.engine.client import Client
from relevo.store.embedded import server as embedded
from relevo.store.keys import AppKeys
from relevo.store.plan import Call

#: Seconds after which the embedded server stops when its test process was killed.
IDLE = 15.0


@contextmanager
def server(data_dir: Path | None = None) -> Iterator[str]:
    """The URL of a server: `RELEVO_TEST_URL` if set, else an embedded one in `data_dir` or a temporary directory.

    A server of your own is never emptied: each bound app uses names of its own on it and removes them.
    """
    url = os.environ.get("RELEVO_TEST_URL")
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="relevo-test-", ignore_cleanup_errors=True) as temporary:
        folder = data_dir or Path(temporary)
        url = embedded.ensure(folder, idle_timeout=IDLE, record=data_dir is not None)
        presence = Client(
            url, AppKeys("relevo-test", "test", "server"), data_dir=folder, connect_timeout=3, call_timeout=5
        )
        try:
            presence.run(Call([b"PING"]))  # an open connection keeps the server from stopping between tests
            yield url
        finally:
            presence.close()
            embedded.stop(folder)
