"""Back-off: the delay before the next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from relevo.errors import OptionError
from relevo.text.durations import LONGEST, Duration, seconds

#: An hour: a fault that lasts longer is not transient, and longer delays do not help.
CAP = 3600.0

#: A duration in a body; checked, since another program may have written it.
Seconds = Annotated[float, Meta(ge=0, le=LONGEST)]


class Backoff(Struct, frozen=True, omit_defaults=True):
    """A series of delays, in seconds.

    >>> [Backoff.exponential("2s").delay(n, 0.5) for n in (1, 2, 3)]
    [2.0, 4.0, 8.0]
    """

    kind: Literal["fixed", "linear", "exponential", "list"] = "exponential"
    base: Seconds = 2.0
    cap: Seconds = CAP
    #: ± this share of the delay, so that jobs that failed together are not retried together.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.1
    steps: tuple[Seconds, ...] = ()

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: float = 0.1) -> Backoff:
        """The same delay each time."""
        return cls("fixed", seconds(delay, what="backoff"), jitter=_share(jitter))

    @classmethod
    def linear(cls, step: Duration, *, cap: Duration = CAP, jitter: float = 0.1) -> Backoff:
        """One step, two steps, three steps …"""
        return cls("linear", seconds(step, what="backoff"), seconds(cap, what="backoff cap"), _share(jitter))

    @classmethod
    def exponential(cls, base: Duration = 2.0, *, cap: Duration = CAP, jitter: float = 0.1) -> Backoff:
        """The base, twice, four times, eight times …"""
        return cls("exponential", seconds(base, what="backoff"), seconds(cap, what="backoff cap"), _share(jitter))

    @classmethod
    def of(cls, value: Backoff | Duration | Sequence[Duration]) -> Backoff:
        """Read an option: a Backoff, a list of delays, or one delay for all."""
        if isinstance(value, Backoff):
            return value
        if isinstance(value, list | tuple):
            if not value:
                raise OptionError("backoff: an empty list of delays; give at least one, such as ['1s', '10s']")
            return cls("list", jitter=0.0, steps=tuple(seconds(step, what="backoff") for step in value))
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise OptionError(f"backoff: {value!r} is not a Backoff, a delay or a list of delays")
        return cls.fixed(value)

    def delay(self, retry: int, chance: float) -> float:
        """Seconds to wait before retry number `retry` (1 is the first). `chance` in 0..1 places it in the jitter."""
        match self.kind:
            case "fixed":
                plain = self.base
            case "linear":
                plain = self.base * retry
            case "exponential":
                plain = self.base * 2.0 ** min(retry - 1, 60)
            case "list":
                plain = self.steps[min(retry, len(self.steps)) - 1] if self.steps else self.base
        return min(plain, self.cap) * (1 + self.jitter * (2 * chance - 1))


def _share(jitter: Any) -> float:
    if not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise OptionError(f"backoff: jitter is a share of the delay between 0 and 1, found {jitter!r}")
    return float(jitter)
