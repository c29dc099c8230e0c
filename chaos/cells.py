"""The faults. Each cell harms one site and gives the seconds until work went on."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from tests.clock import step
from tests.eventually import eventually
from tests.process.harness import Effect, Site, WorkerProcess
from tests.proxy import Proxy
from tests.servers import Server
from tests.topologies import Cluster

from chaos import releases
from relevo import State
from relevo.errors import StoreError
from relevo.worker.capacity import AHEAD_MOST

#: Jobs of one run, besides the one that is watched: they must survive as well.
OTHERS = 20

#: Takes the server, or the cluster, as the cell says.
Harm: TypeAlias = Callable[[Site, Any, random.Random], float]


class Cell(NamedTuple):
    """One fault."""

    name: str
    harm: Harm
    #: What is documented, in seconds.
    promise: float
    #: None: each job starts once. Else its worker died, and a job may start again; at most so many of these had ended,
    #: but the worker could not report it.
    repeats: int | None = None
    #: What the jobs are on.
    server: type[Server] | type[Cluster] = Server


def _two_workers(site: Site) -> tuple[WorkerProcess, WorkerProcess]:
    """Both wait for jobs; the second is the next to be handed one."""
    first = site.start()
    site.wait_idle(first)
    second = site.start()
    site.wait_idle(first, second)
    return first, second


def _start_of(site: Site, n: int, *, times: int = 1) -> Effect:
    return site.wait_effect("start", n, times=times)


def kill_alone(site: Site, _server: Server, chance: random.Random) -> float:
    """A worker without a supervisor is killed in the middle of a job; another one takes it back by its lease."""
    other, victim = _two_workers(site)
    site.enqueue("nap_once", 1, 60.0)
    assert _start_of(site, 1).pid == victim.pid
    time.sleep(chance.uniform(0, 2))
    victim.kill()
    killed = time.monotonic()
    again = _start_of(site, 1, times=2)
    assert again.pid == other.pid
    return again.when - killed


def kill_supervised(site: Site, _server: Server, chance: random.Random) -> float:
    """The process of a supervised worker is killed; its supervisor hands the job back."""
    worker = site.start(supervised=True)
    site.enqueue("nap_once", 1, 60.0)
    victim = _start_of(site, 1).pid
    time.sleep(chance.uniform(0, 2))
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    again = _start_of(site, 1, times=2)
    assert again.pid != victim
    assert worker.is_running
    return again.when - killed


def restart_server(site: Site, server: Server, chance: random.Random) -> float:
    """The server is stopped for some seconds, shorter than a lease, and comes back with its data."""
    site.start()
    site.enqueue("nap", 1, 1.0)
    _start_of(site, 1)
    server.stop()
    time.sleep(chance.uniform(1, 5))
    server.start()
    back = time.monotonic()
    eventually(lambda: _enqueued(site, 2), what="the server takes jobs")
    return site.wait_effect("end", 2).when - back


def silent_connections(site: Site, server: Server, _chance: random.Random) -> float:
    """All connections of a worker fall silent, and a job is handed over into the silence."""
    with Proxy("127.0.0.1", server.port) as proxy:
        worker = site.start(url=proxy.url)
        site.wait_idle(worker)
        proxy.black_hole()
        silent = time.monotonic()
        site.enqueue("nap", 1)
        return site.wait_effect("end", 1).when - silent


def late_requests(site: Site, server: Server, _chance: random.Random) -> float:
    """What a producer sends is held by the network until after it was repeated and its jobs have ended."""
    site.start()
    numbers = range(1, 6)
    with Proxy("127.0.0.1", server.port) as proxy:
        producer = site.another_app(url=proxy.url, result_ttl=0)
        producer.tasks["nap"].enqueue(0)
        proxy.hold_requests()
        held = time.monotonic()
        for n in numbers:
            site.acknowledged[n] = producer.tasks["nap"].enqueue(n)
        seen = max(site.wait_effect("end", n).when for n in numbers) - held
        eventually(lambda: site.queue.stats().living == 0, what="every job has ended")
        before = refused_as_late(server)
        proxy.let_requests_go()
        eventually(lambda: refused_as_late(server) > before, what="the held request arrives and is refused")
        producer.close()
    site.unsure.add(0)
    return seen


def kill_among_failures(site: Site, _server: Server, _chance: random.Random) -> float:
    """A worker is killed while thousands of jobs fail; each fails once and then goes well."""
    site.start()
    site.enqueue_many("stumble", range(2001, 6001))
    eventually(lambda: len(site.effects("start")) > 1000, what="jobs fail")
    running = site.queue.stats().running
    assert running <= 100 + AHEAD_MOST, f"{running} jobs are claimed"
    site.workers[0].kill()
    killed, seen = time.monotonic(), len(site.effects("start"))
    site.start()
    eventually(lambda: len(site.effects("start")) > seen, what="work goes on")
    went_on = site.effects("start")[seen].when - killed
    eventually(lambda: site.queue.stats().living == 0, what="every job has ended")
    return went_on


def frozen_worker(site: Site, _server: Server, chance: random.Random) -> float:
    """A worker stands still for longer than a lease, and goes on when its job has been taken back."""
    other, victim = _two_workers(site)
    site.enqueue("nap_once", 1, 60.0)
    assert _start_of(site, 1).pid == victim.pid
    time.sleep(chance.uniform(0, 2))
    victim.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    again = _start_of(site, 1, times=2)
    assert again.pid == other.pid
    victim.signal(signal.SIGCONT)
    return again.when - stopped


def stopped_worker(site: Site, _server: Server, chance: random.Random) -> float:
    """A worker gets SIGTERM in the middle of a job that is longer than its grace time."""
    victim = site.start(variables={"RELEVO_GRACE": "2s"})
    site.wait_idle(victim)
    site.enqueue("nap_once", 1, 60.0)
    _start_of(site, 1)
    other = site.start()
    time.sleep(chance.uniform(0, 2))
    victim.was_ended = True
    victim.signal(signal.SIGTERM)
    stopped = time.monotonic()
    again = _start_of(site, 1, times=2)
    assert again.pid == other.pid
    assert not site.acknowledged[1].info().attempts, "it has spent no attempt"
    return again.when - stopped


def poison(site: Site, _server: Server, chance: random.Random) -> float:
    """One job crashes its process again and again beside 20 that run for some seconds."""
    site.start(supervised=True)
    neighbours = range(2, 22)
    for n in neighbours:
        site.enqueue("nap_once", n, chance.uniform(3, 5))
    for n in neighbours:
        _start_of(site, n)
    culprit = site.app.tasks["segfault"].enqueue(1)
    site.unsure.add(1)
    crashed = _start_of(site, 1).when
    ended = max(site.wait_effect("end", n).when for n in neighbours)
    eventually(lambda: culprit.state() is State.DEAD, what="the culprit is found")
    return ended - crashed


def refused_as_late(server: Server) -> int:
    """How many calls the server refused as late."""
    return int(server.command("INFO", "errorstats").get("errorstat_LATE", {"count": 0})["count"])


def outage(seconds: float, *, workers: int, times: int = 1) -> Harm:
    """The server is away, with its data, once or more, while jobs run on the loop, in threads and in processes."""

    def harm(site: Site, server: Server, chance: random.Random) -> float:
        for _ in range(workers):
            site.start()
        running = range(1, 10)
        length = max(40.0, seconds * times + 10 * times)
        for n in running:
            site.enqueue(("nap", "work", "work_apart")[n % 3], n, length + chance.uniform(0, 5))
        for n in running[: 6 + workers]:  # jobs of the process pool wait for a core
            if n % 3 != 2:
                _start_of(site, n)
        for _ in range(times):
            time.sleep(chance.uniform(1, 4))
            server.stop()
            time.sleep(seconds)
            server.start()
        back = time.monotonic()
        eventually(lambda: _enqueued(site, 10), what="the server takes jobs")
        seen = site.wait_effect("end", 10).when - back
        eventually(lambda: site.queue.stats().living == 0, timeout=6 * length, what="every job has ended")
        return seen

    return harm


def clock_step(seconds: float) -> Harm:
    """The server's clock is set while jobs run, others wait for their time, and a worker starts just afterwards."""

    def harm(site: Site, server: Server, chance: random.Random) -> float:
        worker = site.start()
        site.wait_idle(worker)
        for n in range(1, 6):
            site.enqueue("nap", n, chance.uniform(20, 25))
            _start_of(site, n)
        site.enqueue("nap", 6, delay=chance.uniform(1, 5))
        step(server, site.clock, round(seconds * 1000))
        stepped = time.monotonic()
        site.start()
        site.enqueue("nap", 7)
        return max(site.wait_effect("end", n).when for n in (6, 7)) - stepped

    return harm


