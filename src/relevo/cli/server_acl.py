"""`relevo server acl`: users for the ACL file of a server."""

from __future__ import annotations

import argparse
import secrets

import msgspec

from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_json, command
from relevo.cli.screen import Screen
from relevo.errors import ConfigurationError
from relevo.settings import load
from relevo.store import acl

#: Bytes of a password.
LENGTH = 24


def add(actions: Subparsers) -> None:
    """Add the action."""
    parser = command(
        actions,
        "acl",
        "print users for the ACL file of a Redis or Valkey server",
        about="""
        Without --app, the users for people: operator and monitor. With it, those of an app: one that enqueues and one
        that works. With --service, the one of a process that speaks on the bus. Passwords are made anew each time.
        """,
        examples="""
        relevo server acl --env prod > users.acl
        relevo server acl --env prod --app shop >> users.acl
        relevo server acl --env prod --app billing --service invoices --calls mails --called-by shop >> users.acl
        """,
        app=False,
    )
    parser.add_argument("--app", metavar="NAME", help="the users of this app")
    several: list[tuple[str, str]] = [
        ("--service", "a service that the app is; give it once for each"),
        ("--calls", "a service that it sends to; once for each"),
        ("--called-by", "an app or a service that sends to it, and is answered; once for each"),
    ]
    for option, what in several:
        parser.add_argument(option, metavar="NAME", action="append", default=[], help=what)
    parser.add_argument("--env", metavar="ENV", help="the environment (default: RELEVO_ENV, else dev)")
    parser.add_argument("--prefix", metavar="PREFIX", help="the first part of every key (default: RELEVO_PREFIX)")
    parser.add_argument("--placeholders", action="store_true", help="CHANGE-ME-… instead of passwords")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print them."""
    settings = load(arguments={"env": args.env, "prefix": args.prefix})
    users = _users(args, settings.prefix, settings.env)
    passwords = [f"CHANGE-ME-{user.name}" if args.placeholders else secrets.token_hex(LENGTH) for user in users]
    rows = list(zip(users, passwords, strict=True))
    if args.json:
        Screen().page([{**msgspec.to_builtins(user), "password": password} for user, password in rows])
        return Exit.OK
    if not args.app:
        print(acl.DEFAULT)
    for user, password in rows:
        print(user.line(password))
    return Exit.OK


def _users(args: argparse.Namespace, prefix: str, env: str) -> list[acl.User]:
    if args.service:
        if not args.app:
            raise ConfigurationError("--service: which app is that service? Give --app, too")
        return [acl.of_service(prefix, env, args.app, args.service, args.calls, args.called_by)]
    if args.calls or args.called_by:
        raise ConfigurationError("--calls and --called-by are about a service: give --service, too")
    return acl.of_app(prefix, env, args.app) if args.app else [acl.OPERATOR, acl.monitor(prefix, env)]
