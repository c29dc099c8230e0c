"""Whether all is well with an app: real jobs, real workers, real numbers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo import Relevo, metrics
from relevo.cli.main import main
from relevo.engine.ids import Ids, _text
from relevo.engine.push import push_plain
from relevo.engine.workers import WorkerInfo, listed, present
from relevo.errors import StoreError
from relevo.health.duty import HealthDuty
from relevo.health.status import Health, Status
from relevo.store.plan import Call
from relevo.worker.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import aeventually, eventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import drain, drained, working


def texts(health: Health) -> list[str]:
    return [reason.text for reason in health.reasons]


def alive(app: Relevo, *queues: str, id: str = "w1") -> None:
    """A worker says that it lives, and does nothing."""
    app.engine.run(
        present(
            app.engine.keys,
            WorkerInfo(id=id, host="here", pid=1, queues=queues or ("default",), concurrency=1, started_ms=1),
        )
    )
    app.engine.run(listed(app.engine.keys, id))


def push_old(app: Relevo, ago_ms: int, count: int = 1, queue: str = "default") -> None:
    """Jobs that were made some time ago."""
    now_ms = app.engine.run(app.engine.now_ms())
    ids = [_text(now_ms - ago_ms, 9) + id[9:] for id in Ids().many(count)]
    app.engine.run(app.engine.list_queue(queue))
    for start in range(0, count, 1000):
        app.engine.run(
            push_plain(
                app.engine.keys_of(queue), [(id, b'{"t":"mail"}') for id in ids[start : start + 1000]], 100, 1000
            )
        )


def test_an_unused_app_is_unknown(app: Relevo) -> None:
    """Never well because nothing was found, as after a misspelt name."""
    found = app.health()
    assert found.status is Status.UNKNOWN and not found.is_healthy
    assert "nothing is known of app" in found.reasons[0].text


def test_jobs_that_ran_leave_a_healthy_app_with_its_numbers(app: Relevo) -> None:
    @app.task
    def work() -> None: ...

    for _ in range(5):
        work.enqueue()
    drained(app)
    alive(app)
    found = app.health()
    assert (found.status, found.reasons, found.workers, found.lost_workers) == (Status.HEALTHY, (), 1, ())
    (queue,) = found.queues
    assert (queue.name, queue.status, queue.workers, queue.vitals.size("done")) == ("default", Status.HEALTHY, 1, 5)
    assert queue.vitals.totals["done"] == 5
    assert found.checked_at_ms == pytest.approx(app.engine.run(app.engine.now_ms()), abs=10_000)


def test_jobs_without_a_worker_are_a_reason(app: Relevo) -> None:
    push_old(app, 1_000, 3)
    found = app.health()
    assert (found.status, texts(found)) == (Status.DEGRADED, ["default: 3 jobs due and no worker serves it"])
    push_old(app, 61_000)
    assert app.health().status is Status.UNHEALTHY
    alive(app)
    assert app.health().is_healthy


def test_a_queue_that_misses_its_target_says_so(app_factory: AppFactory) -> None:
    app = app_factory(health_limits={"mail": {"slo": "30s", "slo_critical": "10m"}})
    push_old(app, 252_000, queue="mail")
    push_old(app, 252_000, queue="other")
    alive(app, "mail", "other")
    found = app.health()
    (text,) = texts(found)
    assert found.status is Status.DEGRADED and re.fullmatch(r"mail: oldest 4m\d\ds over its 30s target", text)
    assert {queue.name: queue.status for queue in found.queues} == {"mail": Status.DEGRADED, "other": Status.HEALTHY}


def test_dead_letters_are_counted_with_their_growth(app_factory: AppFactory) -> None:
    app = app_factory(health_limits={"dead_warning": 2})

    @app.task(retries=0)
    def break_down() -> None:
        raise ValueError

    break_down.enqueue()
    drained(app)
    alive(app)
    assert app.health().is_healthy
    break_down.enqueue()
    drained(app)
    assert texts(app.health()) == ["default: 2 dead letters, its limit is 2 (+2 in 15 minutes)"]


def test_a_job_of_a_silent_worker_is_a_reason_until_another_worker_takes_it(
    server: Server, app_factory: AppFactory
) -> None:
    times = Times(server, app_factory)
    app = times.app

    @app.task(name="work")
    def work() -> None: ...

    work.enqueue()
    app.queue().take(1, worker="stuck", lease="30m")
    alive(app)
    assert app.health().is_healthy
    times.move(HOUR)
    assert texts(app.health()) == ["default: 1 job of lost workers, not recovered by any worker"]
    drained(app)
    alive(app)
    assert app.health().is_healthy


def test_a_dead_letter_that_is_retried_is_as_old_as_that(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app = times.another(health_limits={"slo": "10m"})

    @app.task(retries=0)
    def work() -> None: ...

    job = work.enqueue()
    app.queue().take(1)[0].bury("broken")
    times.move(24 * HOUR)
    job.retry()
    alive(app)
    assert app.health().is_healthy
    drained(app)


def test_silent_workers_are_reported_for_a_while(app: Relevo) -> None:
    alive(app, id="here")
    alive(app, id="gone")
    app.engine.run(Call([b"DEL", app.engine.keys.worker("gone")]))
    for _ in range(2):
        found = app.health()
        assert (found.workers, found.lost_workers, found.status) == (1, ("gone",), Status.DEGRADED)
    assert texts(found) == ["1 worker lost in the last 15 minutes"]
    app.engine.run(Call([b"ZADD", app.engine.keys.workers, found.checked_at_ms - 16 * MINUTE, b"gone"]))
    assert app.health().lost_workers == ()


async def test_a_worker_removes_long_silent_workers_from_the_list(app: Relevo) -> None:
    now_ms = await app.engine.arun(app.engine.now_ms())
    await app.engine.arun(Call([b"ZADD", app.engine.keys.workers, now_ms - 16 * MINUTE, b"gone", now_ms, b"lost"]))

    async def is_forgotten() -> bool:
        return await app.engine.arun(Call([b"ZSCORE", app.engine.keys.workers, b"gone"])) is None

    async with working(app):
        await aeventually(is_forgotten, what="that one is no news")
        assert (await app.ahealth()).lost_workers == ("lost",)


def test_a_paused_queue_is_reported_and_a_reason_once_jobs_wait(app: Relevo) -> None:
    alive(app)
    push_old(app, 0)
    app.queue().pause()
    found = app.health()
    assert (found.paused, texts(found)) == (("default",), ["default: paused, and 1 job due"])
    app.queue().clear()
    assert (app.health().paused, app.health().is_healthy) == (("default",), True)
    app.queue().resume()


def test_services_that_the_app_serves_are_looked_at_and_those_of_others_are_not(bus_factory: AppFactory) -> None:
    mine, other = bus_factory("mine"), bus_factory("other")

    @mine.service("embedding").action("embed")
    def embed() -> None: ...

    @other.service("billing").action("bill")
    def bill() -> None: ...

    sender = other.service("ingestion")
    sender.send("embedding.embed", {})
    sender.send("billing.bill", {})
    names = [queue.name for queue in mine.health().queues]
    assert "embedding:actions" in names and "billing:actions" not in names
    stranger = bus_factory("mine")  # by its name alone, as a monitor
    assert "embedding:actions" not in [queue.name for queue in stranger.health().queues]
    mine.engine.run(mine.engine.list_served("embedding:actions"))  # as its workers do
    assert "embedding:actions" in [queue.name for queue in stranger.health().queues]
    for app, queue in ((mine, "embedding:actions"), (other, "billing:actions")):
        app.queue(queue).clear()


# what is kept


async def looked(app: Relevo) -> Health:
    """A worker's look, at once."""
    app.engine.run(Call([b"DEL", app.engine.keys.turn("health")]))
    found = await HealthDuty(Worker(app)).run_once()
    assert found is not None
    return found