def rolling_deploy(site: Site, _server: Server, _chance: random.Random) -> float:
    """Two old workers and a new one: requests, sends and jobs that only the new one takes. The longest request."""
    for release in (1, 1, 2):
        site.wait_idle(site.start(target="chaos.releases:app", variables={releases.RELEASE: str(release)}))
    releases.add_tasks(site.app, 2)
    shop = releases.service_of(site.name)
    for n in range(1, 101):
        site.enqueue(*(("charge", n, "USD") if n % 2 else ("refund", n)))

    async def ask(n: int) -> float:
        action, data = (f"{shop}.refund", {"n": n}) if n % 2 else (f"{shop}.charge", {"n": n, "currency": "USD"})
        asked = time.monotonic()
        assert await site.app.service("front").arequest(action, data, timeout=10) == n
        return time.monotonic() - asked

    async def talk() -> list[float]:
        for n in range(200, 300):
            await site.app.service("front").asend(f"{shop}.charge", {"n": n, "currency": "USD"})
        took = []
        for first in range(300, 520, 20):
            took += await asyncio.gather(*(ask(n) for n in range(first, first + 20)))
        await site.app.aclose()
        return took

    longest = max(asyncio.run(talk()))
    for n in (*range(1, 101), *range(200, 300)):
        site.wait_effect("end", n)
    for queue in ("default", f"{shop}:actions"):
        totals = site.app.queue(queue).stats().totals
        assert not totals.get("dead"), f"{queue}: dead letters"
        assert totals.get("rerouted"), f"{queue}: no old worker was asked"
    return longest


