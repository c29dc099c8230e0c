"""A queue in the hands of its users: look, pause, limit, clear, and take jobs with a loop of one's own."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from relevo.codec import Signature
from relevo.engine.admission import held_of, recovered, refusal
from relevo.engine.carried import InputLacking, with_inputs
from relevo.engine.ids import made_ms
from relevo.engine.job import Attempt, Envelope, State
from relevo.engine.outcome import (
    CancelAsked,
    End,
    Finish,
    GiveBack,
    Happened,
    Outcome,
    TooLate,
    TryAgain,
    Unrunnable,
    decide,
)
from relevo.engine.pauses import Pause, Until, ends_of, note_of
from relevo.engine.settle import Held, settle
from relevo.engine.turn import Claimed, Limits, Moved, Renewed, Settled, Turn, claim, renew, turn
from relevo.errors import OptionError
from relevo.limits import store as limits
from relevo.limits.limit import QUEUE, limit_of, name_of
from relevo.limits.pause_store import pauses, written
from relevo.limits.store import LimitInfo
from relevo.queues import store as queues
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.store.server_time import server_time
from relevo.text.durations import Duration, seconds
from relevo.text.names import is_pool_name

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task


class JobRow(Struct, frozen=True, kw_only=True):
    """A job in a listing."""

    id: str
    state: State
    task: str
    #: None, here and below: not known, since the body cannot be read or was not kept.
    priority: int | None
    enqueued_ms: int
    name: str | None = None
    tenant: str | None = None
    due_ms: int | None = None
    worker: str = ""
    reason: str = ""
    error: str = ""
    ended_ms: int | None = None


class Queue:
    """One queue of an app."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name
        engine.keys_of(name)  # refuses a name that cannot be one

    @property
    def _keys(self) -> QueueKeys:
        return self._engine.keys_of(self.name)  # asked each time: the app may be bound elsewhere for a test

    def __repr__(self) -> str:
        return f"<Queue {self._keys.address}>"

    def stats(self) -> queues.QueueStats:
        """How many jobs are in each state, from one snapshot whose numbers add up."""
        return self._engine.run(queues.count(self._keys, self.name))

    async def astats(self) -> queues.QueueStats:
        """`stats` for async code."""
        return await self._engine.arun(queues.count(self._keys, self.name))

    def pause(
        self,
        *,
        tenant: str | None = None,
        task: str | Task[..., Any] | None = None,
        reason: str = "",
        by: str = "",
        until: Until = None,
    ) -> bool:
        """Start no more jobs, of all, of one tenant or of one task; running jobs go on. True if it was not paused.

        With `until`, a duration or an aware datetime, the pause ends then, by the server's clock. `reason` and `by` are
        shown in listings. A second pause replaces the first.

        >>> queue.pause(task="shop.charge", reason="bank is down", by="ana", until="2h")     # doctest: +SKIP
        """
        return self._engine.run(self._pause(tenant, task, reason, by, until))

    async def apause(
        self,
        *,
        tenant: str | None = None,
        task: str | Task[..., Any] | None = None,
        reason: str = "",
        by: str = "",
        until: Until = None,
    ) -> bool:
        """`pause` for async code."""
        return await self._engine.arun(self._pause(tenant, task, reason, by, until))

    def _pause(
        self, tenant: str | None, task: str | Task[..., Any] | None, reason: str, by: str, until: Until
    ) -> Generator[Call[Any], Any, bool]:
        """The plan behind `pause`."""
        name, note = self._scope(tenant, task), note_of(reason, by)
        ends_ms = 0 if until is None else ends_of(until, (yield from self._engine.now_ms()))
        yield from self._engine.list_queue(self.name)
        changed: bool
        if name == QUEUE:
            changed = yield queues.pause(self._keys, True, ends_ms, note)
        else:
            changed = yield from limits.pause(self._keys, name, ends_ms, note)
        return changed

    def resume(self, *, tenant: str | None = None, task: str | Task[..., Any] | None = None) -> bool:
        """Start jobs (of one tenant, of one task) again; wakes idle workers. True if it was paused.

        Also closes the open breaker of a task.
        """
        return self._engine.run(self._resume(tenant, task))

    async def aresume(self, *, tenant: str | None = None, task: str | Task[..., Any] | None = None) -> bool:
        """`resume` for async code."""
        return await self._engine.arun(self._resume(tenant, task))

    def _resume(self, tenant: str | None, task: str | Task[..., Any] | None) -> Call[bool]:
        """The plan behind `resume`."""
        name = self._scope(tenant, task)
        return queues.pause(self._keys, False) if name == QUEUE else limits.resume(self._keys, name)

    def pauses(self) -> list[Pause]:
        """What is paused, since when and until when, why and by whom: the queue, tasks, tenants, schedules.

        Includes tasks whose breaker is open.
        """
        return self._engine.run(self._pauses())

    async def apauses(self) -> list[Pause]:
        """`pauses` for async code."""
        return await self._engine.arun(self._pauses())

    def _pauses(self) -> Generator[Call[Any], Any, list[Pause]]:
        """The plan behind `pauses`."""
        now_ms = yield from self._engine.now_ms()
        return (yield from pauses(self._keys, self.name, now_ms, (yield written(self._keys))))

    def limit(
        self,
        tenant: str | None = None,
        *,
        task: str | Task[..., Any] | None = None,
        concurrency: int | None = None,
        rate: str | float | None = None,
        burst: int | None = None,
    ) -> bool:
        """Limit a tenant, a task, or with neither the queue: how many jobs run at once, how fast they start.

        Takes effect at once, also for queued jobs, and replaces an earlier limit. `burst`: jobs that may start together
        after a time without any; by default those of one second. A job under several limits starts when all of them
        allow it.

        >>> queue.limit("acme", concurrency=2, rate="100/m")           # doctest: +SKIP
        >>> queue.limit(task="shop.charge", rate="10/s")               # doctest: +SKIP
        >>> queue.limit(concurrency=50)                                # doctest: +SKIP
        """
        return self._engine.run(self._limit(tenant, task, concurrency, rate, burst))

    async def alimit(
        self,
        tenant: str | None = None,
        *,
        task: str | Task[..., Any] | None = None,
        concurrency: int | None = None,
        rate: str | float | None = None,
        burst: int | None = None,
    ) -> bool:
        """`limit` for async code."""
        return await self._engine.arun(self._limit(tenant, task, concurrency, rate, burst))

    def _limit(
        self,
        tenant: str | None,
        task: str | Task[..., Any] | None,
        concurrency: int | None,
        rate: str | float | None,
        burst: int | None,
    ) -> Generator[Call[Any], Any, bool]:
        """The plan behind `limit`; returns whether it changed anything."""
        name, wanted = self._scope(tenant, task), limit_of(concurrency, rate, burst)
        yield from self._engine.list_queue(self.name)
        return (yield from limits.limit(self._keys, name, wanted))

    def unlimit(self, tenant: str | None = None, *, task: str | Task[..., Any] | None = None) -> bool:
        """Remove a limit; pauses stay. True if there was one."""
        return self._engine.run(limits.unlimit(self._keys, self._scope(tenant, task)))

    async def aunlimit(self, tenant: str | None = None, *, task: str | Task[..., Any] | None = None) -> bool:
        """`unlimit` for async code."""
        return await self._engine.arun(limits.unlimit(self._keys, self._scope(tenant, task)))

    def _scope(self, tenant: str | None, task: str | Task[..., Any] | None) -> str:
        """What is paused or limited, by its name among the limits."""
        if is_pool_name(self.name):  # it is listed among the queues for its dead letters
            raise OptionError(f"{self.name!r:.80} is a pool: it holds no jobs, so it can be neither paused nor limited")
        return name_of(tenant, task)

    def limits(self) -> list[LimitInfo]:
        """Limits, pauses and open breakers, with their current use: of the queue, of tasks and tenants."""
        return self._engine.run(limits.limits(self._keys))

    async def alimits(self) -> list[LimitInfo]:
        """`limits` for async code."""
        return await self._engine.arun(limits.limits(self._keys))

    def clear(self) -> int:
        """Remove all jobs that have not started; returns their number. Running jobs go on."""
        return self._engine.run(self._clear())

    async def aclear(self) -> int:
        """`clear` for async code."""
        return await self._engine.arun(self._clear())

    def _clear(self) -> Generator[Call[Any], Any, int]:
        removed, posted = yield from queues.clear(self._keys)
        if posted:
            yield from self._engine.relay(self.name)
        return removed

    def jobs(self, state: str = "ready", *, offset: int = 0, limit: int = 50) -> list[JobRow]:
        """A page of jobs in one state: live ones in the order in which they will run, ended ones newest first."""
        return [row_of(one) for one in self._engine.run(self._page(state, offset, limit))]

    async def ajobs(self, state: str = "ready", *, offset: int = 0, limit: int = 50) -> list[JobRow]:
        """`jobs` for async code."""
        return [row_of(one) for one in await self._engine.arun(self._page(state, offset, limit))]

    def _page(self, state: str, offset: int, limit: int) -> Call[list[queues.Listed]]:
        check_page(offset, limit)
        return queues.page(self._keys, state, offset, limit)

    def take(self, n: int = 1, *, worker: str = "taker", lease: Duration | None = None) -> list[Lease]:
        """Claim up to `n` jobs for a loop of your own. Settle each one before its lease ends."""
        return self._engine.run(self._take(n, worker, lease))

    async def atake(self, n: int = 1, *, worker: str = "taker", lease: Duration | None = None) -> list[Lease]:
        """`take` for async code."""
        return await self._engine.arun(self._take(n, worker, lease))

    def _lending(self, lease: Duration | None) -> Limits:
        settings = self._engine.settings
        span = settings.lease if lease is None else seconds(lease, what="lease")
        if span < 0.001:
            raise OptionError(f"lease: at least a millisecond is needed, found {lease!r}")
        return Limits(round(span * 1000), 0, settings.done_max, settings.dead_max)

    def _take(self, n: int, worker: str, lease: Duration | None) -> Generator[Call[Any], Any, list[Lease]]:
        if not _is_whole(n) or not 1 <= n <= 1000:
            raise OptionError(f"take: 1 to 1000 jobs at a time, found {n!r:.80}")
        if not is_worker_name(worker):
            raise OptionError(
                f"take: the worker's name is ASCII text without spaces, 200 characters at most, found {worker!r:.80}"
            )
        lending = self._lending(lease)
        yield from self._engine.list_queue(self.name)
        settled = Settled()
        leases: list[Lease] = []
        # Again to settle jobs that could not be taken and to claim others instead, and as long as so many had to be
        # parked that the end of the queue was not reached.
        while True:
            found: Turn = yield turn(self._keys, worker, lending, n - len(leases), settled)
            settled = Settled()
            for row in found.lost:  # of takers and workers that stopped reporting: decided by the next caller
                settled.moved.append(recovered(self._engine, self.name, held_of(*row[:4]), found.now_ms))
            for index, (id, body) in enumerate(zip(found.ids, found.bodies, strict=True)):
                held_as, story = found.again.get(index, (f"1 {worker} {found.now_ms}".encode(), b""))
                lent = yield from self._lent(held_of(id, held_as, body, story), found.now_ms, lending)
                if isinstance(lent, Lease):
                    leases.append(lent)
                else:
                    settled.moved.append(lent)
            if 0 < found.errand_ms <= found.now_ms:
                yield from self._engine.relay(self.name)
            is_seen = len(leases) == n or not 0 < found.wake_ms <= found.now_ms
            if not settled.moved and is_seen:
                return leases

    def _claim(
        self, id: str, worker: str, lease: Duration | None = None, *, token: str = ""
    ) -> Generator[Call[Any], Any, Lease | None]:
        """Take this very job, whatever limits say: one that is ready, or with `token` the one that runs under it."""
        lending = self._lending(lease)
        found: Claimed | None = yield claim(self._keys, id, worker, lending.lease_ms, token)
        if found is None:
            return None
        lent = yield from self._lent(held_of(id.encode(), *found[1:]), found.now_ms, lending)
        if isinstance(lent, Lease):
            return lent
        yield turn(self._keys, worker, lending, 0, Settled(moved=[lent]))
        return None

    def _lent(self, held: Held, now_ms: int, lending: Limits) -> Generator[Call[Any], Any, Lease | Moved]:
        """A claimed job as a lease, or what becomes of one that may not run."""
        verdict = self._unfit(held, now_ms)
        if verdict is None and held.envelope is not None and held.envelope.takes:
            try:
                envelope = yield from with_inputs(self._keys, held.id, held.envelope)
                held = msgspec.structs.replace(held, envelope=envelope)
            except InputLacking as lacking:
                attempt = Attempt("refused", held.worker, now_ms, now_ms, lacking.error, str(lacking)[:2000])
                verdict = self._settled(held, now_ms, Unrunnable(lacking.reason, attempt))
        refused = refusal(self._engine, self.name, held, now_ms) if verdict is None else None
        if refused is not None:
            verdict = self._settled(held, now_ms, refused)
        return Lease(self, held, lending) if verdict is None else verdict

    def _unfit(self, held: Held, now_ms: int) -> Moved | None:
        envelope = held.envelope
        if envelope is None:
            attempt = Attempt("unreadable", held.worker, now_ms, now_ms, message="the body is not an envelope")
            return self._settled(held, now_ms, Unrunnable("unreadable", attempt))
        if held.cancel_asked:
            return self._settled(held, now_ms, CancelAsked())
        if envelope.expires_ms is not None and now_ms > envelope.expires_ms:
            return self._settled(held, now_ms, TooLate())
        return None

    def _settled(self, held: Held, now_ms: int, happened: Happened) -> Moved:
        policy, terms = self._engine.terms_of(held.envelope, self.name)
        return settle(held, decide(held.story, happened, policy, now_ms, 0.5), terms, now_ms)

    def _settle(self, held: Held, outcome: Outcome, limits: Limits, result: bytes) -> Generator[Call[Any], Any, bool]:
        now_ms = yield server_time()
        _, terms = self._engine.terms_of(held.envelope, self.name)
        row = settle(held, outcome, terms, now_ms, result)
        answer: Turn = yield turn(self._keys, held.worker, limits, 0, Settled(moved=[row]))
        if 0 < answer.errand_ms <= answer.now_ms:
            yield from self._engine.relay(self.name)
        return not answer.refused


