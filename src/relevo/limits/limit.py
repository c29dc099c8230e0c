"""Limits of a queue, a task or a tenant: concurrency, rate of starts, pause.

A rate is a bucket of `burst` tokens that is filled at that rate; a job takes a token when it starts.
"""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import Struct

from relevo.errors import OptionError

#: Seconds of the units in which rates are given.
_SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_RATE = re.compile(rf"([0-9]+(?:\.[0-9]+)?)/([{''.join(_SPANS)}])")
_EXAMPLES = '"10/s", "100/m", "5/h", "1/d", or a number per second'

#: Jobs per second: from one a day to one a microsecond, the store's unit.
SLOWEST, FASTEST = 1 / 86_400, 1_000_000
#: Still exact in the server's doubles at the slowest rate.
LARGEST_BURST = 100_000
MOST_AT_ONCE = 1_000_000
LONGEST_NAME = 200
LONGEST_TASK = 1000
_NONE = "-"
#: The terms of no limit at all.
NO_TERMS = "- - -"
#: Before the name of a task: what its code gives as the default, with ` o` if an operator set another limit.
CODE = "d:"

#: The store's names for what is limited: the whole queue, a task (`t:shop.charge`), a tenant (`g:acme`).
QUEUE, TASK, TENANT = "q:", "t:", "g:"


class Rate(Struct, frozen=True):
    """A number per unit of time, as the user wrote it: `100/m`."""

    count: float
    unit: str = "s"

    @property
    def per_second(self) -> float:
        """The same in jobs per second."""
        return self.count / _SPANS[self.unit]

    def __str__(self) -> str:
        return f"{int(self.count) if self.count == int(self.count) else repr(self.count)}/{self.unit}"


class Limit(Struct, frozen=True, kw_only=True):
    """The limits of a queue, task or tenant. None: not limited in this way."""

    concurrency: int | None = None
    rate: Rate | None = None
    #: Tokens of a full bucket; None without a rate.
    burst: int | None = None
    paused: bool = False
    #: When the pause ends by itself; None: it does not.
    resumes_ms: int | None = None
    #: When the task's open breaker lets a probe start.
    probe_ms: int | None = None

    def __str__(self) -> str:
        """As stored: `2 10/s 10 0`."""
        return f"{self.terms} {self.resumes_ms or int(self.paused)}"

    @property
    def terms(self) -> str:
        """The same without the pause."""
        return " ".join(_NONE if one is None else str(one) for one in (self.concurrency, self.rate, self.burst))


def limit_of(concurrency: Any = None, rate: Any = None, burst: Any = None) -> Limit:
    """Build a limit; refuses invalid values with `OptionError`.

    >>> str(limit_of(concurrency=2, rate="100/m"))
    '2 100/m 2 0'
    """
    if concurrency is None and rate is None:
        raise OptionError("limit: give concurrency=, rate= or both; unlimit() takes a limit away")
    if concurrency is not None:
        hint = "; pause(...) lets none of them start" if concurrency == 0 else ""
        _check_whole("concurrency", concurrency, MOST_AT_ONCE, hint)
    if rate is None:
        if burst is not None:
            raise OptionError("burst: it is how many may start at once at a rate; give rate= as well")
        return Limit(concurrency=concurrency)
    found = rate_of(rate)
    if burst is None:
        burst = min(max(1, math.ceil(found.per_second)), LARGEST_BURST)  # one second's worth
    _check_whole("burst", burst, LARGEST_BURST)
    return Limit(concurrency=concurrency, rate=found, burst=burst)


def rate_of(value: Any) -> Rate:
    """Read a rate.

    >>> str(rate_of("100/m")), str(rate_of(2.5))
    ('100/m', '2.5/s')
    """
    match value:
        case str():
            parts = _RATE.fullmatch(value.replace(" ", ""))
            if parts is None:
                raise OptionError(f"rate: not a rate: {value!r:.60}. Give {_EXAMPLES}.")
            found = Rate(float(parts[1]), parts[2])
        case int() | float() if not isinstance(value, bool):
            found = Rate(value if 0 < value <= FASTEST else 0)  # also refuses NaN and integers too large for a float
        case _:
            raise OptionError(f"rate: not a rate: {value!r:.60}. Give {_EXAMPLES}.")
    if not SLOWEST <= found.per_second <= FASTEST:
        raise OptionError(f"rate: from 1/d to {FASTEST}/s is possible, found {value!r:.60}. Give {_EXAMPLES}.")
    return Rate(float(found.count), found.unit)


def tenant_of(name: Any) -> str:
    """The name of a tenant, checked as the job option `tenant` is."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise OptionError(
            f"tenant: printable text of 1 to {LONGEST_NAME} characters is needed, found {name!r:.80}; "
            "jobs without a tenant have no limit"
        )
    return name


def name_of(tenant: Any = None, task: Any = None) -> str:
    """The store's name for a tenant, a task, or with neither the whole queue.

    >>> name_of(), name_of("acme"), name_of(task="shop.charge")
    ('q:', 'g:acme', 't:shop.charge')
    """
    if tenant is not None and task is not None:
        raise OptionError("a tenant or a task: give one of them; a job may be under the limits of both")
    if task is not None:
        return TASK + task_of(task)
    return QUEUE if tenant is None else TENANT + tenant_of(tenant)


def task_of(task: Any) -> str:
    """The name of a task, given as the task or as text."""
    name = getattr(task, "target", task)
    if not isinstance(name, str) or not name or len(name) > LONGEST_TASK or not name.isprintable():
        raise OptionError(
            f"task: a task or its name is needed, printable text of at most {LONGEST_TASK} characters, "
            f"found {task!r:.80}"
        )
    return name


def limit_in(text: bytes, now_ms: int = 0) -> Limit | None:
    """Read a stored limit; None: it was not written by relevo."""
    try:
        return read_limit(text.decode(), now_ms)
    except ValueError:
        return None


def read_limit(text: str, now_ms: int = 0) -> Limit:
    """Read the text of `str(limit)`, to which the store may have added an open breaker."""
    concurrency, rate, burst, paused, *open = text.split(" ")
    count, _, unit = rate.partition("/")
    if rate != _NONE and (unit not in _SPANS or not 0 < float(count) < float("inf")):
        raise ValueError(rate)
    resumes_ms = int(paused) if int(paused) > 1 else None
    return Limit(
        concurrency=None if concurrency == _NONE else int(concurrency),
        rate=None if rate == _NONE else Rate(float(count), unit),
        burst=None if burst == _NONE else int(burst),
        paused=paused == "1" or (resumes_ms or 0) > now_ms,
        resumes_ms=resumes_ms if (resumes_ms or 0) > now_ms else None,
        probe_ms=int(open[0].partition("/")[0]) if open else None,
    )


def _check_whole(what: str, value: Any, most: int, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise OptionError(f"{what}: a whole number from 1 to {most:,} is needed, found {value!r:.60}{hint}")