def slot_moved(seconds: float, *, may_fail: bool = False) -> Harm:
    """The slot of the queue moves to another node, a few keys at a time, while jobs run and others are enqueued."""

    def harm(site: Site, cluster: Cluster, chance: random.Random) -> float:
        for _ in range(2):
            site.start()
        running = range(1, 7)
        for n in running:
            site.enqueue(("nap", "work", "work_apart")[n % 3], n, seconds + 15 + chance.uniform(0, 5))
        for n in running:
            _start_of(site, n)
        site.enqueue_many("nap", range(2000, 4000))  # their records are keys of the slot
        with site.load(pause=0.01), _asking(site):
            time.sleep(chance.uniform(1, 4))
            begun = time.monotonic()
            move = cluster.move_slot_of(site.app.engine.keys_of("default").key("jobs").decode())
            while time.monotonic() < begun + seconds:
                move.carry_some(10)
                time.sleep(seconds / 300)
            move.finish(1000)
            moved = time.monotonic()
            site.enqueue("nap", 10)
            seen = site.wait_effect("end", 10).when - moved
        assert may_fail or not site.unsure, f"{len(site.unsure)} enqueues failed"
        eventually(lambda: site.queue.stats().living == 0, timeout=seconds + 60, what="every job has ended")
        return seen

    return harm


@contextmanager
def _asking(site: Site) -> Iterator[None]:
    """Enqueue jobs on an event loop, and wait for their results."""
    over = threading.Event()

    async def ask(first: int) -> None:
        for n in itertools.count(first, 20):
            try:
                job = site.acknowledged[n] = await site.app.tasks["nap"].aenqueue(n)
                assert await job.aresult(60) == n
            except StoreError:
                site.unsure.add(n)
            if over.is_set():
                return

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, range(50_000, 50_020)))
        await site.app.aclose()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(asyncio.run, ask_all())
        try:
            yield
        finally:
            over.set()
        asking.result()


CLOCK_STEPS = tuple(
    Cell(f"server's clock set {seconds:+d} s", clock_step(seconds), 20.0) for seconds in (60, -60, 3600, -3600)
)

OUTAGES = tuple(
    Cell(f"{name}, {workers} worker{'s' * (workers > 1)}", outage(seconds, workers=workers, times=times), 15.0)
    for name, seconds, times in (
        ("outage 8 s", 8, 1),
        ("outage 14 s", 14, 1),
        ("outage 20 s", 20, 1),
        ("outage 30 s", 30, 1),
        ("outage 90 s", 90, 1),
        ("outage 3 x 20 s", 20, 3),
    )
    for workers in (1, 2)
)

CELLS = (
    Cell("kill -9, no supervisor", kill_alone, 15.0, repeats=0),
    Cell("kill -9, supervised", kill_supervised, 3.0, repeats=0),
    Cell("server restarted", restart_server, 5.0),
    Cell("connections silent", silent_connections, 15.0),
    Cell("kill -9 among failing jobs", kill_among_failures, 15.0, repeats=100 + AHEAD_MOST),
    Cell("worker frozen", frozen_worker, 15.0, repeats=0),
    Cell("SIGTERM, grace 2 s", stopped_worker, 5.0, repeats=0),
    Cell("poison beside 20 jobs", poison, 30.0, repeats=0),
    Cell("requests arrive late", late_requests, 7.0),
    Cell("rolling deploy", rolling_deploy, 1.0),
    Cell("slot moved in 4 s", slot_moved(4), 3.0, server=Cluster),
    Cell("slot moved in 20 s", slot_moved(20, may_fail=True), 3.0, server=Cluster),
    *CLOCK_STEPS,
    *OUTAGES,
)


def _enqueued(site: Site, n: int) -> bool:
    try:
        site.enqueue("nap", n)
    except Exception:  # it is away, or still loading
        return False
    return True
