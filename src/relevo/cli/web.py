"""`relevo web`: the HTTP API of an app."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import closing
from pathlib import Path

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, command
from relevo.errors import ConfigurationError
from relevo.web import needs_extra

HOST, PORT = "127.0.0.1", 8420


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "web",
        "serve the HTTP API of an app",
        about="""
        Serves the HTTP API under /api/v1 until stopped. Every caller needs a token: RELEVO_WEB_TOKENS, with commas,
        each as role:name:secret, where role is producer, viewer, operator or admin. Where none is set, one is made
        for this run and this machine, and printed once with the address, to standard error.

        With --unix it listens at a socket that only this user can open, who needs no token there unless some are set.

        With MODULE:APP, arguments that tasks mark as secret are hidden, and producers can enqueue; with --name alone
        the code is not known, and only what the setting `mask` names and what is called password, token, … is hidden.
        """,
        examples="""
        relevo web shop:app
        relevo web shop:app --unix /run/shop/web.sock
        relevo web --name shop --env prod --port 9000
        RELEVO_WEB_TOKENS=admin:ana:$(openssl rand -hex 24) relevo web shop:app --host 0.0.0.0
        """,
    )
    parser.add_argument("--host", metavar="HOST", help=f"where to listen (default: {HOST})")
    parser.add_argument("--port", type=int, metavar="PORT", help=f"0: a free one (default: {PORT})")
    parser.add_argument("--unix", type=Path, metavar="PATH", help="listen at a socket in the file system instead")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    needs_extra()
    if args.unix is not None and (args.host is not None or args.port is not None):
        raise ConfigurationError("--unix listens at no port: leave out --host and --port")
    if args.port is not None and not 0 <= args.port <= 65_535:
        raise ConfigurationError(f"--port: a number from 0 to 65535 is needed, found {args.port}")
    logging.basicConfig(
        level=args.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    with closing(target.find(args)) as app:
        if args.unix is not None:
            _at_unix_socket(app, args.unix, args.log_level)
        else:
            _at_port(app, args.host or HOST, PORT if args.port is None else args.port, args.log_level)
    return Exit.OK


def _at_port(app: Relevo, host: str, port: int, log_level: str) -> None:
    from relevo.web import serving
    from relevo.web.gate import own_gate

    serving.check(app, host)
    gate, made = own_gate(app)
    listening = serving.bind(host, port)
    host, port = listening.getsockname()[:2]
    shown = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def is_ready() -> None:
        print(f"app {app.name} in {app.settings.env} at {shown}, API at {shown}/api/v1", flush=True)
        if made is not None:
            print(f"open {shown}/?token={made.secret}", file=sys.stderr)
            print("it holds a token for everything, made for this run as no web_tokens are set", file=sys.stderr)

    serving.serve(app, gate, listening, log_level=log_level, is_ready=is_ready)


def _at_unix_socket(app: Relevo, path: Path, log_level: str) -> None:
    from relevo.web import serving
    from relevo.web.gate import own_gate
    from relevo.web.unix_socket import listening_at

    gate, _ = own_gate(app, is_unix=True)
    needs = "needs a token" if app.settings.web_tokens else "needs no token"
    with listening_at(path) as listening:
        about = f"app {app.name} in {app.settings.env} at the socket {path}, API at /api/v1; this user {needs}"
        serving.serve(app, gate, listening, log_level=log_level, is_ready=lambda: print(about, flush=True))