async def test_a_worker_keeps_what_it_found_in_a_hash_that_ends(app_factory: AppFactory) -> None:
    app = app_factory(health=True, health_every="1m")
    push_old(app, 5 * MINUTE, 2)
    found = await looked(app)
    kept = app.health(cached=True)
    assert kept == found and kept.status is Status.UNHEALTHY
    rows: list[bytes] = app.engine.run(Call([b"HMGET", app.engine.keys.health, b"status", b"checked_at", b"reasons"]))
    assert rows == [b"unhealthy", b"%d" % found.checked_at_ms, b"default: 2 jobs due and no worker serves it"]
    assert 0 < app.engine.run(Call([b"PTTL", app.engine.keys.health])) <= 4 * MINUTE
    assert await app.ahealth(cached=True) == kept
    await app.aclose()


async def test_what_is_kept_is_unknown_after_two_intervals(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app = times.another(health=True, health_every="10m")
    alive(app)
    assert (await looked(app)).is_healthy
    monitor = times.another()  # it knows nothing of the workers' settings
    times.move(15 * MINUTE)
    assert app.health(cached=True).status is Status.HEALTHY
    times.move(6 * MINUTE)
    kept, seen = app.health(cached=True), monitor.health(cached=True)
    for one in (kept, seen):
        assert one.status is Status.UNKNOWN
        assert re.match(r"the last look was 2[1-5]m(\d+s)? ago, one every 10m is expected", one.reasons[0].text)
    assert msgspec.structs.replace(seen, reasons=kept.reasons) == kept
    await app.aclose()


def test_nothing_kept_is_unknown(app: Relevo) -> None:
    kept = app.health(cached=True)
    assert (kept.status, kept.checked_at_ms) == (Status.UNKNOWN, 0)
    app.engine.run(Call([b"HSET", app.engine.keys.health, b"report", b"of another version"]))
    assert app.health(cached=True).status is Status.UNKNOWN
    assert app.health().status is Status.UNKNOWN
    app.engine.run(Call([b"DEL", app.engine.keys.health]))


async def test_of_many_workers_one_looks_in_an_interval(app_factory: AppFactory) -> None:
    app = app_factory(health=True, health_every="1m")
    alive(app)
    found = await asyncio.gather(*(HealthDuty(Worker(app)).run_once() for _ in range(5)))
    assert sum(one is not None for one in found) == 1
    assert 0 < app.engine.run(Call([b"PTTL", app.engine.keys.turn("health")])) <= 54_000
    await app.aclose()


async def test_nothing_is_kept_unless_health_is_on(app: Relevo) -> None:
    assert await HealthDuty(Worker(app)).run_once() is None
    assert app.engine.run(Call([b"EXISTS", app.engine.keys.health, app.engine.keys.turn("health")])) == 0
    await app.aclose()


async def test_a_worker_looks_by_itself(app_factory: AppFactory) -> None:
    app = app_factory(health=True, health_every="1s")

    @app.task
    async def nothing() -> None: ...

    async with working(app):

        def well() -> Health | None:  # after two seconds without a look it is unknown again
            found = app.health(cached=True)
            return found if found.is_healthy and found.workers == 1 else None

        first = await aeventually(well, what="a look")
        await aeventually(lambda: app.health(cached=True).checked_at_ms > first.checked_at_ms, what="another look")


async def test_a_status_gets_better_below_eighty_percent_of_its_border(app_factory: AppFactory) -> None:
    app = app_factory(health=True, health_limits={"ready_max": 10, "ready_critical": 100})
    alive(app)
    push_old(app, 0, 10)
    assert (await looked(app)).status is Status.DEGRADED
    for left, status in ((9, Status.DEGRADED), (8, Status.DEGRADED), (7, Status.HEALTHY)):
        app.queue().take(1)[0].done()
        found = app.health()
        assert (found.queues[0].vitals.size("ready"), found.status) == (left, status)
    app.queue().clear()
    await app.aclose()


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[int, str]]]:
    lines: list[tuple[int, str]] = []
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="relevo.health"):
        yield lines
    lines += [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "relevo.health"]


