"""Calls that make jobs are numbered by their connection, so that each is carried out once, and not after its deadline.

TCP may deliver a request after its sender closed the connection and repeated the request on another one.
`engine/lua/include/accept_call.lua` counts the calls of a session, which belongs to one connection and one queue and
lasts for seconds:

- a call counts only if it is the next of its session;
- the first call of a session, and each repeated one, counts only while its caller waits;
- a repeated call names its earlier tries: the counters show whether one of them was carried out, and refuse those that
  arrive later.

The server forgets a session some time after its first call, and refuses calls of unknown sessions. If the caller still
waits when it reads a refusal (`Late`), its idea of the server's time was wrong. The refusal contains the server's time,
and the call is sent again with it.
"""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

from relevo.store.replies import Late

#: Sessions of one connection at most: one for each queue that it wrote to recently.
MOST = 1000
#: The following are in units of `call_timeout`. A session is used for one, and its last call fails after another one.
#: From then on the call may be repeated for so long:
REPEATED = 1
#: A call refused as late while its caller waits is sent again with twice the time, so often (large bodies, slow links):
DOUBLINGS = 2
#: The counter of a session outlives the last repetition of its calls: at most 2 + 2 * REPEATED + 1 + 2 ** DOUBLINGS.
KEPT = 10


class Try(NamedTuple):
    """One attempt at a call, as it goes over the wire."""

    session: str
    #: Its number. If it is the first of its session, timed or repeated, these follow: from when until when it may
    #: arrive, how long the server knows its session, and `session number` of each earlier try.
    number: int | str

    @property
    def name(self) -> str:
        """How a repeated call refers to it."""
        return f"{self.session} {str(self.number).partition(' ')[0]}"


class ServerClock:
    """What this process knows about a server's clock: at first its own time, later that of refusals."""

    def __init__(self) -> None:
        self._ahead_ms = (time.time() - time.monotonic()) * 1000

    def now_ms(self) -> int:
        """The server's time now, as far as it is known."""
        return int(time.monotonic() * 1000 + self._ahead_ms)

    def learn(self, server_ms: int) -> None:
        """Take over the time that the server has just sent."""
        self._ahead_ms = server_ms - time.monotonic() * 1000


class _Session:
    __slots__ = ("count", "name", "until")

    def __init__(self, until: float) -> None:
        self.name = secrets.token_hex(6)
        self.count = 0
        self.until = until


class Numbers:
    """The sessions of one connection."""

    def __init__(self, clock: ServerClock, call_timeout: float) -> None:
        self._clock = clock
        self._call_timeout = call_timeout
        self._sessions: dict[bytes | None, _Session] = {}

    def next(self, route: bytes | None, before: str = "", timed: bool = False, doublings: int = 0) -> Try:
        """Number the next call to a queue; it must be sent before another is numbered."""
        session = self._sessions.get(route)
        if session is None or doublings or time.monotonic() >= session.until:
            if len(self._sessions) >= MOST:
                self._sessions.clear()
            session = self._sessions[route] = _Session(time.monotonic() + self._call_timeout)
        session.count += 1
        if session.count == 1 or timed or before:
            now_ms, span_ms = self._clock.now_ms(), int(self._call_timeout * 1000)
            by_ms = now_ms + (span_ms << doublings)
            return Try(session.name, f"{session.count} {now_ms} {by_ms} {span_ms * KEPT} {before}".rstrip())
        return Try(session.name, session.count)

    def refused(self, route: bytes | None, error: BaseException) -> None:
        """A call failed: begin a new session, because later calls in this one may not count either."""
        self._sessions.pop(route, None)
        if isinstance(error, Late):
            self._clock.learn(error.now_ms)
