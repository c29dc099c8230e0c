"""The supervisor's metrics endpoint: one for all its worker processes, available even while they are blocked.

The supervisor does not import the app. The metrics need only its name, its server and its health limits, which the
first worker process sends.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from relevo.engine.engine import Engine
from relevo.errors import ConfigurationError
from relevo.metrics import CONTENT_TYPE, exposition_of
from relevo.settings import load
from relevo.worker.child import Contact

log = logging.getLogger("relevo.supervisor")

#: Seconds for which a response is cached.
FRESH = 1.0
#: Seconds after which an idle connection is closed.
PATIENCE = 5.0


class Scraped:
    """A small HTTP server in its own thread; a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._last = b""
        self._last_at = 0.0
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            is_taken = getattr(error, "errno", None) == errno.EADDRINUSE
            hint = "Is another worker there? Give another --metrics-port" if is_taken else "Give another --metrics-host"
            raise ConfigurationError(
                f"metrics cannot be served at {host}:{port}: {getattr(error, 'strerror', None) or error}. {hint}"
            ) from error
        self._server.scraped = self
        self._thread = threading.Thread(target=self._server.serve_forever, name="relevo metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port, also if any free one was requested (0)."""
        port: int = self._server.server_address[1]
        return port

    def __enter__(self) -> Scraped:
        self._thread.start()
        log.info("metrics at http://%s:%d/metrics", self._server.server_address[0], self.port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        if self._engine is not None:
            self._engine.close()

    def know(self, contact: Contact) -> None:
        """Set the engine of the app from the contact data that a worker process sent."""
        if self._engine is None:
            known = {
                "url": contact.url,
                "data_dir": contact.data_dir,
                "prefix": contact.prefix,
                "env": contact.env,
                "health_limits": contact.health_limits,
            }
            self._engine = Engine(contact.app, load(arguments=known))

    def text(self) -> bytes | None:
        """All metrics, at most `FRESH` seconds old; None: no worker process has started yet."""
        engine = self._engine
        if engine is None:
            return None
        with self._lock:  # concurrent scrapes share one set of calls to the server
            if not self._last or time.monotonic() - self._last_at > FRESH:
                self._last = exposition_of(engine)
                engine.close()  # connections belong to a thread, and the next scrape runs in another one
                self._last_at = time.monotonic()
            return self._last


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    scraped: Scraped

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log a scraper's disconnect at debug level only."""
        log.debug("metrics: a request of %s broke off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE
    server_version = "relevo"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"the metrics are at /metrics\n")
            return
        text = self.server.scraped.text()
        if text is None:
            words = b"no worker process has started yet\n"
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", words)
        else:
            self._answer(HTTPStatus.OK, CONTENT_TYPE, text)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log at debug level only: scrapes come every few seconds."""
        log.debug("metrics: " + format, *args)
