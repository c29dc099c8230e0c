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
#: Backlog of connections not accepted yet; beyond it a unix socket answers "busy".
BACKLOG = 1024


class Server(uvicorn.Server):
    """uvicorn with separate limits for the backlog and for connections accepted in one iteration."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(BACKLOG)


def check(app: Relevo, host: str) -> None:
    """Refuse to listen on a public address without configured tokens."""
    if not app.settings.web_tokens and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host}: others could reach this, and a token that is made at the start is for this machine. Set "
            "RELEVO_WEB_TOKENS=admin:NAME:SECRET (roles: producer, viewer, operator, admin; a secret: "
            "openssl rand -hex 24), or leave out --host, and only this machine is answered."
        )


def bind(host: str, port: int) -> socket.socket:
    """Bind the socket to listen on, before the address is printed."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another with --port or --host"
        ) from error


def server(app: Relevo, gate: Gate, *, log_level: str) -> Server:
    """The uvicorn server of the app."""
    connections = Connections(most_connections())
    config = uvicorn.Config(
        connections.limited(site(app, gate)),
        http=connections.protocol(),
        interface="asgi3",
        log_level=log_level.lower(),
        lifespan="off",
        ws="none",
        server_header=False,
        # The gate needs the real address of the peer; a header may contain anything.
        proxy_headers=False,
        backlog=ACCEPTED,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
    )
    logging.getLogger("uvicorn.access").addFilter(_without_queries)
    return Server(config)


def _without_queries(record: logging.LogRecord) -> bool:
    """Remove queries from the access log: they may hold search terms and the token of the start page."""
    if isinstance(record.args, tuple):
        record.args = tuple(one.partition("?")[0] if isinstance(one, str) else one for one in record.args)
    return True


def serve(app: Relevo, gate: Gate, listening: socket.socket, *, log_level: str, is_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or Ctrl-C."""
    # uvicorn raises the signal again when it is done: a requested end, not a failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    is_ready()
    server(app, gate, log_level=log_level).run(sockets=[listening])
