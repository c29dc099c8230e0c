"""The purge on real queues and pools: each row of its table, dry and live, and what it must leave alone."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo import Breaker, Failure, Relevo, State, chain
from relevo.engine.duty import repeat
from relevo.engine.job import Envelope, write
from relevo.engine.leader import Leader
from relevo.engine.message import Headers
from relevo.engine.push import NewJob, push_plain, push_rich
from relevo.errors import JobCancelled, JobFailed, OptionError, OutOfMemory
from relevo.limits.store import trip
from relevo.pools.pool import Entity, Pool
from relevo.upkeep import asking, store
from relevo.upkeep.duty import UpkeepDuty, purge_duty
from relevo.upkeep.report import UpkeepReport
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.leaks import leaks
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import working

DAY = 24 * HOUR
#: Real time passes as well: a reported age may be some seconds more.
MORE = r"(\d+s)?"


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


@pytest.fixture
def app(times: Times) -> Relevo:
    """An app in a time that the test moves, with two tasks."""
    app = times.app

    @app.task(name="mail")
    def mail(n: int = 0) -> int:
        return n

    @app.task(name="report")
    def report(n: int = 0) -> int:
        return n

    return app


def listed(report: UpkeepReport) -> list[tuple[Any, ...]]:
    """What a report lists, without ages: time goes on between two runs."""
    return [(one.kind, one.name, one.id, one.state, one.what, one.reason, one.bytes) for one in report.purged]


def reasons(report: UpkeepReport) -> dict[str, int]:
    return {f"{one.state} {one.what} {one.reason}": one.count for one in report.groups()}


def live(app: Relevo, **options: Any) -> UpkeepReport:
    """A dry run and a live run on the same data list the same."""
    dry = app.purge(dry_run=True, **options)
    done = app.purge(dry_run=False, **options)
    assert listed(dry) == listed(done)
    assert (dry.unknown, dry.held, dry.skipped, done.spared) == (done.unknown, done.held, (), 0)
    assert (dry.dry_run, done.dry_run) == (True, False)
    return done


def totals(app: Relevo, queue: str = "default") -> dict[str, int]:
    return app.queue(queue).stats().totals


# jobs


def test_ready_job_is_cancelled_at_its_limit_and_not_before(app: Relevo, times: Times) -> None:
    job = app.tasks["mail"].enqueue(1)
    times.move(DAY - MINUTE)
    assert live(app).count == 0
    assert job.state() is State.READY
    times.move(MINUTE)
    report = live(app)
    (one,) = report.purged
    assert (one.kind, one.name, one.id, one.state) == ("queue", "default", job.id, "ready")
    assert (one.what, one.reason, one.limit_ms) == ("cancelled", "stale_ready", DAY)
    assert DAY <= one.age_ms < DAY + MINUTE and one.bytes > 10
    info = job.info()
    assert (info.state, info.reason) == (State.CANCELLED, "stale_ready")
    assert re.fullmatch(f"ready for 1d{MORE}, the limit is 1d", info.attempts[-1].message)
    assert totals(app)["purged_ready"] == 1
    with pytest.raises(JobCancelled, match="stale_ready"):
        job.result(timeout=PATIENCE)
    assert job.retry(), "as every other end, it can be undone"
    assert app.queue().clear() == 1


def test_scheduled_job_is_stale_when_it_is_late_not_when_it_is_old(app: Relevo, times: Times) -> None:
    job = app.tasks["mail"].using(delay="30d").enqueue()
    times.move(30 * DAY + HOUR)
    assert live(app).count == 0
    times.move(HOUR)
    assert reasons(live(app)) == {"scheduled dead stale_scheduled": 1}
    with pytest.raises(JobFailed, match="stale_scheduled"):
        job.result(timeout=PATIENCE)
    (letter,) = app.dead.list()
    assert letter.reason == "stale_scheduled"
    assert re.fullmatch(f"due 2h{MORE} ago, the limit is 2h", letter.error)
    assert totals(app)["purged_scheduled"] == 1


def test_delayed_job_that_became_ready_is_as_old_as_since_it_was_due(app: Relevo, times: Times) -> None:
    mail = app.tasks["mail"]
    delayed, plain = mail.using(delay="3d").enqueue(), mail.using(priority=1, result_ttl=0).enqueue()
    times.move(3 * DAY + HOUR)
    (lease,) = app.queue().take(1)  # a turn promotes what is due
    assert lease.id == plain.id and lease.done()
    assert delayed.state() is State.READY
    assert live(app).count == 0, "made three days ago, and due an hour ago"
    times.move(23 * HOUR)
    assert [one.id for one in live(app).purged] == [delayed.id]


def test_waiting_job_is_dead_and_its_children_are_cancelled(app: Relevo, times: Times) -> None:
    mail = app.tasks["mail"]
    parent = mail.using(queue="never").enqueue()
    child = mail.using(depends_on=[parent]).enqueue()
    grandchild = mail.using(depends_on=[child], queue="other").enqueue()
    times.move(DAY)
    report = live(app, queue="default")
    assert reasons(report) == {"waiting dead stale_waiting": 1}
    assert child.state() is State.DEAD
    assert grandchild.state() is State.CANCELLED
    assert app.queue("never").clear() == 1


def test_job_that_was_let_go_by_others_has_no_known_age(app: Relevo, times: Times) -> None:
    mail = app.tasks["mail"]
    parent = mail.using(result_ttl=0).enqueue()
    child = mail.using(depends_on=[parent], queue="other").enqueue()
    (lease,) = app.queue().take(1)
    times.move(10 * DAY)
    assert app.engine.run(lease._renewal())[:2] == ([], [])
    assert lease.done()
    assert child.state() is State.READY
    for _ in range(2):
        report = live(app)
        assert report.count == 0
        assert [(one.name, one.state, one.count) for one in report.unknown] == [("other", "ready", 1)]
        times.move(10 * DAY)
    assert app.queue("other").clear() == 1


def test_job_that_was_handed_back_has_no_known_age(app: Relevo, times: Times) -> None:
    job = app.tasks["mail"].enqueue()
    times.move(2 * DAY)
    (lease,) = app.queue().take(1)
    assert lease.give_back()
    report = live(app)
    assert (report.count, report.unknown[0].count) == (0, 1)
    assert job.state() is State.READY
    assert app.queue().clear() == 1


def test_age_of_a_job_released_by_the_limit_of_its_tenant_is_unknown(app: Relevo, times: Times) -> None:
    queue, mail = app.queue(), app.tasks["mail"].using(tenant="acme")
    queue.limit("acme", concurrency=1)
    jobs = [mail.enqueue(n) for n in range(3)]
    (first,) = queue.take(2, lease="9d")
    assert jobs[1].state() is State.WAITING
    times.move(DAY - HOUR // 2)
    assert first.done()
    assert jobs[1].state() is State.READY
    times.move(2 * HOUR)
    report = live(app)
    assert reasons(report) == {"waiting dead stale_waiting": 1, "done removed stale_done": 1}
    assert (report.purged[0].id, report.unknown[0].count) == (jobs[2].id, 1)
    assert queue.limits()[0].parked == 0
    queue.unlimit("acme")
    assert [lease.done() for lease in queue.take(5)] == [True]


LONG = Breaker.after(1, "1m", rest="3d", longest="3d")
HELD: dict[str, tuple[Any, str]] = {  # what holds jobs back for three days, and how it is reported
    "queue": (lambda app: app.queue().pause(until="3d"), "the queue is paused"),
    "tenant": (lambda app: app.pause(tenant="acme", until="3d"), "tenant acme is paused"),
    "task": (lambda app: app.queue().pause(task="mail"), "task mail is paused"),
    "breaker": (
        lambda app: app.engine.run(trip(app.engine.keys_of("default"), "mail", 1, LONG)),
        "the breaker of task mail is open",
    ),
}


@pytest.mark.parametrize("what", HELD)
def test_job_held_back_by_a_pause_or_a_breaker_is_left_alone(app: Relevo, times: Times, what: str) -> None:
    mail, queue = app.tasks["mail"].using(tenant="acme"), app.queue()
    parked, free = mail.enqueue(), app.tasks["report"].enqueue()
    hold, why = HELD[what]
    hold(app)
    if what != "queue":
        (lease,) = queue.take(2)
        assert (lease.id, parked.state()) == (free.id, State.WAITING)
        lease.done()
    ready, later = mail.enqueue(), mail.using(delay="1m").enqueue()
    other = app.tasks["report"].using(tenant="other").enqueue()
    times.move(2 * DAY)
    report = live(app)
    held = {(one.name, one.state, one.why): one.count for one in report.held}
    if what == "queue":
        assert (report.count, held) == (0, {("default", "scheduled", why): 1, ("default", "ready", why): 4})
    else:
        assert [one.id for one in report.purged if one.state != "done"] == [other.id]
        assert held == {("default", state, why): 1 for state in ("scheduled", "waiting", "ready")}
    assert [one.state() for one in (ready, later)] == [State.READY, State.SCHEDULED]
    times.move(DAY - HOUR // 2)
    assert live(app).held
    times.move(HOUR)
    queue.resume(task="mail")
    queue.resume(tenant="acme")
    assert live(app).held == ()
    assert {one.state() for one in (ready, later, parked)} <= {State.READY, State.SCHEDULED, State.WAITING}
    times.move(DAY)
    assert {ready.id, later.id, parked.id} <= {one.id for one in live(app).purged}


def test_ages_count_from_the_end_of_a_pause(app: Relevo, times: Times, server: Server) -> None:
    """A queue that was paused over a weekend is not emptied on Monday, and a dry run says the same."""
    job, queue = app.tasks["mail"].enqueue(), app.queue()
    queue.pause()
    for _ in range(3):
        times.move(DAY)
        assert sum(one.count for one in live(app).held) == 1
    queue.resume()
    assert (app.purge(dry_run=True).count, live(app).count) == (0, 0)
    times.move(DAY)
    assert app.purge(dry_run=True).count == 1
    assert job.state() is State.READY
    assert live(app).count == 1
    times.move(31 * DAY)
    live(app)
    assert server.command("EXISTS", app.engine.keys_of("default").own("walk", "held")) == 0


async def test_job_that_is_due_while_all_workers_are_busy_is_judged_as_a_ready_one(times: Times) -> None:
    """A worker without room leaves it among the scheduled; that does not mean that the queue has no worker."""
    app, strict = times.another(purge_ages={"scheduled": "1ms"}), times.another(purge_ages={"ready": "1ms"})
    gate = asyncio.Event()

    @app.task(name="long")
    async def long() -> None:
        await gate.wait()

    @app.task(name="mail")
    async def mail() -> None: ...

    async with working(app, concurrency=1):
        busy = await long.aenqueue()
        await aeventually(lambda: busy.state() is State.RUNNING)
        late = await mail.using(delay="10ms").aenqueue()
        elsewhere = await mail.using(delay="10ms", queue="elsewhere").aenqueue()
        await aeventually(lambda: [one.id for one in app.purge(queue="elsewhere").purged] == [elsewhere.id])
        report = await app.apurge(dry_run=False)
        assert [(one.id, one.reason) for one in report.purged] == [(elsewhere.id, "stale_scheduled")]
        assert await late.astate() is State.SCHEDULED
        (one,) = (await strict.apurge(dry_run=False)).purged
        assert (one.id, one.state, one.what, one.reason) == (late.id, "scheduled", "cancelled", "stale_ready")
        gate.set()
        await strict.aclose()


def test_job_of_a_worker_that_is_long_gone_is_recovered(app: Relevo, times: Times) -> None:
    job = app.tasks["mail"].enqueue()
    app.queue().take(1, worker="killed", lease="10s")
    times.move(HOUR)
    assert live(app).count == 0, "its lease ended 59 minutes and 50 seconds ago"
    times.move(10_000)
    assert reasons(live(app)) == {"running recovered stale_running": 1}
    info = job.info()
    assert info.state is State.READY
    assert (info.attempts[0].how, info.attempts[0].worker) == ("lost", "killed")
    assert (totals(app)["purged_running"], totals(app)["lost"]) == (1, 1)
    (lease,) = app.queue().take(1)
    assert lease.done()


def test_job_that_took_too_many_workers_down_is_poison_also_when_the_purge_recovers_it(
    app: Relevo, times: Times
) -> None:
    job = app.tasks["mail"].enqueue()
    for _ in range(3):
        app.queue().take(1, lease="1s")
        times.move(2 * HOUR)
        live(app)
    assert (job.state(), job.info().reason) == (State.DEAD, "poison")


def test_job_whose_lease_is_renewed_is_left_to_its_worker(app: Relevo, times: Times) -> None:
    app.tasks["mail"].enqueue()
    (lease,) = app.queue().take(1, lease="30m")
    for _ in range(100):
        times.move(20 * MINUTE)
        assert lease.renew()
    assert live(app).count == 0
    assert lease.done()


def test_done_job_is_removed_with_its_result_and_logs(app: Relevo, times: Times, server: Server) -> None:
    job = app.tasks["mail"].using(result_ttl="9d").enqueue(5)
    (lease,) = app.queue().take(1)
    assert lease.done(5)
    times.move(HOUR - MINUTE)
    assert live(app).count == 0
    times.move(MINUTE)
    assert reasons(live(app)) == {"done removed stale_done": 1}
    assert job.state() is State.UNKNOWN
    assert totals(app)["purged_done"] == 1
    assert app.queue().stats().done == 0


@pytest.mark.parametrize("name", ["report", '"Übersicht",\\'])
def test_done_job_stays_for_as_long_as_its_task_may(times: Times, name: str) -> None:
    app = times.another(purge_ages={"queues": {"*": {"done": {"age": "1h", "classes": {name: "12h", "log": "1m"}}}}})
    tasks = [app.task(name=one, result_ttl="9d")(lambda: None) for one in ("mail", name, "log")]
    mail, report, log = (task.enqueue() for task in tasks)
    assert all(lease.done(5) for lease in app.queue().take(3))
    times.move(MINUTE)
    assert [one.id for one in live(app).purged] == [log.id]
    times.move(HOUR)
    assert [one.id for one in live(app).purged] == [mail.id]
    assert report.result() == 5
    times.move(11 * HOUR)
    assert [one.id for one in live(app).purged] == [report.id]


def test_dead_and_cancelled_jobs_are_left_to_their_own_time(app: Relevo, times: Times) -> None:
    mail = app.tasks["mail"]
    mail.enqueue()
    app.queue().take(1)[0].bury("broken")
    mail.enqueue().cancel()
    times.move(1000 * DAY)
    assert live(app).count == 0
    stats = app.queue().stats()
    assert (stats.dead, stats.cancelled) == (1, 1)


def test_request_past_its_deadline_expires(app: Relevo, times: Times) -> None:
    job = app.tasks["mail"].using(expires="1h").enqueue()
    times.move(DAY)
    assert job.state() is State.READY
    report = app.purge()
    assert reasons(report) == {"ready cancelled stale_ready": 1}, "a day old: that comes first"
    times.move(HOUR)
    app.queue().pause()
    assert reasons(live(app)) == {"ready expired stale_request": 1}, "in a paused queue as well"
    assert job.state() is State.EXPIRED
    app.queue().resume()


def test_request_of_the_bus_is_answered_and_not_kept(times: Times) -> None:
    app = times.app
    envelope = Envelope("a.b", expires_ms=times.now_ms(), headers=Headers(intent="request"))
    job = NewJob(app.engine.new_id(), 100, write(envelope))
    app.engine.run(push_rich(app.engine.keys_of("a:actions"), [job]))
    times.move(DAY)
    assert app.purge().count == 0, "a queue of the bus is for the app that serves it"
    assert reasons(live(app, queue="a:actions")) == {"ready expired stale_request": 1}
    assert app.queue("a:actions").stats().living == 0


def test_failure_handler_of_a_stale_job_runs(app: Relevo, times: Times) -> None:
    handled: list[tuple[str, str]] = []

    @app.task(name="mark_broken")
    async def mark_broken(failure: Failure) -> None:
        handled.append((failure.job, failure.reason))

    job = app.tasks["mail"].using(delay="1h", on_failure=mark_broken, name="n").enqueue()
    assert not app.tasks["mail"].using(name="n").enqueue().created
    times.move(HOUR * 4)
    live(app)
    assert app.tasks["mail"].using(name="n").enqueue().created, "its name is free again"
    asyncio.run(_drained(app))
    assert handled == [(job.id, "stale_scheduled")]


async def _drained(app: Relevo) -> None:
    await Worker(app, burst=True).run()
    await app.aclose()


def test_waiter_of_a_stale_job_gets_its_end(app: Relevo, times: Times, server: Server) -> None:
    job = app.tasks["mail"].enqueue()

    async def wait() -> str:
        waiting = asyncio.create_task(job.aresult(timeout=PATIENCE))
        await aeventually(lambda: server.command("HLEN", app.engine.keys_of("default").key("waiters")))
        times.move(DAY)
        await app.apurge(dry_run=False)
        try:
            await waiting
        except JobCancelled as error:
            return str(error)
        finally:
            await app.aclose()
        return ""

    assert "stale_ready" in asyncio.run(wait())


def test_limits_are_by_queue_and_by_task(times: Times) -> None:
    ages = {
        "queues": {
            "*": {"ready": {"age": "10h", "classes": {"report": {"age": "1h", "then": "dead"}, "mail": "never"}}},
            "slow": {"ready": "never"},
        }
    }
    app = times.another(purge_ages=ages)
    tasks = {name: app.task(lambda: None, name=name) for name in ("mail", "report", "other")}  # type: ignore[call-overload]
    for queue in ("default", "slow"):
        for task in tasks.values():
            task.using(queue=queue).enqueue()
    times.move(HOUR)
    assert reasons(live(app)) == {"ready dead stale_ready": 1}
    times.move(10 * HOUR)
    assert reasons(live(app)) == {"ready cancelled stale_ready": 1}
    assert app.queue("default").clear() + app.queue("slow").clear() == 4


#: What may be left under an id of which no set knows, as a hand or a mistake would leave it.
STRAYS: dict[str, tuple[Any, ...]] = {
    "a body": ("HSET", "jobs", "lost", '{"t":"mail"}'),
    "a claim": ("HSET", "claims", "lost", "3 w 1"),
    "a story": ("HSET", "story", "lost", "{}"),
    "a tenant": ("HSET", "groups", "lost", "1 acme"),
    "a name": ("HSET", "names", "n", "lost"),
    "a waiter": ("HSET", "waiters", "lost", "inbox"),
    "a place": ("HSET", "holding", "lost", "t:mail", "#t:mail", 1),
    "a letter": ("HSET", "letters", "lost", "done 2 x"),
}


@pytest.mark.parametrize("what", STRAYS)
def test_whatever_is_kept_under_an_id_in_no_set_is_noted_and_removed(
    app: Relevo, times: Times, server: Server, what: str
) -> None:
    """Its age is unknown, so it counts from when the purge first saw it."""
    keys = app.engine.keys_of("default")
    kept = app.tasks["mail"].using(name="mine", delay="99d", tenant="acme").enqueue()
    command, key, *args = STRAYS[what]
    server.command(command, keys.key(key), *args)
    server.command("HSET", keys.own("carried", "lost"), "life", "freed")
    report = live(app)
    assert reasons(report) == {"orphaned noted orphaned": 1}
    assert [one.id for one in report.purged] == ["lost"] and report.bytes >= 2
    assert server.command("TTL", keys.key("strays")) > 86_400
    times.move(DAY - MINUTE)
    assert [one.count for one in live(app).unknown] == [1]
    times.move(MINUTE)
    assert reasons(live(app)) == {"orphaned removed orphaned": 1}
    assert totals(app)["purged_orphaned"] == 1
    assert leaks(server, app.name) == []
    assert kept.state() is State.SCHEDULED
    assert app.queue().clear() == 1


@pytest.mark.parametrize("state", ["ready", "scheduled", "waiting", "running"])
def test_entry_without_a_body_goes_with_all_that_is_kept_under_its_id(
    app: Relevo, times: Times, server: Server, state: str
) -> None:
    keys, id = app.engine.keys_of("default"), app.engine.new_id()
    app.engine.run(app.engine.list_queue("default"))
    score = times.now_ms() * (1024 if state == "scheduled" else 1)
    server.command("ZADD", keys.key(state), score, id)
    for command, key, *args in STRAYS.values():
        if key not in ("jobs", "names", "letters"):
            server.command(command, keys.key(key), *(id if arg == "lost" else arg for arg in args))
    server.command("HSET", keys.own("carried", id), "life", "freed")
    times.move(2 * DAY)
    assert reasons(live(app)) == {f"{state} removed orphaned": 1}
    assert leaks(server, app.name) == []


def test_job_that_a_turn_drops_leaves_no_checkpoints(app: Relevo, server: Server) -> None:
    keys, job = app.engine.keys_of("default"), app.tasks["mail"].enqueue()
    server.command("HSET", keys.own("carried", job.id), "life", "freed")
    server.command("HDEL", keys.key("jobs"), job.id)
    assert app.queue().take(1) == []
    assert leaks(server, app.name) == []


def test_open_workflow_with_children_is_not_astray(app: Relevo, times: Times) -> None:
    """It is in no set."""
    mail = app.tasks["mail"]
    flow = chain(mail.s(1), mail.s()).enqueue()
    waits = mail.using(depends_on=[flow]).enqueue(3)
    assert [one for one in live(app).purged if one.state == "orphaned"] == []
    assert waits.state() is State.WAITING
    flow.cancel()


def test_search_for_strays_goes_on_where_the_last_run_stopped(
    app: Relevo, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relevo.upkeep import orphans

    keys = app.engine.keys_of("default")
    app.engine.run(app.engine.list_queue("default"))
    monkeypatch.setattr(orphans, "WALK", 250)
    count = 1_500  # more than the server keeps in one piece
    pairs = [text for n in range(count) for text in (f"lost-{n}", "1 w 1" + " " * 70)]
    server.command("HSET", keys.key("claims"), *pairs)
    found = set[str]()
    for run in range(count):
        report = live(app)
        assert report.count + sum(one.count for one in report.unknown) <= 600
        found |= {one.id for one in report.purged}
        if not server.command("EXISTS", keys.own("walk", "strays")):
            break
    assert len(found) == count and run > 1
    server.command("DEL", keys.key("claims"))


def test_body_that_came_back_into_a_set_is_not_removed(app: Relevo, times: Times, server: Server) -> None:
    keys = app.engine.keys_of("default")
    job = app.tasks["mail"].using(delay="99d").enqueue()
    score = server.command("ZSCORE", keys.key("scheduled"), job.id)
    server.command("ZREM", keys.key("scheduled"), job.id)
    assert reasons(live(app)) == {"orphaned noted orphaned": 1}
    server.command("ZADD", keys.key("scheduled"), score, job.id)
    times.move(2 * DAY)
    assert live(app).count == 0
    assert app.queue().clear() == 1


def test_unreadable_jobs_and_foreign_ids_are_counted_and_left_alone(app: Relevo, times: Times) -> None:
    bodies = [b"not json", b"{}", b"\xff\xfe", b'{"t":"mail","d":"x"}']
    jobs = [("mine", b'{"t":"mail"}'), *((app.engine.new_id(), body) for body in bodies)]
    app.engine.run(push_plain(app.engine.keys_of("default"), jobs, 100, 1000))
    app.engine.run(app.engine.list_queue("default"))
    times.move(30 * DAY)
    report = live(app)
    assert (report.count, report.unknown[0].count) == (0, 5)
    assert app.queue().clear() == 5


def _id_of(ms: int) -> str:
    digits = "0123456789abcdefghjkmnpqrstvwxyz"
    text = ""
    for _ in range(9):
        ms, digit = divmod(ms, 32)
        text = digits[digit] + text
    return text + "0" * 11


def test_walk_through_a_long_queue_goes_on_where_the_last_run_stopped(
    app: Relevo, times: Times, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relevo.upkeep import jobs

    monkeypatch.setattr(store, "PART", 10)
    monkeypatch.setattr(jobs, "WALK", 20)
    mail = app.tasks["mail"]
    now = times.now_ms()
    fresh = [NewJob(_id_of(now + 3 * DAY + n), 100, b'{"t":"mail"}') for n in range(45)]
    app.engine.run(push_rich(app.engine.keys_of("default"), fresh))
    old = mail.using(priority=900).enqueue()
    times.move(2 * DAY)
    key = app.engine.keys_of("default").key("walk")
    for stopped in (b"20", b"40"):
        assert app.purge(dry_run=True).count == 0
        assert app.purge(dry_run=False).count == 0
        assert server.command("GET", key) == stopped
        assert server.command("TTL", key) > 80_000
    assert [one.id for one in live(app).purged] == [old.id]
    assert server.command("GET", key) is None
    assert app.queue().clear() == 45


def test_run_acts_on_a_bounded_number_and_says_so(app: Relevo, times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    from relevo.upkeep import jobs

    monkeypatch.setattr(jobs, "MOST", 1_000)
    app.tasks["mail"].enqueue_many(((n,), {}) for n in range(2_500))
    times.move(DAY)
    left = 2_500
    while left:
        report = live(app)
        left -= report.count
        assert report.unfinished == (("default",) if left else ())
        assert app.queue().stats().ready == left
    assert totals(app)["purged_ready"] == 2_500


# at once


def test_only_one_purges_a_queue_at_a_time(app: Relevo, times: Times) -> None:
    """Runs do not overlap."""
    for n in range(300):
        app.tasks["mail"].enqueue(n)
    times.move(DAY)

    async def race() -> list[UpkeepReport]:
        reports = await asyncio.gather(*(app.apurge(dry_run=False) for _ in range(4)))
        await app.aclose()
        return reports

    reports = asyncio.run(race())
    assert sum(report.count for report in reports) == 300
    assert sum(report.skipped == ("default",) for report in reports) >= 1
    ids = [one.id for report in reports for one in report.purged]
    assert len(set(ids)) == 300
    assert app.queue().stats().cancelled == 300


def test_full_server_can_be_purged_and_that_is_written_down(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator does about a full server must not need room there."""
    from relevo.upkeep import jobs, orphans

    for module, name in ((store, "PART"), (jobs, "MOST"), (orphans, "WALK")):
        monkeypatch.setattr(module, name, 1)  # so that it notes where it stops
    ages = {"queues": {"*": {"ready": "1ms"}}, "pools": {"*": {"pending": "1ms", "completed": "1ms"}}}
    with Server(engine, directory=tmp_path / "full") as full:
        app = Relevo("full", url=full.url, env="test", purge_ages=ages)
        task = app.task(lambda n: None, name="mail")  # type: ignore[call-overload]
        for n in range(3):
            task.enqueue(n)
            app.pool("vms").add(f"vm-{n}", ("pending", "completed", "running")[n])
        full.command("HSET", app.engine.keys_of("default").key("claims"), "lost", "1 w 1")
        eventually(lambda: app.purge().count == 4)
        full.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(OutOfMemory):
            app.pool("vms").add("one-more")
        app.close()
        operator = Relevo("full", url=full.url, env="test", purge_ages=ages)  # it has put nothing on any list yet
        report = operator.purge(dry_run=False)
        operator.audit.note("purge", count=report.count)
        full.command("CONFIG", "SET", "maxmemory", "0")
        assert (report.count, report.unfinished) == (4, ("default",))
        assert [deed.count for deed in operator.audit.list()] == [4]
        operator.close()


