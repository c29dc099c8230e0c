"""Loads the app named on a command line: `module:app`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from relevo.app import Relevo
from relevo.errors import ConfigurationError
from relevo.text.nearest import did_you_mean


def load_app(target: str) -> Relevo:
    """Import `package.module:app`; searches the current directory first, as `python -m` does."""
    module_name, colon, attribute = target.partition(":")
    if not module_name or (colon and not attribute):
        raise ConfigurationError(f"the app is named like shop.jobs:app, found {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ConfigurationError(
                f"no module {error.name!r} can be imported from {here}; "
                f"run the command where {module_name.split('.')[0]} lies, or set PYTHONPATH"
            ) from error
        raise ConfigurationError(f"{module_name} imports {error.name!r}, which is not installed") from error
    if colon:
        if not hasattr(module, attribute):
            apps = [name for name, value in vars(module).items() if isinstance(value, Relevo)]
            raise ConfigurationError(f"{module_name} has no {attribute!r}{did_you_mean(attribute, apps)}")
        found = getattr(module, attribute)
        if not isinstance(found, Relevo):
            raise ConfigurationError(f"{target} is not a Relevo app but {type(found).__name__}")
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, Relevo)]
    if len(apps) != 1:
        listed = ", ".join(f"{module_name}:{name}" for name in apps) or "none"
        raise ConfigurationError(f"say which app of {module_name} you mean; there are: {listed}")
    app: Relevo = getattr(module, apps[0])
    return app


def home_of(app: Relevo, target: str) -> str:
    """`module:attribute` of an app that was loaded by this name."""
    module, _, attribute = target.partition(":")
    if not attribute:
        attribute = next(name for name, value in vars(sys.modules[module]).items() if value is app)
    return f"{module}:{attribute}"
