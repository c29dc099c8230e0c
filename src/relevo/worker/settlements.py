"""Decides what becomes of the attempts of one queue, and collects it for the turn that settles them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from relevo.engine.duty import Host
from relevo.engine.job import Envelope, Record, State, write
from relevo.engine.observers import Conclusion
from relevo.engine.outcome import End, Finish, GiveBack, Happened, Outcome, Reroute, Returned, decide
from relevo.engine.settle import Held, kept_body, settle, spared_ms
from relevo.engine.signed_ends import done_signature_field
from relevo.engine.turn import Settled, Turn
from relevo.store.plan import Plan
from relevo.worker.event_sender import EventSender
from relevo.worker.run import Run
from relevo.worker.server_clock import ServerClock

_FINISH = Finish()


class Settlements:
    """The outcomes of one queue that the server does not know yet are in `settled`."""

    def __init__(
        self, worker: Host, queue: str, clock: ServerClock, events: EventSender, on_change: Callable[[], None]
    ) -> None:
        self.settled = Settled()
        self._engine = worker.engine
        self._worker = worker.id
        self._queue = queue
        self._signer = worker.engine.keys_of(queue).signer
        self._clock = clock
        self._events = events
        self._on_change = on_change
        self._observers = [give(worker, queue) for give in worker.engine.observers]
        #: jobs that are offered to other workers: why, and what becomes of them if none takes them
        self._offered: dict[str, tuple[Held, Happened, End]] = {}
        self._heads: dict[str, bytes] = {}
        self._heads_at = (0, 0)

    def conclude_run(self, run: Run, happened: Happened, result: bytes = b"", not_kept: str = "") -> Outcome | None:
        """Settle a run. None: it simply went well, as most do, and took the short way."""
        envelope = run.held.envelope
        if self._events.is_on:
            self._events.settling(run.held)
        if (
            isinstance(happened, Returned)
            and run.held.token == 1
            and envelope is not None
            and not envelope.name
            and not run.carries
            and (self._signer is None or not not_kept)
            and run.context._keeping is None  # checkpoints end with the job, which the short way does not know
        ):
            if run.result_ttl <= 0 and not run.is_asked and self._signer is None:
                self.settled.plain.append(run.held.id)
            else:
                self._finish(run, envelope, result, not_kept)
            if envelope.headers is not None:
                self._observe(Conclusion(run.held, happened, _FINISH, self._clock.now_ms()))
            self._on_change()
            return None
        return self.conclude(run.held, happened, result, not_kept)

    def _finish(self, run: Run, envelope: Envelope, result: bytes, not_kept: str) -> None:
        held = run.held
        tail = b',"result":' + result if result else b',"not_kept":' + write(not_kept)
        if self._signer is not None:
            tail += done_signature_field(self._signer, held.id, result)
        self.settled.kept.append(held.id)
        record = self._done_head(envelope.target, held.since_ms) + tail
        if run.result_ttl > 0:
            kept_ms, record = max(1, round(run.result_ttl * 1000)), record + b',"body":' + kept_body(held)
        else:
            kept_ms = self._spared_ms(envelope) if run.is_asked else 0
        self.settled.records += (kept_ms, record + b"}")

    def _spared_ms(self, envelope: Envelope) -> int:
        return 0 if self._engine.client.source.is_cluster else spared_ms(envelope, self._clock.now_ms())

    def _done_head(self, target: str, since_ms: int) -> bytes:
        """A record up to the result. Jobs that came together mostly also end in the same millisecond."""
        now_ms = self._clock.now_ms()
        if self._heads_at != (since_ms, now_ms):
            self._heads_at = (since_ms, now_ms)
            self._heads.clear()
        head = self._heads.get(target)
        if head is None:
            record = Record(State.DONE, target, started_ms=since_ms, ended_ms=now_ms, worker=self._worker)
            head = self._heads[target] = write(record)[:-1]
        return head

    def conclude(self, held: Held, happened: Happened, result: bytes = b"", not_kept: str = "") -> Outcome:
        """Decide what becomes of a job, and settle it."""
        if self._events.is_on:
            self._events.settling(held)
        now_ms = self._clock.now_ms()
        policy, terms = self._engine.terms_of(held.envelope, self._queue)
        outcome = decide(held.story, happened, policy, now_ms, random.random())
        self._observe(Conclusion(held, happened, outcome, now_ms))
        if isinstance(outcome, Reroute) and outcome.otherwise is not None:
            self._offered[held.id] = (held, happened, outcome.otherwise)
        self.settled.moved.append(settle(held, outcome, terms, now_ms, result, not_kept))
        self._on_change()
        return outcome

    def _observe(self, conclusion: Conclusion) -> None:
        for observer in self._observers:
            observer.ended(conclusion)

    def before_turn(self) -> list[Plan[None]]:
        """What observers report to the server before it hands out more jobs."""
        return [report for one in self._observers if (report := one.before_turn()) is not None]

    def after_turn(self, part: Settled, found: Turn) -> None:
        """The server knows this part. Jobs that it offered to other workers and none takes are given up."""
        for observer in self._observers:
            observer.after_turn()
        if not self._offered:
            return
        unwanted = {id.decode() for id in found.unwanted}
        for row in part.moved:
            offered = self._offered.pop(row.id, None) if row.verb == "offer" else None
            if offered is not None and row.id in unwanted:
                self._give_up(*offered)

    def _give_up(self, held: Held, happened: Happened, end: End) -> None:
        now_ms = self._clock.now_ms()
        self._observe(Conclusion(held, happened, end, now_ms))
        _, terms = self._engine.terms_of(held.envelope, self._queue)
        self.settled.moved.append(settle(held, end, terms, now_ms))
        self._on_change()

    def handed_back(self, runs: Sequence[Run]) -> Settled:
        """Jobs that go back as if they had not been claimed. Used by the lease renewer, outside the loop."""
        terms_of = self._engine.terms_of
        rows = [settle(run.held, GiveBack(), terms_of(run.held.envelope, self._queue)[1], 0) for run in runs]
        return Settled(moved=rows)
