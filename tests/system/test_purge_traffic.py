"""The purge under live traffic: random interleavings, and nothing is removed that should not be.

A purge is a sequence of calls. Between any two of them something happens here: jobs are pushed, claimed, finished,
retried, handed back, cancelled and revived, entities move, time passes, another purge makes a step. What the purge may
touch is decided by what the test saw itself, not by what the purge believes.
`RELEVO_CHAOS=1` runs more of them, and longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from relevo import Job
from relevo.engine.ids import LENGTH, Ids, made_ms
from relevo.errors import JobError, UnknownJob
from relevo.pools.pool import Pool
from relevo.queues.queue import Lease
from relevo.store.plan import Call
from relevo.upkeep.purge import purging
from relevo.upkeep.report import UpkeepReport
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.timed import MINUTE, Times

#: Minutes, so that the few real milliseconds of a test decide nothing.
LIMITS = {"scheduled": 10, "waiting": 40, "ready": 60, "running": 1, "done": 10, "request": 5}
POOL_LIMITS = {"pending": 30, "ready": 60, "completed": 10}
STATES = ("ready", "scheduled", "waiting", "running", "done", "dead", "cancelled", "expired")
DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
SLACK_MS = 30_000
#: Scripts by which a purge acts.
ON_JOBS = ("upkeep/purge_jobs", "upkeep/take_back_jobs")
ON_ENTITIES = ("pools/move_entity", "pools/fail_entity", "pools/remove_entity", "pools/expire_entity")
ACTS = (*ON_JOBS, *ON_ENTITIES)
LOOKS = (
    "upkeep/find_old_jobs", "upkeep/find_orphans", "pools/list_entities", "pools/find_unplaced", "pools/count_entities"
)  # fmt: skip
#: What must have been met: each row of the table but those of requests and orphans. Ids are made by the real clock, so
#: a seed does not say what happens, and a run goes on until all of them were.
ROWS = {"scheduled", "waiting", "ready", "running", "done", "pending", "completed"}
IS_NIGHTLY = os.environ.get("RELEVO_CHAOS") == "1"
ENOUGH, TOO_LONG = 5_000 if IS_NIGHTLY else 400, 20_000
SEEDS = 8 if IS_NIGHTLY else 2


class Place(NamedTuple):
    """Where a job is, with what shows that it is still the same stay."""

    state: str
    score: float
    claim: bytes


class ShiftedIds(Ids):
    """Ids of clients whose clock agrees with the server's, in the test's time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms

    def __call__(self) -> str:
        ms, text = self._now_ms(), ""
        for _ in range(9):
            ms, digit = divmod(ms, 32)
            text = DIGITS[digit] + text
        return text + super().__call__()[9:LENGTH]