def test_dry_run_is_not_held_up_by_a_purge_and_holds_none_up(app: Relevo, times: Times) -> None:
    app.tasks["mail"].enqueue()
    times.move(DAY)
    app.engine.run(Leader(app.engine.keys_of("default"), "another").take())
    assert app.purge(dry_run=True).count == 1
    held = app.purge(dry_run=False)
    assert (held.count, held.skipped) == (0, ("default",))
    app.engine.run(Leader(app.engine.keys_of("default"), "another").leave())
    assert app.purge(dry_run=False).count == 1


def test_purge_that_stood_still_for_too_long_does_not_go_on(app: Relevo, times: Times, server: Server) -> None:
    """Another purge has the lock by now."""
    app.tasks["mail"].enqueue()
    times.move(DAY)
    answer = _stopped_before_acting(
        app, lambda: server.command("SET", app.engine.keys_of("default").key("leader"), "other")
    )
    assert (answer.count, answer.skipped) == (0, ("default",))
    assert server.command("GET", app.engine.keys_of("default").key("leader")) == b"other"
    server.command("DEL", app.engine.keys_of("default").key("leader"))
    assert app.queue().clear() == 1


def _stopped_before_acting(app: Relevo, change: Any, script: str = "upkeep/purge_jobs") -> UpkeepReport:
    """A live purge; `change` happens between finding and acting."""
    from relevo.upkeep.purge import purging

    plan, answer = purging(app.engine, dry_run=False), None
    while True:
        try:
            step: Any = plan.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if getattr(step, "script", None) is not None and step.script.name == script:
            change()
        answer = app.engine.run(step)


