"""Options of tasks and jobs: one set, checked once, with the reason for each default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import IntEnum
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from relevo.engine.backoff import Backoff
from relevo.engine.breaker import Breaker
from relevo.engine.job import PRIORITY_DEFAULT, PRIORITY_MAX
from relevo.errors import OptionError
from relevo.text.durations import seconds
from relevo.text.nearest import did_you_mean

#: Later times, combined with a priority, are not exact as scores of the server's sorted sets.
LAST_YEAR = 2200

#: Where a task runs: see worker/executors/registry.py.
ExecutorName = Literal["auto", "loop", "thread", "process"]
Errors = tuple[type[BaseException], ...]
Unique = Literal["", "no", "queued", "until_done"] | float
OnConflict = Literal["keep", "replace", "add"]
WhenItFails = Literal["cancel", "run", "wait"]


class Parent(Struct, frozen=True):
    """A job (or workflow) on which another one depends."""

    id: str
    queue: str
    app: str
    #: If this one dies, is cancelled or expires, the dependent is cancelled, runs anyway, or waits until this one was
    #: retried and succeeded.
    when_it_fails: WhenItFails = "cancel"


class Priority(IntEnum):
    """Names for the usual levels. Lower runs first; any number from 0 to 1023 is allowed."""

    CRITICAL = 0
    HIGH = 50
    NORMAL = PRIORITY_DEFAULT
    LOW = 150


class Options(Struct, frozen=True, kw_only=True):
    """How a task's jobs are run. Set by `@app.task(...)`, changed for one job by `.using(...)`."""

    queue: str = "default"
    priority: int = PRIORITY_DEFAULT
    #: 1 + 3 attempts outlast a restart of most dependencies.
    retries: int = 3
    backoff: Backoff = Backoff()
    #: Only these errors are retried; empty: all.
    retry_on: Errors = ()
    #: These errors are permanent: no retry, the job is dead-lettered at once.
    give_up_on: Errors = ()
    #: Seconds; None: no limit. A job that hangs must not hold a slot forever.
    timeout: float | None = 600.0
    #: Seconds after which SoftTimeout is raised inside the task; None: only the hard limit.
    soft_timeout: float | None = None
    #: Seconds for which a result can be fetched; 0: not stored. Enough for waiting callers, short enough for memory.
    result_ttl: float = 300.0
    #: Seconds for which a dead letter is kept: a long weekend and the days to investigate.
    failure_ttl: float = 7 * 86400.0
    #: Seconds after which a job that has not started expires.
    expires: float | None = None
    #: Crashes of its worker process after which a job is dead-lettered as poison.
    max_crashes: int = 3
    #: After this many failed attempts in a window the task's jobs wait, and one at a time runs as a probe; None: off.
    breaker: Breaker | None = None
    #: Name of the task that is run with the story of a dead job.
    on_failure: str | None = None
    executor: ExecutorName = "auto"
    tags: tuple[str, ...] = ()
    #: Arguments that are never displayed: the command line and the HTTP API show `***`.
    secret: tuple[str, ...] = ()
    #: The tenant; a queue is shared fairly between its tenants.
    tenant: str = ""
    #: Share of the tenant: 2 gets twice as much as 1.
    weight: float = 1.0
    # Of one job, not of a task:
    delay: float | None = None
    eta_ms: int | None = None
    name: str = ""
    #: How long the name (default: task and arguments) is held: "queued" until it starts, "until_done", or seconds.
    #: If unset, a name is held until the job is done; False: the name is only a label.
    unique: Unique = ""
    #: What happens if the name is taken: "keep" the job that has it, "replace" it by the new one if it has not started,
    #: or "add" the new one, for which the name is only a label then.
    on_conflict: OnConflict = "keep"
    #: The job starts when these are done.
    depends_on: tuple[Parent, ...] = ()


