"""What a task may raise to choose its own fate."""

from __future__ import annotations

from relevo.model.durations import Duration, seconds


class Verdict(Exception):  # not errors: a task's way to say what shall become of it
    """The task decided; this is not a failure of the code."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)  # `raise Cancel(error)` is natural to write, and a record holds text


class Retry(Verdict):
    """Run this job again. Spends one of its retries; without `delay` the task's backoff decides when.

    >>> raise Retry("rate limited", delay="30s")  # doctest: +SKIP
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else seconds(delay, what="Retry(delay)")


class Snooze(Verdict):
    """Run this job again later, without spending a retry: it is simply too early."""

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = seconds(delay, what="Snooze(delay)")


class Cancel(Verdict):
    """End this job as cancelled: there is nothing to do and nothing went wrong."""