BETWEEN: dict[str, tuple[Any, str]] = {  # what happens between finding and acting, and the state of the job then
    "claimed": (lambda app, times: app.queue().take(1), "running"),
    "claimed and handed back": (lambda app, times: app.queue().take(1)[0].give_back(), "ready"),
    "finished": (lambda app, times: app.queue().take(1)[0].done(), "done"),
    "cancelled": (lambda app, times: app.job(app.queue().jobs()[0].id).cancel(), "cancelled"),
    "clock set back": (lambda app, times: times.move(-HOUR), "ready"),
    "queue paused": (lambda app, times: app.queue().pause(), "ready"),
    "tenant paused": (lambda app, times: app.queue().pause(tenant="acme"), "ready"),
    "task paused": (lambda app, times: app.queue().pause(task="mail", until="1h"), "ready"),
    "breaker open": (
        lambda app, times: app.engine.run(trip(app.engine.keys_of("default"), "mail", 1, Breaker.after(1, "1m"))),
        "ready",
    ),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_job_that_changes_between_finding_and_acting_is_spared(app: Relevo, times: Times, what: str) -> None:
    job = app.tasks["mail"].using(tenant="acme").enqueue()
    times.move(DAY)
    change, state = BETWEEN[what]
    report = _stopped_before_acting(app, lambda: change(app, times))
    assert (report.count, report.spared, job.state()) == (0, 1, state)
    assert "purged_ready" not in totals(app)


# pools


@pytest.fixture
def vms(app: Relevo) -> Pool:
    return app.pool("vms", states=("pending", "ready", "running", "completed", "requested", "expired"))


def test_pending_entity_becomes_a_dead_letter(app: Relevo, vms: Pool, times: Times) -> None:
    vms.add("vm-1", template="centos-7")
    times.move(2 * HOUR - MINUTE)
    assert live(app).count == 0
    times.move(MINUTE)
    report = live(app)
    (one,) = report.purged
    assert (one.kind, one.name, one.id, one.what, one.reason) == ("pool", "vms", "vm-1", "dead", "stale_pending")
    assert one.bytes > 20 and one.age_ms >= 2 * HOUR
    (dead,) = vms.dead()
    assert (dead.entity, dead.queue_from, dead.reason) == ("vm-1", "pending", "stale_pending")
    assert re.fullmatch(f"pending for 2h{MORE}, the limit is 2h", dead.error_message)
    assert dead.metadata == {"template": "centos-7"}
    assert totals(app, vms.queue)["purged_pending"] == 1


def test_ready_entity_is_moved_to_completed_by_the_limit_of_its_class(app: Relevo, vms: Pool, times: Times) -> None:
    vms.add("vm-1", "ready", kind="on_demand")
    vms.add("vm-2", "ready", kind="pool")
    vms.add("vm-3", "ready")
    times.move(DAY)
    assert [one.id for one in live(app).purged] == ["vm-1", "vm-3"]
    assert vms.counts() == {**dict.fromkeys(vms.states, 0), "ready": 1, "completed": 2}
    times.move(DAY)
    report = live(app)
    assert reasons(report) == {"completed removed stale_completed": 2, "ready completed stale_ready": 1}
    assert [one.id for one in report.purged] == ["vm-1", "vm-3", "vm-2"]
    assert vms.counts()["completed"] == 1
    assert totals(app, vms.queue)["purged_completed"] == 2
    assert vms.get("vm-1").state == ""  # type: ignore[union-attr]


def test_running_entities_stay_and_requests_expire(app: Relevo, vms: Pool, times: Times) -> None:
    vms.add("vm-1", "running")
    vms.add("req-1", "requested", token="abc")
    small = app.pool("small", states=("pending", "ready"))  # it has no state "completed"
    small.add("x", "ready")
    times.move(DAY)
    assert reasons(live(app)) == {"requested expired stale_requested": 1, "ready dead stale_ready": 1}
    request = vms.get("req-1")
    assert request is not None and (request.state, request.metadata["token"]) == ("expired", "abc")
    times.move(1000 * DAY)
    assert live(app).count == 0
    assert vms.counts()["running"] == 1


def test_metadata_of_an_entity_in_no_state_gets_an_end(app: Relevo, vms: Pool, times: Times, server: Server) -> None:
    vms.add("vm-1", ip="10.0.0.7")
    vms.add("vm-2", "running")
    server.command("ZREM", vms.keys.own("placed", "pending"), "vm-1")
    server.command("ZREM", vms.keys.key("states"), "pending")
    times.move(DAY - MINUTE)
    assert live(app).count == 0
    times.move(MINUTE)
    assert reasons(live(app)) == {"orphaned expired orphaned": 1}
    assert 604_000 < server.command("TTL", vms.keys.own("entity", "vm-1")) <= 604_800
    assert totals(app, vms.queue)["purged_orphaned"] == 1
    assert vms.add("vm-1")


def test_metadata_on_no_list_is_found_and_gets_an_end(app: Relevo, vms: Pool, times: Times, server: Server) -> None:
    """No list leads to it, so it is looked for among all keys."""
    bare, dated = vms.keys.own("entity", "bare"), vms.keys.own("entity", "dated")
    vms.add("kept", "running")
    vms.add("dated", ip="10.0.0.7")
    server.command("ZREM", vms.keys.own("placed", "pending"), "dated")
    server.command("ZREM", vms.keys.key("states"), "pending")
    server.command("ZREM", vms.keys.key("entities"), "dated")
    server.command("HSET", bare, "ip", '"10.0.0.8"')
    report = app.purge(dry_run=True)
    assert report.count == 0 and sum(one.count for one in report.unknown) == 1
    assert not server.command("HEXISTS", bare, "@since")
    assert live(app).count == 0
    times.move(DAY - MINUTE)
    assert live(app).count == 0
    times.move(MINUTE)
    assert reasons(app.purge(dry_run=True)) == {"orphaned expired orphaned": 2}
    assert reasons(live(app)) == {"orphaned expired orphaned": 2}
    for key in (bare, dated):
        assert 604_000 < server.command("TTL", key) <= 604_800
    assert totals(app, vms.queue)["purged_orphaned"] == 2
    assert live(app).count == 0


@pytest.mark.parametrize("how", ["sync", "async"])
def test_provider_is_asked_whether_an_entity_still_exists(app: Relevo, times: Times, how: str) -> None:
    """What is gone is not moved on to be destroyed."""
    asked: list[Entity] = []

    def still_there(entity: Entity) -> bool:
        asked.append(entity)
        return entity.id != "gone"

    async def astill_there(entity: Entity, gone: str) -> bool:
        return still_there(entity) and entity.id != gone

    pool = app.pool("vms", still_there=still_there if how == "sync" else partial(astill_there, gone="gone"))
    for id in ("gone", "there"):
        pool.add(id, "ready", ip=id)
        pool.add(f"young-{id}", "ready")
    times.move(DAY - 10 * MINUTE)
    pool.move("young-gone", "ready", "pending")
    pool.move("young-there", "ready", "running")
    times.move(10 * MINUTE)
    report = app.purge() if how == "sync" else asyncio.run(_closing(app))
    assert [(one.id, one.what, one.reason) for one in report.purged] == [
        ("gone", "dead", "gone_ready"),
        ("there", "completed", "stale_ready"),
    ]
    assert [(one.id, one.metadata) for one in asked] == [("gone", {"ip": "gone"}), ("there", {"ip": "there"})]
    assert listed(live(app)) == listed(report)
    message = f"ready for 1d{MORE}, the limit is 1d, and it does not exist any more"
    assert re.fullmatch(message, pool.dead()[0].error_message)


async def _closing(app: Relevo) -> UpkeepReport:
    report = await app.apurge()
    await app.aclose()
    return report


@pytest.mark.parametrize("how", ["plain", "async"])
@pytest.mark.parametrize("is_blocking", [True, False])
def test_hook_that_hangs_or_is_cancelled_is_a_missing_answer(
    app: Relevo,
    times: Times,
    monkeypatch: pytest.MonkeyPatch,
    is_blocking: bool,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It neither ends the purge nor keeps the process from ending."""
    monkeypatch.setattr(asking, "ANSWER", 0.05)
    hangs = threading.Event()

    def still_there(entity: Entity) -> bool:
        assert threading.current_thread().daemon
        if entity.id == "vm-1":
            raise asyncio.CancelledError("the client is closed")
        return hangs.wait()

    async def astill_there(entity: Entity) -> bool:
        if entity.id == "vm-1":
            raise asyncio.CancelledError("the client is closed")
        await asyncio.Event().wait()
        return True

    pool = app.pool("vms", still_there=still_there if how == "plain" else astill_there)
    for id in ("vm-1", "vm-2"):
        pool.add(id)
    app.pool("others").add("one")
    times.move(DAY)
    report = app.purge() if is_blocking else asyncio.run(_closing(app))
    hangs.set()
    assert ([one.name for one in report.purged], report.unknown[0].count) == (["others"], 2)
    assert "vm-1 still exists: CancelledError: the client is closed" in caplog.text
    assert "vm-2 still exists: TimeoutError: no answer in 0.05 s" in caplog.text
    eventually(
        lambda: not any("still_there" in thread.name for thread in threading.enumerate()), what="no thread stays"
    )


async def test_plain_purge_may_ask_where_an_event_loop_runs(app: Relevo, times: Times) -> None:
    async def still_there(entity: Entity) -> bool:
        return True

    app.pool("vms", still_there=still_there).add("vm")
    times.move(DAY)
    assert app.purge().count == 1


@pytest.mark.parametrize("answer", [OSError("provider is down"), None, "yes"])
def test_hook_without_an_answer_leaves_entities_alone_and_is_asked_five_times(
    app: Relevo, times: Times, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each question may take as long as its time limit, and each would be a traceback in the log."""
    asked: list[str] = []

    def still_there(entity: Entity) -> bool:
        asked.append(entity.id)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    pool = app.pool("vms", still_there=still_there)
    for n in range(60):
        pool.add(f"vm-{n}")
    times.move(DAY)
    report = app.purge(dry_run=False)
    assert (report.count, [one.count for one in report.unknown], len(asked)) == (0, [60], 5)
    assert pool.counts() == {"pending": 60}
    assert "pool vms: unknown whether vm-0 still exists" in caplog.text
    assert "still_there failed 5 times in a row" in caplog.text
    assert "Traceback" not in caplog.text
    pool.still_there = None
    assert live(app).count == 60


def test_lock_is_kept_while_a_slow_provider_is_asked(app: Relevo, times: Times, server: Server) -> None:
    """Fifty answers of two seconds take longer than the lock lasts."""
    pool = app.pool("vms")
    left: list[int] = []

    def still_there(entity: Entity) -> bool:
        left.append(server.command("PTTL", pool.keys.key("leader")))
        server.command("PEXPIRE", pool.keys.key("leader"), 30_000)  # half a minute passes
        return True

    app.pool("vms", still_there=still_there)
    for n in range(5):
        pool.add(f"vm-{n}")
    times.move(DAY)
    assert app.purge(dry_run=False).count == 5
    assert all(ms > 30_000 for ms in left)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_purge_that_is_stopped_half_way_gives_its_lock_back(
    app: Relevo, times: Times, server: Server, is_blocking: bool
) -> None:
    def stop(entity: Entity) -> bool:
        raise KeyboardInterrupt

    async def hang(entity: Entity) -> bool:
        purging = asyncio.current_task()
        assert purging is not None
        purging.cancel()
        await asyncio.Event().wait()
        return True

    async def purge() -> None:
        try:
            await app.apurge(dry_run=False)
        finally:
            await app.aclose()

    pool = app.pool("vms", still_there=stop if is_blocking else hang)
    pool.add("vm-1")
    times.move(DAY)
    with pytest.raises(KeyboardInterrupt if is_blocking else asyncio.CancelledError):
        app.purge(dry_run=False) if is_blocking else asyncio.run(purge())
    assert server.command("EXISTS", pool.keys.key("leader")) == 0
    assert pool.counts() == {"pending": 1}
    pool.remove("vm-1")


def test_entity_that_moves_while_the_provider_is_asked_is_spared(app: Relevo, times: Times) -> None:
    pool = app.pool("vms")

    def still_there(entity: Entity) -> bool:
        if entity.id == "vm-1":
            pool.move("vm-1", "pending", "ready")
        elif entity.id == "vm-2":
            pool.move("vm-2", "pending", "ready")
            pool.move("vm-2", "ready", "pending")
        return True

    app.pool("vms", still_there=still_there)
    for n in range(4):
        pool.add(f"vm-{n}")
    times.move(2 * HOUR)
    report = app.purge(dry_run=False)
    assert ([one.id for one in report.purged], report.spared) == (["vm-0", "vm-3"], 2)
    assert pool.counts() == {"ready": 1, "pending": 1}


def test_tables_of_pools_may_have_states_of_their_own(times: Times) -> None:
    ages = {"pools": {"disks": {"attached": {"age": "1h", "then": "detached"}, "pending": "never"}}}
    app = times.another(purge_ages=ages)
    pool = app.pool("disks")
    pool.add("d1", "attached")
    pool.add("d2")
    times.move(10 * DAY)
    assert reasons(live(app)) == {"attached detached stale_attached": 1}
    assert pool.counts() == {"detached": 1, "pending": 1}


def test_many_entities_are_purged_in_parts(app: Relevo, times: Times) -> None:
    pool = app.pool("vms")
    for n in range(230):
        pool.add(f"vm-{n:03}", "ready" if n % 2 else "pending", kind="pool" if n % 3 else "")
    times.move(DAY)
    report = live(app)
    assert report.count == 115 + sum(n % 2 == 1 and n % 3 == 0 for n in range(230))
    assert live(app).count == 0


def test_one_queue_or_pool_can_be_meant(app: Relevo, vms: Pool, times: Times) -> None:
    vms.add("vm-1")
    app.tasks["mail"].enqueue()
    app.tasks["mail"].using(queue="other").enqueue()
    times.move(DAY)
    assert {one.name for one in app.purge().purged} == {"default", "other", "vms"}
    assert {one.name for one in app.purge(queue="other").purged} == {"other"}
    assert {one.name for one in app.purge(queue=vms.queue).purged} == {"vms"}
    assert {one.name for one in app.purge(queue="vms").purged} == {"vms"}
    with pytest.raises(OptionError):
        app.purge(queue="")
    assert app.queue("default").clear() + app.queue("other").clear() == 2


# report, log and workers


def test_report_and_log_tell_count_age_and_reason(app: Relevo, times: Times, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "relevo.purge")
    for n in range(3):
        app.tasks["mail"].enqueue(n)
    times.move(DAY + HOUR)
    report = app.purge()
    (group,) = report.groups()
    assert (group.count, group.reason, group.what) == (3, "stale_ready", "cancelled")
    assert group.bytes == report.bytes > 0
    line = f"queue default: 3 of state ready would be cancelled: stale_ready, the oldest for 1d1h{MORE}, "
    assert re.search(line, caplog.text)
    assert app.queue().stats().ready == 3, "a dry run changes nothing"
    app.purge(dry_run=False)
    assert "3 of state ready are cancelled" in caplog.text
    assert msgspec.json.decode(msgspec.json.encode(report))["dry_run"] is True


async def test_workers_purge_by_themselves_once_per_interval_also_on_a_full_server(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path / "full") as full:
        app = Relevo("full", url=full.url, env="test", purge="on", purge_ages={"pools": {"*": {"completed": "1ms"}}})
        await app.pool("vms").aadd("vm-1", "completed")
        await aeventually(lambda: app.purge().count == 1)
        full.command("CONFIG", "SET", "maxmemory", "1")
        reports = [await purge_duty(app.engine, worker).run_once() for worker in ("w1", "w2", "w1")]
        full.command("CONFIG", "SET", "maxmemory", "0")
        assert [report and report.count for report in reports] == [1, None, None], "once per interval"
        await app.aclose()


async def test_purge_that_the_server_refuses_to_a_worker_is_logged_once(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(engine, directory=tmp_path / "strict") as strict:
        app = Relevo("strict", url=strict.url, env="test", purge="on", purge_every="10ms")
        await app.pool("vms").aadd("vm-1")
        strict.command("ACL", "SETUSER", "default", "-set")
        purger, refused = purge_duty(app.engine, "w1"), "purge: the server refused"
        running = asyncio.create_task(repeat(purger))
        await aeventually(lambda: refused in caplog.text)
        strict.command("ACL", "SETUSER", "default", "+set")
        await aeventually(lambda: strict.command("EXISTS", app.engine.keys.turn("purge")) == 1)
        running.cancel()
        await asyncio.wait([running])
        assert caplog.text.count(refused) == 1
        await app.aclose()


async def test_worker_purges_while_it_works(times: Times) -> None:
    # In this test the server's clock is a day ahead of that of the client, which makes the ids.
    app = times.another(purge="on", purge_every="100ms", purge_ages={"queues": {"default": {"ready": "never"}}})
    ran: list[int] = []

    @app.task(name="count")
    async def count(n: int) -> None:
        ran.append(n)

    pool = app.pool("vms")
    await pool.aadd("vm-1")
    stuck = await count.using(queue="elsewhere").aenqueue(1)
    times.move(DAY)
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    job = await count.aenqueue(2)
    await job.aresult(timeout=PATIENCE)
    await aeventually(lambda: stuck.state() is State.CANCELLED)
    await aeventually(lambda: [one.entity for one in pool.dead()] == ["vm-1"])
    worker.stop()
    await running
    assert ran == [2]
    await app.aclose()


async def test_purge_of_a_worker_survives_cancelled_checks(
    times: Times, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = times.another(purge="on", purge_every="10ms")
    runs: list[int] = []

    async def run_once(duty: UpkeepDuty) -> None:
        if duty.name == "purge":
            runs.append(1)
        if len(runs) == 1:
            raise asyncio.CancelledError

    monkeypatch.setattr(UpkeepDuty, "run_once", run_once)
    async with working(app):
        await aeventually(lambda: len(runs) >= 2)
    assert "purge failed; it starts anew" in caplog.text


async def test_workers_only_report_what_they_would_purge_when_they_observe(
    times: Times, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "relevo.purge")
    app = times.another(purge="observe", purge_every="100ms")
    pool = app.pool("vms")
    await pool.aadd("vm-1")
    times.move(2 * HOUR)
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await aeventually(lambda: "pool vms: 1 of state pending would be dead" in caplog.text)
    worker.stop()
    await running
    assert await pool.acounts() == {"pending": 1}
    await app.aclose()
