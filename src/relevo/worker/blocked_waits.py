"""Notices that everything which runs in a worker waits for jobs that only this worker could run, and ends one wait."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from relevo.engine.duty import Duty
from relevo.engine.job import State
from relevo.engine.job_store import look
from relevo.engine.offers_store import offers, present_at
from relevo.engine.waits import Jobs, Wait, Waits
from relevo.errors import WaitDeadlock
from relevo.worker.offers import LONGEST
from relevo.worker.run import Run

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Seconds between two looks. What stands still at two of them in a row stands still.
LOOK_EVERY = 5.0
#: The same after a wait was ended: others may stand still for the same reason.
SOON = 1.0
#: Tasks that are named in the log with the remedy; each line of a failed job has its beginning.
MOST_TASKS = 100
#: Jobs of one wait that are looked at.
MOST = 100
REMEDY = (
    "Wait in an async task (`await job.aresult()`), which takes no thread; or build a workflow (chain, group, "
    "depends_on), where no job waits for another; or give the awaited task a queue with a worker of its own; or raise "
    "the setting `threads`."
)


class BlockedWaits(Duty[int]):
    """One look at it. Costs nothing while no thread waits.

    Nothing moves if at two looks in a row the same runs have started, and each of them waits in its thread. Then a job
    that is awaited moves only if another worker can run it. If that is so for none, the wait ends that is the first to
    reach its time limit: until then it could not have been answered, because no thread was to be free before.
    """

    name = "blocked waits"

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engine = worker.engine
        self._driver = worker.engine.client.driver()
        self.interval = LOOK_EVERY
        self._before: frozenset[Any] | None = None
        self._logged: set[str] = set()

    async def run_once(self) -> int:
        """How many waits were ended."""
        waits = self._engine.part(Waits).inside
        now = self._standing_still(waits) if waits else None
        before, self._before = self._before, now
        if now is None:
            self.interval = LOOK_EVERY
        if now is None or now != before:
            return 0
        runs = self._waiting(waits)
        for wait in runs.values():
            if not await self._is_stuck(wait):
                return 0
        if self._standing_still(waits) != now:  # something moved while the server was asked
            return 0
        self._before, self.interval = None, SOON
        self._end(runs)
        return 1

    def _standing_still(self, waits: dict[int, Wait]) -> frozenset[Any] | None:
        """What is in hand and what it waits for; None: something runs."""
        runs, found = list(self._worker.runner.runs.items()), []
        for key, run in runs:
            wait = _wait_of(run, waits)
            if run.started and wait is None:
                return None
            found.append((key, wait))
        return frozenset(found)

    def _waiting(self, waits: dict[int, Wait]) -> dict[Run, Wait]:
        runs = [run for run in self._worker.runner.runs.values() if run.started]
        return {run: wait for run in runs if (wait := _wait_of(run, waits)) is not None}

    def _end(self, runs: dict[Run, Wait]) -> None:
        run, wait = min(
            runs.items(), key=lambda item: (min(item[0].deadline or math.inf, item[1].ends_at), item[0].held.id)
        )
        text = (
            f"job {wait.id} on queue {wait.queue!r} cannot run: each of the {len(runs)} running jobs of this worker "
            f"waits for one that only this worker could run, and no thread is free for those. {REMEDY}"
        )
        if run.task.target not in self._logged and len(self._logged) < MOST_TASKS:
            self._logged.add(run.task.target)
            log.error("%s %s: %s", run.task.target, run.held.id, text)
        self._engine.part(Waits).end(wait, WaitDeadlock(text))

    # what is awaited
    async def _is_stuck(self, wait: Wait) -> bool:
        """Whether nothing can answer it while nothing moves here. In doubt: no."""
        if wait.rest is not None:
            rest = wait.rest()
            return 0 < len(rest) <= MOST and all([await self._is_job_stuck(*one) for one in rest])
        jobs: Jobs = [(wait.queue, wait.id)]
        if wait.members is not None:
            jobs = (await self._driver.perform(wait.members(), patience=0))[:MOST]
        for one in jobs:
            if await self._is_job_stuck(*one):
                return True
        return False

    async def _is_job_stuck(self, queue: str, id: str) -> bool:
        consumer = next((one for one in self._worker.consumers if one.queue == queue), None)
        if consumer is None:
            return False
        runs = list(self._worker.runner.runs.values())
        here = next((run for run in runs if run.held.id == id and run.origin is consumer), None)
        if here is not None and here.started:
            return True  # it waits itself
        if here is not None:
            has_thread = sum(run.started > 0 for run in runs) < self._worker.threads
            return self._worker.runner.waits_for_place(here) or (here.task.executor == "thread" and not has_thread)
        if self._worker.capacity.free(consumer) > 0:
            return False  # it is paused, limited, or not due: else it would be in hand
        seen = await self._driver.perform(look(consumer.keys, id), patience=0)
        if seen.state not in (State.READY, State.SCHEDULED) or seen.envelope is None or seen.takers:
            return False
        target = seen.envelope.target
        if self._engine.task_for(queue, target) is None:
            return False
        return not await self._others_take(consumer, target)

    async def _others_take(self, consumer: Any, target: str) -> bool:
        """Whether another live worker serves this queue and knows the task, or may know it."""
        alive = await self._driver.perform(present_at(consumer.keys, consumer.now_ms()), patience=0)
        others = [id for id in alive if id != self._worker.id.encode()]
        if not others:
            return False
        known = await self._driver.perform(offers(consumer.keys), patience=0)
        texts = [known.get(b"%" + known.get(b"#" + id, b"")) for id in others]
        if not target.isprintable() or len(target) > LONGEST:
            return True
        line = f"\n{target}=".encode()
        return any(text is None or line in text or b"\n*=" in text for text in texts)


def _wait_of(run: Run, waits: dict[int, Wait]) -> Wait | None:
    thread = run.thread
    wait = None if thread is None or thread.ident is None else waits.get(thread.ident)
    return wait if wait is not None and wait.job is run.context else None
