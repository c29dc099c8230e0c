"""`relevo server`: start, stop and describe the embedded server of a data directory."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from relevo.cli import server_acl
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_json, command, group
from relevo.cli.screen import Screen, mebibytes
from relevo.settings import Settings, data_directory, load
from relevo.store.embedded import server as embedded
from relevo.text.durations import spoken
from relevo.text.masking import masked_url


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    actions = group(
        subparsers,
        "server",
        "start, stop or describe the embedded server; print ACL users",
        about="""
        The embedded server keeps its data in a directory, .relevo by default, and is used where no URL is given.
        Apps start it when they need it. A directory that this user did not make here, such as one that came with a
        repository, is used only after `trust`.
        """,
        examples="""
        relevo server start                 and it stays until it is stopped
        relevo server start --idle 600      stops by itself after ten minutes without a client
        relevo server status --json
        relevo server stop
        relevo server trust /srv/shop/.relevo
        """,
    )
    start = command(
        actions,
        "start",
        "start it, unless it runs",
        examples="""
        relevo server start
        relevo server start --idle 600 --data-dir /srv/shop/.relevo
        """,
        app=False,
    )
    start.add_argument(
        "--idle",
        type=_idle,
        default=0.0,
        metavar="SECONDS",
        help="stop after so long without a client (default: never)",
    )
    stop = command(
        actions,
        "stop",
        "stop it; its data stays",
        examples="""
        relevo server stop
        relevo server stop --data-dir /srv/shop/.relevo
        """,
        app=False,
    )
    status = command(
        actions,
        "status",
        "describe it; exit code 1 if it does not run",
        examples="""
        relevo server status
        relevo server status --json
        """,
        app=False,
    )
    trust = command(
        actions,
        "trust",
        "use a data directory that this user did not make here; only if you know who did",
        examples="""
        relevo server trust /srv/shop/.relevo
        relevo server trust .relevo --json
        """,
        app=False,
    )
    trust.add_argument("path", metavar="PATH", help="the directory")
    add_json(trust)
    server_acl.add(actions)
    for one in (start, stop, status):
        one.add_argument("--data-dir", metavar="DIR", help="its directory (default: RELEVO_DATA_DIR, else .relevo)")
        add_json(one)


def run(args: argparse.Namespace) -> int:
    """Do what is asked."""
    if args.action == "trust":
        return _trust(Screen(), args.json, Path(args.path))
    if args.action == "acl":
        return server_acl.run(args)
    settings = load(arguments={"data_dir": args.data_dir})
    data = data_directory(settings.data_dir)
    screen = Screen()
    match args.action:
        case "start":
            return _start(screen, args, settings, data)
        case "stop":
            stopped = embedded.stop(data)
            if args.json:
                screen.json({"stopped": stopped, "data_dir": str(data)})
            else:
                screen.line(f"stopped; its data stays in {data}" if stopped else f"no server was running on {data}")
            return Exit.OK
        case _:
            found = embedded.status(data)
            _describe(screen, args.json, found)
            if found.trusted is False:
                return Exit.CRITICAL
            return Exit.OK if found.running else Exit.WARNING


def _start(screen: Screen, args: argparse.Namespace, settings: Settings, data: Path) -> int:
    ran = embedded.status(data).running
    url = embedded.ensure(data, idle_timeout=args.idle)
    found = embedded.status(data)
    if args.json:
        screen.json({"started": not ran, "url": url, **msgspec.to_builtins(found)})
        return Exit.OK
    screen.line("it was running already" if ran else f"started {found.engine} {found.version}", "green")
    screen.fields([("url", url), ("data", found.data_dir), ("log", found.log)])
    if settings.url:
        screen.line(
            f"note: the settings name another server, {masked_url(settings.url)}, and apps use that one", "yellow"
        )
    return Exit.OK


def _trust(screen: Screen, as_json: bool, data: Path) -> int:
    is_new = embedded.trust(data)
    if as_json:
        screen.json({"trusted": True, "changed": is_new, "data_dir": embedded.status(data).data_dir})
    else:
        screen.line(f"{data} is trusted from now on" if is_new else f"{data} was trusted already", "green")
    return Exit.OK


def _describe(screen: Screen, as_json: bool, found: embedded.ServerStatus) -> None:
    if as_json:
        screen.json(found)
        return
    screen.line("running" if found.running else "not running", "green" if found.running else "yellow")
    screen.fields(
        [
            ("data", found.data_dir),
            ("trusted", {True: "yes", False: f"no: {found.refusal}", None: ""}[found.trusted]),
            ("engine", f"{found.engine} {found.version}".strip()),
            ("socket", found.socket if found.running else ""),
            ("process", str(found.pid or "")),
            ("up for", "" if found.uptime_s is None else spoken(found.uptime_s)),
            ("memory", "" if found.used_memory is None else mebibytes(found.used_memory)),
            ("keys", "" if found.keys is None else f"{found.keys:,}"),
            ("clients", "" if found.clients is None else f"{found.clients:,}"),
            ("append-only", {True: "on", False: "off", None: ""}[found.aof]),
            ("log", found.log if found.running else ""),
        ]
    )


def _idle(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1_000_000:
        raise argparse.ArgumentTypeError(f"seconds are needed, 0 for never; found {text[:40]!r}")
    return seconds
