"""Writes requests that were refused for lack of rights to the audit trail: some at once, then a few an hour."""

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

#: Entries of a burst, and seconds until another is allowed, to spare the server and the log. They have their own
#: stream, so that they displace no entry of the audit trail.
AT_ONCE, EVERY = 20, 180.0
#: Statuses: token missing or wrong, role or machine not allowed, too many wrong tokens.
_STATUSES = (401, 403, 429)


class Refusals:
    """Writes the entries after the answers. An entry has the number of refusals skipped before it."""

    def __init__(self, app: Relevo) -> None:
        self._app = app
        self._errands = Errands()
        self._room = float(AT_ONCE)
        self._since = time.monotonic()
        self._unwritten = 0
        self._is_waiting = False

    def note(self, asked: HTTPConnection, place: str, refused: Refused) -> None:
        """Note a refused request. `place`: the path of its route, as names in the actual one come from the sender."""
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
