"""Metrics as Prometheus reads them, from a worker, a supervisor or an app."""

from __future__ import annotations

import asyncio
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relevo import Relevo, Snooze, metrics
from relevo.cli.main import main
from relevo.engine.workers import WorkerInfo, listed, present
from relevo.errors import StoreError
from relevo.health.duty import HealthDuty
from relevo.metrics import snapshot
from relevo.metrics.endpoint import Scraped
from relevo.metrics.families import CATALOGUE
from relevo.store.plan import Call
from relevo.worker import Worker
from relevo.worker.child import contact_of
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.process.harness import Site
from tests.servers import Server, free_port
from tests.system.test_docs import rows, section
from tests.system.timed import HOUR, MINUTE, Times, noting
from tests.working import drained, working


class Scrape:
    """Metrics as Prometheus' own parser reads them."""

    def __init__(self, text: bytes) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text.decode())}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The one sample of this name with these labels."""
        found = [one for one in self.samples if one.name == name and labels.items() <= one.labels.items()]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return float(found[0].value)

    def has(self, name: str, **labels: str) -> bool:
        return any(one.name == name and labels.items() <= one.labels.items() for one in self.samples)


def scrape(app: Relevo) -> Scrape:
    return Scrape(metrics.exposition(app))


# What is exported


def matched(selector: str, placeholder: str) -> tuple[str, dict[str, str]]:
    """A metric and the labels that it must have, of a selector in the documents."""
    name, _, inside = selector.replace("<name>", placeholder).replace("\\|", "|").partition("{")
    return name, dict(re.findall(r'(\w+)="([^"]+)"', inside))  # a label without a value is none


def test_each_metric_of_vmpooler_is_a_series_of_such_an_app(app_factory: AppFactory, server: Server) -> None:
    """The table of the page, read from what an app with pools and tasks exports."""
    app = app_factory()
    vms = app.pool("vms", states=("pending", "ready", "completed", "running"))

    @app.task(name="clone", queue="clone", retries=0)
    def clone() -> None:
        raise RuntimeError("no template")

    clone.enqueue()
    drained(app)
    for id, state in (("a", "pending"), ("b", "ready"), ("c", "ready"), ("d", "pending"), ("e", "ready")):
        vms.add(id, state)
    for id in "abc":
        assert vms.fail(id, "unreachable")
    vms.add("lost", "running")
    lost = vms.keys.own("placed", "running")
    server.command("RENAME", lost, b"set-aside-" + lost)
    found = scrape(app)
    table = rows(section("docs/metrics.md", "Names of VMPooler"))
    assert len(table) == 12
    for theirs, ours, *_ in table:
        selectors = re.findall(r"(?:sum\()?(relevo_\w+(?:\{[^`]*\})?)", ours)
        assert selectors, theirs
        for selector in selectors:
            name, labels = matched(selector, "clone" if "queue=" in selector else "pending")
            assert found.has(name, **labels), f"{theirs}: {selector}"
    assert found("relevo_pool_dead_letters_from", pool="vms", state="pending") == 1
    assert found("relevo_pool_dead_letters_from", pool="vms", state="ready") == 2
    assert found("relevo_pool_dead_letters", pool="vms") == 3
    assert found("relevo_pool_orphans", pool="vms") == 1
    assert found("relevo_dead_letters_dropped_total", kind="pool") == 0
    assert app.health().orphans == 1
    server.command("RENAME", b"set-aside-" + lost, lost)
    for id, state in (("d", "pending"), ("e", "ready"), ("lost", "running")):
        assert vms.remove(id, state)


def test_sizes_ages_and_counters_of_a_queue_are_exported(app_factory: AppFactory) -> None:
    app = app_factory(dead_max=1)

    @app.task(name="fail", retries=0)
    async def fail() -> None:
        raise ValueError

    @app.task(name="fine")
    async def fine() -> None: ...

    fail.enqueue_many([((), {})] * 2)
    fine.enqueue()
    drained(app)
    fine.enqueue()
    fine.using(delay="1h").enqueue()
    app.queue().pause()
    time.sleep(0.002)  # so that the age of the oldest is not nothing
    found = scrape(app)
    mine = {"app": app.name, "queue": "default"}
    assert found("relevo_up") == 1
    assert found("relevo_queue_jobs", **mine, state="ready") == 1
    assert found("relevo_queue_jobs", **mine, state="scheduled") == 1
    assert found("relevo_queue_records", **mine, state="dead") == 1
    assert found("relevo_queue_records", **mine, state="done") == 1
    assert 0 < found("relevo_queue_oldest_seconds", **mine, state="ready") < 600
    assert 0 < found("relevo_queue_oldest_seconds", **mine, state="done") < 600
    assert found("relevo_queue_paused", **mine) == 1
    assert found("relevo_purged_total", **mine, state="done") == 0, "there from the start, so that it can increase"
    assert found("relevo_server_memory_bytes", app=app.name) > 0
    assert found("relevo_server_memory_max_bytes", app=app.name) >= 0
    assert found("relevo_server_commands_total", app=app.name) > 0
    assert found("relevo_jobs_enqueued_total", **mine) == 5
    assert found("relevo_jobs_ended_total", **mine, state="done") == 1
    assert found("relevo_jobs_ended_total", **mine, state="dead") == 2
    assert found("relevo_dead_letters_dropped_total", **mine) == 1
    assert found("relevo_jobs_retried_total", **mine) == 0
    app.queue().clear()
    app.queue().resume()
    assert scrape(app)("relevo_jobs_removed_total", **mine, how="cleared") == 2


def test_entities_that_a_purge_took_are_counted(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app = times.app
    of_pool = {"app": app.name, "queue": f"{app.name}:actions:pool:vms", "kind": "pool"}
    app.pool("vms").add("vm-1")
    assert scrape(app)("relevo_purged_total", **of_pool, state="pending") == 0
    times.move(2 * HOUR + MINUTE)
    app.purge(dry_run=False)
    found = scrape(app)
    assert found("relevo_purged_total", **of_pool, state="pending") == 1
    assert found("relevo_pool_dead_letters", app=app.name, pool="vms") == 1
    assert not found.has("relevo_queue_jobs", queue=of_pool["queue"]), "it has dead letters, and is no queue for that"
    assert not found.has("relevo_bus_messages", kind="actions"), "nor are they messages of the bus"
    assert found("relevo_purged_total", **of_pool, state="completed") == 0


def test_jobs_that_are_overdue_for_hours_are_stuck(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app = times.app
    app.task(name="x")(lambda: None).using(delay="1m").enqueue()
    assert scrape(app)("relevo_queue_stuck_jobs", queue="default", state="scheduled") == 0
    times.move(3 * HOUR)
    assert scrape(app)("relevo_queue_stuck_jobs", queue="default", state="scheduled") == 1
    app.queue().clear()


def test_wait_and_run_times_of_tasks_are_histograms(app: Relevo) -> None:
    """Issue 6: durations as histograms."""

    @app.task(name="nap")
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @app.task(name="work")
    def work() -> None: ...

    nap.enqueue(0.03)
    nap.enqueue(0.0)
    work.enqueue()
    time.sleep(0.06)  # they wait
    drained(app)
    found = scrape(app)
    of_nap = {"app": app.name, "queue": "default", "task": "nap"}
    assert found("relevo_task_run_seconds_count", **of_nap) == 2
    assert found("relevo_task_run_seconds_bucket", **of_nap, le="3600") == 2
    assert found("relevo_task_run_seconds_bucket", **of_nap, le="0.025") <= 1
    assert 0.03 <= found("relevo_task_run_seconds_sum", **of_nap) < 600
    assert found("relevo_task_wait_seconds_count", **of_nap) == 2
    assert found("relevo_task_wait_seconds_bucket", **of_nap, le="0.05") == 0
    assert 0.12 <= found("relevo_task_wait_seconds_sum", **of_nap) < 600
    assert found("relevo_task_run_seconds_count", task="work") == 1


def test_failed_attempts_are_counted_and_snoozed_ones_are_not(app: Relevo) -> None:
    @app.task(name="fail", retries=1, backoff="1ms")
    async def fail() -> None:
        raise ValueError

    @app.task(name="put_off")
    def put_off() -> None:
        raise Snooze("1h")

    fail.enqueue()
    job = put_off.enqueue()
    eventually(lambda: drained(app).refused == 0 and scrape(app)("relevo_task_failures_total", task="fail") == 2)
    found = scrape(app)
    assert found("relevo_task_run_seconds_count", task="fail") == 2
    assert found("relevo_task_wait_seconds_count", task="fail") == 1, "the second attempt waited for its pause"
    assert found("relevo_jobs_retried_total", queue="default") == 2
    assert found("relevo_task_failures_total", task="put_off") == 0
    job.cancel()


async def test_a_worker_writes_its_timings_while_it_works(app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.worker.timings.TimingsDuty.interval", 0.02)

    @app.task(name="fine")
    async def fine() -> None: ...

    async with working(app):
        await (await fine.aenqueue()).aresult(timeout=PATIENCE)

        async def is_exported() -> bool:
            return Scrape(await metrics.aexposition(app)).has("relevo_task_run_seconds_count", task="fine")

        await aeventually(is_exported, what="it is exported")


async def test_timings_that_could_not_be_written_are_written_later(app: Relevo) -> None:
    @app.task(name="fine")
    async def fine() -> None: ...

    async with working(app) as worker:
        await (await fine.aenqueue()).aresult(timeout=PATIENCE)
        nowhere = Relevo(app.name, url=f"redis://127.0.0.1:{free_port()}").engine.client.driver()
        with pytest.raises(StoreError):
            await worker.consumers[0].timings.write(nowhere)
    assert Scrape(await metrics.aexposition(app))("relevo_task_run_seconds_count", task="fine") == 1
    await app.aclose()


async def test_workers_and_their_slots_are_exported(app: Relevo) -> None:
    found = Scrape(await metrics.aexposition(app))
    assert found("relevo_workers") == found("relevo_worker_slots") == 0
    async with working(app, queues=["default", "mail"], concurrency=7):

        async def idle() -> bool:
            found = Scrape(await metrics.aexposition(app))
            return found.has("relevo_queue_idle_workers", queue="mail") and found("relevo_workers") == 1

        await aeventually(idle, what="the worker is there")
        found = Scrape(await metrics.aexposition(app))
        assert found("relevo_worker_slots") == 7
        assert found("relevo_worker_slots_busy") == 0
        assert found("relevo_queue_workers", queue="mail") == 1


def test_a_silent_worker_is_counted_at_each_scrape(app: Relevo) -> None:
    app.engine.run(
        present(
            app.engine.keys,
            WorkerInfo(id="w1", host="here", pid=1, queues=("default",), concurrency=10, started_ms=0, running=3),
        )
    )
    for worker in ("w1", "w2"):
        app.engine.run(listed(app.engine.keys, worker))
    for _ in range(2):
        found = scrape(app)
        assert (found("relevo_workers"), found("relevo_workers_lost")) == (1, 1)
        assert found("relevo_worker_slots_busy") == 3


def test_late_schedules_are_exported(app_factory: AppFactory, server: Server) -> None:
    times = Times(server, app_factory)
    noting(times.app)
    for name in ("a", "b"):
        times.app.schedule(name, times.app.tasks["note"], every="1h")
    times.app.schedules.get("b").pause()
    found = scrape(times.app)
    assert found("relevo_schedules", state="active") == found("relevo_schedules", state="paused") == 1
    assert found("relevo_schedules_late") == 0
    times.move(62 * MINUTE)
    found = scrape(times.app)
    assert found("relevo_schedules_late") == 1
    assert 60 <= found("relevo_schedule_late_seconds") <= 63 * 60
    for name in ("a", "b"):
        times.app.schedules.get(name).remove()


async def test_messages_of_services_are_exported_by_the_app_that_serves_them(bus_factory: AppFactory) -> None:
    """Life-cycle counters. A monitor knows nothing but the app's name."""
    one, monitor, other = bus_factory("one"), bus_factory("one"), bus_factory("other")
    svc = one.service("embedding")

    @svc.action("go")
    async def go() -> None: ...

    @svc.on("shop.sold", broadcast=True)
    async def sold() -> None: ...

    async with working(one):
        await other.service("shop").arequest("embedding.go", wait=True, timeout=PATIENCE)

        async def published() -> int:
            return await other.service("shop").apublish("sold", {})

        await aeventually(published, what="there is a subscriber")
        await aeventually(lambda: not one.queue(svc.queue).stats().living, what="all is done")

        async def listed() -> bool:  # a worker says where it works beside its work
            there = Scrape(await metrics.aexposition(monitor))
            name, labels = "relevo_queue_workers", {"queue": "embedding:actions", "kind": "actions"}
            return there.has(name, **labels) and there(name, **labels) == 1

        await aeventually(listed, what="its worker is known")
    there, here = Scrape(await metrics.aexposition(monitor)), Scrape(await metrics.aexposition(one))
    for found in (there, here):
        assert found("relevo_jobs_ended_total", queue="embedding:actions", kind="actions", state="done") == 1
        assert found("relevo_bus_messages", app=one.name, kind="actions", what="created") == 1
        assert found("relevo_task_run_seconds_count", queue="embedding:actions", task="embedding.go") == 1
        assert found("relevo_task_run_seconds_count", task="embedding.on.sold") >= 1
    of_others = Scrape(await metrics.aexposition(other))
    assert not [one for one in of_others.samples if "embedding" in one.labels.get("queue", "")]
    assert not [one for one in here.samples if "app" in one.labels and "embedding" in one.labels.get("queue", "")]
    # that of one process is another one after each start: no label may hold it
    queues = {one.labels["queue"] for one in here.samples if "queue" in one.labels}
    assert "embedding:notifications:shop.sold" in queues
    assert not [name for name in queues if re.search("[0-9a-z]{20}", name)]
    await monitor.aclose()
    await other.aclose()


