"""Behaviour that no other test of the scripts showed, found by `./dev breaks`."""

from __future__ import annotations

from relevo.store.turns import rest
from tests.store.desk import Desk


def test_a_resting_worker_takes_over_when_the_call_went_to_a_worker_that_died(desk: Desk) -> None:
    """Without it the job would wait for the next push, although a live worker is idle."""
    desk.wait("living", idle_ms=30_000)
    desk.wait("dead", idle_ms=60_000)
    id = desk.push_one(group="acme")
    assert (len(desk.bell("dead")), desk.bell("living")) == (1, [])
    _, _, may_wait, _ = desk.run(rest(desk.keys, "living", 30_000))
    assert not may_wait, "it must ask for jobs"
    assert desk.members("idle") == []
    assert desk.claim(worker="living") == [id]
