"""Limits of a queue, its tasks and its tenants: set, removed, paused, and read; and the circuit breakers of tasks.

All of them are named as `model.limits.name_of` does.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from msgspec import Struct

from relevo.engine.breaker import Breaker
from relevo.limits.limit import CODE, QUEUE, TASK, TENANT, Limit, limit_in
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Running jobs that one call looks at.
CHUNK = 200
#: Names that one call looks at: of each, the head of its line is read, at most three milliseconds in all.
NAMES = 50
_ORDER = (QUEUE, TASK, TENANT)
#: At the end of a default.
_OVERRIDDEN = " o"


class LimitInfo(Struct, frozen=True, repr_omit_defaults=True, kw_only=True):
    """A limit, with how many jobs run and wait under it. With neither tenant nor task, that of the whole queue."""

    tenant: str
    #: How many of its jobs may run at once; None: any number.
    concurrency: int | None
    #: How fast they may start, such as `10/s`; None: as fast as workers take them.
    rate: str | None
    #: How many may start at once after an idle time; None without a rate.
    burst: int | None
    paused: bool
    running: int
    #: Jobs that would be ready without this limit. They are counted among the waiting ones. Jobs that wait for a limit
    #: of the whole queue are not parked: they stay ready.
    parked: int
    task: str = ""
    #: When the pause expires; None: it does not.
    until_ms: int | None = None
    #: Of a task whose attempts failed too often: none start (open), or one at a time (half_open).
    breaker: Literal["", "open", "half_open"] = ""
    #: The limit that the task's code gives as the default, such as `concurrency=5, rate=10/s`; '': none.
    default: str = ""
    #: Whether an operator set another one, which is in force instead.
    is_overridden: bool = False

    @property
    def kind(self) -> Literal["queue", "task", "tenant"]:
        """What it is a limit of."""
        return "task" if self.task else "tenant" if self.tenant else "queue"


def limit(queue: QueueKeys, name: str, limit: Limit) -> Generator[Call[Any], Any, bool]:
    """Set or change a limit: returns whether that changed anything."""
    return _set(queue, name, "limit", limit.terms)


def unlimit(queue: QueueKeys, name: str) -> Call[bool]:
    """Remove a limit; a default of the code comes back. Returns whether that changed anything."""
    return _call(queue, name, "unlimit")


def declare(queue: QueueKeys, name: str, terms: str) -> Generator[Call[Any], Any, bool]:
    """Set the default that a task's code gives: returns whether that changed the limit in force."""
    return _set(queue, name, "declare", terms)


def declared(queue: QueueKeys, names: list[str]) -> Call[list[str | None]]:
    """The terms of the defaults of these tasks; None: it has none."""

    def decode(texts: list[bytes | None]) -> list[str | None]:
        return [None if text is None else text.decode(errors="replace").removesuffix(_OVERRIDDEN) for text in texts]

    return Call([b"HMGET", queue.key("limits"), *(CODE + name for name in names)], decode)


def pause(queue: QueueKeys, name: str, ends_ms: int = 0, note: bytes = b"{}") -> Generator[Call[Any], Any, bool]:
    """Start no more jobs of a task or a tenant: whether that changed anything. `ends_ms` 0: until it is resumed."""
    return _set(queue, name, "pause", "", ends_ms, note)


def resume(queue: QueueKeys, name: str) -> Call[bool]:
    """Start jobs of a task or a tenant again, also if its breaker has opened: whether that changed anything."""
    return _call(queue, name, "resume")


def _set(
    queue: QueueKeys, name: str, does: str, terms: str = "", ends_ms: int = 0, note: bytes = b"{}"
) -> Generator[Call[Any], Any, bool]:
    changed: bool = yield _call(queue, name, does, terms, ends_ms, note)
    yield from adopt_all(queue, name)
    return changed


def _call(queue: QueueKeys, name: str, does: str, terms: str = "", ends_ms: int = 0, note: bytes = b"{}") -> Call[bool]:
    script = queue.script("limits/set_limit")
    return Call([name, does, terms, ends_ms, note], bool, script, queue.of(script))


def adopt_all(queue: QueueKeys, name: str) -> Generator[Call[Any], Any, None]:
    """Count jobs that run already. Jobs that start from now on are counted as they start; twice does no harm."""
    running: list[bytes] = yield Call([b"ZRANGE", queue.key("running"), 0, -1])
    for at in range(0, len(running), CHUNK):
        yield adopt(queue, name, running[at : at + CHUNK])


def adopt(queue: QueueKeys, name: str, ids: list[bytes]) -> Call[int]:
    """Count those of these running jobs that are under the limit: returns how many were not counted before."""
    script = queue.script("limits/count_running")
    return Call([name, *ids], int, script, queue.of(script))


def trip(queue: QueueKeys, task: str, failed: int, breaker: Breaker, note: bytes = b"{}") -> Call[int]:
    """Attempts of a task failed: when its breaker, which opens now, lets a probe start; 0: it does not open."""
    script = queue.script("limits/count_failures")
    times = (round(span * 1000) for span in (breaker.window, breaker.rest, breaker.longest))
    args: list[Argument] = [TASK + task, failed, breaker.failures, *times, note]
    return Call(args, int, script, queue.of(script), repeatable=False)


def limits(queue: QueueKeys) -> Generator[Call[Any], Any, list[LimitInfo]]:
    """All that have a limit, are paused or have an open breaker: the queue, then tasks, then tenants, by name."""
    found: list[bytes] = yield Call([b"HKEYS", queue.key("limits")])
    ours = (name for name in (one.decode(errors="replace") for one in found) if name[:2] in _ORDER)
    names = sorted(ours, key=lambda name: (_ORDER.index(name[:2]), name))
    rows: list[LimitInfo] = []
    for at in range(0, len(names), NAMES):
        rows += yield gauge(queue, names[at : at + NAMES])
    return rows


def gauge(queue: QueueKeys, names: list[str]) -> Call[list[LimitInfo]]:
    """The state of these limits; names without one are left out."""
    script = queue.script("limits/read_limits")

    def decode(reply: list[Any]) -> list[LimitInfo]:
        now_ms, *rest = reply
        rows = zip(names, rest[::4], rest[1::4], rest[2::4], rest[3::4], strict=True)
        read = ((name, limit_in(text, now_ms), counts) for name, text, *counts in rows if text)
        return [_read(name, one, now_ms, *counts) for name, one, counts in read if one is not None]

    return Call([*names], decode, script, queue.of(script))


def _read(name: str, one: Limit, now_ms: int, running: int, parked: int, code: bytes) -> LimitInfo:
    is_task = name.startswith(TASK)
    terms = code.decode(errors="replace").removesuffix(_OVERRIDDEN)
    return LimitInfo(
        tenant="" if is_task else name[2:],
        concurrency=one.concurrency,
        rate=None if one.rate is None else str(one.rate),
        burst=one.burst,
        paused=one.paused,
        running=running,
        parked=parked,
        task=name[2:] if is_task else "",
        until_ms=one.resumes_ms,
        breaker="" if one.probe_ms is None else "open" if one.probe_ms > now_ms else "half_open",
        default=_in_words(terms),
        is_overridden=code.endswith(_OVERRIDDEN.encode()),
    )


def _in_words(terms: str) -> str:
    words = zip(("concurrency", "rate", "burst"), terms.split(" "), strict=False)
    return ", ".join(f"{what}={value}" for what, value in words if value not in ("", "-"))