async def test_the_log_shows_each_change_at_its_level_and_a_summary_each_time(
    app_factory: AppFactory, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_factory(health=True, health_limits={"ready_max": 5, "ready_critical": 10, "unserved_age": 3600})
    app.engine.run(app.engine.list_queue("default"))
    alive(app)
    with logged(caplog) as lines:
        await looked(app)
    assert lines == [(logging.INFO, "healthy: 1 queue with 0 ready, 0 running, 0 dead; 1 worker")]
    push_old(app, 0, 5)
    with logged(caplog) as lines:
        await looked(app)
    assert lines[0] == (logging.WARNING, "degraded, was healthy: default: 5 ready, its limit is 5")
    assert len(lines) == 2 and lines[1][0] == logging.INFO
    with logged(caplog) as lines:
        await looked(app)
    assert [level for level, _ in lines] == [logging.INFO], "nothing changed"
    push_old(app, 0, 5)
    with logged(caplog) as lines:
        await looked(app)
    assert lines[0] == (logging.ERROR, "unhealthy, was degraded: default: 10 ready, its limit is 10")
    app.queue().clear()
    with logged(caplog) as lines:
        await looked(app)
    assert lines[0] == (logging.INFO, "healthy, was unhealthy: nothing is wrong")
    await app.aclose()


async def test_on_a_full_server_workers_live_and_health_is_kept(engine: str, tmp_path: Path) -> None:
    """Jobs that end there make room, so their workers must not count as lost."""
    with Server(engine, directory=tmp_path / "full") as full:
        app = Relevo("full", url=full.url, env="test", health=True)
        app.engine.run(app.engine.list_queue("default"))
        full.command("CONFIG", "SET", "maxmemory", "1")
        alive(app)
        found = await looked(app)
        assert (found.status, found.workers, found.lost_workers) == (Status.UNHEALTHY, 1, ())
        assert [reason.measure for reason in found.reasons] == ["memory"], "and nothing else is wrong"
        assert (await app.ahealth(cached=True)).checked_at_ms == found.checked_at_ms
        assert full.command("HLEN", app.engine.keys_of("default").key("minutes")), "for rates"
        full.command("CONFIG", "SET", "maxmemory", "0")
        assert (await app.ahealth()).is_healthy, "without a limit of its own no server is full"
        await app.aclose()


def test_where_the_server_does_not_tell_its_memory_the_rest_is_judged(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path / "shut") as shut:
        shut.command("ACL", "SETUSER", "shy", "on", ">secret", "~*", "&*", "+@all", "-info")
        app = Relevo("shut", url=shut.url.replace("127.", "shy:secret@127."), env="test")
        push_old(app, MINUTE)
        assert texts(app.health()) == ["default: 1 job due and no worker serves it"]
        app.close()


async def test_a_server_that_takes_no_changes_can_be_looked_at(engine: str, tmp_path: Path) -> None:
    """A replica, or one whose disk is full: the counters of the minute are not kept."""
    with Server(engine, directory=tmp_path / "replica") as replica:
        app = Relevo("replica", url=replica.url, env="test")
        await app.task(lambda: None, name="x").aenqueue()  # type: ignore[call-overload]
        replica.command("REPLICAOF", "127.0.0.1", "1")
        assert (await app.ahealth()).status is Status.DEGRADED
        assert app.health().status is Status.DEGRADED
        await app.aclose()


# what it costs


def cost(server: Server, app: Relevo) -> dict[str, int]:
    """Commands that one look costs, those inside scripts included."""
    before = commands(server)
    app.health()
    after = commands(server)
    spent = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in spent.items() if count and name not in ("info",)}


