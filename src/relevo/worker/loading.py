"""Loads the app named on a command line: `module:app`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from relevo.app import Relevo
from relevo.errors import ConfigurationError
from relevo.text.nearest import did_you_mean
from relevo.worker.imports import import_tasks, imported


def load_app(target: str) -> Relevo:
    """Import `package.module:app`; searches the current directory first, as `python -m` does."""
    module_name, colon, attribute = target.partition(":")
    if not module_name or (colon and not attribute):
        raise ConfigurationError(f"the app is named like shop.jobs:app, found {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = imported(module_name)
    app = _app_in(module, module_name, attribute)
    app.engine.loaded_from = home_of(app, target)
    import_tasks(app.engine)
    return app


def _app_in(module: ModuleType, name: str, attribute: str) -> Relevo:
    if attribute:
        if not hasattr(module, attribute):
            apps = [one for one, value in vars(module).items() if isinstance(value, Relevo)]
            raise ConfigurationError(f"{name} has no {attribute!r}{did_you_mean(attribute, apps)}")
        found = getattr(module, attribute)
        if not isinstance(found, Relevo):
            raise ConfigurationError(f"{name}:{attribute} is not a Relevo app but {type(found).__name__}")
        return found
    apps = [one for one, value in vars(module).items() if isinstance(value, Relevo)]
    if len(apps) != 1:
        listed = ", ".join(f"{name}:{one}" for one in apps) or "none"
        raise ConfigurationError(f"say which app of {name} you mean; there are: {listed}")
    app: Relevo = getattr(module, apps[0])
    return app


def home_of(app: Relevo, target: str) -> str:
    """`module:attribute` of an app that was loaded by this name."""
    module, _, attribute = target.partition(":")
    if not attribute:
        attribute = next(name for name, value in vars(sys.modules[module]).items() if value is app)
    return f"{module}:{attribute}"