class Traffic:
    """Jobs and entities in motion, and what is known of them besides the purge."""

    def __init__(self, times: Times, seed: int) -> None:
        ages = {
            "queues": {"*": {state: f"{minutes}m" for state, minutes in LIMITS.items()}},
            "pools": {"*": {state: f"{minutes}m" for state, minutes in POOL_LIMITS.items()}},
        }
        self.times, self.random = times, random.Random(seed)
        self.app = app = times.another(purge_ages=ages, result_ttl="1d")
        app.engine.new_id = ShiftedIds(times.now_ms)
        self.task = app.task(name="work")(lambda n: n)
        self.queue, self.keys = app.queue(), app.engine.keys_of("default")
        self.pool: Pool = app.pool("vms")
        self.leases: list[Lease] = []
        self.due: dict[str, int] = {}
        self.deadline: dict[str, int] = {}
        self.waited: set[str] = set()
        self.handed_out: set[str] = set()
        self.names = 0
        self.jobs: list[str] = []
        self.entities: list[str] = []
        self.happened = 0
        self.is_served = True

    # what happens between the steps of a purge
    def anything(self) -> None:
        """One thing. Workers are there for a while and away for a while."""
        self.happened += 1
        if self.random.random() < 0.03:
            self.is_served = not self.is_served
        acts: list[Callable[[], None]] = [self.push, self.push, self.claim, self.finish, self.settle, self.cancel]
        acts += [self.revive, self.pass_time, self.add, self.move, self.move, self.drop]
        self.random.choice(acts)()

    def push(self) -> None:
        kind, options = self.random.random(), dict[str, Any](priority=self.random.choice([0, 100, 900]))
        if kind < 0.3:
            options["delay"] = self.random.randint(1, 90) * 60
        elif kind < 0.45 and self.jobs:
            options["depends_on"] = [Job[int](self.app.engine, self.random.choice(self.jobs), "default")]
        elif kind < 0.6:
            options["expires"] = self.random.randint(1, 60) * 60
        elif kind < 0.7:
            options["name"] = f"n{self.random.randint(0, 3)}"
        try:
            job = self.task.using(**options).enqueue(self.random.randint(0, 9))
        except UnknownJob:
            assert "depends_on" in options  # a parent of which nothing is left
            return
        if not job.created:
            return
        self.jobs = [*self.jobs, job.id][-60:]
        now = made_ms(job.id)
        self.due[job.id] = now + round(options.get("delay", 0) * 1000)
        if "depends_on" in options:
            self.waited.add(job.id)
        if "expires" in options:
            self.deadline[job.id] = now + options["expires"] * 1000

    def claim(self) -> None:
        if not self.is_served:
            return
        taken = self.queue.take(self.random.randint(1, 3), lease=self.random.choice(["1m", "1m", "2h"]))
        self.handed_out.update(lease.id for lease in taken)
        self.leases += taken

    def finish(self) -> None:
        if self.leases:
            self.leases.pop(self.random.randrange(len(self.leases))).done(7)

    def settle(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.random.randrange(len(self.leases)))
            delay = self.random.randint(0, 60) * 60
            acts = [lambda: lease.retry(delay=delay), lease.give_back, lambda: lease.bury("broken"), lease.renew]
            self.random.choice(acts)()

    def cancel(self) -> None:
        for id in self.random.sample(self.jobs, min(2, len(self.jobs))):
            with suppress(UnknownJob):
                Job[int](self.app.engine, id, "default").cancel()

    def revive(self) -> None:
        for row in self.queue.jobs(self.random.choice(["dead", "cancelled", "expired"]), limit=2):
            with suppress(JobError):  # what it depends on has failed
                Job[int](self.app.engine, row.id, "default").retry()
                self.handed_out.add(row.id)  # it ran before: the test does not know since when it is ready now

    def pass_time(self) -> None:
        self.times.move(self.random.randint(1, 25) * MINUTE)

    def add(self) -> None:
        self.names += 1
        state = self.random.choice(["pending", "ready", "completed", "running"])
        self.pool.add(f"vm-{self.names}", state, kind=self.random.choice(["pool", "on_demand"]))
        self.entities = [*self.entities, f"vm-{self.names}"][-20:]

    def move(self) -> None:
        if self.entities:
            states = ["pending", "ready", "completed", "running"]
            self.pool.move(self.random.choice(self.entities), self.random.choice(states), self.random.choice(states))

    def drop(self) -> None:
        if self.entities:
            entity = self.random.choice(self.entities)
            self.pool.remove(entity) if self.random.random() < 0.5 else self.pool.fail(entity, "broken")

    def disturb(self, step: Any) -> None:
        """Something happens to the very entries that a step is about to act on, more often than not."""
        if not (isinstance(step, Call) and step.script and step.script.name in ACTS) or self.random.random() < 0.3:
            return
        named = [arg for arg in step.args if isinstance(arg, str) and (arg in self.due or arg in self.entities)]
        for id in self.random.sample(named, min(2, len(named))):
            if id in self.entities:
                self.pool.move(id, self.pool.get(id).state or "pending", self.random.choice(["ready", "pending"]))  # type: ignore[union-attr]
            elif self.random.random() < 0.5:
                with suppress(UnknownJob):
                    Job[int](self.app.engine, id, "default").cancel()
            else:
                self.is_served = True
                self.claim()
                self.settle()

    def end(self) -> None:
        """Leave nothing that lives."""
        self.queue.clear()
        for lease in self.leases:
            lease.done()

    # what is so
    def places(self) -> dict[str, Place]:
        """Where every job is."""
        claims: list[bytes] = self.app.engine.run(Call([b"HGETALL", self.keys.key("claims")]))
        held = dict(zip(claims[::2], claims[1::2], strict=True))
        found: dict[str, Place] = {}
        for state in STATES:
            rows: list[bytes] = self.app.engine.run(Call([b"ZRANGE", self.keys.key(state), 0, -1, b"WITHSCORES"]))
            for id, score in zip(rows[::2], rows[1::2], strict=True):
                assert id.decode() not in found, "a job is in one state"
                found[id.decode()] = Place(state, float(score), held.get(id, b""))
        return found

    def entity_places(self) -> dict[str, tuple[str, int]]:
        found = {}
        for state in self.pool.counts():
            for one in self.pool.items(state, limit=1000):
                assert one.id not in found, "an entity is in one state"
                found[one.id] = (state, one.since_ms)
        return found

    def may_be_purged(self, id: str, before: Place, now_ms: int) -> bool:
        """By what the test knows."""
        limit_ms = LIMITS.get(before.state, 10**9) * MINUTE
        match before.state:
            case "scheduled":
                since = int(before.score) // 1024
            case "ready":
                if id in self.deadline and now_ms - self.deadline[id] >= LIMITS["request"] * MINUTE - SLACK_MS:
                    return True
                if id in self.waited or id in self.handed_out or id not in self.due:
                    return False
                since = self.due[id]
            case "waiting" | "running" | "done":
                since = int(before.score)
            case _:
                return False
        return now_ms - since >= limit_ms - SLACK_MS


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