def commands(server: Server) -> dict[str, int]:
    found: dict[str, Any] = server.command("INFO", "commandstats")
    return {name.removeprefix("cmdstat_").partition("|")[0]: one["calls"] for name, one in found.items()}


def test_a_look_at_many_queues_is_one_call_for_each(server: Server, app: Relevo) -> None:
    for n in range(20):
        push_old(app, 0, 1, queue=f"q{n}")
    assert cost(server, app)["evalsha"] == 40, "and one more for each, for the first look in a minute"
    assert 20 <= cost(server, app)["evalsha"] <= 40, "a minute may end at any of them"
    for n in range(20):
        app.queue(f"q{n}").clear()


def test_a_server_that_is_away_is_an_error_and_not_a_status(app_factory: AppFactory) -> None:
    app = app_factory(url="redis://127.0.0.1:1/0", call_timeout="100ms", connect_timeout="100ms")
    with pytest.raises(StoreError):
        app.health()


async def test_a_worker_keeps_counters_once_a_minute_for_rates(app: Relevo) -> None:
    worker = Worker(app)
    watcher = HealthDuty(worker)
    key = app.engine.keys_of("default").key("minutes")
    await watcher.run_once()
    assert app.engine.run(Call([b"EXISTS", key])) == 0, "not at its start: many workers begin at once"
    watcher._sample_at = 0.0
    await watcher.run_once()
    assert app.engine.run(Call([b"HLEN", key])) == 1
    await app.aclose()


