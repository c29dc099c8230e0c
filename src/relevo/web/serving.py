"""Serves the site of an app with uvicorn, until a signal ends it."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable

import uvicorn

from relevo.app import Relevo
from relevo.errors import ConfigurationError
from relevo.web.access import is_loopback
from relevo.web.connections import ACCEPTED, IDLE, Connections, most_connections
from relevo.web.gate import Gate
from relevo.web.site import site

#: Seconds that SIGTERM leaves to requests under way.
GRACE = 10
#: Connections that the system keeps until they are accepted; one more finds a unix socket busy.
BACKLOG = 1024


class Server(uvicorn.Server):
    """uvicorn's, which has one number for how many connections wait and how many are accepted in one go."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)


def check(app: Relevo, host: str) -> None:
    """Refuse to be open to others without tokens that were made for them."""
    if not app.settings.web_tokens and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host}: others could reach this, and a token that is made at the start is for this machine. Set "
            "RELEVO_WEB_TOKENS=admin:NAME:SECRET (roles: producer, viewer, operator, admin; a secret: "
            "openssl rand -hex 24), or leave out --host, and only this machine is answered."
        )


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on, before anything is said to be served."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from error


def server(app: Relevo, gate: Gate, *, log_level: str) -> Server:
    """What answers requests."""
    connections = Connections(most_connections())
    config = uvicorn.Config(
        connections.limited(site(app, gate)),
        http=connections.protocol(),
        interface="asgi3",
        log_level=log_level.lower(),
        lifespan="off",
        ws="none",
        server_header=False,
        # The gate asks where a request really comes from; a header may say anything.
        proxy_headers=False,
        backlog=ACCEPTED,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
    )
    logging.getLogger("uvicorn.access").addFilter(_without_queries)
    return Server(config)


def _without_queries(record: logging.LogRecord) -> bool:
    """What is searched for, and the token of the first page, are in no log."""
    if isinstance(record.args, tuple):
        record.args = tuple(one.partition("?")[0] if isinstance(one, str) else one for one in record.args)
    return True


def serve(app: Relevo, gate: Gate, listening: socket.socket, *, log_level: str, is_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or Ctrl-C."""
    # uvicorn raises the signal again when it is done: that is the end that was asked for, and no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    is_ready()
    server(app, gate, log_level=log_level).run(sockets=[listening])
