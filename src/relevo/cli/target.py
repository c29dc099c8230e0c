"""Finds the app of a command: imported from `module:app`, or made from its name alone.

A monitor needs only name, environment and URL, neither the app's code nor what that imports. A worker needs the code.
"""

from __future__ import annotations

import argparse
import os
import sys

from relevo.app import Relevo
from relevo.cli.exits import Exit
from relevo.errors import ConfigurationError, EmbeddedServerError, SettingsError
from relevo.settings import data_directory
from relevo.text.masking import masked_url

_WHAT_TO_GIVE = (
    "give -A module:app, or module:app as the first word (or set RELEVO_APP), or --name NAME [--env ENV] [--url URL]"
)


def find(args: argparse.Namespace, *, unnamed: str | None = None) -> Relevo:
    """The app named by the options of `options.add_app`.

    `unnamed` is the name used where none is given, for commands that only look at the server.
    """
    spec, name = args.app, args.name
    if spec and (name or args.env or args.url):
        raise ConfigurationError("--app brings its own settings: leave out --name, --env and --url, or leave out --app")
    if not spec and not name:
        spec = os.environ.get("RELEVO_APP")
        if not spec:
            name = unnamed
        elif args.env or args.url:
            raise ConfigurationError("--env and --url need --name: the app of RELEVO_APP brings its own settings")
    if spec:
        app = load(spec)
    elif name:
        app = Relevo(name, env=args.env, url=_without_secrets(args.url))
    else:
        raise ConfigurationError(f"which app? {_WHAT_TO_GIVE}")
    _refuse_to_create(app)
    return app


def load(spec: str) -> Relevo:
    """Import an app as a worker does; an error of the import becomes one line."""
    from relevo.worker.loading import load_app  # a monitor with --name needs no worker code

    module, _, attribute = spec.partition(":")
    if module.endswith(".py") or "/" in module:
        likely = module.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError(f"{spec!r} names a file, a module is needed: {likely}:{attribute or 'app'}?")
    return load_app(spec)


def _without_secrets(url: str | None) -> str | None:
    if url is not None and masked_url(url) != url:
        raise SettingsError(
            f"--url {masked_url(url)} holds a user name or password, and every user of this machine can read a command "
            "line. Put the whole URL in RELEVO_URL instead."
        )
    return url


def _refuse_to_create(app: Relevo) -> None:
    """Refuse to start an embedded server for a command that only reads: it would leave an empty data directory."""
    if app.settings.url is None and app.settings.env != "prod":
        place = data_directory(app.settings.data_dir)
        if not place.is_dir():
            raise EmbeddedServerError(
                f"no server: no URL is given, and {place} does not exist. Set RELEVO_URL, or run this where the app "
                "runs; `relevo server start` makes an embedded server here."
            )


def unheard_of(name: str, env: str) -> str:
    """The message for an app without any data: mostly its name is misspelt."""
    where = f"app {name!r} in {env!r}"
    return f"nothing is known of {where}: no recent job and no worker; check the name, --env and the server"


def is_unheard_of(app: Relevo) -> bool:
    """Whether the app was given by name only and has no data."""
    return not (app.tasks or app.queues() or app.pools())


def code_of_nothing(app: Relevo) -> Exit:
    """The exit code for an empty list: 1 if the app has no data at all, because its name may be misspelt."""
    if not is_unheard_of(app):
        return Exit.OK
    print(f"relevo: {unheard_of(app.name, app.settings.env)}", file=sys.stderr)
    return Exit.WARNING
