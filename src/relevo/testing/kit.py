"""The tools of a test: run the jobs, move the clock, inspect what was enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from relevo.app import Relevo
from relevo.engine.handle import JobInfo
from relevo.engine.lifespan import Lifespan
from relevo.engine.task import Task
from relevo.engine.workers import roll
from relevo.errors import OptionError
from relevo.store.plan import Call
from relevo.testing import looking
from relevo.text.durations import Duration, milliseconds, spoken
from relevo.worker import Worker

T = TypeVar("T")

#: A moved clock expires after a day: a killed test process cannot reset it.
CLOCK_TTL_MS = 86_400_000


class Drained(Struct, frozen=True):
    """What `drain` did."""

    #: Attempts that succeeded.
    done: int = 0
    #: Attempts that failed, whether they will be retried or not.
    failed: int = 0
    #: Ids of the jobs that became dead letters.
    dead: tuple[str, ...] = ()


class Clock:
    """The time as jobs see it. Expiry of records and results follows the real clock."""

    def __init__(self, app: Relevo, key: str) -> None:
        self._app = app
        self._key = key.encode()

    def __repr__(self) -> str:
        return f"<Clock {spoken(self._shift_ms() / 1000)} ahead>"

    def move(self, by: Duration) -> None:
        """Let time pass: what is due by then runs at the next `drain`, and leases of dead workers expire.

        A running worker takes this for a changed clock: it keeps its jobs.
        """
        self._shift_to(self._shift_ms() + milliseconds(by, what="clock.move"))
        now_ms = self._app.engine.run(self._app.engine.now_ms())
        alive, _ = self._app.engine.run(roll(self._app.engine.keys, now_ms))
        if not alive:
            for queue in self._app.queues():
                self._app.engine.run(
                    Call([b"SET", self._app.engine.keys_of(queue).key("contact"), f"{now_ms} 0", b"EX", 60])
                )

    def _shift_ms(self) -> int:
        return int(self._app.engine.run(Call([b"GET", self._key], lambda reply: reply or b"0")))

    def _shift_to(self, ms: int) -> None:
        if ms:
            self._app.engine.run(Call([b"SET", self._key, ms, b"PX", CLOCK_TTL_MS]))
        else:
            self._app.engine.run(Call([b"DEL", self._key]))


class TestKit:
    """Given by `bind(app)` and by the fixture `relevo_app`."""

    __test__ = False  # pytest: not a class of tests

    def __init__(self, app: Relevo, clock: Clock, leaks: Callable[[], list[str]]) -> None:
        self.app = app
        self.clock = clock
        #: Keys, and entries of keys, that nothing will ever remove. Checked automatically when the test ends.
        self.leaks = leaks
        #: How many attempts `drain` makes at once; None: as the settings of the app.
        self.at_once: int | None = None

    # running
    def drain(self, max_jobs: int | None = None) -> Drained:
        """Run all jobs that are ready or due, of all queues, with a real worker, until none is left.

        A failing job raises nothing here: it is counted, and is due again later or among `dead`. With `max_jobs`, so
        many attempts are made, one after the other.
        """
        return _on_a_loop(self._drain_and_close(max_jobs))

    async def adrain(self, max_jobs: int | None = None) -> Drained:
        """`drain` on the running event loop."""
        if max_jobs is not None and max_jobs < 1:
            raise OptionError(f"drain: at least 1 job, found {max_jobs!r}")
        buried = set(await self._dead())
        async with self.app.engine.part(Lifespan).shared():
            done, failed = await self._attempts(max_jobs)
        return Drained(done, failed, tuple(id for id in await self._dead() if id not in buried))

    async def _attempts(self, max_jobs: int | None) -> tuple[int, int]:
        done = failed = 0
        while True:
            queues = await self._queues()
            workers = [Worker(self.app, queues=queues, burst=True, concurrency=self.at_once, threads=self.at_once)]
            if max_jobs is not None:  # one at a time, so that none is run in excess
                workers = [
                    Worker(self.app, queues=[queue], burst=True, concurrency=1, threads=1, max_jobs=1)
                    for queue in queues
                ]
            ran = 0
            for worker in workers:
                await worker.run()
                ran = worker.done + worker.failed
                done, failed = done + worker.done, failed + worker.failed
                if ran:
                    break
            # Jobs may have enqueued others, also on new queues.
            if not ran or (max_jobs is not None and done + failed >= max_jobs):
                return done, failed

    async def _drain_and_close(self, max_jobs: int | None) -> Drained:
        try:
            return await self.adrain(max_jobs)
        finally:
            await self.app.aclose()

    async def _queues(self) -> list[str]:
        of_tasks = (task.options.queue for task in self.app.tasks.values())
        return list(dict.fromkeys([self.app.settings.queue, *of_tasks, *await self.app.aqueues()]))

    async def _dead(self) -> list[str]:
        return [row.id for row in reversed(await self.app.dead.alist(limit=1000))]

    # looking
    def enqueued(self, task: looking.Which = None) -> list[JobInfo]:
        """Jobs that are ready, scheduled, or waiting for other jobs, in the order of each queue; of one task or all."""
        return looking.waiting(self.app, task)

    def assert_enqueued(self, task: Task[..., Any] | Callable[..., Any] | str, *args: Any, **kwargs: Any) -> JobInfo:
        """A job of this task with these arguments (and any others) waits; returns the first such job.

        Keywords that the task does not take are compared with the job: `queue`, `priority`, `name`,
        `tenant`, `tags`, `state`.
        """
        found, rows, wanted = looking.find(self.app, task, args, kwargs)
        if not found:
            raise AssertionError(f"not enqueued: {wanted}\n{looking.listed(rows)}")
        return found[0]

    def assert_not_enqueued(self, task: Task[..., Any] | Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """No job of this task with these arguments waits."""
        found, _, wanted = looking.find(self.app, task, args, kwargs)
        if found:
            raise AssertionError(f"enqueued, and should not be: {wanted}\n{looking.listed(found)}")


def _on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on an event loop of its own: here, or in a thread where one is running already."""

    def run() -> T:
        # Such a loop does not become the thread's current loop: one that is set there stays.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(work)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    results: list[T] = []
    errors: list[BaseException] = []

    def run_and_keep() -> None:
        try:
            results.append(run())
        except BaseException as error:  # noqa: BLE001  # raised again where it is awaited
            errors.append(error)

    thread = threading.Thread(target=run_and_keep, name="relevo drain")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
