"""The audit trail: who did what to queues, jobs and dead letters, when, and to how many.

The command line and the HTTP API write it, after the deed; a program that does an operator's work may write its own.
What is done in many steps may break off: it tells how far it is, and is written down however it ends.

Each deed goes to the server and, as a line of JSON, to the logger `relevo.audit`: who can write to the server can erase
the first, but not what the log of the machine has kept.
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
    """Which deeds are asked for."""

    since: Moment | None
    until: Moment | None
    who: str | None
    what: str | None
    app: str | None


#: Does something that nobody waits for.
Later: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

#: Seconds that a process which lives on waits for a server that is away, to write down what broke off.
OUTLASTS = 3600.0


def whoami() -> str:
    """Who runs this process: `ana@host`. By the kernel's word: variables such as LOGNAME may hold any name."""
    uid = os.getuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run under a number that has no name
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

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def note(self, what: str, *, who: str = "", via: str = "python", count: int = 1, **about: Any) -> None:
        """Write down what was done: `app.audit.note("dead.retry", count=7, queue="mails")`."""
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
        """A deed of many steps, which is written down however it ends, if it told how far it is.

            with app.audit.doing("dead.retry", queue="mails") as doing:
                app.dead.retry(queue="mails", watch=doing.tell)

        For async code `async with`; if the server is away then, `later` is given what writes it down.
        """
        return Doing(self._engine, what, who, via, later, about)

    def list(self, *, limit: int = 50, **which: Unpack[Asked]) -> Deeds:
        """The newest deeds, newest first.

        Asked for by time (`since` and `until`: datetimes, or how long ago: "2h"), by `who` ("ana@host", or "ana"), by
        kind (`what`: "dead.retry", or "dead"), and by the `app` they were done to.
        """
        return self._engine.run(self._list(limit, which))

    async def alist(self, *, limit: int = 50, **which: Unpack[Asked]) -> Deeds:
        """`list` for async code."""
        return await self._engine.arun(self._list(limit, which))

    def _list(self, limit: Any, which: Asked) -> Steps[Deeds]:
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 1000:
            raise OptionError(f"limit: a whole number from 1 to 1000 is needed, found {limit!r:.80}")
        if unknown := which.keys() - Asked.__annotations__.keys():
            raise OptionError(f"deeds cannot be asked for {', '.join(sorted(unknown))}")
        for name in ("who", "what", "app"):
            if not isinstance(value := which.get(name), str | None) or value == "":
                raise OptionError(f"{name}: a text is needed, found {value!r:.80}")
        now_ms = yield from self._engine.now_ms()
        since_ms, until_ms = stretch_ms(which.get("since"), which.get("until"), now_ms)
        names = {"who": which.get("who"), "what": which.get("what"), "app": which.get("app")}
        return (yield from deeds(self._engine.bus_keys, limit, Which(since_ms=since_ms, until_ms=until_ms, **names)))


def _deed(engine: Engine, what: str, who: str, via: str, count: int, about: dict[str, Any]) -> Deed:
    said = {name: value for name, value in about.items() if value is not None}
    return Deed(0, engine.name, who or whoami(), via, what, count, masked(said, engine.settings.mask))


@contextmanager
def _logged(engine: Engine, deed: Deed) -> Iterator[None]:
    """Around storing a deed: it is logged whether that succeeds or not."""
    try:
        yield
    except BaseException as error:
        _log(logging.ERROR, engine, deed, {"stored": False, "why": str(error) or type(error).__name__})
        raise
    _log(logging.INFO, engine, deed, {"stored": True})


def _log(level: int, engine: Engine, deed: Deed, how: dict[str, Any]) -> None:
    told = {name: getattr(deed, name) for name in ("who", "via", "what", "count", "app")}
    line = {**told, "env": engine.settings.env, "about": msgspec.to_builtins(deed.about), **how}
    log.log(level, "%s", json.dumps(line, separators=(",", ":")))  # in ASCII: no character of it moves a cursor


class Doing:
    """A deed under way. Whoever does it tells how far it is; at its end the trail is told, and whoever asked for it."""

    def __init__(
        self, engine: Engine, what: str, who: str, via: str, later: Later | None, about: dict[str, Any]
    ) -> None:
        self._engine = engine
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
            deed = self._deed()
            # It is done all the same, so what called it must not be told that it is not.
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
        """Whether there is something to write down; an error says how far it came."""
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
        # A question first, which may be asked until the server is back; a note that was sent twice is written twice.
        yield from self._engine.now_ms()
        yield write_deed(self._engine.bus_keys, deed)
