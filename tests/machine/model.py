"""What a queue promises, as a few dictionaries: no server, no tokens, no scores.

A job that waits because of a limit is `ready` to the model, wherever the scripts keep it.
The model knows a job's state and which worker may settle it, and nothing of how the scripts bring that about. Where
the promise leaves a choice open (two tenants of one level, two jobs due in one millisecond), the model accepts either.
Times are milliseconds since the start of the test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

LIVING = ("ready", "scheduled", "running")
ENDED = ("done", "dead", "cancelled", "expired")

#: The policy all jobs of the test have.
RETRIES = 1
MAX_CRASHES = 2
BACKOFF_MS = 120_000
SNOOZE_MS = 600_000

#: Older attempts are not told any more.
ATTEMPTS_TOLD = 20
#: More leases than this are not taken back in one turn.
TAKEN_BACK_AT_ONCE = 20

FRONT = (-1, 0)  # the rank of what was handed back


@dataclass
class Job:
    """One job and its rights."""

    id: str
    priority: int
    tenant: str = ""
    weight: float = 1.0
    name: str = ""
    scope: str = ""
    delay_ms: int = 0
    body: bytes = b""
    #: Whether its death calls for a job that handles it.
    has_handler: bool = False
    task: str = "task"

    state: str = ""
    #: Raised whenever the right to settle is given or taken away.
    grip: int = 0
    due_ms: int = 0
    lease_end_ms: int = 0
    #: Place in the line of its level and tenant; equal ranks may come in any order.
    rank: tuple[int, int] = (0, 0)
    spent: int = 0
    crashes: int = 0
    attempts: int = 0
    cancel_asked: bool = False
    awaited: bool = False
    has_record: bool = False
    lives: int = 0
    ends: int = 0

    @property
    def is_plain(self) -> bool:
        return not (self.delay_ms or self.tenant or self.name)

    @property
    def names(self) -> set[str]:
        """The limits it may be under."""
        return {"q:", f"t:{self.task}"} | ({f"g:{self.tenant}"} if self.tenant else set())

    def must_run_before(self, other: Job) -> bool:
        """Strict priority; what was handed back first, by age; else first in, first out inside a tenant."""
        if self.priority != other.priority:
            return self.priority < other.priority
        if self.rank == FRONT or other.rank == FRONT:
            return self.rank == FRONT and (other.rank != FRONT or self.id < other.id)
        return self.tenant == other.tenant and self.rank < other.rank


@dataclass
class Limit:
    """What is said about a tenant, a task or the queue."""

    concurrency: int | None = None
    #: A token comes in so many milliseconds; 0: no rate.
    every_ms: int = 0
    burst: int = 0
    #: Until when it is paused; 0: it is not.
    paused_ms: float = 0
    #: When all tokens are there again.
    full_ms: int = 0
    #: When the open breaker of a task lets a probe go; 0: it is closed.
    probe_ms: int = 0
    #: Probes that failed.
    trips: int = 0


@dataclass
class Model:
    """One queue."""

    now_ms: int = 0
    #: Until when all of it is paused; 0: it is not.
    paused_ms: float = 0
    jobs: dict[str, Job] = field(default_factory=dict)
    #: name -> the living job that has it
    names: dict[str, str] = field(default_factory=dict)
    #: name held for a time -> the job that took it; the time is longer than any test
    unique: dict[str, str] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    #: name -> its limit
    limits: dict[str, Limit] = field(default_factory=dict)
    #: Tasks that had a limit at times: their jobs may have been held up behind others of their tenant.
    held_up: set[str] = field(default_factory=set)
    #: task -> when its attempts failed
    failures: dict[str, list[int]] = field(default_factory=dict)
    _line: int = 0

    def of(self, *states: str) -> list[Job]:
        """All jobs in these states."""
        return [job for job in self.jobs.values() if job.state in states]

    def ids(self, state: str) -> set[str]:
        """The ids of the jobs in one state."""
        return {job.id for job in self.jobs.values() if job.state == state}

    # in
    def push(self, jobs: Iterable[Job]) -> list[str]:
        """Store jobs: for each the id that has its name, its own if it is new."""
        owners = []
        for job in jobs:
            owner = self._owner(job)
            owners.append(owner or job.id)
            if owner is None:
                self._store(job)
        return owners

    def _owner(self, job: Job) -> str | None:
        if not job.name:
            return None
        if job.scope.isdigit():
            holder = self.unique.get(job.name)
            self.unique.setdefault(job.name, job.id)
            return holder
        owner = self.names.get(job.name)
        if owner is not None and job.scope == "add":
            return None  # the name stays with the other one
        if owner is not None and not (job.scope == "queued" and self.jobs[owner].state == "running"):
            return owner
        self.names[job.name] = job.id
        return None

    def _store(self, job: Job) -> None:
        self.jobs[job.id] = job
        job.lives += 1
        self.totals["enqueued"] += 1
        if job.delay_ms:
            job.state, job.due_ms = "scheduled", self.now_ms + job.delay_ms
        else:
            self._line_up(job)

    def _line_up(self, job: Job) -> None:
        self._line += 1
        job.state, job.rank = "ready", (self._line, 0)

    # out
    def promote(self) -> None:
        """What is due becomes ready, in the order of its times."""
        self._line += 1
        for job in self.of("scheduled"):
            if job.due_ms <= self.now_ms:
                job.state, job.rank = "ready", (self._line, job.due_ms)

    def overdue(self) -> list[Job]:
        """Running jobs whose lease is over."""
        return [job for job in self.of("running") if job.lease_end_ms <= self.now_ms]

    @property
    def has_work(self) -> bool:
        """Whether a worker that asks now is given something."""
        due = any(job.due_ms <= self.now_ms for job in self.of("scheduled"))
        return due or any(self.may_start(job) for job in self.of("ready")) or bool(self.overdue())

    @property
    def is_paused(self) -> bool:
        """Whether nothing at all is handed out."""
        return self.paused_ms > self.now_ms

    def running(self, name: str) -> int:
        """How many jobs run that are under a limit."""
        return sum(name in job.names for job in self.of("running"))

    def room(self, name: str) -> float:
        """How many jobs under a limit may start now."""
        limit = self.limits.get(name)
        if limit is None:
            return math.inf
        if limit.paused_ms > self.now_ms or limit.probe_ms > self.now_ms:
            return 0
        room = math.inf
        if limit.concurrency is not None:
            room = limit.concurrency - self.running(name)
        if limit.probe_ms:
            room = min(room, 1 - self.running(name))
        if limit.every_ms:
            lacking = max(0, limit.full_ms - self.now_ms)
            room = min(room, (limit.burst * limit.every_ms - lacking) // limit.every_ms)
        return max(0, room)

    def may_start(self, job: Job) -> bool:
        """Whether all limits that a job is under have room for it."""
        return all(self.room(name) >= 1 for name in job.names)

    def lend(self, job: Job, lease_ms: int) -> int:
        """Give a worker the right to settle a job, and take it from the one that had it."""
        job.state = "running"
        job.lease_end_ms = self.now_ms + lease_ms
        job.grip += 1
        return job.grip

    def take_back(self, ids: Sequence[str], *, silent: int) -> None:
        """Check which leases a turn found to have ended; `silent`: of how many other workers."""
        overdue = {job.id for job in self.overdue()}
        assert set(ids) <= overdue, f"taken from workers whose leases run: {set(ids) - overdue}"
        assert len(set(ids)) == len(ids) == min(len(overdue), TAKEN_BACK_AT_ONCE), f"{ids} of {overdue} taken back"
        self.totals["lost"] += silent

    def claim(self, ids: Sequence[str], want: int) -> None:
        """Check which jobs a turn handed out, and in which order."""
        ready = self.ids("ready")
        assert set(ids) <= ready, f"handed out, but not ready: {set(ids) - ready}"
        assert len(set(ids)) == len(ids) <= want, f"{ids} handed out, {want} wanted"
        left = ready - set(ids)
        started = Counter(name for id in ids for name in self.jobs[id].names)
        for name, count in started.items():
            assert count <= self.room(name), f"{count} of {name!r} start, although {self.limits[name]}"
        full = {name for id in left for name in self.jobs[id].names if self.room(name) == started[name]}
        if len(ids) < want:
            held = [id for id in left if not self.jobs[id].names & full]
            assert not held, f"{held} of {ready} may start and do not, {want} wanted and {ids} handed out"
        for place, id in enumerate(ids):
            for later in (*ids[place + 1 :], *left):
                if later in left and self.jobs[later].names & full - self.jobs[id].names:
                    continue  # it may not start, so others need not wait for it
                wrong = self.must_run_before(self.jobs[later], self.jobs[id])
                assert not wrong, f"{later} must run before {id}: {self.jobs[later]}, {self.jobs[id]}"
        for name, count in started.items():
            limit = self.limits.get(name)
            if limit is not None and limit.every_ms:
                limit.full_ms = max(limit.full_ms, self.now_ms) + count * limit.every_ms

    def must_run_before(self, one: Job, other: Job) -> bool:
        """The order of two jobs. One that its task held up joins its tenant anew."""
        if one.task != other.task and {one.task, other.task} & self.held_up and other.rank != FRONT != one.rank:
            return one.priority < other.priority
        return one.must_run_before(other)

    def has_right(self, id: str, grip: int) -> bool:
        """Whether a word with this grip still counts."""
        job = self.jobs[id]
        return job.state == "running" and job.grip == grip

    def settle(self, id: str, grip: int, what: str, *, has_record: bool = True) -> bool:
        """Settle a job by a worker that believes to hold it: whether that counted."""
        if not self.has_right(id, grip):
            return False
        job = self.jobs[id]
        limit = self.limits.get(f"t:{job.task}")
        if what == "ok" and limit is not None and 0 < limit.probe_ms <= self.now_ms:
            self.close_breaker(f"t:{job.task}")  # what it depends on is back
        job.grip += 1
        match what:
            case "ok":
                self._end(job, "done", has_record)
            case "cancelled" | "expired":
                self._end(job, what, has_record)
            case "back":
                self._hand_back(job)
            case "snooze":
                job.attempts = min(job.attempts + 1, ATTEMPTS_TOLD)
                self._postpone(job, SNOOZE_MS)
            case "fail":
                job.attempts = min(job.attempts + 1, ATTEMPTS_TOLD)
                job.spent += 1
                if job.spent > RETRIES:
                    self._end(job, "dead", has_record)
                else:
                    self._postpone(job, BACKOFF_MS)
            case "broken":
                job.attempts = min(job.attempts + 1, ATTEMPTS_TOLD)
                self._end(job, "dead", has_record)
            case "lost":
                job.attempts = min(job.attempts + 1, ATTEMPTS_TOLD)
                job.crashes += 1
                if job.crashes >= MAX_CRASHES:
                    self._end(job, "dead", has_record)
                else:
                    self._hand_back(job)
            case _:
                raise ValueError(f"{what!r} cannot happen")
        return True

    def _hand_back(self, job: Job) -> None:
        job.state, job.rank = "ready", FRONT
        self.totals["back"] += 1

    def _postpone(self, job: Job, delay_ms: int) -> None:
        job.state, job.due_ms = "scheduled", self.now_ms + delay_ms
        self.totals["retry"] += 1

    def _end(self, job: Job, state: str, has_record: bool) -> None:
        self.totals[state] += 1
        self._gone(job, state, has_record)

    def _gone(self, job: Job, state: str, has_record: bool) -> None:
        job.state, job.has_record, job.ends = state, has_record, job.ends + 1
        job.cancel_asked = job.awaited = False
        if self.names.get(job.name) == job.id:
            del self.names[job.name]

    # by hand
    def limit(self, name: str, concurrency: int | None, every_ms: int, burst: int) -> None:
        """Limit a tenant, a task or the queue; with neither concurrency nor rate, take the limit away."""
        limit = self._limit(name)
        limit.concurrency, limit.every_ms, limit.burst = concurrency, every_ms, burst
        limit.full_ms = min(limit.full_ms, self.now_ms + burst * every_ms)
        self._forget_limit(name)

    def pause(self, name: str, until_ms: float) -> bool:
        """Start no more jobs of a tenant or a task, or (0) start them again: whether that changed anything."""
        limit = self._limit(name)
        was, limit.paused_ms = (limit.paused_ms > self.now_ms, limit.probe_ms > 0), until_ms
        if not until_ms:
            limit.probe_ms = limit.trips = 0
            self.failures.pop(name, None)
        self._forget_limit(name)
        return was != (until_ms > self.now_ms, limit.probe_ms > 0)

    def trip(self, name: str, failed: int, most: int, window_ms: int, rest_ms: int, longest_ms: int) -> int:
        """Attempts of a task failed: when its breaker lets a probe go, if it opens now; else 0."""
        limit = self._limit(name)
        if limit.probe_ms > self.now_ms:
            return 0
        if limit.probe_ms:
            limit.trips += 1
        else:
            times = [at for at in self.failures.get(name, []) if at > self.now_ms - window_ms]
            times += [self.now_ms] * failed
            self.failures[name] = times
            if len(times) < most:
                self._forget_limit(name)
                return 0
            del self.failures[name]
        limit.probe_ms = self.now_ms + min(rest_ms * 2**limit.trips, longest_ms)
        return limit.probe_ms

    def silent_breakers(self, for_ms: int) -> list[str]:
        """Tasks whose breaker has let a probe go for so long, and none of whose jobs runs."""
        return [
            name
            for name, limit in self.limits.items()
            if 0 < limit.probe_ms <= self.now_ms - for_ms and not self.running(name)
        ]

    def close_breaker(self, name: str) -> None:
        """All is well again, or believed to be."""
        limit = self.limits[name]
        limit.probe_ms = limit.trips = 0
        self._forget_limit(name)

    def _limit(self, name: str) -> Limit:
        if name.startswith("t:"):
            self.held_up.add(name[2:])
        return self.limits.setdefault(name, Limit())

    def _forget_limit(self, name: str) -> None:
        limit = self.limits[name]
        is_paused = limit.paused_ms > self.now_ms
        if limit.concurrency is None and not limit.every_ms and not is_paused and not limit.probe_ms:
            del self.limits[name]

    def forget_pauses(self) -> None:
        """Pauses that have ended by themselves are none."""
        for name in list(self.limits):
            self._forget_limit(name)

    def cancel(self, id: str) -> str:
        """End a job that waits, or ask for the end of one that runs."""
        job = self.jobs[id]
        if job.state == "running":
            job.cancel_asked = True
            return "asked"
        if job.state not in LIVING:
            return "unknown"
        self._end(job, "cancelled", True)
        return "cancelled"

    def revive(self, id: str) -> bool:
        """A dead, cancelled or expired job begins a new life."""
        job = self.jobs[id]
        if job.state not in ("dead", "cancelled", "expired") or not job.has_record:
            return False
        job.spent = job.crashes = job.attempts = 0
        job.grip, job.lives, job.has_record = job.grip + 1, job.lives + 1, False
        if job.name:
            self.names.setdefault(job.name, job.id)
        self._line_up(job)
        self.totals["revived"] += 1
        return True

    def clear(self) -> int:
        """Remove all that has not started."""
        waiting = self.of("ready", "scheduled")
        for job in waiting:
            self._gone(job, "cleared", False)
        self.totals["cleared"] += len(waiting)
        return len(waiting)

    def discard(self, id: str) -> int:
        """Forget an ended job."""
        job = self.jobs[id]
        if job.state not in ENDED or not job.has_record:
            return 0
        job.state, job.has_record = "discarded", False
        self.totals["discarded"] += 1
        return 1

    def restore(self, id: str) -> None:
        """A dead letter that was discarded is there again."""
        job = self.jobs[id]
        job.state, job.has_record = "dead", True
        self.totals["restored"] += 1
