"""Publishes what happens to the jobs of one queue, as long as some process watches it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from relevo.engine.job import State, read_record, read_story
from relevo.engine.job_events import JobEvent, Kind, is_watched, publish
from relevo.engine.settle import Held
from relevo.engine.turn import Moved, Settled
from relevo.errors import StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.worker.run import Run

log = logging.getLogger("relevo.worker")

#: Events per call, and how many may wait for one; then the oldest are dropped.
TOGETHER, MOST_WAITING = 100, 10_000
#: What a turn calls the ends of jobs.
_ENDS = {"done": State.DONE, "dead": State.DEAD, "mute": State.DEAD, "cancelled": State.CANCELLED,
         "expired": State.EXPIRED}  # fmt: skip


class EventSender:
    """Of one consumer. While `is_on` is False, nothing of it is called."""

    def __init__(self, keys: QueueKeys, queue: str, worker: str, driver: AsyncDriver) -> None:
        self.is_on = False
        self._keys = keys
        self._queue = queue
        self._worker = worker
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._events: list[JobEvent] = []
        self._sending: asyncio.Task[None] | None = None
        #: Task and attempt of jobs that have ended and are not settled yet.
        self._settling: dict[str, tuple[str, int]] = {}
        #: What of their output was published.
        self._published: dict[str, str] = {}
        #: Goes up when a process begins to watch: an answer from before says nothing about that.
        self._calls = 0

    def called(self) -> None:
        """A process watches the queue."""
        self.is_on = True
        self._calls += 1

    def look(self) -> None:
        """The worker begins: is the queue watched already?"""
        self.is_on = True
        self._sending = self._loop.create_task(self._send(), name=f"relevo events {self._queue}")

    def started(self, run: Run) -> None:
        """A run begins. Also called from threads."""
        self._loop.call_soon_threadsafe(self._add, self._of(run, "started", at_ms=run.held.since_ms))

    def noted(self, run: Run, text: str) -> None:
        """What a run has printed so far ('': nothing new), and how far it is."""
        if text:
            before = self._published.get(run.held.id, "")
            self._published[run.held.id] = text
            new = text[len(before) :] if text.startswith(before) else text
            self._add(self._of(run, "logs", text=new))
        latest = run.context._progress
        if latest is not None and latest != run.noted_progress:
            self._add(self._of(run, "progress", fraction=latest[0], message=latest[1]))

    def settling(self, held: Held) -> None:
        """What became of a job is settled by the next turn."""
        self._settling[held.id] = (held.envelope.target if held.envelope else "", len(held.story.attempts) + 1)

    def settled(self, part: Settled, refused: Iterable[bytes], now_ms: int) -> None:
        """A turn has settled these."""
        no = {id.decode() for id in refused}
        for id in (*part.plain, *part.kept):
            self._end(str(id), State.DONE, now_ms, no)
        for row in part.moved:
            if row.verb == "retry" and row.id not in no:
                self._add(self._retried(row, now_ms))
            elif row.verb in _ENDS:
                self._end(row.id, _ENDS[row.verb], now_ms, no, row.text)
            self._forget(row.id)

    def _end(self, id: str, state: State, now_ms: int, refused: set[str], text: bytes = b"") -> None:
        task, attempt = self._settling.get(id, ("", 0))
        self._forget(id)
        if id in refused:
            return
        reason = error = ""
        if text:
            try:
                record = read_record(text)
                reason, error = record.reason, record.story.last.words
            except msgspec.DecodeError:
                log.debug("%s: the record of job %s cannot be read", self._queue, id)
        self._add(
            JobEvent(
                kind="ended", job=id, queue=self._queue, task=task, at_ms=now_ms, attempt=attempt,
                worker=self._worker, state=state, reason=reason, error=error,
            )
        )  # fmt: skip

    def _retried(self, row: Moved, now_ms: int) -> JobEvent:
        task, attempt = self._settling.get(row.id, ("", 0))
        error = read_story(row.text).last.words if row.text else ""
        return JobEvent(
            kind="retried", job=row.id, queue=self._queue, task=task, at_ms=now_ms, attempt=attempt, error=error,
            worker=self._worker, due_ms=now_ms + row.ms,
        )  # fmt: skip

    def _forget(self, id: str) -> None:
        self._settling.pop(id, None)
        self._published.pop(id, None)

    def _of(self, run: Run, kind: Kind, **more: Any) -> JobEvent:
        return JobEvent(
            kind=kind, job=run.held.id, queue=self._queue, task=run.task.target, attempt=run.context.attempt,
            worker=self._worker, **more,
        )  # fmt: skip

    def _add(self, event: JobEvent) -> None:
        self._events.append(event)
        del self._events[:-MOST_WAITING]
        if self._sending is None:
            self._sending = self._loop.create_task(self._send(), name=f"relevo events {self._queue}")

    async def _send(self) -> None:
        try:
            if not self._events:
                await self._ask(is_watched(self._keys))
            while self._events and self.is_on:
                part = self._events[:TOGETHER]
                del self._events[:TOGETHER]
                await self._ask(publish(self._keys, part))
        except StoreError as error:  # events are sent once; who watches sees where jobs are when the server is back
            log.debug("%s: events: %s", self._queue, error)
        finally:
            if not self.is_on:
                self._settling.clear()
                self._published.clear()
            self._events.clear()
            self._sending = None

    async def _ask(self, call: Call[bool]) -> None:
        calls = self._calls
        self.is_on = await self._driver.perform(call, patience=0) or calls != self._calls

    async def finish(self) -> None:
        """Wait until what happened so far is published."""
        if self._sending is not None:
            await asyncio.shield(self._sending)
