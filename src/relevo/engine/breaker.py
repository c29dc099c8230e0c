"""Circuit breakers: stop a task that fails so often that further attempts only make dead letters.

A closed breaker has no effect. A number of failed attempts within a window opens it: the task's jobs wait. After a
rest one of them starts as a probe, the next one only after that has ended. A probe that succeeds closes the breaker
and all jobs continue; one that fails opens it again, for twice as long.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from relevo.errors import OptionError
from relevo.text.durations import Duration, seconds, spoken

#: The store keeps the time of each.
MOST_FAILURES = 100
#: Seconds: long enough for a restart of a dependency, short enough that jobs do not wait long after it.
REST = 30.0
#: Seconds: a dependency that is down for hours is probed six times an hour.
LONGEST_REST = 600.0
_TEXT = re.compile(r"([0-9]+) in (.+)")


class Breaker(Struct, frozen=True):
    """Number of failed attempts after which a task rests, and for how long. Times in seconds.

    >>> str(Breaker.of("5 in 1m"))
    '5 in 1m'
    """

    failures: int
    window: float
    rest: float = REST
    #: The rest is doubled with each probe that fails, up to this.
    longest: float = LONGEST_REST

    @classmethod
    def after(
        cls, failures: int, window: Duration, *, rest: Duration = REST, longest: Duration = LONGEST_REST
    ) -> Breaker:
        """A breaker with custom times: `Breaker.after(5, "1m", rest="10s", longest="5m")`."""
        count: Any = failures
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FAILURES:
            raise OptionError(f"breaker: 1 to {MOST_FAILURES} failures open it, found {count!r:.60}")
        found = cls(failures, *(seconds(one, what="breaker") for one in (window, rest, longest)))
        if min(found.window, found.rest) < 0.001 or found.longest < found.rest:
            raise OptionError(
                "breaker: window and rest are at least a millisecond, and the longest rest is no shorter than the "
                f"first; found {window!r:.40}, {rest!r:.40}, {longest!r:.40}"
            )
        return found

    @classmethod
    def of(cls, value: Any) -> Breaker | None:
        """Read an option: a Breaker, text such as "5 in 1m", or None for no breaker."""
        if value is None or isinstance(value, Breaker):
            return value
        parts = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        if parts is None:
            raise OptionError(
                f'breaker: not a breaker: {value!r:.60}. Give text such as "5 in 1m", for five failed attempts '
                "within a minute, Breaker.after(…), or None"
            )
        return cls.after(int(parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.failures} in {spoken(self.window)}"