class Lease:
    """A job taken by `Queue.take`. Settle it with exactly one of `done`, `retry`, `bury` or `give_back`.

    Each returns False if the lease was lost: another worker has the job by then.
    """

    def __init__(self, queue: Queue, held: Held, limits: Limits) -> None:
        assert held.envelope is not None
        self._queue = queue
        self._held = held
        self._limits = limits
        self.id = held.id
        self.task = held.envelope.target
        self.name = held.envelope.name
        self.priority = held.envelope.priority
        self.attempt = len(held.story.attempts) + 1
        #: Larger with every delivery of the job; see `JobContext.fence`.
        self.fence = held.token

    @property
    def args(self) -> list[Any]:
        """The job's positional arguments, as plain JSON values."""
        found: list[Any] = msgspec.json.decode(self._envelope.args)
        return found

    @property
    def kwargs(self) -> dict[str, Any]:
        """The job's keyword arguments, as plain JSON values."""
        found: dict[str, Any] = msgspec.json.decode(self._envelope.kwargs)
        return found

    @property
    def _envelope(self) -> Envelope:
        assert self._held.envelope is not None
        return self._held.envelope

    def done(self, result: Any = None) -> bool:
        """The job succeeded. The result is a plain JSON value, as the arguments were."""
        return self._run(Finish(), self._encoded(result))

    async def adone(self, result: Any = None) -> bool:
        """`done` for async code."""
        return await self._arun(Finish(), self._encoded(result))

    def retry(self, delay: Duration = 0, reason: str = "") -> bool:
        """Run it again after a delay."""
        return self._run(self._again(delay, reason))

    async def aretry(self, delay: Duration = 0, reason: str = "") -> bool:
        """`retry` for async code."""
        return await self._arun(self._again(delay, reason))

    def bury(self, reason: str) -> bool:
        """Give the job up: it becomes a dead letter."""
        return self._run(self._buried(reason))

    async def abury(self, reason: str) -> bool:
        """`bury` for async code."""
        return await self._arun(self._buried(reason))

    def give_back(self) -> bool:
        """Put the job back in the queue at once, as if it had not been taken."""
        return self._run(GiveBack())

    async def agive_back(self) -> bool:
        """`give_back` for async code."""
        return await self._arun(GiveBack())

    def renew(self) -> bool:
        """Extend the lease to its full time from now; False if it was lost."""
        return not self._queue._engine.run(self._renewal()).lost

    async def arenew(self) -> bool:
        """`renew` for async code."""
        return not (await self._queue._engine.arun(self._renewal())).lost

    def _renewal(self) -> Call[Renewed]:
        return renew(self._queue._keys, [(self.id, self._held.token)], self._limits.lease_ms)

    def _encoded(self, result: Any) -> bytes:
        return _PLAIN.encode_result(result, limit=self._queue._engine.settings.max_payload)

    def _again(self, delay: Duration, reason: str) -> Outcome:
        attempt = Attempt("retried", self._held.worker, self._held.since_ms, message=_checked_reason(reason))
        return TryAgain(seconds(delay, what="retry(delay)"), self._held.story.with_attempt(attempt, spent=1))

    def _buried(self, reason: str) -> Outcome:
        reason = _checked_reason(reason)
        attempt = Attempt("failed", self._held.worker, self._held.since_ms, message=reason)
        return End(State.DEAD, reason, self._held.story.with_attempt(attempt, spent=1))

    def _run(self, outcome: Outcome, result: bytes = b"") -> bool:
        return self._queue._engine.run(self._queue._settle(self._held, outcome, self._limits, result))

    async def _arun(self, outcome: Outcome, result: bytes = b"") -> bool:
        return await self._queue._engine.arun(self._queue._settle(self._held, outcome, self._limits, result))


