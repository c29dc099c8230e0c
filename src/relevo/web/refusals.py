"""Requests that were refused for who sent them are in the audit trail, so many an hour that they displace no deeds."""

from __future__ import annotations

import time

from relevo.app import Relevo
from relevo.web.problems import Refused
from relevo.web.route import Errands, Route

#: Entries that may come at once, and seconds until there is room for another: 480 a day, and the trail holds 10,000.
AT_ONCE, EVERY = 20, 180.0
#: No token or a wrong one, not for this role or this machine, too many wrong ones.
_STATUSES = (401, 403, 429)


class Refusals:
    """Writes them down after they were answered. An entry counts those before it for which there was no room."""

    def __init__(self, app: Relevo, errands: Errands) -> None:
        self._app = app
        self._errands = errands
        self._room = float(AT_ONCE)
        self._since = time.monotonic()
        self._unwritten = 0

    def note(self, route: Route, refused: Refused, address: str) -> None:
        """A request was refused."""
        if refused.status not in _STATUSES:
            return
        now = time.monotonic()
        self._room = min(float(AT_ONCE), self._room + (now - self._since) / EVERY)
        self._since = now
        self._unwritten += 1
        if self._room < 1:
            return
        self._room -= 1
        count, self._unwritten = self._unwritten, 0
        who = refused.who or address or "unix socket"
        asked = f"{route.method} {route.path}"  # as the table has it: names in a path are the sender's own words
        self._errands.go(
            self._app.audit.anote("http.refuse", who=who, via="http", count=count, asked=asked, status=refused.status)
        )