async def test_a_key_of_another_type_is_named_once_in_the_log_of_a_worker(
    app: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    key = app.engine.keys_of("default").key("ready")
    app.engine.run(Call([b"SET", key, b"stranger"]))
    push_old(app, MINUTE)
    watcher = HealthDuty(Worker(app))
    with caplog.at_level("ERROR", logger="relevo.worker"):
        for _ in range(3):
            watcher._sample_at = 0.0
            await watcher.run_once()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("default: key ready: a key of another type was in its place")
    app.queue("default").clear()
    app.engine.run(
        Call([b"DEL", app.engine.keys_of("default").key("faults"), app.engine.keys_of("default").own("aside", "ready")])
    )
    await app.aclose()


async def test_jobs_in_all_states_are_counted_by_task(app: Relevo) -> None:
    release = asyncio.Event()

    @app.task(name="hold")
    async def hold() -> None:
        await release.wait()

    @app.task(name='la"t\\er')
    async def later() -> None: ...

    for _ in range(3):
        await hold.aenqueue()
    await later.using(delay="1h").aenqueue()
    async with working(app, concurrency=2):
        await aeventually(lambda: app.queue().stats().running == 2, what="two run")
        (queue,) = (await app.ahealth()).queues
        loads = {one.task: (one.active, one.waiting) for one in queue.vitals.tasks}
        assert loads == {"hold": (2, 1), 'la"t\\er': (0, 1)}
        release.set()
        await aeventually(lambda: app.queue().stats().running == 0, what="done")
    app.queue().clear()
    await drain(app)


def test_nothing_is_stuck_where_no_age_is_too_high(app_factory: AppFactory) -> None:
    """0: not judged. A queue of jobs that may take days says so, and a pool whose entities may stay where they are."""
    app = app_factory(health_limits={"stuck_age": 0, "waiting_age": "0s"})

    @app.task(name="x")
    def x() -> None: ...

    push_old(app, 3 * HOUR, 100)
    app.queue().take(1)
    parent = x.using(delay="1h").enqueue()
    x.using(depends_on=parent).enqueue()
    app.pool("vms").add("vm-1")
    eventually(lambda: (app.health().pools[0].vitals.states["pending"].oldest_age_ms or 0) > 0, what="it is there")
    found = app.health()
    assert {state: one.stuck for state, one in found.queues[0].vitals.states.items() if one.size} == dict.fromkeys(
        ("ready", "scheduled", "running", "waiting"), 0
    )
    assert (found.queues[0].vitals.stuck, found.pools[0].vitals.stuck) == (0, 0)
    app.pool("vms").remove("vm-1")
    app.queue().clear()


def test_pools_are_judged_as_queues_are(app_factory: AppFactory) -> None:
    app = app_factory(health_limits={"waiting_max": 2, "waiting_critical": 5, "stuck_warning": 1, "stuck_age": "10ms"})
    pool = app.pool("vms")
    for number in range(3):
        pool.add(f"vm-{number}")
    pool.add("vm-9", "ready")
    pool.fail("vm-2", ValueError("template does not exist"))
    eventually(lambda: app.health().pools[0].vitals.stuck == 2, what="two are pending for 10 ms")
    (found,) = app.health().pools
    assert (found.name, found.status) == ("vms", Status.DEGRADED)
    assert {state: one.size for state, one in found.vitals.states.items()} == {"pending": 2, "ready": 1}
    assert (found.vitals.dead, found.vitals.dead_recently) == (1, 1)
    assert [reason.measure for reason in found.reasons] == ["waiting", "stuck"]
    assert "2 stuck, its limit is 1 (2 pending, for" in found.reasons[1].text, "what is ready may stay so"
    assert set(found.reasons) <= set(app.health().reasons)
    oldest, mean = (found.vitals.states["pending"].oldest_age_ms, found.vitals.states["pending"].mean_age_ms)
    assert oldest is not None and mean is not None and oldest >= mean >= 10
    exported = metrics.exposition(app).decode()
    assert f'relevo_pool_entities{{app="{app.name}",pool="vms",state="pending"}} 2' in exported
    assert f'relevo_pool_dead_letters{{app="{app.name}",pool="vms"}} 1' in exported
    assert f'relevo_pool_health_status{{app="{app.name}",pool="vms"}} 1' in exported
    for id in ("vm-0", "vm-1", "vm-9"):
        pool.remove(id)


def test_a_pool_that_is_well_is_shown_with_its_states(
    server: Server, app: Relevo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELEVO_URL", server.url)
    monkeypatch.setenv("RELEVO_ENV", "test")
    app.pool("vms").add("vm-1", "ready")
    assert main(["health", "--name", app.name]) == 0
    shown = capsys.readouterr().out
    assert "vms" in shown and "ENTITIES" in shown
    app.pool("vms").remove("vm-1")
