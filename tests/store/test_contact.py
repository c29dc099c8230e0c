"""Leases end only while workers can reach the server: an outage or a step of the clock ends none."""

from __future__ import annotations

import pytest

from relevo.engine.turn import Settled, abandon, renew, rest
from tests.store.desk import LEASE_MS, Desk, moved, plain

#: The time that living workers have to come back and renew.
COME_BACK_MS = 5000


def lost(desk: Desk, worker: str = "other") -> list[str]:
    """Jobs that a turn takes back."""
    return [row[0].decode() for row in desk.turn(1, worker=worker, idle_ms=30_000).lost]


def claimed(desk: Desk, worker: str = "holder") -> str:
    """A job that a worker holds, while it and another one are in contact."""
    (id,) = desk.push()
    desk.in_contact()
    assert desk.claim(1, worker=worker) == [id]
    return id


def test_a_lease_ends_while_other_workers_reach_the_server(desk: Desk) -> None:
    id = claimed(desk)
    desk.advance(LEASE_MS + 1)
    assert lost(desk) == [id]


@pytest.mark.parametrize("first_call", ["turn", "rest", "renew"])
def test_after_an_outage_no_lease_ends_before_workers_could_renew(desk: Desk, first_call: str) -> None:
    id = claimed(desk)
    desk.jump(LEASE_MS * 3)
    match first_call:
        case "turn":
            assert lost(desk) == []
        case "rest":
            desk.run(rest(desk.keys, "other", LEASE_MS, 30_000))
        case "renew":
            desk.run(renew(desk.keys, [], LEASE_MS))
    assert lost(desk) == []
    desk.jump(COME_BACK_MS - 500)
    assert lost(desk) == []
    desk.jump(1000)
    assert lost(desk) == [id], "its holder did not come back"


def test_a_worker_that_renews_after_an_outage_keeps_its_jobs(desk: Desk) -> None:
    id = claimed(desk)
    desk.jump(LEASE_MS * 3)
    assert lost(desk) == []
    assert desk.run(renew(desk.keys, [(id, 1)], LEASE_MS))[:2] == ([], [])
    desk.jump(COME_BACK_MS + 1000)
    assert lost(desk) == []
    assert desk.finish([id], worker="holder") == []


def test_an_idle_worker_is_told_to_come_when_leases_may_be_taken_back(desk: Desk) -> None:
    """Not before: it would ask again and again in vain."""
    claimed(desk)
    desk.jump(LEASE_MS * 3)
    found = desk.turn(1, worker="other", idle_ms=30_000)
    assert found.wake_ms == found.now_ms + COME_BACK_MS
    now, wake, *_ = desk.run(rest(desk.keys, "other", LEASE_MS, 30_000))
    assert 0 < wake - now <= COME_BACK_MS


def test_a_clock_that_is_set_back_does_not_hold_leases_for_longer(desk: Desk) -> None:
    id = claimed(desk)
    desk.jump(3_600_000)
    assert lost(desk) == [], "now leases hold, until an hour and some seconds later"
    desk.jump(-3_600_000)
    assert lost(desk) == []
    desk.advance(LEASE_MS + COME_BACK_MS)
    assert lost(desk) == [id]


def test_a_lease_of_a_worker_seen_dying_ends_at_once_also_after_an_outage(desk: Desk) -> None:
    id = claimed(desk)
    desk.jump(LEASE_MS * 3)
    assert desk.run(abandon(desk.keys, [(id, 1)])) == 1
    assert lost(desk) == [id]


def test_a_worker_whose_own_lease_has_ended_gets_the_job_again_under_the_same_token(desk: Desk) -> None:
    """It is there and asks: it was late to renew, or the reply to its claim was lost. It knows which."""
    id = claimed(desk)
    desk.advance(LEASE_MS + 1)
    found = desk.turn(1, worker="holder", idle_ms=30_000)
    assert [(row[0].decode(), row[1][:9]) for row in found.lost] == [(id, b"1 holder ")]
    assert lost(desk) == [], "the lease began anew"
    assert desk.turn(0, plain([id]), worker="holder").refused == []
    assert desk.stats().totals.get("lost", 0) == 0


def test_a_loop_of_the_users_own_that_forgot_its_job_loses_it(desk: Desk) -> None:
    id = claimed(desk)
    desk.advance(LEASE_MS + 1)
    (row,) = desk.turn(1, worker="holder", idle_ms=0).lost
    assert row[1].startswith(b"2 holder ")
    assert desk.turn(0, moved(id, "done", token=2, ms=0)).refused == []


def test_contact_is_noted_a_few_times_a_second_and_ends_with_the_workers(desk: Desk) -> None:
    desk.turn(1, worker="w", idle_ms=30_000)
    first = desk.ask("GET", "contact")
    desk.turn(1, Settled(), worker="w", idle_ms=30_000)
    desk.jump(300)
    desk.turn(1, Settled(), worker="w", idle_ms=30_000)
    assert desk.ask("GET", "contact") != first
    assert 0 < desk.ask("PTTL", "contact") <= 60_000
