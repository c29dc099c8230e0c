"""The slot of a busy queue moves to another node of a cluster: nothing is lost, refused or run twice."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relevo import Job, Relevo
from relevo.store import acl
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.process.harness import Site
from tests.servers import Server
from tests.system.shell import relevo
from tests.topologies import Cluster, SlotMove
from tests.working import working


@pytest.fixture(scope="module")
def cluster(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), engine) as cluster:
        yield cluster


def key(app: Relevo, name: str, queue: str = "default") -> str:
    return app.engine.keys_of(queue).key(name).decode()


@contextmanager
def async_load(site: Site, awaited: int) -> Iterator[None]:
    """Enqueue jobs on an event loop and wait for the result of each; all the time also for that of another job."""
    over = threading.Event()

    async def produce() -> None:
        waiting = asyncio.create_task(site.acknowledged[awaited].aresult(PATIENCE))
        for n in itertools.count(20_000):
            job = await site.app.tasks["nap"].aenqueue(n)
            site.acknowledged[n] = job
            assert await job.aresult(PATIENCE) == n
            if over.is_set():
                break
        assert await waiting == awaited
        await site.app.aclose()

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(asyncio.run, produce())
        try:
            yield
        finally:
            over.set()
        producing.result(PATIENCE)


def last_lease_ends(node: Server, app: Relevo) -> float:
    """By a node that the slot moves to."""
    node.ask("ASKING")
    return max(float(score) for score in node.ask("ZRANGE", key(app, "running"), 0, -1, "WITHSCORES")[1::2])


def now_ms(node: Server) -> int:
    seconds, micros = node.command("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


def wait_refused(move: SlotMove, times: int = 20) -> None:
    enough = move.refused() + times
    eventually(lambda: move.refused() >= enough, what="calls are refused because the slot moves")


def listeners(node: Server, app: Relevo) -> int:
    """Event loops and processes that wait for results there."""
    return len(node.command("PUBSUB", "CHANNELS", app.engine.keys.inbox("*")))


def test_no_job_is_lost_or_run_twice_while_its_slot_moves(cluster: Cluster, tmp_path: Path) -> None:
    """Its leases end meanwhile. Jobs run on an event loop and in a thread, and one of them ends; others are made."""
    with Site(cluster, tmp_path, lease="4s") as site, ThreadPoolExecutor(1) as waiter:
        site.start()
        site.start()
        site.enqueue("gated", 1)
        site.enqueue("gated_thread", 2)
        site.enqueue("gated", 3)
        waiting = waiter.submit(site.acknowledged[2].result, PATIENCE)
        for n in (1, 2, 3):
            site.wait_effect("start", n)
        with site.load(), async_load(site, 1):
            before = len(site.acknowledged)
            eventually(lambda: site.has_acknowledged(before + 20), what="jobs are made")
            of_app = cluster.move_slot_of(site.app.engine.keys.workers.decode())
            eventually(lambda: listeners(of_app.source, site.app) == 2, what="both who wait listen")
            of_app.finish()
            move = cluster.move_slot_of(key(site.app, "jobs"))
            move.carry(*(key(site.app, name) for name in ("running", "claims", "contact")))  # all that a renewal needs
            wait_refused(move)
            site.open(3)
            eventually(lambda: last_lease_ends(move.target, site.app) < now_ms(move.target), what="all leases end")
            move.finish()
            after = len(site.acknowledged)
            eventually(lambda: site.has_acknowledged(after + 100), what="jobs are made again")
            eventually(lambda: listeners(of_app.target, site.app) == 2, what="they listen to the node of the app")
            site.open(1, 2)
        assert waiting.result(PATIENCE) == 2
        assert not site.unsure, "no enqueue failed"
        site.check()


def test_jobs_of_other_queues_keep_their_leases_while_a_slot_moves(cluster: Cluster) -> None:
    settings: dict[str, Any] = {"url": cluster.url, "env": "test", **PATIENT, "lease": "6s"}
    app, other = Relevo("kept", **settings), Relevo("kept", **settings)
    runs: list[str] = []
    let_go = threading.Event()

    def hold(name: str) -> str:
        runs.append(name)
        let_go.wait(PATIENCE)
        return name

    for one in (app, other):
        one.task(name="hold")(hold)
    jobs: list[Job[str]] = []
    with working(app, queues=["moves", "stays"]):
        for name in ("moves", "stays"):
            jobs.append(app.tasks["hold"].using(queue=name).enqueue(name))
            eventually(lambda name=name: name in runs)  # type: ignore[misc]
        with working(other, queues=["stays"]):
            home = cluster.primary_of(key(app, "running", "stays"))
            move = cluster.move_slot_of(key(app, "jobs", "moves"))
            move.carry(key(app, "claims", "moves"))  # so that no renewal finds all it needs
            begun = now_ms(home)
            eventually(lambda: now_ms(home) > begun + 8_000, what="its lease would have ended")
            wait_refused(move, 2)
            move.finish()
            let_go.set()
            assert [job.result(PATIENCE) for job in jobs] == ["moves", "stays"]
    assert Counter(runs) == {"moves": 1, "stays": 1}
    app.close()


def test_an_idle_worker_is_called_on_the_new_node(cluster: Cluster, tmp_path: Path) -> None:
    with Site(cluster, tmp_path, lease="1h") as site:  # a call that is not heard is not made up for
        worker = site.start()
        for n in range(3):
            site.wait_idle(worker)
            cluster.move_slot_of(key(site.app, "jobs")).finish()
            site.enqueue("nap", n)
            site.wait_effect("end", n)
        site.check()


def test_no_enqueue_fails_while_a_slot_moves_at_once(cluster: Cluster, tmp_path: Path) -> None:
    if cluster.engine != "valkey":
        pytest.skip("only Valkey 9 moves a slot at once")
    with Site(cluster, tmp_path) as site:
        site.start()
        site.enqueue("gated", 1)
        site.wait_effect("start", 1)
        with site.load(), async_load(site, 1):
            for _ in range(4):
                before = len(site.acknowledged)
                eventually(lambda before=before: site.has_acknowledged(before + 50))  # type: ignore[misc]
                cluster.move_slot_at_once(key(site.app, "jobs"))
            site.open(1)
        assert not site.unsure
        site.check()


def test_users_of_the_acl_file_work_on_a_cluster(cluster: Cluster) -> None:
    """A producer, a worker, and a monitor, who sees how many keys move with a queue."""
    users = {user.name: user for user in (acl.monitor("relevo", "test"), *acl.of_app("relevo", "test", "acl"))}
    for node, user in itertools.product(cluster.primaries, users.values()):
        node.command("ACL", "SETUSER", user.name, "on", ">pw", *user.rights.split())
    urls = {name: cluster.url.replace("://", f"://{name}:pw@") for name in users}
    producer, worker = (
        Relevo("acl", url=urls[f"acl-{role}"], env="test", **PATIENT) for role in ("producer", "worker")
    )
    for app in (producer, worker):
        app.task(name="t")(lambda: 7)
    first = producer.tasks["t"].enqueue()
    move = cluster.move_slot_of(key(producer, "jobs"))
    move.carry(key(producer, "jobs"))

    words = ("queue", "default", "--name", "acl", "--json")
    while_it_moves = relevo(*words, url=urls["monitor"], RELEVO_CALL_TIMEOUT="0.2s")
    assert (while_it_moves.code, while_it_moves.json["error"]) == (2, "ServerUnavailable")
    move.finish()
    with working(worker):
        assert [job.result(PATIENCE) for job in (first, producer.tasks["t"].enqueue())] == [7, 7]
    found = relevo(*words, url=urls["monitor"]).json
    assert (found["done"], found["slot"], found["node"]) == (2, move.slot, f"127.0.0.1:{move.target.port}")
    assert found["keys"] == move.target.command("CLUSTER", "COUNTKEYSINSLOT", move.slot)
    for node in cluster.primaries:
        node.command("ACL", "SETUSER", "monitor", "-cluster", "+cluster|slots")
    assert relevo(*words, url=urls["monitor"]).json["keys"] is None
    producer.close()