def test_health_is_a_number(app_factory: AppFactory) -> None:
    app = app_factory(health_limits={"dead_warning": 1, "dead_critical": 3})

    @app.task(name="fail", retries=0)
    async def fail() -> None:
        raise ValueError

    assert not scrape(app).has("relevo_health_status"), "nothing is known of it"
    for status, more in ((1, 1), (2, 2)):
        fail.enqueue_many([((), {})] * more)
        drained(app)
        with scraped(app) as url:
            by_supervisor = Scrape(get(f"{url}/metrics")[2])
        assert by_supervisor("relevo_queue_health_status", queue="default") == status, "limits of the code hold there"
        found = scrape(app)
        assert found("relevo_health_status", app=app.name) == status
        assert found("relevo_queue_health_status", queue="default") == status
        assert found("relevo_queue_stuck_jobs", queue="default", state="ready") == 0


async def test_health_is_looked_at_for_each_scrape(app_factory: AppFactory) -> None:
    """The worker that looked may be the one that died."""
    app = app_factory(health=True, health_limits={"unserved_age": "10ms"})
    app.engine.run(app.engine.list_queue("default"))
    found = await HealthDuty(Worker(app)).run_once()
    assert found is not None and found.is_healthy, "and it is kept for minutes"
    app.task(name="x")(_nothing).enqueue()
    await aeventually(lambda: scrape(app)("relevo_queue_health_status", queue="default") == 2, what="it has no worker")
    assert scrape(app)("relevo_health_status", app=app.name) == 2
    app.queue().clear()
    await app.aclose()


