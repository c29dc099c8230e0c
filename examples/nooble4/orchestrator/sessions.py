"""The sessions that this process holds, each with a web socket."""

from __future__ import annotations

import logging

from msgspec import Struct

log = logging.getLogger("nooble4.session")


class Socket:
    """Stands for a web socket: what is sent is shown."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._ended: set[str] = set()

    async def send(self, document_id: str, status: str, text: str) -> None:
        """Push something to the browser. News of the way that arrives after the end is not shown any more."""
        if status == "progress" and document_id in self._ended:
            return
        if status not in ("accepted", "progress"):
            self._ended.add(document_id)
        log.info("%s <- %s %s: %s", self._session, document_id, status, text)


class Upload(Struct, frozen=True):
    """What comes from the browser."""

    session: str
    tenant: str
    tier: str
    task_id: str
    document_id: str
    text: str


class Sessions:
    """Open sockets by session."""

    def __init__(self) -> None:
        self._open: dict[str, Socket] = {}

    def open(self, session: str) -> None:
        """Somebody connected."""
        self._open.setdefault(session, Socket(session))

    def find(self, session: str) -> Socket | None:
        """The socket of a session; None: it is not, or no longer, held by this process."""
        return self._open.get(session)
