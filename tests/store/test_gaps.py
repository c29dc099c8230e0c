"""Behaviour that no other test of the scripts showed, found by `./dev breaks`."""

from __future__ import annotations

from pathlib import Path

from relevo.bus.subscription_store import sweep
from relevo.engine.job_store import discard
from relevo.engine.leader import Leader
from relevo.engine.turn import rest
from relevo.store.plan import Call
from relevo.store.replies import ConnectionLost
from relevo.store.source import Source, Tries
from relevo.upkeep.store import Act, Ending, purge_jobs
from tests.conftest import AppFactory
from tests.servers import Server
from tests.store.bus import make_bus
from tests.store.desk import LEASE_MS, Desk, kept


def test_a_resting_worker_takes_over_when_the_call_went_to_a_worker_that_died(desk: Desk) -> None:
    """Without it the job would wait for the next push, although a live worker is idle."""
    desk.wait("living", idle_ms=30_000)
    desk.wait("dead", idle_ms=60_000)
    id = desk.push_one(tenant="acme")
    assert (len(desk.bell("dead")), desk.bell("living")) == (1, [])
    _, _, may_wait, _ = desk.run(rest(desk.keys, "living", LEASE_MS, 30_000))
    assert not may_wait, "it must ask for jobs"
    assert desk.members("idle") == []
    assert desk.claim(worker="living") == [id]


def test_a_call_whose_reply_was_lost_stays_a_repeated_one_when_the_next_connection_fails() -> None:
    """The server may have carried it out. Sent again as a new one, a push would store its job twice."""
    source = Source("redis://localhost", data_dir=Path(), connect_timeout=1, call_timeout=1)
    tries = Tries(Call([b"PING"]), source, patience=60)
    tries.pause_after(ConnectionLost("refused", sent=False), None)
    assert not tries.repeated, "it never left"
    tries.pause_after(ConnectionLost("reset", sent=True), None)
    tries.pause_after(ConnectionLost("refused", sent=False), None)
    assert tries.repeated


def test_a_subscription_is_not_removed_before_a_warning_however_long_all_were_away(
    app_factory: AppFactory, server: Server
) -> None:
    """While nothing sweeps, nothing can warn: the half of its time that follows a warning begins with the warning."""
    bus = make_bus(app_factory, server)
    bus.subscribe("a", inactive_ms=100_000)
    bus.advance(1_000_000)
    found = bus.run(sweep(bus.keys))
    assert (len(found.warned), len(found.removed)) == (1, 0)
    bus.advance(40_000)
    assert not bus.run(sweep(bus.keys)).removed
    bus.advance(10_000)
    assert len(bus.run(sweep(bus.keys)).removed) == 1


def test_the_purge_leaves_a_job_alone_that_is_there_anew_since_it_was_looked_at(desk: Desk) -> None:
    """An event that is delivered again has its old id: what the purge saw of the first delivery is not this one."""
    desk = desk
    id = desk.push_one()
    desk.turn(0, kept(desk.claim()))
    seen = int(desk.score("done", id) or 0)
    desk.run(discard(desk.keys, [id]))
    desk.advance(60_000)
    desk.push_one(id=id)
    desk.turn(0, kept(desk.claim()))
    assert desk.run(Leader(desk.keys, "me").take())
    for score, is_removed in ((seen, False), (int(desk.score("done", id) or 0), True)):
        act = Act(id=id, state="done", score=score, claim="", since_ms=seen, limit_ms=1000, end=Ending(verb="removed"))
        assert desk.run(purge_jobs(desk.keys, "me", [act], 1000))[0] == [is_removed]
        assert (desk.record(id) is None) is is_removed
