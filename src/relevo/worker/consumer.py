"""One queue of a worker: claims jobs and settles those that have ended, in one round trip after the other.

At most one turn is under way. Jobs that end during it are settled by the next one, so batches form by themselves under
load, and an idle consumer is one message away from its next job. When the queue is empty, the server lists the worker
as idle, and the consumer stops asking until the bell rings or something is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from relevo.engine.admission import held_of, lease_ended
from relevo.engine.carried import TAKES, InputLacking, with_inputs
from relevo.engine.ids import made_ms
from relevo.engine.job import Attempt, Envelope, Record, State, Story, write
from relevo.engine.job_store import readable
from relevo.engine.observers import Conclusion
from relevo.engine.outcome import (
    End,
    Finish,
    GiveBack,
    Happened,
    Interrupted,
    Outcome,
    Reroute,
    Returned,
    Unrunnable,
    decide,
)
from relevo.engine.settle import Held, kept_body, settle, spared_ms
from relevo.engine.signed_ends import done_signature_field
from relevo.engine.turn import MOST, Limits, Note, Settled, Turn, leave, note, renew, rest, turn
from relevo.errors import OutOfMemory, StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.plan import Call
from relevo.store.replies import SlotMoving
from relevo.text.names import known_as
from relevo.worker import kill_points as faults
from relevo.worker.event_sender import EventSender
from relevo.worker.outbox_carrier import OutboxCarrier
from relevo.worker.run import Run
from relevo.worker.server_clock import ServerClock, repair
from relevo.worker.timings import Timings

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

_NEW = Story()
_FINISH = Finish()
#: How long the registration of an idle worker is valid, and how often it is renewed. Between the two lies the time in
#: which a killed idle worker may still be handed one job, which then has to wait for its lease to end. The renewal also
#: returns when leases that began since run out: no less often than the default lease, so that the worker is there then.
IDLE_MS = 40_000
REST_EVERY = 12.0
#: Jobs that the first turn after a rest asks for: the first job of a burst starts before the others are handed out, and
#: other workers that were called find some, too.
AT_FIRST = 32
#: Bytes of bodies that one turn asks for, as far as the last bodies tell: no turn shall keep the server from others.
TURN_BYTES = 512 * 1024


class Consumer:
    """The turns of one queue."""

    def __init__(self, worker: Worker, queue: str, number: int, driver: AsyncDriver) -> None:
        engine = worker.engine
        self.queue = queue
        #: its place among the worker's consumers
        self.number = number
        self.keys = engine.keys_of(queue)
        self._signer = self.keys.signer
        self.settled = Settled()
        self._worker = worker
        self._runner = worker.runner
        self._intake = worker.intake
        self._driver = driver
        self._limits = Limits(engine.lease_ms, IDLE_MS, engine.settings.done_max, engine.settings.dead_max)
        longest = max(engine.settings.result_ttl, engine.settings.failure_ttl)
        self._notes_ttl_ms = max(60_000, round(longest * 1000))
        self._loop = asyncio.get_running_loop()
        self._kick = asyncio.Event()
        self._called = asyncio.Event()
        self._resting = False
        #: a turn is under way, and the ends of how many jobs it tells
        self.is_asking = False
        self.telling = 0
        #: jobs that a turn asks for at the most
        self._most = MOST
        #: we were called and have not asked since
        self._is_called = False
        #: Goes up whenever somebody calls. The bell has a connection of its own, so it may ring before the answer that
        #: we were put on the list of idle workers: by then we are off it again, and nobody would call us any more.
        self._calls = 0
        #: it is time to tell the server that we still wait
        self._is_rest_due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._notes: list[Note] = []
        self._away_since = 0.0
        self._is_full = False
        #: server's clock minus ours, ms
        self._skew_ms = 0
        self._clock = ServerClock()
        self._repair: asyncio.Task[None] | None = None
        self.outbox = OutboxCarrier(engine, queue, driver, self._errands_done)
        self.events = EventSender(self.keys, queue, worker.id, driver)
        #: how long its jobs waited and ran
        self.timings = Timings(engine.keys_of(known_as(queue)))
        #: jobs that are offered to other workers: why, and what becomes of them if none takes them
        self._offered: dict[str, tuple[Held, Happened, End]] = {}
        self._observers = [give(worker, queue) for give in engine.observers]
        #: jobs whose inputs are being fetched
        self.gathering: dict[str, asyncio.Task[None]] = {}
        self._heads: dict[str, bytes] = {}
        self._heads_at = (0, 0)

    @property
    def is_resting(self) -> bool:
        """Whether the server will call us: no need to ask."""
        return self._resting

    # what others tell it
    def wake(self) -> None:
        """There may be work: ask."""
        self._resting = False
        self._is_called = True
        self._calls += 1
        self._kick.set()
        self._called.set()

    def settle_soon(self) -> None:
        """Something finished: tell the server with the next turn."""
        self._kick.set()

    def bell(self, message: bytes) -> None:
        """A message from the worker's bell: a job handed over, a cancellation, or just a ring."""
        self._resting = False
        self._calls += 1
        kind = message[:1]
        if kind == b"j":
            if faults.ACTIVE:
                faults.at("handed_over")
            id, body = message[1:21].decode(errors="replace"), message[21:]
            now_ms = self.now_ms()
            held = Held(id, 1, body, readable(body), _NEW, self._worker.id, now_ms)
            if abs(now_ms - made_ms(id)) < self._limits.lease_ms / 3:
                self._take(held, now_ms)
            else:
                self.gathering[id] = self._loop.create_task(self._take_late(held), name=f"relevo late {id}")
        elif kind == b"c":
            self._runner.cancel(self, message[1:].decode())
        elif kind == b"w":
            self.events.called()
        else:
            self._is_called = True
        self._kick.set()

    def held(self) -> list[tuple[str, int]]:
        """Ids and tokens of jobs that run, or whose end could not be told yet. Also called from the keeper's thread."""
        return [*self._runner.held_of(self), *self.settled.held()]

    def now_ms(self) -> int:
        """The server's clock, as far as the last turn told."""
        return int(time.time() * 1000) + self._skew_ms

    # the loop
    async def run(self) -> None:
        """Ask and settle until the worker stops."""
        worker = self._worker
        self.events.look()
        while True:
            # A retry that goes back may be due before the time we rest for: then ask as well, to learn when to wake.
            # No more than a turn gives: fewer than we asked for must mean that the queue is empty, and nothing else.
            part = self.settled.cut()
            want = min(self._most, worker.room()) if not self._resting or part.moved else 0
            if not want and not len(part):
                if worker.is_drained and not worker.in_hand:
                    await self.outbox.finish()
                    await self.events.finish()
                    return
                worker.consumer_is_quiet()
                await self._sleep()
                continue
            if self._is_called:
                self._is_called = False
                want = min(want, AT_FIRST)
            worker.reserve(want)
            calls = self._calls
            self.is_asking, self.telling = True, len(part)
            try:
                found = await self._turn(want, part)
            finally:
                self.is_asking, self.telling = False, 0
                worker.reserve(-want)
            if found is None:
                continue
            for row in found.lost:
                try:
                    self._recover(held_of(row[0], row[1], row[2], row[3]), found.now_ms)
                except Exception:  # one strange entry must not keep the others from being settled and started
                    log.exception("%s: job %.60r cannot be taken back", self.queue, row[0])
            self._take_all(found)
            self.outbox.heed(found.errand_ms, found.now_ms)
            is_needed_now = 0 < found.wake_ms <= found.now_ms  # more is due than one turn moves
            if want and len(found.ids) < want and calls == self._calls and not is_needed_now:
                self._rest(found.wake_ms - found.now_ms if found.wake_ms else None)
            elif not want and is_needed_now:
                self.wake()  # what we told of let others of its tenant go on, and we may have room for them
            if found.ids:
                mean = sum(map(len, found.bodies)) // len(found.ids)
                self._most = min(MOST, max(1, TURN_BYTES // (mean + 1)))
                await asyncio.sleep(0)  # let what needs no waiting finish before the next turn

    def _take_all(self, found: Turn) -> None:
        me, now_ms, again = self._worker.id, found.now_ms, found.again
        for index, (id, body) in enumerate(zip(found.ids, found.bodies, strict=True)):
            try:
                if index in again:
                    held = held_of(id, again[index][0], body, again[index][1])
                else:
                    held = Held(id.decode(), 1, body, readable(body), _NEW, me, now_ms)
                self._take(held, now_ms)
            except Exception:  # any bytes may be there
                log.exception("%s: job %.60r cannot be taken", self.queue, id)

    async def _turn(self, want: int, part: Settled) -> Turn | None:
        notes, self._notes = self._notes, []
        reports = [report for one in self._observers if (report := one.before_turn()) is not None]
        try:
            if self._away_since:
                await self._renew_first()
            if notes:
                await self._write(notes)
            for report in reports:
                await self._driver.perform(report, patience=0)
            asked = time.monotonic()
            asking = self._driver.perform(turn(self.keys, self._worker.id, self._limits, want, part), patience=0)
            found = await (self._ask_and_die(asking) if faults.ACTIVE else asking)
        except StoreError as error:
            self.settled.put_back(part)
            self._notes[:0] = notes
            await self._away(error)
            return None
        if self._away_since:
            log.info("%s: the server is back after %.1f s", self.queue, time.monotonic() - self._away_since)
            self._away_since = 0.0
        self.heed_clock(asked, time.monotonic(), found.now_ms)
        self._skew_ms = found.now_ms - int(time.time() * 1000)
        self.timings.ahead = found.now_ms / 1000 - time.monotonic()
        for observer in self._observers:
            observer.after_turn()
        if self._offered:
            self._refuse_unwanted(part, found)
        if self.events.is_on:
            self.events.settled(part, found.refused, found.now_ms)
        if found.refused:
            # After a lost reply the first telling may have counted; else somebody else has the job now.
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

    async def _away(self, error: StoreError) -> None:
        """The server is away: log it once, wait with jitter, try again without end."""
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

    def _rest(self, wake_in_ms: int | None) -> None:
        """The server has put us on its list of idle workers; it will need us by itself at `wake_in_ms`."""
        self._resting = True
        self._is_rest_due = False
        if self._alarm is not None:
            self._alarm.cancel()
        # While jobs run (and whenever the queue will need somebody), the server must hear of some worker at least every
        # third of a lease: see engine/include/contact.lua.
        every = REST_EVERY if wake_in_ms is None else min(REST_EVERY, self._limits.lease_ms / 3000)
        wake_in = REST_EVERY if wake_in_ms is None else max(0.0005, wake_in_ms / 1000)
        action = self.wake if wake_in < every else self._say_soon
        self._alarm = self._loop.call_later(min(wake_in, every), action)

    def _say_soon(self) -> None:
        self._is_rest_due = True
        self._kick.set()

    async def _sleep(self) -> None:
        await self._kick.wait()
        self._kick.clear()
        if self._is_rest_due and self._resting and not self._worker.is_stopping:
            await self._say_resting()

    async def _say_resting(self) -> None:
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

    def heed_clock(self, asked: float, heard: float, now_ms: int) -> None:
        """The server told its time; if somebody set its clock, times in the queue may have to move."""
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

    def _errands_done(self) -> None:
        if self._worker.burst:  # what they let go may be ours to run: ask before the work is taken for done
            for consumer in self._worker.consumers:
                consumer.wake()

    # jobs in and out
    def _take(self, held: Held, now_ms: int) -> None:
        envelope = held.envelope
        if envelope is not None and envelope.takes in TAKES and not held.cancel_asked:
            task = self._loop.create_task(self._gather(held, envelope), name=f"relevo inputs of {held.id}")
            self.gathering[held.id] = task
            return
        run = self._intake.run_of(self, self.queue, held, now_ms)
        if isinstance(run, Run):
            self._runner.accept(run)
        else:
            self._conclude(held, run)

    async def _take_late(self, held: Held) -> None:
        """Take a job that was handed to us long ago: the loop was blocked, the message was held up on its way, or the
        clock of the producer is wrong. Another worker may have run it since, so ask before it starts.
        """
        try:
            call = renew(self.keys, [(held.id, held.token)], self._limits.lease_ms)
            lost = (await self._driver.perform(call)).lost
        except StoreError as error:  # if it is still ours, its lease ends and a later turn gives it to us again
            log.debug("%s: late job %s: %s", self.queue, held.id, error)
            lost = [held.id]
        finally:
            del self.gathering[held.id]
            self._kick.set()
        if not lost:
            self._take(held, self.now_ms())

    async def _gather(self, held: Held, envelope: Envelope) -> None:
        """Fetch what the job takes from its parents, then run it."""
        try:
            envelope = await self._driver.perform(with_inputs(self.keys, held.id, envelope), patience=0)
            self._take(msgspec.structs.replace(held, envelope=envelope), self.now_ms())
        except InputLacking as lacking:
            now_ms = self.now_ms()
            attempt = Attempt("refused", self._worker.id, now_ms, now_ms, lacking.error, str(lacking)[:2000])
            self._conclude(held, Unrunnable(lacking.reason, attempt))
        except StoreError as error:
            log.warning("%s: the inputs of job %s cannot be had: %s", self.queue, held.id, error)
            self._conclude(held, Interrupted())
        finally:
            del self.gathering[held.id]
            self._kick.set()

    def _recover(self, held: Held, now_ms: int) -> None:
        """The lease of this job has ended; we were asked to decide on it."""
        if held.worker == self._worker.id:
            self._keep(held)
            return
        self._conclude(held, lease_ended(held, now_ms))
        log.warning("%s: job %s was taken back from %s, which stopped reporting", self.queue, held.id, held.worker)

    def _keep(self, held: Held) -> None:
        """It is lent to us again, because we were too late to renew it; hand it back if we never heard of it."""
        if (self, held.id, held.token) in self._runner.runs or held.id in self.gathering or self.settled.has(held.id):
            return
        log.warning("%s: the reply to the claim of job %s was lost; it is handed back", self.queue, held.id)
        self._conclude(held, Interrupted())

    async def _renew_first(self) -> None:
        """After an outage: before we ask for jobs, renew those that we have, as the keeper will."""
        held = self.held()
        for start in range(0, len(held), MOST):
            part = held[start : start + MOST]
            renewed = await self._driver.perform(renew(self.keys, part, self._limits.lease_ms), patience=0)
            self._runner.heed(self, part, renewed.lost, renewed.cancelled)

    def _conclude(self, held: Held, happened: Happened, result: bytes = b"", not_kept: str = "") -> Outcome:
        if self.events.is_on:
            self.events.settling(held)
        now_ms = self.now_ms()
        policy, terms = self._worker.engine.terms_of(held.envelope, self.queue)
        outcome = decide(held.story, happened, policy, now_ms, random.random())
        self._observe(Conclusion(held, happened, outcome, now_ms))
        if isinstance(outcome, Reroute) and outcome.otherwise is not None:
            self._offered[held.id] = (held, happened, outcome.otherwise)
        self.settled.moved.append(settle(held, outcome, terms, now_ms, result, not_kept))
        self._kick.set()
        return outcome

    def _refuse_unwanted(self, part: Settled, found: Turn) -> None:
        """Give up what no other worker takes."""
        unwanted = {id.decode() for id in found.unwanted}
        for row in part.moved:
            offered = self._offered.pop(row.id, None) if row.verb == "offer" else None
            if offered is not None and row.id in unwanted:
                self._give_up(*offered)

    def _give_up(self, held: Held, happened: Happened, end: End) -> None:
        now_ms = self.now_ms()
        self._observe(Conclusion(held, happened, end, now_ms))
        _, terms = self._worker.engine.terms_of(held.envelope, self.queue)
        self.settled.moved.append(settle(held, end, terms, now_ms))
        self._kick.set()

    def conclude(self, run: Run, happened: Happened, result: bytes = b"", not_kept: str = "") -> Outcome | None:
        """Settle a run. The short way for the many that simply went well."""
        held = run.held
        if self.events.is_on:
            self.events.settling(held)
        envelope = held.envelope
        if (
            isinstance(happened, Returned)
            and held.token == 1
            and envelope is not None
            and not envelope.name
            and not run.carries
            and (self._signer is None or not not_kept)
            and run.context._keeping is None  # checkpoints end with the job, which the short way knows nothing of
        ):
            if run.result_ttl <= 0 and not run.is_asked and self._signer is None:
                self.settled.plain.append(held.id)
            else:
                told = b',"result":' + result if result else b',"not_kept":' + write(not_kept)
                if self._signer is not None:
                    told += done_signature_field(self._signer, held.id, result)
                self.settled.kept.append(held.id)
                record = self._done_head(envelope.target, held.since_ms) + told
                if run.result_ttl > 0:
                    kept_ms, record = max(1, round(run.result_ttl * 1000)), record + b',"body":' + kept_body(held)
                else:
                    kept_ms = self._spared_ms(envelope) if run.is_asked else 0
                self.settled.records += (kept_ms, record + b"}")
            if envelope.headers is not None:
                self._observe(Conclusion(held, happened, _FINISH, self.now_ms()))
            self._kick.set()
            return None
        return self._conclude(held, happened, result, not_kept)

    def _observe(self, conclusion: Conclusion) -> None:
        for observer in self._observers:
            observer.ended(conclusion)

    def _spared_ms(self, envelope: Envelope) -> int:
        return 0 if self._worker.engine.client.source.is_cluster else spared_ms(envelope, self.now_ms())

    def _done_head(self, target: str, since_ms: int) -> bytes:
        """A record up to the result. Jobs that came together mostly also end in the same millisecond."""
        now_ms = self.now_ms()
        if self._heads_at != (since_ms, now_ms):
            self._heads_at = (since_ms, now_ms)
            self._heads.clear()
        head = self._heads.get(target)
        if head is None:
            record = Record(State.DONE, target, started_ms=since_ms, ended_ms=now_ms, worker=self._worker.id)
            head = self._heads[target] = write(record)[:-1]
        return head

    def handing_back(self, runs: Sequence[Run]) -> Call[Turn]:
        """A turn that hands jobs back as if they had not been claimed. Used by the lease renewer, outside the loop."""
        terms_of = self._worker.engine.terms_of
        rows = [settle(run.held, GiveBack(), terms_of(run.held.envelope, self.queue)[1], 0) for run in runs]
        return turn(self.keys, self._worker.id, self._limits, 0, Settled(moved=rows))

    def note(self, run: Run) -> None:
        """Write down, with the next turn, what a running job printed and how far it is, as far as that is new."""
        text = run.capture.text() if run.capture.changed else ""
        if self.events.is_on:
            self.events.noted(run, text)
        self._note(run, text, run.held.token)

    def note_end(self, run: Run, text: str, *, ended_well: bool) -> None:
        """The same for one that has just ended. `ended_well`: in the short way, so that its record is not shortened."""
        if self.events.is_on:
            self.events.noted(run, text)
        if not ended_well:
            self._note(run, text, "")
        elif run.result_ttl > 0:
            ms = max(1, round(run.result_ttl * 1000))
            if run.is_noted:
                self._notes.append(Note(run.held.id, "", "", "", ms))
            self._note(run, text, "", ms)
        elif run.is_noted:
            self._notes.append(Note(run.held.id, "", "", "", 0))

    def _note(self, run: Run, text: str, token: int | str, ms: int | Literal[""] = "") -> None:
        if run.is_asked:
            return  # what a request wrote ends with it, as its record does
        if text:
            self._notes.append(Note(run.held.id, token, f"log:{run.context.attempt}", text, ms))
            run.is_noted = True
        said = run.context._progress
        if said is not None and said != run.told_progress:
            run.told_progress = said
            told = write({"fraction": said[0], "message": said[1]}).decode()
            self._notes.append(Note(run.held.id, token, "progress", told, ms))
            run.is_noted = True

    async def flush_notes(self) -> None:
        """Write down what has piled up, should no turn come by."""
        notes, self._notes = self._notes, []
        if notes:
            try:
                await self._write(notes)
            except StoreError:
                self._notes[:0] = notes

    async def _write(self, notes: list[Note]) -> None:
        try:
            await self._driver.perform(note(self.keys, notes, self._notes_ttl_ms), patience=0)
            self._is_full = False
        except OutOfMemory:
            # What jobs say may be lost. What became of them may not, and telling it is what frees memory.
            if not self._is_full:
                log.warning("%s: the server is full; logs of jobs are dropped until it has room", self.queue)
            self._is_full = True

    async def leave(self) -> None:
        """Wait for no more jobs; what was handed over in the last moment is taken along and given back."""
        self._resting = False
        for message in await self._driver.perform(leave(self.keys, self._worker.id), patience=0):
            self.bell(message)