def _done() -> Any:
    """Has no types: a loop that takes jobs need not know their tasks."""


_PLAIN = Signature(_done)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def is_worker_name(name: Any) -> bool:
    """Whether a claim can hold it."""
    return isinstance(name, str) and re.fullmatch("[!-~]{1,200}", name) is not None


def check_page(offset: int, limit: int) -> None:
    """Refuse an invalid page of a listing."""
    if not (_is_whole(offset) and _is_whole(limit) and offset >= 0 and 1 <= limit <= 1000):
        raise OptionError(f"a page starts at 0 or later and has 1 to 1000 jobs, found {offset!r:.40} and {limit!r:.40}")


def _checked_reason(reason: str) -> str:
    if not isinstance(reason, str):
        raise OptionError(f"reason: a text for people is needed, found {reason!r:.80}")
    return reason[:2000].encode(errors="backslashreplace").decode()


def row_of(one: queues.Listed) -> JobRow:
    envelope, record = one.envelope, one.record
    return JobRow(
        id=one.id,
        state=one.state,
        task=envelope.target if envelope else record.target if record else "",
        priority=envelope.priority if envelope else None,
        enqueued_ms=made_ms(one.id),
        name=envelope.name if envelope else None,
        tenant=envelope.tenant if envelope else None,
        due_ms=one.due_ms if one.state is State.SCHEDULED else None,
        worker=record.worker if record else one.claim.worker if one.claim and one.state is State.RUNNING else "",
        reason=record.reason if record else "",
        error=record.story.last.words if record and one.state is not State.DONE else "",
        ended_ms=record.ended_ms if record else None,
    )
