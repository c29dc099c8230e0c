"""The audit trail: who did what to queues, jobs and dead letters, when, and to how many.

The command line and the HTTP API write an entry after each operation; a program that does an operator's work may write
its own. An operation of many steps may be interrupted: it reports its progress, and is recorded however it ends.

Each entry goes to the server and, as a line of JSON, to the logger `relevo.audit`: a client that can write to the
server can erase the first, but not the log of the machine.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import socket
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, Unpack

import msgspec

from relevo.audit.store import Deed, Which, deeds, write_deed
from relevo.engine.pauses import Until
from relevo.errors import OptionError, StoreError
from relevo.store.plan import Call, Steps
from relevo.text.masking import masked
from relevo.text.moments import Moment, stretch_ms

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

__all__ = ["Audit", "Deed", "Doing", "of_control", "whoami"]

log = logging.getLogger("relevo.audit")
if log.level == logging.NOTSET:
    log.setLevel(logging.INFO)  # also where a program logs warnings only

Deeds: TypeAlias = list[Deed]


class Asked(TypedDict, total=False):
    """Filters of the audit trail."""

    since: Moment | None
    until: Moment | None
    who: str | None
    what: str | None
    app: str | None


#: Runs a coroutine in the background.
Later: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

#: Seconds for which a process waits for an unreachable server to record an interrupted operation.
OUTLASTS = 3600.0


def whoami() -> str:
    """The user of this process, `ana@host`, from the uid: variables such as LOGNAME may hold any name."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run under a uid without a name
        user = str(uid)
    return f"{user}@{socket.gethostname()}"


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
    """The name and the details of a pause or a limit in the audit trail, the same for all interfaces.

    >>> of_control("pause", tenant="acme", reason="unpaid")
    ('tenant.pause', {'tenant': 'acme', 'reason': 'unpaid'})
    """
    kind = next((kind for kind, name in (("task", task), ("tenant", tenant), ("schedule", schedule)) if name), "queue")
    ends = until.isoformat() if isinstance(until, datetime) else str(until or "")
    given = {"task": task, "tenant": tenant, "name": schedule, "queue": queue, "reason": reason, "until": ends}
    return f"{kind}.{verb}", {name: value for name, value in given.items() if value}


class Audit:
    """The audit trail of one prefix and env: `app.audit`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """Add an entry: `app.audit.note("dead.retry", count=7, queue="mails")`."""
        deed = _deed(self._engine, what, who, via, count, about)
        with _logged(self._engine, deed):
            self._engine.run(write_deed(self._engine.bus_keys, deed))

    async def anote(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """`note` for async code."""
        deed = _deed(self._engine, what, who, via, count, about)
        with _logged(self._engine, deed):
            await self._engine.arun(write_deed(self._engine.bus_keys, deed))

    def doing(
        self, what: str, *, who: str = "", via: str = "python", later: Later | None = None, **about: Any
    ) -> Doing:
        """Record an operation of many steps however it ends, once it has reported progress.

            with app.audit.doing("dead.retry", queue="mails") as doing:
                app.dead.retry(queue="mails", watch=doing.tell)

        For async code `async with`; if the server is unreachable then, `later` gets the coroutine that adds the entry.
        """
        return Doing(self._engine, what, who, via, later, about)

    def list(self, *, limit: int = 50, offset: int = 0, **which: Unpack[Asked]) -> Deeds:
        """The newest entries, newest first.

        Filters: time (`since` and `until`: datetimes, or how long ago: "2h"), `who` ("ana@host", or "ana"), `what`
        ("dead.retry", or "dead"), and the `app` they concern.
        """
        return self._engine.run(self._list(limit, offset, which))

    async def alist(self, *, limit: int = 50, offset: int = 0, **which: Unpack[Asked]) -> Deeds:
        """`list` for async code."""
        return await self._engine.arun(self._list(limit, offset, which))

    def _list(self, limit: Any, offset: Any, which: Asked) -> Steps[Deeds]:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 1000:
            raise OptionError(f"limit: a whole number from 1 to 1000 is needed, found {limit!r:.80}")
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= 10**9:
            raise OptionError(f"offset: a whole number from 0 on is needed, found {offset!r:.80}")
        if unknown := which.keys() - Asked.__annotations__.keys():
            raise OptionError(f"deeds cannot be asked for {', '.join(sorted(unknown))}")
        for name in ("who", "what", "app"):
            if not isinstance(value := which.get(name), str | None) or value == "":
                raise OptionError(f"{name}: a text is needed, found {value!r:.80}")
        now_ms = yield from self._engine.now_ms()
        since_ms, until_ms = stretch_ms(which.get("since"), which.get("until"), now_ms)
        names = {"who": which.get("who"), "what": which.get("what"), "app": which.get("app")}
        fits = Which(since_ms=since_ms, until_ms=until_ms, **names)
        return (yield from deeds(self._engine.bus_keys, offset + limit, fits))[offset:]


def _deed(engine: Engine, what: str, who: str, via: str, count: int, about: dict[str, Any]) -> Deed:
    given = {name: value for name, value in about.items() if value is not None}
    return Deed(
        at_ms=0,
        app=engine.name,
        who=who or whoami(),
        via=via,
        what=what,
        count=count,
        about=masked(given, engine.settings.mask),
    )


@contextmanager
def _logged(engine: Engine, deed: Deed) -> Iterator[None]:
    """Log an entry, whether storing it succeeds or not."""
    try:
        yield
    except BaseException as error:
        _log(logging.ERROR, engine, deed, {"stored": False, "why": str(error) or type(error).__name__})
        raise
    _log(logging.INFO, engine, deed, {"stored": True})


def _log(level: int, engine: Engine, deed: Deed, how: dict[str, Any]) -> None:
    fields = {name: getattr(deed, name) for name in ("who", "via", "what", "count", "app")}
    line = {**fields, "env": engine.settings.env, "about": msgspec.to_builtins(deed.about), **how}
    log.log(level, "%s", json.dumps(line, separators=(",", ":")))  # ASCII only, without control characters


class Doing:
    """An operation in progress. `tell` reports its progress; at its end the entry is added to the trail."""

    def __init__(
        self, engine: Engine, what: str, who: str, via: str, later: Later | None, about: dict[str, Any]
    ) -> None:
        self._engine = engine
        #: Its name in the trail.
        self.what = what
        self._who = who
        self._via = via
        self._later = later
        self._about = about
        self._count: int | None = None

    def tell(self, count: int, /, **about: Any) -> None:
        """Report how many are done so far."""
        self._count = count
        self._about |= about

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ends(error):
            deed = self._deed()
            # The operation took effect, so a failure to record it must not look like its failure.
            with suppress(StoreError), _logged(self._engine, deed):
                self._engine.run(self._noting(deed))

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
        deed = self._deed()
        with suppress(StoreError), _logged(self._engine, deed):
            await self._engine.client.arun(self._noting(deed), patience=patience)

    def _ends(self, error: BaseException | None) -> bool:
        """Whether there is something to record; an error gets a note with the progress."""
        if self._count is None:
            return False
        if error is not None:
            self._about["broken_off"] = True
            error.add_note(f"it broke off after {self._count:,}")
        return True

    def _deed(self) -> Deed:
        assert self._count is not None
        return _deed(self._engine, self.what, self._who, self._via, self._count, self._about)

    def _noting(self, deed: Deed) -> Generator[Call[Any], Any, None]:
        # First a call that may be repeated until the server is back: adding an entry twice would duplicate it.
        yield from self._engine.now_ms()
        yield write_deed(self._engine.bus_keys, deed)
