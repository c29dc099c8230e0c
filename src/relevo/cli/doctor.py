"""`relevo doctor`: whether the server is fit to keep jobs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing

from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import STYLES, Screen
from relevo.cli.status import PATIENCE
from relevo.store.server_facts import gather
from relevo.store.server_verdicts import Level, Verdict, judge


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "doctor",
        "check whether the server is fit to keep jobs",
        about="""
        Looks at the server's version, role, memory policy, persistence, disk, access, latency and clock, and changes
        nothing. No app is needed: without one, the server of the settings is examined.
        Exit code 0: fine. 1: warnings. 2: a critical finding, or the server cannot be reached.
        """,
        examples="""
        relevo doctor                                the server of RELEVO_URL, else the embedded one
        relevo doctor -A shop:app --json
        """,
    )
    add_json(parser)
    add_app(parser, needed=False)


def run(args: argparse.Namespace) -> int:
    """Check the server and print the verdicts."""
    with closing(target.find(args, unnamed="doctor")) as app:
        facts = gather(lambda call: app.engine.client.run(call, patience=PATIENCE))
        verdicts, where = judge(facts), str(app.engine.client.source.locate(None))
    level = worst(verdicts)
    screen = Screen()
    # An embedded server starts in a trusted directory only.
    data = app.engine.client.source.data_dir if app.engine.client.source.is_embedded else None
    if args.json:
        trusted = None if data is None else {"path": str(data), "trusted": True}
        screen.json({"server": where, "data_dir": trusted, "level": level, "checks": verdicts})
    else:
        draw(screen, where if data is None else f"{where}, embedded; its data directory is trusted", verdicts)
    return {Level.WARNING: Exit.WARNING, Level.CRITICAL: Exit.CRITICAL}.get(level, Exit.OK)


def worst(verdicts: Sequence[Verdict]) -> Level:
    """The worst level. Checks that could not run are shown but raise no alarm: hosted servers forbid many commands."""
    levels = {verdict.level for verdict in verdicts}
    return next((level for level in (Level.CRITICAL, Level.WARNING) if level in levels), Level.OK)


def draw(screen: Screen, where: str, verdicts: Sequence[Verdict]) -> None:
    """Print the verdicts for people."""
    screen.line(f"server {where}\n")
    width = max(len(verdict.name) for verdict in verdicts)
    for verdict in verdicts:
        head = f"{verdict.level.value:<8}  {verdict.name:<{width}}  "
        screen.line(head + verdict.found, STYLES[verdict.level])
        if verdict.what_to_do:
            screen.line(" " * len(head) + f"→ {verdict.what_to_do}")
