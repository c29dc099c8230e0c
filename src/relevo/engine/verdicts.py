"""Exceptions by which a task decides its own outcome."""

from __future__ import annotations

from relevo.text.durations import Duration, seconds


class Verdict(Exception):  # not errors: they carry a task's decision about its outcome
    """A decision of the task; not a failure of the code."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)  # also accepts `raise Cancel(error)`; a record holds text


class Retry(Verdict):
    """Run this job again. Spends one of its retries; without `delay` the task's backoff decides when.

    >>> raise Retry("rate limited", delay="30s")  # doctest: +SKIP
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else seconds(delay, what="Retry(delay)")


class Snooze(Verdict):
    """Run this job again later, without spending a retry, because it is too early."""

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = seconds(delay, what="Snooze(delay)")


class Cancel(Verdict):
    """End this job as cancelled: there is nothing to do, and it is not a failure."""
