"""The real scripts on a real server, driven step by step beside the model.

An `Engine` is one queue with three workers that the test plays: it does to the server what workers, clients and people
do, tells the model the same, and compares what they say. `agree()` compares everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from relevo.dead.store import restore
from relevo.engine import job_store as store_jobs
from relevo.engine.admission import held_of
from relevo.engine.backoff import Backoff
from relevo.engine.breaker import Breaker
from relevo.engine.client import Client
from relevo.engine.job import Attempt, Envelope, State, Story, read_envelope, write
from relevo.engine.outcome import (
    CancelAsked,
    Happened,
    Interrupted,
    LeaseLost,
    Policy,
    Raised,
    Returned,
    TooLate,
    Unrunnable,
    decide,
)
from relevo.engine.push import NewJob, push, push_plain, push_rich
from relevo.engine.settle import Held, Terms, done_record, settle
from relevo.engine.turn import Limits, Moved, Settled, abandon, claim, leave, renew, rest, turn
from relevo.engine.verdicts import Snooze
from relevo.limits import store as limits
from relevo.limits.limit import limit_of, read_limit
from relevo.queues import store as queues
from relevo.store.call_numbers import Try
from relevo.store.plan import Call, Plan
from tests.clock import KEY, TimedKeys
from tests.machine.model import (
    BACKOFF_MS,
    ENDED,
    LIVING,
    MAX_CRASHES,
    RETRIES,
    SNOOZE_MS,
    Job,
    Model,
)
from tests.machine.snapshot import ABSENT, NAMES, Snapshot, snapshot

T = TypeVar("T")

# Time moves in whole minutes, and by two milliseconds before each step, which the model does not count. All spans but
# one are whole minutes, so those milliseconds decide nothing. An idle worker is believed for a minute and a half, which
# no sum of minutes meets.
MINUTE = 60_000
HOUR = 60 * MINUTE
LEASE_MS = 5 * MINUTE
IDLE_MS = 90_000
#: The most that the milliseconds of all steps of a story add up to.
SLACK_MS = 10_000
START_MS = 1_800_000_000_000
#: The line of a tenant is looked at after so long, also if nothing happens.
LOOK_MS = MINUTE
LEVEL = 2**43

#: The breaker of all tasks: two failures in five minutes, a rest of three, of six, of ten.
BREAKER = Breaker.after(2, "5m", rest="3m", longest="10m")
POLICY = Policy(retries=RETRIES, backoff=Backoff.fixed(BACKOFF_MS / 1000, jitter=0.0), max_crashes=MAX_CRASHES)


class Spec(NamedTuple):
    """A job as a step wants it."""

    priority: int
    tenant: str = ""
    weight: float = 1.0
    delay_ms: int = 0
    name: str = ""
    scope: str = ""
    has_handler: bool = False
    task: str = "task"


class Allowed(NamedTuple):
    """A limit as a step wants it; of neither kind: none."""

    concurrency: int | None = None
    #: A token in so many minutes; 0: no rate.
    every: float = 0
    burst: int = 0


@dataclass(frozen=True)
class Hand:
    """A job in the hands of a worker, which may have lost it without knowing."""

    held: Held
    grip: int
    #: Taken back from a silent worker, to decide on.
    is_lost: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.held.id, self.held.token


@dataclass(frozen=True)
class Telling:
    """The settlement of one job by a worker."""

    id: str
    grip: int
    what: str
    has_record: bool
    row: Moved | tuple[str] | tuple[str, int, bytes]


@dataclass
class Worker:
    """A worker as the machine plays it."""

    name: str
    #: 0: a program with a loop of its own, which waits for no bell.
    idle_ms: int = IDLE_MS
    hands: list[Hand] = field(default_factory=list)
    has_asked: bool = False
    #: Waits for its bell and asks for nothing until then.
    is_resting: bool = False
    #: (id, grip) of jobs on its bell, in order.
    rung: list[tuple[str, int]] = field(default_factory=list)

    @property
    def limits(self) -> Limits:
        return Limits(LEASE_MS, self.idle_ms, 1000, 1000)


class Engine:
    """One queue, three workers, and everything that can happen to them."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self.queue = TimedKeys(f"relevo:test:machine:actions:{number}")
        self.model = Model()
        self.is_compared = True
        self._count = 0
        self._ticks = 0
        self.workers = [self._worker(), self._worker(), self._worker(idle_ms=0)]
        #: Pushes and tellings whose reply was lost: they will be said again.
        self.unsure: list[tuple[list[Job], list[str], Try]] = []
        self._tries = 0
        self.told: list[tuple[Worker, Telling]] = []
        self.tokens: dict[str, int] = {}
        #: A ring may have gone to a dead worker: until the others look up, none may know of a ready job.
        self.is_ring_lost = False
        self.tick()

    def tick(self) -> None:
        """Let two milliseconds pass.

        What happens one after the other then never falls in the same one, so a story told again takes the same course.
        """
        self._ticks += 2
        assert self._ticks < SLACK_MS
        self.perform(Call([b"SET", KEY, self.now_ms + self._ticks]))
        # Some worker of another story has just called: no lease is held up by an outage.
        self.perform(Call([b"SET", self.queue.key("contact"), f"{self.now_ms + self._ticks} 0", b"EX", 60]))

    def perform(self, plan: Plan[T]) -> T:
        self.is_compared = False
        return self._client.run(plan)

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _worker(self, idle_ms: int = IDLE_MS) -> Worker:
        return Worker(f"w{self._number()}", idle_ms)

    @property
    def now_ms(self) -> int:
        return START_MS + self.model.now_ms

    def _is_at(self, found_ms: float, model_ms: int) -> bool:
        return 0 <= found_ms - START_MS - model_ms < SLACK_MS

    def _job(self, spec: Spec) -> Job:
        body = write(
            Envelope(
                spec.task,
                priority=spec.priority,
                tenant=spec.tenant,
                weight=spec.weight,
                name=spec.name,
                on_failure="handler" if spec.has_handler else None,
            )
        )
        # Ids of our own, ordered by age like the real ones: the same story has the same ids each time.
        id = f"{self._number():020d}"
        return Job(id, *spec[:3], spec.name, spec.scope, spec.delay_ms, body, spec.has_handler, spec.task)

    # pushing
    def _push_call(self, jobs: list[Job]) -> Call[Any]:
        if _in_short_form(jobs):
            return push_plain(self.queue, [(job.id, job.body) for job in jobs], jobs[0].priority, LEASE_MS)
        return push_rich(self.queue, [_new(job) for job in jobs])

    def _push(self, jobs: list[Job], *, lost: bool = False) -> None:
        waits_for_nobody: bool = self.perform(Call([b"EXISTS", self.queue.key("ready")])) == 0
        before = {job.id: job.lives for job in jobs}
        owners = self.model.push(jobs)
        stored = [job for job in jobs if job.lives > before[job.id]]
        is_free = len(jobs) == 1 and jobs[0].is_plain and not self._bound(jobs[0])
        idle = self._idle() if is_free and stored and waits_for_nobody else set()
        if lost:
            tried = self._try()
            call = self._push_call(jobs)
            said = self.perform(Call(call.command(tried, text=True), call.decode))
            assert said == (len(stored) if _in_short_form(jobs) else owners)
            self.unsure.append((jobs, owners, tried))
        else:
            assert self.perform(push(self.queue, [_new(job) for job in jobs], LEASE_MS)) == owners
        if idle:
            self._handed_over(stored[0], idle)

    def _bound(self, job: Job) -> bool:
        """Whether a limit may hold it up, as far as the server knows: pauses that have ended may still be there."""
        limited: list[bytes] = self.perform(Call([b"HKEYS", self.queue.key("limits")]))
        lines: list[bytes] = self.perform(Call([b"ZRANGE", self.queue.key("parking"), 0, -1]))
        return bool(job.names & {name.decode() for name in limited + lines})

    def _idle(self) -> set[str]:
        rows: list[bytes] = self.perform(Call([b"ZRANGE", self.queue.key("idle"), 0, -1, b"WITHSCORES"]))
        return {rows[i].decode() for i in range(0, len(rows), 2) if int(rows[i + 1]) > self.now_ms}

    def _handed_over(self, job: Job, idle: set[str]) -> None:
        seen = self.perform(store_jobs.look(self.queue, job.id))
        assert seen.state is State.RUNNING, f"{job.id} is {seen.state} although {idle} wait and nothing is queued"
        assert seen.claim is not None and seen.claim.worker in idle
        grip = self.model.lend(job, LEASE_MS)
        self._next_token(job.id, seen.claim.token)
        for worker in self.workers:  # the one that was called may be dead
            if worker.name == seen.claim.worker:
                worker.rung.append((job.id, grip))

    def enqueue(self, specs: Sequence[Spec], lost: bool = False) -> None:
        """Push jobs; if `lost`, the reply does not arrive."""
        self._push([self._job(spec) for spec in specs], lost=lost)

    def _try(self, before: str = "") -> Try:
        self._tries += 1
        return Try(f"s{self._tries}", f"1 0 99999999999999 3600000 {before}".rstrip())

    def repeat_push(self, number: int) -> None:
        """Push once more what has arrived already, whatever became of it since."""
        jobs, owners, tried = _pick(self.unsure, -1 - number)
        call = self._push_call(jobs)
        again = self._try(tried.name)
        said = self.perform(Call(call.command(again, text=True), call.decode))
        assert said == (0 if _in_short_form(jobs) else owners)

    # turns
    def _turn(self, worker: Worker, want: int, tellings: list[Telling], *, lost: bool = False) -> None:
        settled = Settled()
        kinds: tuple[list[Telling], list[Telling], list[Telling]] = ([], [], [])
        for telling in tellings:
            match telling.row:
                case Moved() as row:
                    settled.moved.append(row)
                    kinds[2].append(telling)
                case (one,):
                    settled.plain.append(one)
                    kinds[0].append(telling)
                case (one, ttl_ms, record):
                    settled.kept.append(one)
                    settled.records += (ttl_ms, record)
                    kinds[1].append(telling)
        refused = [telling.id for kind in kinds for telling in kind if not self._settles(telling)]
        found = self.perform(turn(self.queue, worker.name, worker.limits, want, settled))
        assert self._is_at(found.now_ms, self.model.now_ms)
        assert found.errand_ms == 0
        assert sorted(id.decode() for id in found.refused) == sorted(refused)
        if lost:
            self.told += [(worker, telling) for telling in tellings]
        worker.has_asked = worker.has_asked or want > 0
        if not want or self.model.is_paused:
            assert not found.ids and not found.lost, "handed out by a paused queue or to a worker without room"
            if want:
                until_ms = self.model.paused_ms
                assert found.wake_ms == (0 if until_ms == math.inf else START_MS + until_ms)
            worker.is_resting = worker.is_resting if not want else not lost and worker.idle_ms > 0
            self._learn_of_closed_breakers()
            return

        self.model.promote()
        ended = [held_of(gone[0], gone[1], gone[2], gone[3]) for gone in found.lost]
        own = [held for held in ended if worker.idle_ms and held.worker == worker.name]
        self.model.take_back([held.id for held in ended], silent=len(ended) - len(own))
        hands = [self._lent(held, is_lost=True) for held in ended if held not in own]
        hands += [hand for hand in map(self._lent_again, own) if hand.key not in {one.key for one in worker.hands}]
        self.model.claim([id.decode() for id in found.ids], want)
        for index, (id, body) in enumerate(zip(found.ids, found.bodies, strict=True)):
            claim, story = found.again.get(index, (f"1 {worker.name} {found.now_ms}".encode(), b""))
            held = held_of(id, claim, body, story)
            assert held.worker == worker.name and held.since_ms == found.now_ms
            hands.append(self._lent(held))
        if len(found.ids) < want:
            self._expect_wake(found.wake_ms)
        worker.is_resting = len(found.ids) < want and worker.idle_ms > 0 and not lost
        if not lost:
            worker.hands += hands
        self._learn_of_closed_breakers()

    def _learn_of_closed_breakers(self) -> None:
        """A turn may close those with nothing to probe. It does so when it looks at them, which is up to it."""
        silent = self.model.silent_breakers(round(BREAKER.longest * 1000) - SLACK_MS)
        for name in silent:
            text: bytes | None = self.perform(Call([b"HGET", self.queue.key("limits"), name]))
            if text is None or read_limit(text.decode()).probe_ms is None:
                self.model.close_breaker(name)

    def _expect_wake(self, wake_ms: int) -> None:
        times = [job.due_ms for job in self.model.of("scheduled")]
        times += [job.lease_end_ms for job in self.model.of("running")]
        looks: list[bytes] = self.perform(Call([b"ZRANGE", self.queue.key("parking"), 0, 0, b"WITHSCORES"]))
        if looks and (not times or not int(looks[1]) > min(times) + START_MS):
            # Where nothing lives, a pause that ends calls no resting worker.
            assert wake_ms == int(looks[1]) or (not self.model.of(*LIVING) and wake_ms == 0)
        else:
            assert self._is_at(wake_ms, min(times)) if times else wake_ms == 0

    def _settles(self, telling: Telling) -> bool:
        if not self.model.settle(telling.id, telling.grip, telling.what, has_record=telling.has_record):
            return False
        if isinstance(telling.row, Moved) and telling.row.follow_id:
            row = telling.row
            self.model.push([Job(row.follow_id, row.follow_priority, body=row.follow_body, task="handler")])
        return True

    def _lent(self, held: Held, *, is_lost: bool = False) -> Hand:
        job = self.model.jobs[held.id]
        grip = self.model.lend(job, LEASE_MS)
        self._next_token(held.id, held.token)
        assert held.body == job.body
        assert held.cancel_asked == job.cancel_asked
        assert _counts(held.story) == (job.spent, job.crashes, job.attempts)
        return Hand(held, grip, is_lost)

    def _lent_again(self, held: Held) -> Hand:
        """The worker whose lease has ended is there: it has the job, or the reply to its claim was lost."""
        job = self.model.jobs[held.id]
        job.lease_end_ms = self.model.now_ms + LEASE_MS
        return Hand(held, job.grip)

    def _next_token(self, id: str, token: int) -> None:
        before = self.tokens.get(id, 0)
        assert token > before, f"{id} was handed out with token {token} after {before}: an old word would count"
        self.tokens[id] = token

    def _tell(self, worker: Worker, hand: Hand, what: str, has_record: bool = True) -> Telling:
        held = hand.held
        assert held.envelope is not None
        if hand.is_lost:
            what = "cancelled" if held.cancel_asked else "lost"
        row: Moved | tuple[str] | tuple[str, int, bytes]
        if what == "ok" and held.token == 1 and not held.envelope.name:
            row = (held.id, HOUR, write(done_record(held, self.now_ms, b"1"))) if has_record else (held.id,)
        else:
            attempt = Attempt(what, worker.name, held.since_ms, self.now_ms)
            handler = held.envelope.on_failure
            follow = f"{self._number():020d}" if handler else ""
            terms = Terms("machine", HOUR if has_record else 0, 24 * HOUR, handler, follow)
            outcome = decide(held.story, _happened(what, attempt), POLICY, self.now_ms, 0.5)
            row = settle(held, outcome, terms, self.now_ms, b"1")
        return Telling(held.id, hand.grip, what, has_record or what != "ok", row)

    def claim(self, number: int, want: int, lost: bool = False) -> None:
        """A worker asks for jobs."""
        self._turn(_pick(self.workers, number), want, [], lost=lost)

    def take(self, number: int) -> None:
        """A worker claims one job by its id, before its turn and whatever limits say."""
        worker, job = _pick(self.workers, number), _pick(self.model.of("ready"), number)
        found = self.perform(claim(self.queue, job.id, worker.name, LEASE_MS))
        assert found is not None, f"{job.id} is ready and cannot be claimed"
        worker.hands.append(self._lent(held_of(job.id.encode(), *found[1:])))
        assert self.perform(claim(self.queue, job.id, "another", LEASE_MS)) is None

    def hand_over(self, number: int) -> None:
        """A job changes hands under its token: the new worker settles it, and so may the old one."""
        pairs = [(worker, hand) for worker in self.busy for hand in worker.hands]
        worker, hand = _pick(pairs, number)
        other, held = _pick(self.workers, number + 1), hand.held
        found = self.perform(claim(self.queue, held.id, other.name, LEASE_MS, str(held.token)))
        if not self.model.has_right(held.id, hand.grip):
            assert found is None, f"{held.id} was taken with an old token"
            return
        assert found is not None
        self.model.jobs[held.id].lease_end_ms = self.model.now_ms + LEASE_MS
        worker.hands.remove(hand)
        other.hands.append(Hand(held_of(held.id.encode(), *found[1:]), hand.grip, hand.is_lost))

    @property
    def busy(self) -> list[Worker]:
        """Workers with something in hand."""
        return [worker for worker in self.workers if worker.hands]

    def finish(self, number: int, outcomes: list[str], has_record: bool, want: int = 0, lost: bool = False) -> None:
        """A worker tells what became of some jobs, and may ask for more."""
        worker = _pick(self.busy, number)
        hands, worker.hands = worker.hands[: len(outcomes)], worker.hands[len(outcomes) :]
        tellings = [self._tell(worker, *pair, has_record) for pair in zip(hands, outcomes, strict=False)]
        self._turn(worker, want, tellings, lost=lost)

    @property
    def zombies(self) -> list[tuple[Worker, Hand]]:
        """Jobs in the hands of workers that have lost them."""
        pairs = [(worker, hand) for worker in self.workers for hand in worker.hands]
        return [(worker, hand) for worker, hand in pairs if not self.model.has_right(hand.held.id, hand.grip)]

    def finish_too_late(self, number: int, outcome: str) -> None:
        """A worker tells what became of a job that is not its any more."""
        worker, hand = _pick(self.zombies, number)
        worker.hands.remove(hand)
        self._turn(worker, 0, [self._tell(worker, hand, outcome)])

    def tell_again(self, number: int, want: int) -> None:
        """A worker that got no reply tells the same once more."""
        worker, telling = _pick(self.told, -1 - number)
        self._turn(worker, want if worker in self.workers else 0, [telling])

    def _renew(self, hands: list[Hand]) -> None:
        lost, cancelled, _ = self.perform(
            renew(self.queue, [(hand.held.id, hand.held.token) for hand in hands], LEASE_MS)
        )
        ours = [hand for hand in hands if self.model.has_right(hand.held.id, hand.grip)]
        assert lost == [hand.held.id for hand in hands if hand not in ours]
        assert cancelled == [hand.held.id for hand in ours if self.model.jobs[hand.held.id].cancel_asked]
        for hand in ours:
            self.model.jobs[hand.held.id].lease_end_ms = self.model.now_ms + LEASE_MS

    def _abandon(self, hands: list[Hand]) -> None:
        ended = self.perform(abandon(self.queue, [(hand.held.id, hand.held.token) for hand in hands]))
        ours = [hand for hand in hands if self.model.has_right(hand.held.id, hand.grip)]
        assert ended == len(ours)
        for hand in ours:
            self.model.jobs[hand.held.id].lease_end_ms = -START_MS  # long ago

    # workers come and go
    def worker(self, number: int, does: str) -> None:
        """Something happens to a worker."""
        worker = _pick(self.workers, number)
        match does:
            case "renew":
                self._renew(worker.hands)
            case "answer the bell":
                self._answer(worker)
            case "die":
                self.is_ring_lost = True
            case "die in sight":
                self.is_ring_lost = True
                self._abandon(worker.hands)
            case "stop":
                self._stop(worker)
        if does in ("die", "die in sight", "stop"):
            self.workers[self.workers.index(worker)] = self._worker(worker.idle_ms)

    def _answer(self, worker: Worker) -> None:
        messages: list[bytes] = []
        message: bytes | None
        while (message := self.perform(Call([b"LPOP", self.queue.bell(worker.name)]))) is not None:
            messages.append(message)
        self._hear(worker, messages)

    def _hear(self, worker: Worker, messages: list[bytes]) -> None:
        handed = [message[1:] for message in messages if message[:1] == b"j"]
        assert [text[:20].decode() for text in handed] == [id for id, _ in worker.rung]
        for text, (id, grip) in zip(handed, worker.rung, strict=True):
            body = text[20:]
            assert body == self.model.jobs[id].body
            held = Held(id, 1, body, read_envelope(body), Story(), worker.name, self.now_ms)
            worker.hands.append(Hand(held, grip))
        worker.rung = []
        worker.is_resting = worker.is_resting and not messages

    def _stop(self, worker: Worker) -> None:
        messages = self.perform(leave(self.queue, worker.name))
        self._hear(worker, messages)
        self.is_ring_lost = self.is_ring_lost or bool(messages)
        self._turn(worker, 0, [self._tell(worker, hand, "back") for hand in worker.hands])

    def pass_time(self, minutes: int) -> None:
        """Time moves on, and idle workers look up."""
        self.model.now_ms += minutes * MINUTE
        self.tick()
        for worker in self.workers:  # idle workers look up four times a minute
            if worker.is_resting:
                self.tick()
                now_ms, wake_ms, waits, errand_ms = self.perform(rest(self.queue, worker.name, LEASE_MS, IDLE_MS))
                assert errand_ms == 0, "nothing depends on a job of this queue"
                assert self._is_at(now_ms, self.model.now_ms)
                self._expect_wake(wake_ms)
                worker.is_resting = waits and not 0 < wake_ms <= now_ms
        if minutes * MINUTE > IDLE_MS:
            self.is_ring_lost = False  # by now the dead are off the list

    # by hand
    def person(self, number: int, does: str) -> None:
        """A person acts on a job."""
        job = _pick(list(self.model.jobs.values()), -1 - number)
        match does:
            case "cancel":
                self._cancel(job)
            case "revive":
                self._revive(_pick(self.model.of(*ENDED) or [job], number))
            case "await":
                self._await(job)
            case "look":
                self._look_at(job)
            case "discard":
                assert self.perform(store_jobs.discard(self.queue, [job.id])) == (self.model.discard(job.id), False)
            case "undo":
                self._discard_and_restore(_pick(self.model.of("dead") or [job], number))

    def _discard_and_restore(self, job: Job) -> None:
        was_dead, gone = job.state == "dead" and job.has_record, self.model.discard(job.id)
        assert self.perform(store_jobs.discard(self.queue, [job.id], undo_ms=HOUR)) == (gone, False)
        for back in (was_dead, False):
            assert self.perform(restore(self.queue, [job.id], 1000)) == (back, False, 0)
        if was_dead:
            self.model.restore(job.id)

    def _revive(self, job: Job) -> None:
        said, _ = self.perform(store_jobs.revive(self.queue, job.id, read_envelope(job.body), job.body, 0))
        assert said == self.model.revive(job.id)

    def _cancel(self, job: Job) -> None:
        said = self.perform(store_jobs.cancel(self.queue, [(job.id, 24 * HOUR, job.name)], 1000))
        assert said == ([self.model.cancel(job.id)], False)

    def _await(self, job: Job) -> None:
        found = self.perform(store_jobs.attach(self.queue, job.id, b"inbox"))
        if job.state in LIVING:
            assert found is True
            job.awaited = True
        else:
            assert (found is not None) == job.has_record

    def _look_at(self, job: Job) -> None:
        seen = self.perform(store_jobs.look(self.queue, job.id))
        if not (job.state == "ready" and seen.state is State.WAITING):
            assert seen.state == (job.state if job.state in LIVING or job.has_record else State.UNKNOWN)
        if job.state in LIVING or (job.has_record and job.state != "done"):
            assert seen.body == job.body
            assert _counts(seen.story) == (job.spent, job.crashes, job.attempts)

    def become(self, what: str) -> None:
        """Something happens to the whole queue."""
        match what:
            case "paused" | "paused for a while" | "resumed":
                was, minutes = self.model.is_paused, 7 if what == "paused for a while" else 0
                ends_ms = self.model.now_ms + minutes * MINUTE
                self.model.paused_ms = 0 if what == "resumed" else ends_ms if minutes else math.inf
                given = START_MS + ends_ms if minutes else 0
                changed = self.perform(queues.pause(self.queue, what != "resumed", given))
                assert changed == (was != self.model.is_paused)
            case "cleared":
                assert self.perform(queues.clear(self.queue)) == (self.model.clear(), False)
            case "without scripts":  # a server that starts anew has forgotten them
                self.perform(Call([b"SCRIPT", "FLUSH"]))
            case "without counters":  # they end after a week of silence
                self.perform(Call([b"DEL", self.queue.key("stats")]))
                self.model.totals.clear()

    def allow(self, name: str, terms: Allowed) -> None:
        """The limit of a tenant, a task or the queue is set, changed or taken away."""
        before = self._terms(name)
        self.model.limit(name, terms.concurrency, int(terms.every * MINUTE), terms.burst)
        changed = self._terms(name) != before
        if terms == Allowed():
            assert self.perform(limits.unlimit(self.queue, name)) == changed
        else:
            rate = f"{1 / terms.every}/m" if terms.every else None
            wanted = limit_of(terms.concurrency, rate, terms.burst or None)
            assert self.perform(limits.limit(self.queue, name, wanted)) == changed

    def halt(self, name: str, minutes: int | None) -> None:
        """A tenant or a task is paused, for a while or (0) until it is resumed; or (None) it is resumed."""
        if minutes is None:
            assert self.perform(limits.resume(self.queue, name)) == self.model.pause(name, 0)
            return
        ends_ms = self.model.now_ms + minutes * MINUTE
        said = self.perform(limits.pause(self.queue, name, START_MS + ends_ms if minutes else 0))
        assert said == self.model.pause(name, ends_ms if minutes else math.inf)

    def trip(self, task: str, failed: int) -> None:
        """Attempts of a task failed, which its breaker counts."""
        spans = (round(span * 1000) for span in (BREAKER.window, BREAKER.rest, BREAKER.longest))
        opens_ms = self.model.trip(f"t:{task}", failed, BREAKER.failures, *spans)
        probe_ms = self.perform(limits.trip(self.queue, task, failed, BREAKER))
        assert self._is_at(probe_ms, opens_ms) if opens_ms else probe_ms == 0
        if opens_ms:
            self.perform(limits.adopt_all(self.queue, f"t:{task}"))

    def _terms(self, name: str) -> str:
        limit = self.model.limits.get(name)
        if limit is None:
            return "- - - 0"
        rate = f"{MINUTE / limit.every_ms}/m".replace(".0/", "/") if limit.every_ms else "-"
        return f"{limit.concurrency or '-'} {rate} {limit.burst or '-'} {int(limit.paused_ms > self.model.now_ms)}"

    # what must hold after each step
    def agree(self) -> None:
        """Compare all the server holds with the model."""
        model = self.model
        stats = self.perform(queues.count(self.queue, "machine"))
        assert stats.living == stats.ready + stats.scheduled + stats.running + stats.waiting
        assert stats.paused == model.is_paused
        found = self.perform(snapshot(self.queue, [worker.name for worker in self.workers], model.jobs))
        self._compare_jobs(found)
        self._compare_limits(found)
        self._compare_places(found)
        self._compare_claims(found)
        self._compare_ends(found)
        self._check_bells(found)
        self.is_compared = True

    def _compare_jobs(self, found: Snapshot) -> None:
        model = self.model
        parked = found.sets["waiting"].keys()
        assert not parked & found.sets["ready"].keys()
        for state in LIVING:
            ids = found.sets[state].keys() | (parked if state == "ready" else set())
            assert ids == model.ids(state), f"{state} differs"
        assert found.jobs == {job.id: job.body for job in model.of(*LIVING)}
        assert found.names == model.names
        assert all(model.jobs[id].state in LIVING for id in found.names.values())
        assert found.waiters == {job.id for job in model.of(*LIVING) if job.awaited}
        assert set(found.groups) == {job.id for job in model.of("scheduled") if job.tenant}
        assert not found.letters
        assert not found.sets["errands"]
        assert not [name for name in ABSENT if name in found.ttls]
        assert found.is_paused or not model.is_paused
        assert found.totals == +model.totals

    def _compare_limits(self, found: Snapshot) -> None:
        model, waiting = self.model, found.sets["waiting"].keys()
        model.forget_pauses()
        self._compare_terms(found)
        standing = [id for line in found.lines.values() for id in line]
        assert len(set(standing)) == len(standing), "it stands in two lines"
        assert waiting <= set(standing), "it waits in no line"
        counted = {name: int(count) for name, count in found.holding.items() if name.startswith("#")}
        held = {id: set(names.decode().split("\n")) for id, names in found.holding.items() if id not in counted}
        for name in (*NAMES, "q:"):
            running = {job.id for job in model.of("running") if name in job.names}
            holding = {id for id in held if name in held[id]}
            assert holding == running if name in model.limits else holding <= running
            assert counted.get(f"#{name}", 0) == len(holding)
        for name, line in found.lines.items():
            assert all(model.jobs[id].state == "ready" and name in model.jobs[id].names for id in line)
            for place, id in enumerate(line):
                assert not any(model.must_run_before(model.jobs[later], model.jobs[id]) for later in line[place:])
            self._compare_looks(name, line, found)
        assert set(counted) <= {f"#{name}" for name in (*NAMES, "q:")}
        assert found.sets["parking"].keys() <= {*NAMES, "q:"}
        assert "lines" not in found.ttls or found.sets["parking"], "no line has a job, yet their virtual time stays"

    def _compare_terms(self, found: Snapshot) -> None:
        now_ms = self.now_ms + self._ticks
        read = {name: read_limit(text, now_ms) for name, text in found.limits.items()}
        for name, limit in self.model.limits.items():
            one = read.pop(name)
            assert f"{one.terms} {int(one.paused)}" == self._terms(name)
            assert self._is_at(one.probe_ms, limit.probe_ms) if one.probe_ms else not limit.probe_ms
        for name, one in read.items():  # pauses that have ended, and that no turn has met since
            assert (one.concurrency, one.rate, one.paused, one.probe_ms) == (None, None, False, None)
            assert found.sets["parking"].get(name, math.inf) <= now_ms, f"{name} stays for ever"
        named = {f"b:{name[2:]}" for name, limit in self.model.limits.items() if limit.probe_ms}
        named |= {name for name, limit in self.model.limits.items() if limit.paused_ms > self.model.now_ms}
        named |= {"q:"} if self.model.is_paused else set()
        assert named <= found.pauses <= named | found.limits.keys() | {"q:"}

    def _compare_looks(self, name: str, line: list[str], found: Snapshot) -> None:
        """A line is looked at in time: now, if a job in it may go and was not let go."""
        look_at = found.sets["parking"].get(name)
        limit = self.model.limits.get(name)
        if not line:
            if limit is not None and self.model.now_ms < limit.paused_ms < math.inf:
                assert (look_at or math.inf) <= START_MS + limit.paused_ms, "nothing will remove the pause"
            assert limit is None or not limit.probe_ms or look_at is not None, "nothing will close the breaker"
            return
        assert look_at is not None
        now_ms = self.model.now_ms
        assert look_at - START_MS < now_ms + LOOK_MS + SLACK_MS
        room = self.model.room(name)
        let_go = found.sets["ready"].keys() & set(line)
        if len(let_go) < min(room, len(line)):
            assert look_at - START_MS < now_ms + SLACK_MS, f"{room} of {line} may go, and no turn looks"
        if limit is None or room > 0:
            return
        if limit.paused_ms > now_ms or limit.probe_ms > now_ms:
            goes_on_ms = max(limit.paused_ms, limit.probe_ms)
            assert look_at - START_MS < goes_on_ms + SLACK_MS, "it goes on then, and no turn looks"
            return
        most = 1 if limit.probe_ms else limit.concurrency
        if limit.every_ms and (most is None or self.model.running(name) < most):
            token_ms = limit.full_ms - (limit.burst - 1) * limit.every_ms
            assert look_at - START_MS < token_ms + SLACK_MS, "it may go then, and no turn looks"

    def _compare_places(self, found: Snapshot) -> None:
        jobs = self.model.jobs
        for id, score in found.sets["ready"].items():
            assert score // LEVEL == jobs[id].priority
        for id, score in found.sets["scheduled"].items():
            assert score % 1024 == jobs[id].priority
            assert self._is_at(score // 1024, jobs[id].due_ms)
        for id, score in found.sets["running"].items():
            assert self._is_at(score, jobs[id].lease_end_ms)

    def _compare_claims(self, found: Snapshot) -> None:
        model = self.model
        assert model.ids("running") <= set(found.claims) <= set(found.jobs)
        for job in model.of("running"):
            assert found.claims[job.id].token == self.tokens[job.id]
        assert {id for id, claim in found.claims.items() if claim.cancel_asked} == {
            job.id for job in model.of(*LIVING) if job.cancel_asked
        }
        assert set(found.stories) <= set(found.jobs)
        for job in model.of(*LIVING):
            story = found.stories.get(job.id, Story())
            assert _counts(story) == (job.spent, job.crashes, job.attempts)

    def _compare_ends(self, found: Snapshot) -> None:
        model = self.model
        for state in ENDED:
            assert set(found.sets[state]) == {job.id for job in model.of(state) if job.has_record}, f"{state} differs"
        assert found.recorded == {job.id for job in model.jobs.values() if job.has_record}
        for job in model.jobs.values():
            assert job.ends == job.lives - (job.state in LIVING), f"{job.id} ended {job.ends} times"
        grouped = [id for ids in found.alike for id in ids]
        assert sorted(grouped) == sorted(found.sets["dead"]), "each dead letter is in one group, and nothing else is"
        for name in (*ENDED, "stats", "idle", "buckets", "kinds", "bin", "breakers"):
            assert found.ttls.get(name, 1) > 0, f"{name} has no time limit"
        assert found.sets["ready"] or "clock" not in found.ttls, "nothing is queued, yet the virtual times stay"
        if not found.jobs:
            endless = {name for name, ttl in found.ttls.items() if ttl < 0} - {"paused", "limits", "pauses"}
            endless -= {"parking", "lines"} if not found.sets["parking"].keys() - found.limits.keys() else set()
            assert not endless, f"nothing lives, yet {endless} stay for ever"

    def _check_bells(self, found: Snapshot) -> None:
        for worker in self.workers:
            handed = [message[1:21].decode() for message in found.bells[worker.name] if message[:1] == b"j"]
            assert handed == [id for id, _ in worker.rung]
        if self.model.has_work and not self.model.is_paused and not self.is_ring_lost:
            called = [worker for worker in self.workers if worker.idle_ms and worker.has_asked]
            awake = [worker for worker in called if not worker.is_resting or found.bells[worker.name]]
            assert awake or not called, "there is work and all workers sleep"

    # the end
    def end(self) -> None:
        """Let everything run to its end and see that nothing is left behind."""
        agreed = self.is_compared
        if agreed:  # else something was found already, which another complaint would only hide
            self._drain()
        keys: list[bytes] = self.perform(Call([b"KEYS", f"{{{self.queue.address}}}*"]))
        if agreed:
            endless = [key for key in keys if self.perform(Call([b"PTTL", key])) < 0]
            assert not endless, f"everything has ended, yet {endless} stay for ever"
        if keys:
            self.perform(Call([b"UNLINK", *keys]))

    def _drain(self) -> None:
        self.perform(queues.pause(self.queue, False))
        self.model.paused_ms = 0
        for name in NAMES:
            self.halt(name, None)
        last = self._worker(idle_ms=0)
        for _ in range(200):
            if not self.model.of(*LIVING):
                break
            self.model.now_ms += 6 * HOUR
            self.tick()
            self._turn(last, 50, [])
            hands, last.hands = last.hands, []
            self._turn(last, 0, [self._tell(last, hand, "ok") for hand in hands])
        assert not self.model.of(*LIVING), "the queue does not run empty"
        for name in (*NAMES, "q:"):
            self.allow(name, Allowed())
        self.is_ring_lost = True  # the workers of the test are not played any more
        self.agree()


def _pick(some: Sequence[T], number: int) -> T:
    return some[number % len(some)]


def _in_short_form(jobs: list[Job]) -> bool:
    return all(job.is_plain and job.priority == jobs[0].priority for job in jobs)


def _new(job: Job) -> NewJob:
    when = f"+{job.delay_ms}" if job.delay_ms else ""
    return NewJob(job.id, job.priority, job.body, when, job.tenant, job.weight, job.name, job.scope)


def _counts(story: Story) -> tuple[int, int, int]:
    return story.spent, story.crashes, len(story.attempts)


def _happened(what: str, attempt: Attempt) -> Happened:
    match what:
        case "ok":
            return Returned()
        case "fail":
            return Raised(ValueError("no"), attempt)
        case "snooze":
            return Raised(Snooze(SNOOZE_MS / 1000), attempt)
        case "back":
            return Interrupted()
        case "cancelled":
            return CancelAsked()
        case "expired":
            return TooLate()
        case "broken":
            return Unrunnable("broken", attempt)
        case "lost":
            return LeaseLost(attempt)
    raise ValueError(what)
