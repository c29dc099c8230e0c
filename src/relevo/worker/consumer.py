"""One queue of a worker: claims jobs and settles those that have ended, in one round trip after the other.

    server ──turn──▶ Arrivals ──▶ Intake ──▶ Runner ──▶ executor ──▶ Runner ──▶ Settlements ──turn──▶ server

At most one turn is under way. Jobs that end during it are settled by the next one, so batches form by themselves under
load, and an idle consumer is one message away from its next job. When the queue is empty, the server lists the worker
as idle, and the consumer claims nothing until the bell rings or something is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from relevo.engine.turn import MOST, Limits, Settled, Turn, leave, renew, rest, turn
from relevo.errors import StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.plan import Call
from relevo.store.replies import SlotMoving
from relevo.text.names import known_as
from relevo.worker import kill_points as faults
from relevo.worker.arrivals import Arrivals
from relevo.worker.event_sender import EventSender
from relevo.worker.job_notes import JobNotes
from relevo.worker.outbox_carrier import OutboxCarrier
from relevo.worker.run import Run
from relevo.worker.server_clock import ServerClock, repair
from relevo.worker.settlements import Settlements
from relevo.worker.timings import Timings

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Milliseconds for which an idle worker stays on the list of idle workers, and seconds after which it renews that.
#: Between the two lies the time in which a killed idle worker may still be handed one job, which then waits for its
#: lease to end. By renewing, an idle worker also learns of leases that began since: no more than a lease (of the
#: default length) apart, so that it is there when one runs out.
IDLE_MS = 40_000
REST_EVERY = 12.0
#: Jobs that the first turn after a rest asks for: the first job of a burst starts before the others are handed out, and
#: other workers that were called find some, too.
AT_FIRST = 32
#: Bytes of bodies that one turn asks for, judged by the last bodies: no turn may keep the server from other clients.
TURN_BYTES = 512 * 1024


class Consumer:
    """The turns of one queue."""

    def __init__(self, worker: Worker, queue: str, number: int, driver: AsyncDriver) -> None:
        engine = worker.engine
        self.queue = queue
        #: its place among the worker's consumers
        self.number = number
        self.keys = engine.keys_of(queue)
        self._worker = worker
        self._capacity = worker.capacity
        self._runner = worker.runner
        self._driver = driver
        self._limits = Limits(engine.lease_ms, IDLE_MS, engine.settings.done_max, engine.settings.dead_max)
        self._loop = asyncio.get_running_loop()
        self._kick = asyncio.Event()
        self._called = asyncio.Event()
        self._resting = False
        #: a turn is under way, and how many jobs it settles
        self.is_asking = False
        self._settling = 0
        #: jobs that a turn asks for at most
        self._most = MOST
        #: the bell has rung since the last turn
        self._is_called = False
        #: Counts calls. The bell has a connection of its own, so it may ring before the answer that the worker was put
        #: on the list of idle workers: by then it is off that list again, and no further call would come.
        self._calls = 0
        #: it is time to renew the place on the list of idle workers
        self._is_rest_due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._away_since = 0.0
        self._clock = ServerClock()
        self._repair: asyncio.Task[None] | None = None
        self.outbox = OutboxCarrier(engine, queue, driver, self._outbox_was_emptied)
        self.events = EventSender(self.keys, queue, worker.id, driver)
        #: how long its jobs waited and ran
        self.timings = Timings(engine.keys_of(known_as(queue)))
        longest = max(engine.settings.result_ttl, engine.settings.failure_ttl)
        self.notes = JobNotes(self.keys, queue, driver, self.events, max(60_000, round(longest * 1000)))
        self.settlements = Settlements(worker, queue, self._clock, self.events, self._kick.set)
        self._settled = self.settlements.settled
        self._arrivals = Arrivals(
            self,
            self.keys,
            worker.id,
            driver,
            lease_ms=engine.lease_ms,
            intake=worker.intake,
            runner=worker.runner,
            settlements=self.settlements,
            on_change=self._kick.set,
        )

    @property
    def is_resting(self) -> bool:
        """Whether the server will call us: no need to ask."""
        return self._resting

    @property
    def unsettled(self) -> int:
        """Jobs that do not run here, but were claimed and are not settled."""
        return len(self._arrivals.pending) + len(self._settled) + self._settling

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is left to claim, to settle or to deliver."""
        return self._resting and not (self._settled or self.outbox.is_busy or self.is_asking)

    # called by others
    def wake(self) -> None:
        """There may be work: ask."""
        self._resting = False
        self._is_called = True
        self._calls += 1
        self._kick.set()
        self._called.set()

    def settle_soon(self) -> None:
        """There is something to settle, or room for more jobs: take a turn."""
        self._kick.set()

    def bell(self, message: bytes) -> None:
        """A message from the worker's bell: a job handed over, a cancellation, or just a ring."""
        self._resting = False
        self._calls += 1
        kind = message[:1]
        if kind == b"j":
            if faults.ACTIVE:
                faults.at("handed_over")
            self._arrivals.take_handed(message[1:21].decode(errors="replace"), message[21:])
        elif kind == b"c":
            self._runner.cancel(self, message[1:].decode())
        elif kind == b"w":
            self.events.called()
        else:
            self._is_called = True
        self._kick.set()

    def held(self) -> list[tuple[str, int]]:
        """Ids and tokens of jobs that run or are not settled yet. Also called from the lease renewer's thread."""
        return [*self._runner.held_of(self), *self._settled.held()]

    def now_ms(self) -> int:
        """The server's clock, as of the last turn."""
        return self._clock.now_ms()

    # the loop
    async def run(self) -> None:
        """Claim and settle until the worker stops."""
        capacity = self._capacity
        self.events.look()
        while True:
            # A retry that goes back may be due before the time we rest for: then ask as well, to learn when to wake.
            # No more than a turn gives: fewer than we asked for must mean that the queue is empty, and nothing else.
            part = self._settled.cut()
            want = min(self._most, capacity.room(self)) if not self._resting or part.moved else 0
            if not want and not len(part):
                if self._worker.is_drained and not capacity.in_hand:
                    await self.outbox.finish()
                    await self.events.finish()
                    return
                self._worker.consumer_is_quiet()
                await self._sleep()
                continue
            if self._is_called:
                self._is_called = False
                want = min(want, AT_FIRST)
            capacity.reserve(self, want)
            calls = self._calls
            self.is_asking, self._settling = True, len(part)
            try:
                found = await self._turn(want, part)
            finally:
                self.is_asking, self._settling = False, 0
                capacity.reserve(self, -want)
            if found is None:
                continue
            self._arrivals.take_all(found)
            self.outbox.heed(found.errand_ms, found.now_ms)
            is_needed_now = 0 < found.wake_ms <= found.now_ms  # more is due than one turn moves
            if want and len(found.ids) < want and calls == self._calls and not is_needed_now:
                self._rest(found.wake_ms - found.now_ms if found.wake_ms else None)
            elif not want and is_needed_now:
                self.wake()  # what was settled lets others of its tenant go on, and we may have room for them
            if found.ids:
                mean = sum(map(len, found.bodies)) // len(found.ids)
                self._most = min(MOST, max(1, TURN_BYTES // (mean + 1)))
                await asyncio.sleep(0)  # let what needs no waiting finish before the next turn

    async def _turn(self, want: int, part: Settled) -> Turn | None:
        notes, reports = self.notes.take(), self.settlements.before_turn()
        try:
            if self._away_since:
                await self._renew_first()
            if notes:
                await self.notes.write(notes)
            for report in reports:
                await self._driver.perform(report, patience=0)
            asked = time.monotonic()
            asking = self._driver.perform(turn(self.keys, self._worker.id, self._limits, want, part), patience=0)
            found = await (self._ask_and_die(asking) if faults.ACTIVE else asking)
        except StoreError as error:
            self._settled.put_back(part)
            self.notes.put_back(notes)
            await self._away(error)
            return None
        if self._away_since:
            log.info("%s: the server is back after %.1f s", self.queue, time.monotonic() - self._away_since)
            self._away_since = 0.0
        self.heed_clock(asked, time.monotonic(), found.now_ms)
        self._clock.set(found.now_ms)
        self.timings.ahead = found.now_ms / 1000 - time.monotonic()
        self.settlements.after_turn(part, found)
        if self.events.is_on:
            self.events.settled(part, found.refused, found.now_ms)
        if found.refused:
            # After a lost reply an earlier turn may have settled them; else another worker has the job now.
            log.warning("%s: the outcome of %d jobs came too late and was refused", self.queue, len(found.refused))
            self._worker.refused += len(found.refused)
        return found

    @staticmethod
    async def _ask_and_die(asking: Coroutine[Any, Any, Turn]) -> Turn:
        """Under test: die while the server has our turn and we do not have its answer, or right after."""
        asked = asyncio.create_task(asking)
        await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        faults.at("turn_sent")
        found = await asked
        faults.at("settled")
        if found.ids:
            faults.at("claimed")
        return found

    async def _renew_first(self) -> None:
        """After an outage: renew the leases of jobs in hand before claiming more, as the lease renewer will."""
        held = self.held()
        for start in range(0, len(held), MOST):
            part = held[start : start + MOST]
            renewed = await self._driver.perform(renew(self.keys, part, self._limits.lease_ms), patience=0)
            self._runner.heed(self, part, renewed.lost, renewed.cancelled)

    async def _away(self, error: StoreError) -> None:
        """The server is away: log it once, and wait with jitter before the next try."""
        if not self._away_since:
            self._away_since = time.monotonic()
            log.warning("%s: %s; trying again until it is back", self.queue, error)
        self._resting = False
        gone = time.monotonic() - self._away_since
        longest = 0.5 if isinstance(error, SlotMoving) else 2.0  # its node answers, at little cost
        self._called.clear()
        with contextlib.suppress(TimeoutError):  # the bell may find the server first
            async with asyncio.timeout(min(longest, 0.05 + gone / 4) * random.uniform(0.5, 1.5)):
                await self._called.wait()

    # rest
    def _rest(self, wake_in_ms: int | None) -> None:
        """The server has put us on its list of idle workers; it will need us by itself at `wake_in_ms`."""
        self._resting = True
        self._is_rest_due = False
        if self._alarm is not None:
            self._alarm.cancel()
        # While jobs run (and whenever a worker will be needed), some worker must contact the server at least every
        # third of a lease: see engine/lua/include/contact.lua.
        every = REST_EVERY if wake_in_ms is None else min(REST_EVERY, self._limits.lease_ms / 3000)
        wake_in = REST_EVERY if wake_in_ms is None else max(0.0005, wake_in_ms / 1000)
        action = self.wake if wake_in < every else self._renew_rest_soon
        self._alarm = self._loop.call_later(min(wake_in, every), action)

    def _renew_rest_soon(self) -> None:
        self._is_rest_due = True
        self._kick.set()

    async def _sleep(self) -> None:
        await self._kick.wait()
        self._kick.clear()
        if self._is_rest_due and self._resting and not self._worker.is_stopping:
            await self._renew_rest()

    async def _renew_rest(self) -> None:
        calls, asked = self._calls, time.monotonic()
        try:
            now, wake, waits, errand = await self._driver.perform(
                rest(self.keys, self._worker.id, self._limits.lease_ms, IDLE_MS), patience=0
            )
        except StoreError as error:
            await self._away(error)
            return
        self.heed_clock(asked, time.monotonic(), now)
        self.outbox.heed(errand, now)
        if waits and calls == self._calls:
            self._rest(wake - now if wake else None)
        else:
            self.wake()

    # the server's clock
    def heed_clock(self, asked: float, heard: float, now_ms: int) -> None:
        """The server reported its time; if its clock was set, times in the queue may have to move."""
        step_ms = self._clock.note(asked, heard, now_ms)
        if not step_ms:
            return
        self._worker.step_log.say(self.queue, step_ms)
        self._worker.register_again()
        self._called.set()
        if step_ms < 0 and (missing := self._clock.missing(step_ms)):
            self._repair = self._loop.create_task(self._set_back(missing, now_ms), name=f"relevo clock {self.queue}")
        else:
            self.wake()

    async def _set_back(self, step_ms: int, now_ms: int) -> None:
        try:
            await repair(self._worker.engine, self.queue, self._driver, step_ms, now_ms, IDLE_MS)
        except StoreError as error:
            log.warning("%s: what waits for a time is %.0f s late: %s", self.queue, step_ms / 1000, error)
        self.wake()
        self.outbox.look()

    def _outbox_was_emptied(self) -> None:
        if self._worker.burst:  # jobs that its messages released may be ours to run: look before the burst ends
            for consumer in self._worker.consumers:
                consumer.wake()

    # the end
    def handing_back(self, runs: Sequence[Run]) -> Call[Turn]:
        """A turn that hands jobs back as if they had not been claimed. Used by the lease renewer, outside the loop."""
        return turn(self.keys, self._worker.id, self._limits, 0, self.settlements.handed_back(runs))

    async def leave(self) -> None:
        """Leave the list of idle workers; a job that was handed over in the last moment is taken and given back."""
        self._resting = False
        for message in await self._driver.perform(leave(self.keys, self._worker.id), patience=0):
            self.bell(message)
