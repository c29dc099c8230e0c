"""Limits of a group: how many of its jobs run at once, how fast they start, and whether they start at all.

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

#: Jobs per second. A token is no older than a day, and no younger than the microsecond in which the store counts.
SLOWEST, FASTEST = 1 / 86_400, 1_000_000
#: With the slowest rate it is still exact in the doubles of the server.
LARGEST_BURST = 100_000
MOST_AT_ONCE = 1_000_000
LONGEST_NAME = 200
_NONE = "-"


class Rate(Struct, frozen=True):
    """So many per unit of time, as somebody wrote it: `100/m`."""

    count: float
    unit: str = "s"

    @property
    def per_second(self) -> float:
        """The same in jobs per second."""
        return self.count / _SPANS[self.unit]

    def __str__(self) -> str:
        return f"{int(self.count) if self.count == int(self.count) else repr(self.count)}/{self.unit}"


class Limit(Struct, frozen=True):
    """What is said about one group. None: not limited in this way."""

    concurrency: int | None = None
    rate: Rate | None = None
    #: Tokens of a full bucket; None without a rate.
    burst: int | None = None
    paused: bool = False

    def __str__(self) -> str:
        """As the store keeps it: `2 10/s 10 0`."""
        return f"{self.terms} {int(self.paused)}"

    @property
    def terms(self) -> str:
        """The same without whether it is paused."""
        return " ".join(_NONE if one is None else str(one) for one in (self.concurrency, self.rate, self.burst))


def limit_of(concurrency: Any = None, rate: Any = None, burst: Any = None) -> Limit:
    """The limit that somebody asks for; nonsense is refused with `OptionError`.

    >>> str(limit_of(concurrency=2, rate="100/m"))
    '2 100/m 2 0'
    """
    if concurrency is None and rate is None:
        raise OptionError("limit: give concurrency=, rate= or both; unlimit() takes a limit away")
    if concurrency is not None:
        hint = "; pause(group=...) lets none of them start" if concurrency == 0 else ""
        _check_whole("concurrency", concurrency, MOST_AT_ONCE, hint)
    if rate is None:
        if burst is not None:
            raise OptionError("burst: it is how many may start at once at a rate; give rate= as well")
        return Limit(concurrency)
    found = rate_of(rate)
    if burst is None:
        burst = min(max(1, math.ceil(found.per_second)), LARGEST_BURST)  # one second's worth
    _check_whole("burst", burst, LARGEST_BURST)
    return Limit(concurrency, found, burst)


def rate_of(value: Any) -> Rate:
    """A rate as people write it.

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
            found = Rate(value if 0 < value <= FASTEST else 0)  # NaN is not, and some whole numbers are no floats
        case _:
            raise OptionError(f"rate: not a rate: {value!r:.60}. Give {_EXAMPLES}.")
    if not SLOWEST <= found.per_second <= FASTEST:
        raise OptionError(f"rate: from 1/d to {FASTEST}/s is possible, found {value!r:.60}. Give {_EXAMPLES}.")
    return Rate(float(found.count), found.unit)


def group_of(name: Any) -> str:
    """The name of a group, checked as the option `group` of jobs is."""
    if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise OptionError(
            f"group: printable text of 1 to {LONGEST_NAME} characters is needed, found {name!r:.80}; "
            "jobs without a group have no limit"
        )
    return name


def read_limit(text: str) -> Limit:
    """Read what `str(limit)` wrote."""
    concurrency, rate, burst, paused = text.split(" ")
    count, _, unit = rate.partition("/")
    return Limit(
        None if concurrency == _NONE else int(concurrency),
        None if rate == _NONE else Rate(float(count), unit),
        None if burst == _NONE else int(burst),
        paused == "1",
    )


def _check_whole(what: str, value: Any, most: int, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise OptionError(f"{what}: a whole number from 1 to {most} is needed, found {value!r:.60}{hint}")
