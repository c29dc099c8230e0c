"""Follow what happens to one job, or to all jobs of an app: the generators behind `job.events()` and `app.events()`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from relevo.engine import job_store as jobs
from relevo.engine.job import State
from relevo.engine.job_events import (
    ALL,
    KINDS,
    RENEW_AFTER,
    WATCH_MS,
    JobEvent,
    Kind,
    end_of,
    serving,
    unknown_kinds,
    watch,
)
from relevo.engine.lists import known_queues
from relevo.errors import ConfigurationError, OptionError, UnknownJob
from relevo.store.plan import Call
from relevo.text.nearest import did_you_mean

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

T = TypeVar("T")

#: Events that wait for a slow reader; then the oldest are dropped.
MOST_WAITING = 10_000


class Stream:
    """Events on their way to one reader on this event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox = engine.client.inbox()
        self._events: asyncio.Queue[JobEvent | None] = asyncio.Queue()
        self._watched: set[tuple[str, str]] = set()
        self._renew_at = 0.0

    async def watch(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Watch (queue, job)s, or those that are watched already for another while."""
        await self._inbox.ready()
        for queue, job in wanted:
            if (queue, job) not in self._watched:
                self._watched.add((queue, job))
                self._inbox.listeners.add(queue, job, self._put)
            await self._engine.arun(self._ask(queue, job, WATCH_MS))
        self._renew_at = time.monotonic() + RENEW_AFTER

    def _ask(self, queue: str, job: str, live_ms: int) -> Generator[Call[Any], Any, None]:
        keys, channel = self._engine.keys_of(queue), self._inbox.channel
        yield watch(keys, channel, [job], (), live_ms)
        if live_ms and self._inbox.calls_workers(queue):
            # Only now: a worker that begins makes itself known, and then looks whether the queue is watched.
            called = yield from serving(self._engine.keys, queue)
            yield watch(keys, channel, [job], called, live_ms)

    def _put(self, event: JobEvent | None) -> None:
        if self._events.qsize() >= MOST_WAITING:
            self._events.get_nowait()
        self._events.put_nowait(event)

    def end(self) -> None:
        """No more events: `next` gives None after those that are here."""
        self._put(None)

    async def next(self) -> JobEvent | None:
        """The next event; None: there are no more, or it is time to watch again."""
        try:
            async with asyncio.timeout(max(0.0, self._renew_at - time.monotonic())):
                return await self._events.get()
        except TimeoutError:
            return None

    @property
    def is_due(self) -> bool:
        """Whether it is time to watch again."""
        return time.monotonic() >= self._renew_at

    async def close(self) -> None:
        """Stop watching."""
        for queue, job in self._watched:
            if self._inbox.listeners.remove(queue, job, self._put):
                self._inbox.forget_calls(queue)
                await self._engine.arun(self._ask(queue, job, 0))


async def events_of_job(engine: Engine, queue: str, id: str) -> AsyncGenerator[JobEvent, None]:
    """What happens to a job until it has ended, beginning with its latest progress."""
    stream, keys, received = Stream(engine), engine.keys_of(queue), Received()
    end: asyncio.Task[Any] | None = None
    try:
        await stream.watch([(queue, id)])
        seen = await engine.arun(jobs.look(keys, id))
        if seen.state is State.UNKNOWN:
            raise UnknownJob(f"no job {id} on {queue}: it never was, or its record has ended")
        end = asyncio.create_task(engine.client.await_end(keys, id, None), name=f"relevo events of {id}")
        end.add_done_callback(lambda _: stream.end())
        if not seen.state.has_ended and (latest := _progress(queue, seen)) is not None and not end.done():
            yield received.note(latest)
        while True:
            event = await stream.next()
            if event is not None and event.kind != "ended":
                yield received.note(event)
            elif end.done():
                if not seen.state.has_ended:
                    for missed in received.missed(queue, await engine.arun(jobs.look(keys, id))):
                        yield missed
                yield end_of(id, queue, end.result())
                return
            elif stream.is_due:
                await stream.watch([(queue, id)])
    finally:
        if end is not None:
            end.cancel()
        await stream.close()


class Received:
    """What a reader knows: the last events of a job may be lost, or come before its worker knows that one reads."""

    def __init__(self) -> None:
        self._progress: tuple[float | None, str] | None = None
        self._logs: dict[int, str] = {}

    def note(self, event: JobEvent) -> JobEvent:
        """The reader gets this event."""
        if event.kind == "progress":
            self._progress = (event.fraction, event.message)
        elif event.kind == "logs":
            self._logs[event.attempt] = self._logs.get(event.attempt, "") + event.text
        return event

    def missed(self, queue: str, seen: jobs.Seen) -> Iterator[JobEvent]:
        """The rest of the logs and the last progress, as far as they are kept and the reader has not got them."""
        attempt = seen.record.runs if seen.record else 0
        before, logs = self._logs.get(attempt, ""), seen.notes.get(f"log:{attempt}", "")
        if logs.startswith(before) and logs != before:
            yield _event(queue, seen, "logs", attempt=attempt, text=logs[len(before) :])
        latest = _progress(queue, seen)
        if latest is not None and self._progress != (latest.fraction, latest.message):
            yield latest


def _progress(queue: str, seen: jobs.Seen) -> JobEvent | None:
    """The progress that a job last reported; None: it has reported none, or it is not kept."""
    if not (text := seen.notes.get("progress")):
        return None
    latest = msgspec.json.decode(text)
    return _event(queue, seen, "progress", fraction=latest["fraction"], message=latest["message"])


def _event(queue: str, seen: jobs.Seen, kind: Kind, **more: Any) -> JobEvent:
    task = seen.record.target if seen.record else seen.envelope.target if seen.envelope else ""
    return JobEvent(kind=kind, job=seen.id, queue=queue, task=task, **more)


async def events_of_app(
    engine: Engine, queue: str | None, task: str | None, kinds: Iterable[str]
) -> AsyncGenerator[JobEvent, None]:
    """What happens to the jobs of a queue, or of all queues of the app, until the caller stops."""
    wanted = frozenset(kinds) or frozenset(KINDS)
    stream = Stream(engine)
    try:
        while True:
            queues = [queue] if queue is not None else await engine.arun(known_queues(engine))
            await stream.watch([(name, ALL) for name in queues])
            while not stream.is_due:
                event = await stream.next()
                if event is not None and event.kind in wanted and task in (None, event.task):
                    yield event
    finally:
        await stream.close()


def checked(engine: Engine, queue: str | None, task: Any, kinds: Any) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The filters of `app.events()`."""
    if queue is not None:
        engine.keys_of(queue)  # refuses what cannot be one
    given = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if unknown := unknown_kinds(given):
        raise OptionError(f"kinds: no kind {unknown[0]!r:.40}{did_you_mean(unknown[0], KINDS)}; there are {KINDS}")
    return queue, None if task is None else str(getattr(task, "target", task)), given


def blocking(engine: Engine, events: Callable[[], AsyncGenerator[T, None]]) -> Iterator[T]:
    """The same for scripts, on an event loop of their own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise ConfigurationError("watch() blocks, and an event loop runs here: use `async for event in ….events()`")
    with asyncio.Runner() as runner:
        found = events()
        try:
            while True:
                try:
                    yield runner.run(anext(found))
                except StopAsyncIteration:
                    return
        finally:
            runner.run(found.aclose())
            runner.run(engine.aclose())
