"""The audit trail: who did what to queues, jobs and dead letters, when, and to how many.

It is written by the roads on which operators come, the command line and the HTTP API, after the deed. A program that
does an operator's work may write its own.
"""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING, Any, TypeAlias

from relevo.errors import OptionError
from relevo.store.audit import Deed, deeds, write_deed
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo

__all__ = ["Audit", "Deed", "whoami"]

Deeds: TypeAlias = list[Deed]


def whoami() -> str:
    """Who runs this process: `ana@host`."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may run under a number that has no name
        return f"unknown@{socket.gethostname()}"


class Audit:
    """The deeds of operators under one prefix and env. Given by `app.audit`."""

    def __init__(self, app: Relevo) -> None:
        self._app = app

    def note(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """Write down what was done: `app.audit.note("dead.retry", count=7, queue="mails")`."""
        self._app.run(self._note(what, who, via, count, about))

    async def anote(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """`note` for async code."""
        await self._app.arun(self._note(what, who, via, count, about))

    def _note(self, what: str, who: str, via: str, count: int, about: dict[str, Any]) -> Call[int]:
        said = {name: value for name, value in about.items() if value is not None}
        return write_deed(self._app.bus_keys, Deed(0, self._app.name, who or whoami(), via, what, count, said))

    def list(self, *, limit: int = 50) -> Deeds:
        """The newest deeds, newest first."""
        return self._app.run(self._list(limit))

    async def alist(self, *, limit: int = 50) -> Deeds:
        """`list` for async code."""
        return await self._app.arun(self._list(limit))

    def _list(self, limit: Any) -> Call[Deeds]:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 1000:
            raise OptionError(f"limit: a whole number from 1 to 1000 is needed, found {limit!r:.80}")
        return deeds(self._app.bus_keys, limit)
