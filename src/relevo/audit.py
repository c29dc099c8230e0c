"""The audit trail: who did what to queues, jobs and dead letters, when, and to how many.

It is written by the roads on which operators come, the command line and the HTTP API, after the deed. A program that
does an operator's work may write its own. What is done in many steps may break off: it tells how far it is, and is
written down however it ends.
"""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Callable, Coroutine, Generator
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from relevo.errors import OptionError, StoreError
from relevo.model.moments import Moment, stretch_ms
from relevo.model.pauses import Until
from relevo.store.audit import Deed, deeds, write_deed
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo

__all__ = ["Audit", "Deed", "Doing", "of_control", "whoami"]

log = logging.getLogger("relevo.audit")

Deeds: TypeAlias = list[Deed]
#: Does something that nobody waits for.
Later: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

#: Seconds that a process which lives on waits for a server that is away, to write down what broke off.
OUTLASTS = 3600.0


def whoami() -> str:
    """Who runs this process: `ana@host`."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container may run under a number that has no name
        return f"unknown@{socket.gethostname()}"


def of_control(
    verb: str,
    *,
    queue: str | None = None,
    task: str | None = None,
    tenant: str | None = None,
    schedule: str | None = None,
    reason: str = "",
    until: Until = None,
) -> tuple[str, dict[str, Any]]:
    """What the trail calls a pause or a limit, by whichever road it came, and what it says of it.

    >>> of_control("pause", tenant="acme", reason="unpaid")
    ('tenant.pause', {'tenant': 'acme', 'reason': 'unpaid'})
    """
    kind = next((kind for kind, name in (("task", task), ("tenant", tenant), ("schedule", schedule)) if name), "queue")
    ends = until.isoformat() if isinstance(until, datetime) else str(until or "")
    said = {"task": task, "tenant": tenant, "name": schedule, "queue": queue, "reason": reason, "until": ends}
    return f"{kind}.{verb}", {name: value for name, value in said.items() if value}


class Audit:
    """The deeds of operators under one prefix and env. Given by `app.audit`."""

    def __init__(self, app: Relevo) -> None:
        self._app = app

    def note(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """Write down what was done: `app.audit.note("dead.retry", count=7, queue="mails")`."""
        self._app.run(_written(self._app, what, who, via, count, about))

    async def anote(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """`note` for async code."""
        await self._app.arun(_written(self._app, what, who, via, count, about))

    def doing(
        self, what: str, *, who: str = "", via: str = "python", later: Later | None = None, **about: Any
    ) -> Doing:
        """A deed of many steps, which is written down however it ends, if it told how far it is.

            with app.audit.doing("dead.retry", queue="mails") as doing:
                app.dead.retry(queue="mails", watch=doing.tell)

        For async code `async with`; if the server is away then, `later` is given what writes it down.
        """
        return Doing(self._app, what, who, via, later, about)

    def list(self, *, limit: int = 50, since: Moment | None = None, until: Moment | None = None) -> Deeds:
        """The newest deeds, newest first; `since` and `until` are datetimes, or how long ago ("2h")."""
        return self._app.run(self._list(limit, since, until))

    async def alist(self, *, limit: int = 50, since: Moment | None = None, until: Moment | None = None) -> Deeds:
        """`list` for async code."""
        return await self._app.arun(self._list(limit, since, until))

    def _list(self, limit: Any, since: Any, until: Any) -> Generator[Call[Any], Any, Deeds]:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 1000:
            raise OptionError(f"limit: a whole number from 1 to 1000 is needed, found {limit!r:.80}")
        now_ms = yield from self._app.now_ms()
        found: Deeds = yield deeds(self._app.bus_keys, limit, *stretch_ms(since, until, now_ms))
        return found


def _written(app: Relevo, what: str, who: str, via: str, count: int, about: dict[str, Any]) -> Call[int]:
    said = {name: value for name, value in about.items() if value is not None}
    return write_deed(app.bus_keys, Deed(0, app.name, who or whoami(), via, what, count, said))


class Doing:
    """A deed under way. Whoever does it tells how far it is; at its end the trail is told, and whoever asked for it."""

    def __init__(self, app: Relevo, what: str, who: str, via: str, later: Later | None, about: dict[str, Any]) -> None:
        self._app = app
        #: What the trail calls it.
        self.what = what
        self._who = who
        self._via = via
        self._later = later
        self._about = about
        self._count: int | None = None

    def tell(self, count: int, /, **about: Any) -> None:
        """So many are done by now."""
        self._count = count
        self._about |= about

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends(error):
            try:
                self._app.run(self._noting())
            except StoreError as refused:
                self._complain(refused)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ends(error):
            return
        if self._later is not None and isinstance(error, StoreError):
            self._later(self._anote(OUTLASTS))
        else:
            await self._anote(None)

    async def _anote(self, patience: float | None) -> None:
        try:
            await self._app.client.arun(self._noting(), patience=patience)
        except BaseException as refused:
            self._complain(refused)
            if not isinstance(refused, StoreError):
                raise

    def _ends(self, error: BaseException | None) -> bool:
        """Whether there is something to write down; an error says how far it came."""
        if self._count is None:
            return False
        if error is not None:
            self._about["broken_off"] = True
            error.add_note(f"it broke off after {self._count:,}")
        return True

    def _noting(self) -> Generator[Call[Any], Any, None]:
        assert self._count is not None
        # A question first, which may be asked until the server is back; a note that was sent twice is written twice.
        yield from self._app.now_ms()
        yield _written(self._app, self.what, self._who, self._via, self._count, self._about)

    def _complain(self, error: BaseException) -> None:
        """It is done all the same, so whoever asked must not be told that it is not."""
        did = (self._who or whoami(), self.what, self._count, self._about)
        log.error("%s did %s (%d, %s), which could not be written down: %s", *did, str(error) or type(error).__name__)
