"""The HTTP API: reads and controls an app's jobs over HTTP.

`relevo web` serves it; `api(app)` is the same as an ASGI app, to be mounted in your own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from relevo.app import Relevo
from relevo.errors import ConfigurationError

__all__ = ["api"]

_Message = MutableMapping[str, Any]
_ASGI = Callable[[_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]]


def api(app: Relevo) -> _ASGI:
    """The HTTP API of an app, to be mounted in a Starlette, FastAPI or Django site.

    >>> site.mount("/relevo", api(app))           # doctest: +SKIP

    Each request needs a token of the setting `web_tokens`, in addition to what the site requires; without tokens this
    raises `ConfigurationError`.
    """
    needs_extra()
    from relevo.web.asgi import api_of
    from relevo.web.gate import mounted_gate
    from relevo.web.table import ROUTES

    return api_of(app, mounted_gate(app), ROUTES)


def needs_extra() -> None:
    """Raise `ConfigurationError` if the packages of the extra `web` are not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f'the HTTP API needs {error.name}: pip install "relevo[web]"') from error
