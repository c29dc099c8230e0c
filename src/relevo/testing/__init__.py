"""For the tests of your project: your app on a real server, in a namespace and a time of its own.

    with bind(app) as kit:
        signup("ana@example.com")
        kit.assert_enqueued(send_welcome, "ana@example.com")
        kit.drain()

With pytest, the fixture `relevo_app` does the same: `kit = relevo_app(app)`. Nothing here needs pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relevo.testing.binding import bind
    from relevo.testing.kit import Clock, Drained, TestKit
    from relevo.testing.real_server import server

__all__ = ["Clock", "Drained", "TestKit", "bind", "server"]

_HOMES = {"Clock": "kit", "Drained": "kit", "TestKit": "kit", "bind": "binding", "server": "real_server"}


def __getattr__(name: str) -> Any:
    # Found when asked for: pytest loads the plugin beside this for every run, and most tests need no worker.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
