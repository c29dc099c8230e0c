"""What happens to jobs, as it happens: to processes that watch them, on the connection on which they wait for results.

A process that watches a job (or a whole queue) leaves the name of its channel in the hash `watching`, for a minute at a
time, and calls the workers of the queue. They publish there what happens to its jobs, until the hash is gone. A queue
that is not watched costs its workers nothing. Nothing is stored: what happens while the connection is broken is lost,
except the end of a job that is watched by its id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from relevo.engine import workers
from relevo.engine.job import Record, State
from relevo.store.keys import AppKeys, QueueKeys
from relevo.store.plan import Call

log = logging.getLogger("relevo.inbox")

#: How long a watch holds, and seconds after which it is renewed.
WATCH_MS = 60_000
RENEW_AFTER = 20.0
#: In the place of an id: all jobs of a queue.
ALL = "*"
#: How a message of this kind begins; all others begin with an id.
MARK = b"!"

Kind: TypeAlias = Literal["started", "progress", "logs", "retried", "ended"]
KINDS: tuple[Kind, ...] = ("started", "progress", "logs", "retried", "ended")


class JobEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a job."""

    kind: Kind
    job: str
    queue: str
    task: str = ""
    #: By the server's clock.
    at_ms: int = 0
    #: 1 for the first run.
    attempt: int = 0
    worker: str = ""
    #: progress: from 0 to 1.
    fraction: float | None = None
    #: progress: its message.
    message: str = ""
    #: logs: what the job wrote since the last event of this kind.
    text: str = ""
    #: ended: how.
    state: State | None = None
    #: ended: why it was given up.
    reason: str = ""
    #: retried, ended: the error of the last attempt.
    error: str = ""
    #: retried: when it runs again.
    due_ms: int | None = None


read_event = msgspec.json.Decoder(JobEvent).decode


def end_of(job: str, queue: str, record: Record) -> JobEvent:
    """The event of a job's end."""
    return JobEvent(
        kind="ended",
        job=job,
        queue=queue,
        task=record.target,
        at_ms=record.ended_ms,
        attempt=record.runs,
        worker=record.worker,
        state=record.state,
        reason=record.reason,
        error=record.story.last.words if record.state is State.DEAD else "",
    )


def watch(queue: QueueKeys, channel: bytes, jobs: Sequence[str], workers: Sequence[str], live_ms: int) -> Call[int]:
    """Watch jobs for so long, and call these workers; 0: no longer."""
    script = queue.script("engine/watch_jobs")
    return Call([channel, live_ms, len(workers), *workers, *jobs], int, script, queue.of(script))


def publish(queue: QueueKeys, events: Sequence[JobEvent]) -> Call[bool]:
    """Publish events: whether the queue is watched at all."""
    script = queue.script("engine/publish_events")
    args: list[Any] = [MARK]
    for event in events:
        args += (event.job, msgspec.json.encode(event))
    return Call(args, bool, script, queue.of(script))


def is_watched(queue: QueueKeys) -> Call[bool]:
    """Whether some process watches the queue."""
    return Call([b"EXISTS", queue.key("watching")], bool)


def serving(keys: AppKeys, queue: str) -> Generator[Call[Any], Any, list[str]]:
    """The workers of a queue."""
    alive, _ = yield from workers.roll(keys, 0)
    return [one.id for one in alive if queue in one.queues]


class Listeners:
    """Who in this process listens to events of which jobs."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[Callable[[JobEvent], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, queue: str, job: str, call: Callable[[JobEvent], None]) -> None:
        """Call it with each event of a job, or of ALL."""
        self._calls.setdefault((queue, job), []).append(call)

    def remove(self, queue: str, job: str, call: Callable[[JobEvent], None]) -> bool:
        """Undo `add`: whether it was the last one for this job."""
        calls = self._calls.get((queue, job), [])
        if call in calls:
            calls.remove(call)
        if not calls:
            self._calls.pop((queue, job), None)
        return not calls

    def any_of(self, queue: str) -> bool:
        """Whether something of this queue is listened to."""
        return any(one == queue for one, _ in self._calls)

    def heard(self, message: bytes) -> None:
        """A message of this kind has come."""
        try:
            event = read_event(message[len(MARK) :])
        except (msgspec.DecodeError, UnicodeDecodeError):
            log.warning("inbox: an event cannot be read and is left out: %.60r", message)
            return
        for job in (event.job, ALL):
            for call in tuple(self._calls.get((event.queue, job), ())):
                call(event)


def unknown_kinds(kinds: Iterable[str]) -> list[str]:
    """Those that are none."""
    return [kind for kind in kinds if kind not in KINDS]