def _number(low: float, high: float, kind: str = "a number") -> Callable[[str, Any], float]:
    def read(what: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise OptionError(f"{what}: {kind} from {low:g} to {high:g} is needed, found {value!r}")
        return value

    return read


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(what: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise OptionError(f"{what}: a whole number from {low} to {high} is needed, found {value!r}")
        return int(value)

    return read


def _text(longest: int = 200, *, empty: bool = True) -> Callable[[str, Any], str]:
    def read(what: str, value: Any) -> str:
        if not isinstance(value, str) or (not value and not empty) or len(value) > longest or not value.isprintable():
            raise OptionError(f"{what}: printable text of at most {longest} characters is needed, found {value!r}")
        return value

    return read


def _seconds(what: str, value: Any) -> float:
    return seconds(value, what=what)


def _seconds_or_none(what: str, value: Any) -> float | None:
    return None if value is None else seconds(value, what=what)


def _limit(what: str, value: Any) -> float | None:
    found = _seconds_or_none(what, value)
    if found == 0:
        raise OptionError(f"{what}: more than 0 seconds is needed, found {value!r}; None is for no limit")
    return found


def _errors(what: str, value: Any) -> Errors:
    found = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    for one in found:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise OptionError(f"{what}: exception classes are needed, found {one!r}")
    return tuple(found)


def _texts(what: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise OptionError(f"{what}: a list of texts is needed, found {value!r}")
    return tuple(_text(empty=False)(what, one) for one in value)


def _executor(what: str, value: Any) -> ExecutorName:
    if value not in ("auto", "loop", "thread", "process"):
        raise OptionError(f"{what}: 'auto', 'loop', 'thread' or 'process' is needed, found {value!r}")
    return value  # type: ignore[no-any-return]


def _eta(what: str, value: Any) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise OptionError(f"{what}: {value!r} has no time zone; use datetime.now(UTC) or add tzinfo")
        if value.year > LAST_YEAR:
            raise OptionError(f"{what}: a time up to the year {LAST_YEAR} is needed, found {value!r}")
        return int(value.timestamp() * 1000)
    raise OptionError(f"{what}: an aware datetime is needed, found {value!r}; for a time from now use delay=")


def _unique(what: str, value: Any) -> Unique:
    if value is True:
        return "until_done"
    if value is False:
        return "no"
    if value is None:
        return ""
    if value in ("queued", "until_done"):
        return value  # type: ignore[no-any-return]
    try:
        found = seconds(value, what=what)
    except OptionError:
        found = 0
    if found < 0.001:  # the store counts in milliseconds, and a name must be held for at least one
        raise OptionError(f"{what}: True, False, 'queued', 'until_done' or a duration is needed, found {value!r:.80}")
    return found


def _on_conflict(what: str, value: Any) -> OnConflict:
    if value not in ("keep", "replace", "add"):
        raise OptionError(f"{what}: 'keep', 'replace' or 'add' is needed, found {value!r:.80}")
    return cast("OnConflict", value)


def _on_failure(what: str, value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return _text(1000, empty=False)(what, value)
    name = getattr(value, "target", None)
    if isinstance(name, str):
        return name
    raise OptionError(f"{what}: a task of the app or its name is needed, found {value!r}")


def _depends_on(what: str, value: Any) -> tuple[Parent, ...]:
    if value is None:
        return ()
    given = value if isinstance(value, list | tuple | set | frozenset) else [value]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):  # one pair, not a list of two
        given = [value]
    parents: dict[tuple[str, str], Parent] = {}
    for one in given:
        job, when = one if isinstance(one, tuple) and len(one) == 2 else (one, "cancel")
        job = getattr(job, "job", job)  # returned by Enqueue of relevo.compat
        id, queue, app = (getattr(job, name, None) for name in ("id", "queue", "_engine"))
        if not isinstance(id, str) or not isinstance(queue, str) or app is None:
            raise OptionError(
                f"{what}: jobs as enqueue() returned them are needed, found {one!r:.80}; app.job(id) finds them by id"
            )
        if when not in ("cancel", "run", "wait"):
            raise OptionError(
                f"{what}: what becomes of this job if {id} fails is 'cancel', 'run' or 'wait', found {when!r:.80}"
            )
        parents[queue, id] = Parent(id, queue, app.name, cast("WhenItFails", when))
    return tuple(parents.values())


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "queue": _text(empty=False),
    "priority": _whole(0, PRIORITY_MAX),
    "retries": _whole(0, 10_000),
    "backoff": lambda _, value: Backoff.of(value),
    "retry_on": _errors,
    "give_up_on": _errors,
    "timeout": _limit,
    "soft_timeout": _limit,
    "result_ttl": _seconds,
    "failure_ttl": _seconds,
    "expires": _seconds_or_none,
    "max_crashes": _whole(1, 1000),
    "breaker": lambda _, value: Breaker.of(value),
    "on_failure": _on_failure,
    "executor": _executor,
    "tags": _texts,
    "secret": _texts,
    "tenant": _text(),
    "weight": _number(0.01, 64),
    "delay": _seconds_or_none,
    "eta": _eta,
    "name": _text(255),
    "unique": _unique,
    "on_conflict": _on_conflict,
    "depends_on": _depends_on,
}
#: Other names for the same options.
ALIASES = {"countdown": "delay"}
#: Options of one job, which `@app.task` refuses.
ONE_JOB_ONLY = frozenset({"delay", "eta", "name", "depends_on"})
#: Options of the task, which `.using` refuses: a worker reads them from the task itself.
TASK_ONLY = frozenset({"retry_on", "give_up_on", "soft_timeout", "max_crashes", "breaker", "executor", "secret"})
#: The same, of which the decorator makes limits.
OF_LIMITS = frozenset({"concurrency", "rate", "burst"})


def changed(options: Options, changes: Mapping[str, Any], *, refuse: frozenset[str] = frozenset()) -> Options:
    """The options with changes, each checked. Refuses unknown names and suggests the nearest known one."""
    read: dict[str, Any] = {}
    for given, value in changes.items():
        option = ALIASES.get(given, given)
        reader = _READERS.get(option)
        if reader is None or option in refuse:
            where = "@app.task(...)" if option in TASK_ONLY | OF_LIMITS else ".using(...)"
            if reader is not None or option in OF_LIMITS:
                raise OptionError(f"{given!r} is an option of {where}, not of this call")
            if given == "group":
                raise OptionError("unknown option 'group': the option is tenant=; group(...) is a part of a workflow")
            raise OptionError(f"unknown option {given!r}{did_you_mean(given, [*_READERS, *ALIASES])}")
        read["eta_ms" if option == "eta" else option] = reader(given, value)
    if read.get("eta_ms") is not None and read.get("delay") is not None:
        raise OptionError("delay and eta say the same thing twice: give one of them")
    if "delay" in read or "eta_ms" in read:  # the latest change wins
        read = {"delay": None, "eta_ms": None, **read}
    return msgspec.structs.replace(options, **read)
