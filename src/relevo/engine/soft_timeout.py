"""The error that a task gets at its soft time limit."""

from __future__ import annotations

import asyncio

from relevo.errors import JobError


class SoftTimeout(JobError, asyncio.CancelledError):
    """Raised once inside a task when its `soft_timeout` has passed: finish now, the hard `timeout` follows.

    A task that catches it and returns is done. One that does not has failed, and is retried as after any other error.
    asyncio takes it for a cancellation, so that task groups stop their children.

    >>> try:                                                             # doctest: +SKIP
    ...     render(pages)
    ... except SoftTimeout:
    ...     save_what_is_there()
    """

    def __init__(self, message: str = "the soft time limit of the job has passed") -> None:
        super().__init__(message)
