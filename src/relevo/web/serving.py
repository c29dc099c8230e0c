"""Serves the site of an app with uvicorn, until a signal ends it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn

from relevo.app import Relevo
from relevo.errors import ConfigurationError
from relevo.model.access import is_loopback
from relevo.web.site import site

#: Seconds that SIGTERM leaves to requests under way.
GRACE = 10


def check(app: Relevo, host: str) -> None:
    """Refuse to be open to others without a token."""
    if not app.settings.web_tokens and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host}: others could reach this, and no token is asked of them. Set "
            "RELEVO_WEB_TOKENS=admin:NAME:SECRET (roles: viewer, operator, admin; a secret: openssl rand -hex 24), "
            "or leave out --host, and only this machine is answered."
        )


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on, before anything is said to be served."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from error


def server(app: Relevo, *, log_level: str) -> uvicorn.Server:
    """What answers requests."""
    config = uvicorn.Config(
        site(app),
        log_level=log_level.lower(),
        lifespan="off",
        ws="none",
        server_header=False,
        # The gate asks where a request really comes from; a header may say anything.
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def serve(app: Relevo, listening: socket.socket, *, log_level: str, is_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or Ctrl-C."""
    # uvicorn raises the signal again when it is done: that is the end that was asked for, and no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    is_ready()
    server(app, log_level=log_level).run(sockets=[listening])
