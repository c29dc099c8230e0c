"""Marks in the log of a row: where its task is now.

The log is the one column that takes any text and that no worker reads. The last mark counts.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from msgspec import Struct

from relevo.engine.ids import LENGTH, as_id

#: With what a mark begins; rows that have been moved are found by it.
MARK = "relevo: "
_TO_JOB = re.compile(rf"^{MARK}moved to job ([0-9a-z]{{{LENGTH}}}) on (\S+)", re.M)
_TO_SCHEDULE = re.compile(rf"^{MARK}moved to schedule (\S+)", re.M)
_FROM_JOB = re.compile(rf"^{MARK}back from job ([0-9a-z]{{{LENGTH}}})", re.M)
_FROM_SCHEDULE = re.compile(rf"^{MARK}back from schedule (\S+)", re.M)


class Place(Struct, frozen=True):
    """Where the task of a row was moved to: a job on a queue, or a schedule."""

    job: str = ""
    queue: str = ""
    schedule: str = ""

    @property
    def line(self) -> str:
        """The mark that says so."""
        if self.schedule:
            return f"{MARK}moved to schedule {self.schedule}\n"
        return f"{MARK}moved to job {self.job} on {self.queue}\n"


def back_from(place: Place) -> str:
    """The mark of a row whose task came back."""
    return f"{MARK}back from {f'schedule {place.schedule}' if place.schedule else f'job {place.job}'}\n"


def with_mark(log: str | None, line: str) -> str:
    """The log with this line at its end."""
    before = log or ""
    return f"{before}{'' if not before or before.endswith(chr(10)) else chr(10)}{line}"


def place_in(log: str | None) -> Place | None:
    """Where the task of this row was moved to; None: it was not."""
    jobs, schedules = list(_TO_JOB.finditer(log or "")), list(_TO_SCHEDULE.finditer(log or ""))
    last = max([*jobs, *schedules], key=lambda found: found.start(), default=None)
    if last is None:
        return None
    return Place(job=last[1], queue=last[2]) if last in jobs else Place(schedule=last[1])


def jobs_in(log: str) -> set[str]:
    """Jobs that this row was moved to or came from."""
    return {found[1] for pattern in (_TO_JOB, _FROM_JOB) for found in pattern.finditer(log)}


def schedules_in(log: str) -> set[str]:
    """Schedules that this row was moved to or came from."""
    return {found[1] for pattern in (_TO_SCHEDULE, _FROM_SCHEDULE) for found in pattern.finditer(log)}


def job_id(app: str, table: str, pk: object, log: str | None, made_ms: int) -> str:
    """The id of the job that a row is moved to: the same each time, until it has been moved and come back."""
    moves = (log or "").count(MARK)
    digest = blake2b(f"{app}\n{table}\n{pk}\n{moves}".encode(), digest_size=8).digest()
    return as_id(made_ms, int.from_bytes(digest))
