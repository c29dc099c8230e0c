"""Which app a command is about: imported from `module:app`, or made from its name alone.

A monitor knows a name, an environment and a URL; it needs neither the app's code nor what that code imports. A worker
needs the code itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from relevo.app import Relevo, data_directory
from relevo.errors import ConfigurationError, EmbeddedServerError, SettingsError
from relevo.model.nearest import did_you_mean
from relevo.settings import masked

_WHAT_TO_GIVE = "give -A module:app (or set RELEVO_APP), or --name NAME [--env ENV] [--url URL]"


def find(args: argparse.Namespace, *, unnamed: str | None = None) -> Relevo:
    """The app that the options of `options.add_app` mean, for a command that looks at it.

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
    """Import an app: `shop:app`, `shop.jobs:app`; `shop` alone means `shop:app`. The working directory is searched."""
    module_name, _, attribute = spec.partition(":")
    attribute = attribute or "app"
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise ConfigurationError(_no_module_name(spec, module_name, attribute))
    if "" not in sys.path and (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - sys.path holds texts
        sys.path.insert(0, here)
    module = _import(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(_no_attribute(module, attribute))
        found = getattr(found, part)
    if not isinstance(found, Relevo):
        raise ConfigurationError(
            f"{module_name}:{attribute} is of type {type(found).__name__}, a Relevo is needed{_apps(module)}"
        )
    return found


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"no module {error.name!r} in {os.getcwd()} or where Python looks for modules; "  # noqa: PTH109
                "run the command where the module is, or set PYTHONPATH"
            ) from error
        raise _broken(name, error) from error
    except Exception as error:  # somebody's code: whatever it raises, it is told in one line
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    file, line = (own[-1].filename, own[-1].lineno) if own else ("", None)
    if isinstance(error, SyntaxError):
        file, line = error.filename or "", error.lineno
    where = f" ({file}, line {line})" if file and line else ""
    return ConfigurationError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}{where}")


def _no_module_name(spec: str, module_name: str, attribute: str) -> str:
    text = f"{spec!r} does not name an app; write module:app, such as shop.jobs:app"
    if module_name.endswith(".py") or "/" in module_name:
        module = module_name.removesuffix(".py").strip("./").replace("/", ".")
        text += f". A module, not a file: {module}:{attribute}?"
    return text


def _no_attribute(module: ModuleType, attribute: str) -> str:
    near = did_you_mean(attribute, [name for name in vars(module) if not name.startswith("_")])
    return f"module {module.__name__!r} has no {attribute!r}{near}{_apps(module)}"


def _apps(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Relevo)]
    found = ", ".join(f"{module.__name__}:{name}" for name in names)
    return f" (apps in it: {found})" if names else " (it has no app: write app = Relevo(...) in it)"


def _without_secrets(url: str | None) -> str | None:
    if url is not None and masked(url) != url:
        raise SettingsError(
            f"--url {masked(url)} holds a user name or password, and everybody on this machine can read a command "
            "line. Put the whole URL in RELEVO_URL instead."
        )
    return url


def _refuse_to_create(app: Relevo) -> None:
    """Looking must not leave an empty data directory behind, least of all in the wrong place."""
    if app.settings.url is None and app.settings.env != "prod":
        place = data_directory(app.settings.data_dir)
        if not place.is_dir():
            raise EmbeddedServerError(
                f"no server: no URL is given, and {place} does not exist. Set RELEVO_URL, or run this where the app "
                "runs; `relevo server start` makes an embedded server here."
            )
