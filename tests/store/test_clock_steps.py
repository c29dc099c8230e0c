"""set_back: what waits for a time keeps the span that it had left."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.engine.clock_steps import Replanned, set_back
from relevo.engine.outbox import take_outbox
from relevo.schedules import store as schedules
from relevo.schedules.schedule import schedule_of
from tests.store.desk import LEASE_MS, Desk

HOUR = 3_600_000
IDLE_MS = 40_000


def report(desk: Desk, step_ms: int = HOUR, **options: Any) -> bool:
    """A worker noticed the step."""
    more: bool = desk.run(set_back(desk.keys, step_ms, lease_ms=LEASE_MS, idle_ms=IDLE_MS, **options))
    return more


def due_in(desk: Desk, id: str) -> int:
    score = desk.score("scheduled", id)
    assert score is not None
    return round(score // 1024 - desk.now_ms)


def test_delayed_jobs_are_due_when_they_were(desk: Desk) -> None:
    soon, late = (desk.push_one(when=f"+{ms}", priority=priority) for ms, priority in ((60_000, 5), (7_200_000, 900)))
    desk.jump(-HOUR)
    assert not report(desk)
    assert 30_000 < due_in(desk, soon) <= 60_000
    assert 7_100_000 < due_in(desk, late) <= 7_200_000
    assert [(desk.score("scheduled", id) or 0) % 1024 for id in (soon, late)] == [5, 900]
    desk.advance(60_001)
    assert desk.claim() == [soon]


def test_several_workers_may_report_one_step(desk: Desk) -> None:
    id = desk.push_one(when="+60000")
    desk.jump(-HOUR)
    assert not report(desk)
    assert not report(desk, HOUR + 1500)
    assert 30_000 < due_in(desk, id) <= 60_000


def test_a_second_step_is_another_one(desk: Desk) -> None:
    id = desk.push_one(when="+60000")
    desk.jump(-HOUR)
    report(desk)
    desk.jump(-2 * HOUR)
    report(desk, 2 * HOUR)
    assert 30_000 < due_in(desk, id) <= 60_000


@pytest.mark.parametrize("workers", [1, 2])
def test_many_jobs_are_moved_in_parts(desk: Desk, workers: int) -> None:
    ids = [desk.push_one(when=f"+{60_000 + n // 3}") for n in range(50)]
    desk.jump(-HOUR)
    calls = 1
    while report(desk, HOUR + 700 * (calls % workers), most=7):
        calls += 1
        assert calls < 50
    assert all(30_000 < due_in(desk, id) <= 61_000 for id in ids)
    assert desk.members("scheduled") == sorted(ids, key=ids.index)


def test_more_jobs_of_one_time_than_a_part(desk: Desk) -> None:
    ids = [desk.push_one(when="+60000") for _ in range(20)]
    at = desk.score("scheduled", ids[0])
    for id in ids:
        desk.ask("ZADD", "scheduled", at or 0, id)
    desk.jump(-HOUR)
    for _ in range(30):
        if not report(desk, most=6):
            break
    assert all(30_000 < due_in(desk, id) <= 60_000 for id in ids)


def test_a_lease_never_lasts_longer_than_a_lease(desk: Desk) -> None:
    (id,) = desk.push()
    desk.in_contact()
    assert desk.claim() == [id]
    desk.jump(-HOUR)
    report(desk)
    assert (desk.score("running", id) or 0) <= desk.now_ms + LEASE_MS


def test_dead_workers_are_not_believed_idle(desk: Desk) -> None:
    desk.wait("dead", IDLE_MS)
    desk.jump(-HOUR)
    desk.wait("alive", IDLE_MS)
    report(desk)
    assert desk.members("idle") == ["alive"]


def test_schedules_wait_for_their_next_tick(desk: Desk) -> None:
    often, nightly = (
        schedule_of(name="often", target="x", every="1s"),
        schedule_of(name="nightly", target="x", every="1d"),
    )
    due = desk.now_ms + 1000
    for schedule in (often, nightly):
        desk.run(schedules.enroll(desk.keys, schedule, due, ""))
    desk.jump(-HOUR)
    now = desk.now_ms
    report(desk, schedules=[Replanned("often", due, now + 1000), Replanned("nightly", due + 1, now + 1000)])
    assert [standing.due_ms for standing in desk.run(schedules.look(desk.keys, ["often", "nightly"]))] == [
        now + 1000,
        due,
    ]
    desk.advance(1001)
    assert desk.run(take_outbox(desk.keys, ticks=True)).ids == ["@often"]


def test_nothing_of_it_stays(desk: Desk) -> None:
    report(desk)
    assert 0 < desk.ask("PTTL", "set_back") <= 180_000
