"""Imports the user's modules: that of the app, and those that the setting `imports` names, where its tasks are."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from relevo.engine.engine import Engine
from relevo.errors import ConfigurationError, RelevoError

#: A package's own program, which would run if it were imported.
_PROGRAM = "__main__"


class BrokenModule(ConfigurationError):
    """The code of a module raised an error when it was imported. The error is its cause."""


def import_tasks(engine: Engine) -> None:
    """Import the modules that the setting `imports` names, so that their tasks are registered."""
    for pattern in engine.settings.imports:
        names = list(modules_of(pattern))
        if not names:
            raise ConfigurationError(f"imports: there is no module {pattern!r}")
        for name in names:
            try:
                imported(name)
            except ConfigurationError as error:
                raise type(error)(f"imports: {error}") from error.__cause__


def modules_of(pattern: str) -> Iterator[str]:
    """The modules that a pattern names: `shop.mails`; `shop.*`, those in a package; `shop.*.tasks`, in its packages."""
    package, star, rest = pattern.partition(".*")
    if not star:
        yield pattern
        return
    paths = getattr(imported(package), "__path__", None)
    if paths is None:
        raise ConfigurationError(f"imports: {package!r} is a module and no package, so {pattern!r} names nothing")
    for found in sorted(pkgutil.iter_modules(paths), key=lambda one: one.name):
        name = f"{package}.{found.name}"
        if not rest and found.name != _PROGRAM:
            yield name
        elif rest and found.ispkg:
            yield from (one for one in modules_of(name + rest) if _exists(one))


def _exists(name: str) -> bool:
    imported(name.rpartition(".")[0])
    return importlib.util.find_spec(name) is not None


def imported(name: str) -> ModuleType:
    """Import a module; any error of it becomes a ConfigurationError that says where it was raised."""
    here = Path.cwd()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(
                f"no module {error.name!r} can be imported from {here}; "
                f"run the command where {name.split('.')[0]} lies, or set PYTHONPATH"
            ) from error
        raise ConfigurationError(f"{name} imports {error.name!r}, which is not installed") from error
    except RelevoError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything, and scripts end themselves
        raise BrokenModule(_told(name, error)) from error


def _told(name: str, error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what, file, line = str(error), frame.filename, frame.lineno
    if isinstance(error, SyntaxError) and error.filename:
        what, file, line = error.msg, error.filename, error.lineno
    return f"module {name!r} cannot be imported: {type(error).__name__}: {what} ({file}, line {line})"