def checked(traffic: Traffic, step: Any) -> Any:
    """Make one step of a purge, and look that it touched nothing but what it may."""
    name = step.script.name if isinstance(step, Call) and step.script else ""
    if name in ON_JOBS:
        before, now_ms = traffic.places(), traffic.times.now_ms()
        answer = traffic.app.engine.run(step)
        after = traffic.places()
        for id in before.keys() | after.keys():
            if before.get(id) != after.get(id) and id in before:
                assert traffic.may_be_purged(id, before[id], now_ms), (id, before[id], after.get(id))
                is_gone = id not in after
                assert not is_gone or before[id].state == "done", "only what is done is removed"
        return answer
    if name in ON_ENTITIES:
        then, now_ms = traffic.entity_places(), traffic.times.now_ms()
        answer = traffic.app.engine.run(step)
        later = traffic.entity_places()
        for id in then.keys() | later.keys():
            if then.get(id) != later.get(id):
                state, since = then[id]
                assert now_ms - since >= POOL_LIMITS[state] * MINUTE - SLACK_MS, (id, state)
        return answer
    if name in LOOKS and traffic.random.random() < 0.1:
        before, then = traffic.places(), traffic.entity_places()
        answer = traffic.app.engine.run(step)
        assert (traffic.places(), traffic.entity_places()) == (before, then), "looking changes nothing"
        return answer
    return traffic.app.engine.run(step)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_purge_between_everything_else_removes_nothing_wrongly(times: Times, seed: int) -> None:
    traffic = Traffic(times, seed)
    app = traffic.app
    met, spared = set[str](), 0
    for _ in range(30):
        traffic.anything()
    while traffic.happened < ENOUGH or not (met >= ROWS and spared):
        assert traffic.happened < TOO_LONG, f"{ROWS - met} never met, {spared} spared"
        plans = [purging(app.engine, dry_run=False) for _ in range(traffic.random.choice([1, 1, 2]))]
        answers: dict[int, Any] = dict.fromkeys(range(len(plans)))
        while answers:
            which = traffic.random.choice(list(answers))
            try:
                step = plans[which].send(answers[which])
            except StopIteration as end:
                report: UpkeepReport = end.value
                met |= {one.state for one in report.purged}
                spared += report.spared
                del answers[which]
                continue
            while traffic.random.random() < 0.6:
                traffic.anything()
            traffic.disturb(step)
            answers[which] = checked(traffic, step)
    lease_ids = {lease.id for lease in traffic.leases}
    assert {id for id, place in traffic.places().items() if place.state == "running"} <= lease_ids | traffic.handed_out
    traffic.end()


@pytest.mark.parametrize("seed", range(10, 10 + SEEDS))
def test_dry_run_after_any_traffic_lists_what_a_live_run_does(times: Times, seed: int) -> None:
    traffic = Traffic(times, seed)
    app = traffic.app
    found = 0
    for _ in range(12):
        for _ in range(25):
            traffic.anything()
        before = (traffic.places(), traffic.entity_places())
        dry = app.purge(dry_run=True)
        assert (traffic.places(), traffic.entity_places()) == before
        done = app.purge(dry_run=False)
        would, did = (
            [(one.kind, one.id, one.state, one.what, one.reason, one.bytes) for one in report.purged]
            for report in (dry, done)
        )
        assert would == did
        assert (dry.unknown, done.spared) == (done.unknown, 0)
        found += done.count
    assert found > 10
    traffic.end()
