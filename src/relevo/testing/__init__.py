"""For the tests of your project: your app on a real server, with its own namespace and clock.

    with bind(app) as kit:
        signup("ana@example.com")
        kit.assert_enqueued(send_welcome, "ana@example.com")
        kit.drain()

Direct calls of a task that uses `current_job()` need no server: `with job_context(attempt=2): import_orders(7)`.

With pytest, the fixture `relevo_app` does the same: `kit = relevo_app(app)`. Nothing here needs pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relevo.testing.binding import bind
    from relevo.testing.contexts import TestedJob, job_context
    from relevo.testing.kit import Clock, Drained, TestKit
    from relevo.testing.real_server import server

__all__ = ["Clock", "Drained", "TestKit", "TestedJob", "bind", "job_context", "server"]

_HOMES = {
    "Clock": "kit",
    "Drained": "kit",
    "TestKit": "kit",
    "TestedJob": "contexts",
    "bind": "binding",
    "job_context": "contexts",
    "server": "real_server",
}


def __getattr__(name: str) -> Any:
    # Imported when used: pytest loads the plugin next to this for every run, and most tests need no worker.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
