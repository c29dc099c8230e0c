"""`relevo web`: the HTTP API of an app."""

from __future__ import annotations

import argparse
import logging
from contextlib import closing

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
        Serves the HTTP API under /api/v1 until stopped. On loopback no token is needed, and whoever is on this
        machine may do everything; on any other host it starts only with tokens: RELEVO_WEB_TOKENS, with commas,
        each as role:name:secret, where role is viewer, operator or admin.

        With -A, arguments that tasks mark as secret are hidden; with --name alone their code is not known, and only
        what the setting `mask` names and what is called password, token, … is.
        """,
        examples="""
        relevo web -A shop:app
        relevo web --name shop --env prod --port 9000
        RELEVO_WEB_TOKENS=admin:ana:$(openssl rand -hex 24) relevo web -A shop:app --host 0.0.0.0
        """,
    )
    parser.add_argument("--host", default=HOST, metavar="HOST", help=f"where to listen (default: {HOST})")
    parser.add_argument("--port", type=int, default=PORT, metavar="PORT", help=f"0: a free one (default: {PORT})")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    needs_extra()
    from relevo.web import serving

    if not 0 <= args.port <= 65_535:
        raise ConfigurationError(f"--port: a number from 0 to 65535 is needed, found {args.port}")
    logging.basicConfig(
        level=args.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    with closing(target.find(args)) as app:
        serving.check(app, args.host)
        listening = serving.bind(args.host, args.port)
        host, port = listening.getsockname()[:2]
        shown = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        about = f"app {app.name} in {app.settings.env} at {shown}, API at {shown}/api/v1"
        serving.serve(app, listening, log_level=args.log_level, is_ready=lambda: print(about, flush=True))
    return Exit.OK