# Its limits


def test_the_number_of_series_is_bounded_and_left_out_ones_are_counted(
    app: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_QUEUES", 3)
    monkeypatch.setattr(snapshot, "MOST_TASKS", 2)
    for n in range(5):
        app.task(name=f"task{n}", queue=f"queue{n}")(_nothing).enqueue()
    drained(app)
    found = scrape(app)
    queues = {one.labels["queue"] for one in found.samples if "queue" in one.labels}
    left_out = {what: found("relevo_left_out", what=what) for what in ("queues", "tasks")}
    assert len(queues) == 3
    assert left_out == {"queues": len(app.queues()) - 3, "tasks": len(queues & {f"queue{n}" for n in range(5)}) - 2}
    assert len({one.labels["task"] for one in found.samples if "task" in one.labels}) == 2


async def test_with_very_many_queues_only_some_are_looked_into(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_LOOKED", 2)
    app = app_factory(health=True, health_every="1h", health_limits={"stuck_age": "10ms"})
    for n in range(3):
        app.task(name="x", queue=f"queue{n}")(_nothing).enqueue()
    app.pool("vms").add("vm-1")
    await aeventually(
        lambda: scrape(app)("relevo_queue_stuck_jobs", queue="queue1", state="ready") == 1, what="by its limits"
    )
    found = scrape(app)
    looked = {one.labels["queue"] for one in found.samples if one.name == "relevo_queue_overdue_jobs"}
    assert (looked, found("relevo_left_out", what="ages")) == ({"queue0", "queue1"}, 1)
    assert found("relevo_queue_jobs", queue="queue2", state="ready") == 1
    assert not found.has("relevo_health_status"), "not all queues were looked at, and no worker did"
    assert found("relevo_pool_entities", pool="vms", state="pending") == 1
    await HealthDuty(Worker(app)).run_once()
    app.pool("vms").move("vm-1", "pending", "ready")
    found = scrape(app)
    assert found("relevo_pool_entities", pool="vms", state="ready") == 1, "and not as a worker found them"
    assert found.has("relevo_queue_health_status", queue="queue2"), "a worker judged it"
    app.pool("vms").remove("vm-1")
    for n in range(3):
        app.queue(f"queue{n}").clear()
    await app.aclose()


async def _nothing() -> None: ...


def test_a_scrape_asks_as_much_with_many_jobs_as_with_few(app: Relevo, server: Server) -> None:
    """O(queues), never O(jobs)."""

    @app.task(name="x")
    async def x() -> None: ...

    def commands() -> int:
        before = int(server.command("INFO", "stats")["total_commands_processed"])
        metrics.exposition(app)
        return int(server.command("INFO", "stats")["total_commands_processed"]) - before

    x.enqueue_many([((), {})] * 500)
    metrics.exposition(app)  # loads the scripts
    few = commands()
    x.enqueue_many([((), {})] * 5_000)
    assert commands() <= few + 10
    app.queue().clear()


def test_without_a_server_only_relevo_up_is_exported() -> None:
    app = Relevo("shop", url=f"redis://127.0.0.1:{free_port()}")
    found = scrape(app)
    assert found("relevo_up", app="shop") == 0
    assert len(found.samples) == 1


# How they are served


@contextmanager
def scraped(app: Relevo) -> Iterator[str]:
    with Scraped("127.0.0.1", 0) as server:
        server.know(contact_of(app, Worker(app)))
        yield f"http://127.0.0.1:{server.port}"


def get(url: str) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read()


def test_metrics_are_served_under_their_path_and_nothing_else_is(app: Relevo) -> None:
    app.queue().stats()
    with scraped(app) as url:
        status, kind, text = get(f"{url}/metrics")
        assert (status, kind) == (200, metrics.CONTENT_TYPE)
        assert Scrape(text)("relevo_up", app=app.name) == 1
        assert get(f"{url}/metrics?x=1")[0] == 200
        assert get(f"{url}/")[0] == get(f"{url}/../etc/passwd")[0] == 404


def test_before_a_worker_process_is_up_there_are_no_metrics() -> None:
    with Scraped("127.0.0.1", 0) as server:
        assert get(f"http://127.0.0.1:{server.port}/metrics")[0] == 503


def test_a_silent_connection_does_not_keep_others_from_the_metrics(app: Relevo) -> None:
    with scraped(app) as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        assert get(f"{url}/metrics")[0] == 200


def test_wrong_metrics_options_are_refused_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with Scraped("127.0.0.1", 0) as taken:
        refusals = [
            (["--metrics-port", "70000"], "--metrics-port is a number from 1 to 65535"),
            (["--metrics-port", str(taken.port)], "Is another worker there?"),
            (["--metrics-port", "0", "--metrics-host", "no.such.host.invalid"], "Give another --metrics-host"),
            (["--metrics-host", "127.0.0.1"], "--metrics-port is missing"),
        ]
        for options, text in refusals:
            assert main(["worker", "shop:app", *options]) == 2
            written = capsys.readouterr()
            assert written.out == "" and text in written.err


def test_a_supervised_group_serves_the_metrics_of_all_its_processes_once(server: Server, tmp_path: Path) -> None:
    """Issue 6: /metrics in the worker."""
    port = free_port()
    with Site(server, tmp_path) as site:
        order: dict[str, Any] = {"processes": 2, "metrics-port": port}
        group = site.start(supervised=True, **order)
        url = f"http://127.0.0.1:{port}/metrics"

        def are_both_there() -> bool:
            status, _, text = get(url)  # 503 until the first of them is up
            found = Scrape(text if status == 200 else b"")
            return found.has("relevo_workers") and found("relevo_workers") == 2

        eventually(are_both_there, what="both are there")
        site.enqueue("nap", 0).result(timeout=PATIENCE)
        assert group.stop() == 0
        after = Scrape(metrics.exposition(site.app))
        assert after("relevo_task_run_seconds_count", app=site.name) == 1, "what was measured is exported at the stop"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=PATIENCE)


def test_samples_have_the_labels_that_the_catalogue_names(bus: Relevo) -> None:
    svc = bus.service("embedding")

    @svc.action("go")
    async def go() -> None: ...

    @bus.task(name="x", every="1h")
    async def x() -> None: ...

    svc.send("embedding.go")
    x.enqueue()
    drained(bus)
    for queue in ("default", svc.queue):  # as purging counts
        bus.engine.run(Call([b"HINCRBY", bus.engine.keys_of(queue).key("stats"), "purged_ready", 1]))
    bus.pool("vms").add("vm-1")
    text = metrics.exposition(bus)
    bus.pool("vms").remove("vm-1")
    bus.schedules.get("x").remove()
    found = Scrape(text)
    for name, (kind, labels, _) in CATALOGUE.items():
        family = found.families.get(name.removesuffix("_total"))
        assert family is not None, f"{name} is never exported"
        assert family.type == kind
        allowed = {*labels, "le"} if kind == "histogram" else set(labels)
        assert all(set(sample.labels) <= allowed for sample in family.samples), name
        assert set().union(*(sample.labels for sample in family.samples)) == allowed, name
