"""Parses durations into seconds.

A bare number in code is seconds, as everywhere in Python. A bare number in *text* is refused: the author
of an environment variable `"24"` may mean hours.
"""

from __future__ import annotations

import re
from datetime import timedelta

from relevo.errors import OptionError

Duration = int | float | timedelta | str

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

# Each unit once and the larger first, so that a typo such as "5m5m" or "30s1h" is refused.
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TEXT = re.compile(r"\s*".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS))

# Seconds in 100 years. Longer durations are mistakes (a timestamp in milliseconds, `timedelta.max`); up to
# it, times in milliseconds stay exact in the doubles of the server's sorted sets.
LONGEST = 100 * 365.25 * 86_400

_EXAMPLES = 'seconds such as 90 or 0.5, a timedelta, or text such as "90s", "5m", "1h30m", "7d"'


def seconds(value: Duration, *, what: str = "duration") -> float:
    """The duration in seconds, zero or more; refuses invalid values with `OptionError`.

    >>> seconds("1h30m"), seconds(2), seconds(timedelta(days=1))
    (5400.0, 2.0, 86400.0)
    """
    found: float
    match value:
        case str():
            found = _read(value, what)
        case timedelta():
            found = value.total_seconds()
        case int() | float() if not isinstance(value, bool):
            found = value
        case _:
            raise OptionError(f"{what}: not a duration: {_shown(value)}. Give {_EXAMPLES}.")
    if not found >= 0:  # NaN is not
        raise OptionError(f"{what}: a duration is zero or more, found {_shown(value)}. Give {_EXAMPLES}.")
    if found > LONGEST:
        raise OptionError(f"{what}: longer than 100 years, found {_shown(value)}. Give {_EXAMPLES}.")
    return float(found)


def milliseconds(value: Duration, *, what: str = "duration") -> int:
    """The duration in whole milliseconds, rounded: the unit of the store."""
    return round(seconds(value, what=what) * 1000)


def spoken(seconds: float) -> str:
    """Short text that `seconds()` can parse: `4m12s`, `1.5s`, `250ms`, `7d`.

    Exact to the microsecond below a second, to the millisecond below a minute, to the second above.
    A negative duration (by a clock that ran ahead) gets a minus sign.
    """
    if seconds < 0:
        return f"-{spoken(-seconds)}"
    if seconds == 0:
        return "0s"
    # Rounded before a unit is chosen: 59.9996 s is a minute, not "60s".
    if (thousandths := round(seconds * 1000, 3)) < 1000:
        return f"{thousandths:g}ms"
    if (rounded := round(seconds, 3)) < 60:
        return f"{rounded:g}s"
    left, text = round(seconds), ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        text += f"{count}{unit}" if count else ""
    return text


def _read(text: str, what: str) -> float:
    stripped = text.strip()
    if re.fullmatch(_NUMBER, stripped):
        raise OptionError(f'{what}: {_shown(text)} has no unit. Write "{stripped[:40]}s" if you mean seconds.')
    parts = _TEXT.fullmatch(stripped)
    if not stripped or parts is None:
        raise OptionError(f"{what}: not a duration: {_shown(text)}. Give {_EXAMPLES}.")
    counts = zip(parts.groups(), _UNITS.values(), strict=True)
    return sum(float(count) * unit for count, unit in counts if count)


def _shown(value: object) -> str:
    try:
        return repr(value)[:60]
    except ValueError:  # Python refuses to print integers of thousands of digits
        return "a number of thousands of digits"
