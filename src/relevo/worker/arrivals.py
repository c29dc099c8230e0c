"""From a job that a worker was given to its run: checks that it is still ours, fetches its inputs, and starts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from relevo.engine.admission import held_of, lease_ended
from relevo.engine.carried import TAKES, InputLacking, with_inputs
from relevo.engine.ids import made_ms
from relevo.engine.job import Attempt, Envelope, Story
from relevo.engine.job_store import readable
from relevo.engine.outcome import Interrupted, Unrunnable
from relevo.engine.settle import Held
from relevo.engine.turn import Turn, renew
from relevo.errors import StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.keys import QueueKeys
from relevo.worker.intake import Intake
from relevo.worker.run import Origin, Run
from relevo.worker.runner import Runner
from relevo.worker.settlements import Settlements

log = logging.getLogger("relevo.worker")

_NEW = Story()


class Arrivals:
    """The jobs that come to one queue of a worker."""

    def __init__(
        self,
        origin: Origin,
        keys: QueueKeys,
        worker: str,
        driver: AsyncDriver,
        *,
        lease_ms: int,
        intake: Intake,
        runner: Runner,
        settlements: Settlements,
        on_change: Callable[[], None],
    ) -> None:
        self._origin = origin
        self._keys = keys
        self._worker = worker
        self._driver = driver
        self._lease_ms = lease_ms
        self._intake = intake
        self._runner = runner
        self._settlements = settlements
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        #: jobs that need an answer of the server before they can start
        self.pending: dict[str, asyncio.Task[None]] = {}

    def take_handed(self, id: str, body: bytes) -> None:
        """Take a job that came by the bell."""
        now_ms = self._origin.now_ms()
        held = Held(id, 1, body, readable(body), _NEW, self._worker, now_ms)
        if abs(now_ms - made_ms(id)) < self._lease_ms / 3:
            self.take(held, now_ms)
        else:
            self.pending[id] = self._loop.create_task(self._take_late(held), name=f"relevo late {id}")

    def take_all(self, found: Turn) -> None:
        """Take what a turn gave, and settle jobs whose worker fell silent."""
        for row in found.lost:
            try:
                self._recover(held_of(row[0], row[1], row[2], row[3]), found.now_ms)
            except Exception:  # one strange entry must not keep the others from being settled and started
                log.exception("%s: job %.60r cannot be taken back", self._origin.queue, row[0])
        me, now_ms, again = self._worker, found.now_ms, found.again
        for index, (id, body) in enumerate(zip(found.ids, found.bodies, strict=True)):
            try:
                if index in again:
                    held = held_of(id, again[index][0], body, again[index][1])
                else:
                    held = Held(id.decode(), 1, body, readable(body), _NEW, me, now_ms)
                self.take(held, now_ms)
            except Exception:  # any bytes may be there
                log.exception("%s: job %.60r cannot be taken", self._origin.queue, id)

    def take(self, held: Held, now_ms: int) -> None:
        """Start a job, or settle it if it cannot run here."""
        envelope = held.envelope
        if envelope is not None and envelope.takes in TAKES and not held.cancel_asked:
            task = self._loop.create_task(self._gather(held, envelope), name=f"relevo inputs of {held.id}")
            self.pending[held.id] = task
            return
        run = self._intake.run_of(self._origin, held, now_ms)
        if isinstance(run, Run):
            self._runner.accept(run)
        else:
            self._settlements.conclude(held, run)

    async def _take_late(self, held: Held) -> None:
        """Take a job that was handed to us long ago: the loop was blocked, the message was held up on its way, or the
        clock of the producer is wrong. Another worker may have run it since, so ask before it starts.
        """
        try:
            call = renew(self._keys, [(held.id, held.token)], self._lease_ms)
            lost = (await self._driver.perform(call)).lost
        except StoreError as error:  # if it is still ours, its lease ends and a later turn gives it to us again
            log.debug("%s: late job %s: %s", self._origin.queue, held.id, error)
            lost = [held.id]
        finally:
            del self.pending[held.id]
            self._on_change()
        if not lost:
            self.take(held, self._origin.now_ms())

    async def _gather(self, held: Held, envelope: Envelope) -> None:
        """Fetch what the job takes from its parents, then run it."""
        try:
            envelope = await self._driver.perform(with_inputs(self._keys, held.id, envelope), patience=0)
            self.take(msgspec.structs.replace(held, envelope=envelope), self._origin.now_ms())
        except InputLacking as lacking:
            now_ms = self._origin.now_ms()
            attempt = Attempt("refused", self._worker, now_ms, now_ms, lacking.error, str(lacking)[:2000])
            self._settlements.conclude(held, Unrunnable(lacking.reason, attempt))
        except StoreError as error:
            log.warning("%s: the inputs of job %s are not available: %s", self._origin.queue, held.id, error)
            self._settlements.conclude(held, Interrupted())
        finally:
            del self.pending[held.id]
            self._on_change()

    def _recover(self, held: Held, now_ms: int) -> None:
        """The lease of this job has ended, and this worker is to decide on it."""
        if held.worker == self._worker:
            self._keep(held)
            return
        self._settlements.conclude(held, lease_ended(held, now_ms))
        log.warning("%s: job %s was taken back from %s, which fell silent", self._origin.queue, held.id, held.worker)

    def _keep(self, held: Held) -> None:
        """It is leased to us again, because we were too late to renew it; hand it back if we do not have it."""
        is_running = (self._origin, held.id, held.token) in self._runner.runs
        if is_running or held.id in self.pending or self._settlements.settled.has(held.id):
            return
        log.warning("%s: the reply to the claim of job %s was lost; it is handed back", self._origin.queue, held.id)
        self._settlements.conclude(held, Interrupted())
