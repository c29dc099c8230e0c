"""The project behind a real server, for a browser that logs in to the admin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from playwright.sync_api import Page

from tests.browser import Window
from tests.eventually import PATIENCE


def login(window: Window, name: str) -> None:
    """Log in to the admin."""

    def act(page: Page) -> None:
        page.goto(f"{window.base}/admin/")
        page.get_by_label("Username:").fill(name)
        page.get_by_label("Password:").fill("pw")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Jobs", exact=True).first.wait_for()

    window.do(act)


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def live_site() -> Iterator[str]:
    """The project behind a real server of this process: its address."""
    http = ThreadedWSGIServer(("127.0.0.1", 0), _Quiet)
    http.set_app(StaticFilesHandler(get_wsgi_application()))
    thread = threading.Thread(target=http.serve_forever, name="site under test")
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join(PATIENCE)
