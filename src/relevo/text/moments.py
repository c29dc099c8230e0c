"""A time range in the past: its ends are datetimes or durations before now."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

from relevo.errors import OptionError
from relevo.text.durations import Duration, milliseconds

#: An aware datetime, or how long ago.
Moment: TypeAlias = datetime | Duration


def stretch_ms(since: Any, until: Any, now_ms: int) -> tuple[int | None, int | None]:
    """The ends in the server's time; None: open. Refuses invalid values with `OptionError`."""
    begin, end = _moment_ms("since", since, now_ms), _moment_ms("until", until, now_ms)
    if begin is not None and end is not None and begin > end:
        raise OptionError("since is later than until: nothing is between them")
    return begin, end


def _moment_ms(what: str, value: Any, now_ms: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise OptionError(f"{what}: a datetime with a time zone is needed, found {value!r}")
        return round(value.timestamp() * 1000)
    return now_ms - milliseconds(value, what=f"{what} (a datetime, or how long ago)")
