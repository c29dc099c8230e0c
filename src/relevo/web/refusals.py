"""Requests that were refused for who sent them are in the audit trail: some at once, then few an hour, with a count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from starlette.requests import HTTPConnection

from relevo.app import Relevo
from relevo.audit.store import REFUSED
from relevo.web.problems import Refused
from relevo.web.route import Errands

#: Entries that may come at once, and seconds until there is room for another. They are kept apart from the deeds, which
#: no number of them displaces; that their stream is not written all the time is for the server's sake, and the log's.
AT_ONCE, EVERY = 20, 180.0
#: No token or a wrong one, not for this role or this machine, too many wrong ones.
_STATUSES = (401, 403, 429)


class Refusals:
    """Writes them down after they were answered. An entry counts those before it for which there was no room."""

    def __init__(self, app: Relevo) -> None:
        self._app = app
        self._errands = Errands()
        self._room = float(AT_ONCE)
        self._since = time.monotonic()
        self._unwritten = 0
        self._is_waiting = False

    def note(self, asked: HTTPConnection, place: str, refused: Refused) -> None:
        """A request was refused. `place`: as the table has it, for names in a path are the sender's own words."""
        if refused.status not in _STATUSES:
            return
        self._unwritten += 1
        if self._is_waiting:
            return  # the entry that waits counts it
        now = time.monotonic()
        self._room = min(float(AT_ONCE), self._room + (now - self._since) / EVERY) - 1
        self._since = now
        who = refused.who or (asked.client.host if asked.client else "") or "unix socket"
        about = {"asked": f"{asked.scope['method']} {place}", "status": refused.status}
        if self._room >= 0:
            self._errands.go(self._written(who, about))
        else:
            self._is_waiting = True
            self._errands.go(self._later(-self._room * EVERY, who, about))

    async def _later(self, seconds: float, who: str, about: dict[str, object]) -> None:
        await asyncio.sleep(seconds)
        self._is_waiting = False
        await self._written(who, about)

    def _written(self, who: str, about: dict[str, object]) -> Coroutine[Any, Any, None]:
        count, self._unwritten = self._unwritten, 0
        return self._app.audit.anote(REFUSED, who=who, via="http", count=count, **about)
