"""A server that forgot its scripts, has no memory left, or may not be written to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from relevo.engine.breaker import Breaker
from relevo.engine.job_store import cancel, discard, look
from relevo.engine.push import push_plain
from relevo.engine.turn import Limits, Settled, abandon, leave, renew, rest, turn
from relevo.errors import OutOfMemory, ServerRefused, ServerUnavailable
from relevo.limits import store as limits
from relevo.limits.limit import limit_of
from relevo.queues.store import clear
from tests.clock import Clock, TimedApp
from tests.conftest import PATIENT
from tests.eventually import eventually
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, moved, new_id


def test_scripts_are_loaded_again_after_the_server_lost_them(own_desk: Desk) -> None:
    (id,) = own_desk.push()
    own_desk.server.command("SCRIPT", "FLUSH")
    assert own_desk.claim() == [id]
    own_desk.server.command("SCRIPT", "FLUSH")
    assert own_desk.run(look(own_desk.keys, id)).state == "running"
    own_desk.server.command("SCRIPT", "FLUSH")
    assert own_desk.finish([id]) == []


def test_without_memory_no_job_is_taken_but_work_goes_on(own_desk: Desk) -> None:
    """Enqueue raises, running jobs finish, what is queued is handed out."""
    ids = own_desk.push(*['{"t":"x"}'] * 10)
    own_desk.push_one('{"t":"x"}', priority=150, tenant="g")
    held = own_desk.claim(4)
    own_desk.server.command("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(OutOfMemory, match="memory limit"):
        own_desk.push()
    with pytest.raises(OutOfMemory):
        own_desk.push("{}", "{}")
    with pytest.raises(OutOfMemory):
        own_desk.push_one(name="n", scope="until_done")
    assert own_desk.stats().living == 11

    assert own_desk.run(renew(own_desk.keys, [(id, 1) for id in held], 90_000))[:2] == ([], [])
    settled = Settled([held[0]], [held[1]], [60_000, b"{}"], moved(held[2], "retry", ms=60_000).moved)
    assert own_desk.turn(0, settled).refused == []
    assert own_desk.turn(0, moved(held[3], "dead", text=b'{"state":"dead"}')).refused == []
    assert own_desk.claim(2) == ids[4:6]
    assert own_desk.turn(10, worker="w2", idle_ms=30_000).ids
    assert own_desk.run(rest(own_desk.keys, "w2", LEASE_MS, 30_000))[2] is True
    assert own_desk.run(leave(own_desk.keys, "w2")) == []
    stats = own_desk.stats()
    assert (stats.done, stats.dead, stats.scheduled, stats.ready) == (1, 1, 1, 0)

    own_desk.server.command("CONFIG", "SET", "maxmemory", 0)
    assert own_desk.push()


def test_without_memory_jobs_can_be_removed_and_cancelled(own_desk: Desk) -> None:
    """Whatever frees memory, or stops work, is still possible."""
    first, second, third, _ = own_desk.push(*['{"t":"x"}'] * 4)
    own_desk.claim(2)
    own_desk.turn(0, moved(first, "dead", text=b'{"state":"dead"}'))
    own_desk.server.command("CONFIG", "SET", "maxmemory", 1)
    assert own_desk.run(cancel(own_desk.keys, [(second, 1000, "")], 10)) == (["asked"], False)
    assert own_desk.run(cancel(own_desk.keys, [(third, 1000, "")], 10)) == (["cancelled"], False)
    assert own_desk.run(abandon(own_desk.keys, [(second, 1)])) == 1
    assert own_desk.run(discard(own_desk.keys, [first])) == (1, False)
    assert own_desk.run(clear(own_desk.keys)) == (1, False)


def test_without_memory_work_can_be_held_up_and_let_go(own_desk: Desk) -> None:
    """Limits and pauses stop what fills the server. Failed attempts are counted, else they could not be settled."""
    own_desk.push(*['{"t":"x"}'] * 4)
    own_desk.claim(2)
    own_desk.server.command("CONFIG", "SET", "maxmemory", 1)
    breaker = Breaker.after(2, "1m")
    assert own_desk.run(limits.trip(own_desk.keys, "y", 1, breaker)) == 0
    assert own_desk.run(limits.trip(own_desk.keys, "y", 1, breaker)) > 0
    assert own_desk.run(limits.limit(own_desk.keys, "t:x", limit_of(concurrency=2))) is True
    assert own_desk.claim(2) == [], "those that run already hold the places"
    assert own_desk.run(limits.unlimit(own_desk.keys, "t:x")) is True
    assert own_desk.run(limits.pause(own_desk.keys, "t:x")) is True
    assert own_desk.claim(2) == []
    assert own_desk.run(limits.resume(own_desk.keys, "t:x")) is True
    assert len(own_desk.claim(2)) == 2


def test_without_memory_a_schedule_can_be_paused_and_resumed(own_server: Server) -> None:
    app = TimedApp("own", url=own_server.url, env="test", **PATIENT)

    @app.task
    def report() -> None: ...

    schedule = app.schedule("flood", report, every="1h")
    own_server.command("CONFIG", "SET", "maxmemory", 1)
    assert schedule.pause(reason="full") is True
    assert [one.reason for one in app.pauses()] == ["full"]
    assert schedule.pause(until="2h") is False
    assert schedule.resume() is True
    app.close()


def test_calls_on_a_replica_are_repeated_until_it_is_a_primary(own_desk: Desk) -> None:
    """As after a failover: the old primary comes back as a replica before clients know the new one."""
    (id,) = own_desk.push()
    own_desk.server.command("REPLICAOF", "127.0.0.1", 1)
    for plan in (
        push_plain(own_desk.keys, [(new_id(), b"{}")], 100, LEASE_MS),
        turn(own_desk.keys, "w", Limits(LEASE_MS, 0, 10, 10), 1, Settled()),
    ):
        with pytest.raises(ServerUnavailable, match="READONLY"):
            own_desk.run(plan, patience=0)
    promotion = threading.Timer(0.05, own_desk.server.command, ("REPLICAOF", "NO", "ONE"))
    promotion.start()
    assert own_desk.claim() == [id]
    promotion.join()


def test_a_failed_save_to_disk_refuses_calls_and_names_the_disk(engine: str, tmp_path: Path) -> None:
    config = {"save": "3600 100000", "dbfilename": "snapshot.rdb"}
    with Server(engine, directory=tmp_path, config=config) as server:
        Clock(server).start()
        app = TimedApp("own", url=server.url, env="test", **PATIENT)
        desk = Desk(app.engine.client.run, app.engine.keys_of("default"), server)
        desk.push()
        (tmp_path / "snapshot.rdb").mkdir()  # where a directory is, no file can be put
        server.command("BGSAVE")
        eventually(lambda: server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        with pytest.raises(ServerRefused, match="disk"):
            desk.push()
        with pytest.raises(ServerRefused, match="disk"):
            desk.claim()
        app.close()
        server.kill()  # it would not stop before it has saved
