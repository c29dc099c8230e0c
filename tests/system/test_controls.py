"""Pauses and limits: set, listed and removed by Python and by the command, and obeyed by workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from relevo import Relevo, State
from relevo.audit.trail import whoami
from relevo.engine.pauses import ends_of, note_of, read_pause
from relevo.errors import OptionError
from relevo.queues.known import not_known
from relevo.worker import consumer as lane
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.shell import Output, relevo
from tests.system.timed import HOUR, MINUTE, Times, noting
from tests.working import drain, drained, working


def charge_in(app: Relevo, **options: Any) -> Any:
    @app.task(name="shop.charge", **options)
    async def charge(number: int = 0, seconds: float = 0.0) -> int:
        await asyncio.sleep(seconds)
        return number

    return charge


# pauses


async def test_worker_is_woken_by_the_end_of_a_pause(app: Relevo, only_woken: None) -> None:
    charge = charge_in(app)
    queue = app.queue()
    async with working(app):
        assert await (await charge.aenqueue(1)).aresult(timeout=PATIENCE) == 1
        for scope in ({}, {"task": charge}, {"tenant": "acme"}):
            assert await queue.apause(**scope, until=0.4) is True
            job = await charge.using(tenant="acme").aenqueue(2)
            assert await job.aresult(timeout=PATIENCE) == 2, scope
            assert await queue.apauses() == []
            assert await queue.aresume(**scope) is False


@pytest.fixture
def only_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that do not ask by themselves whether there is something to do."""
    monkeypatch.setattr(lane, "REST_EVERY", 3600.0)


def test_pauses_are_listed_with_author_reason_and_end(app: Relevo) -> None:
    charge = charge_in(app, queue="money")
    queue = app.queue("money")
    soon, before_ms = datetime.now(UTC) + timedelta(hours=2), app.engine.run(app.engine.now_ms())
    assert queue.pause(reason="new schema", by="ana@desk", until="2h") is True
    assert queue.pause(reason="still", by="luis@desk", until=soon) is False, "the newer one replaces it"
    queue.pause(task=charge, reason="bank is down")
    queue.pause(tenant="acme", by="billing")
    rows = {one.kind: one for one in app.pauses()}
    assert list(rows) == ["queue", "task", "tenant"]
    whole = rows["queue"]
    assert (whole.queue, whole.name, whole.reason, whole.by) == ("money", "money", "still", "luis@desk")
    assert whole.until_ms == int(soon.timestamp() * 1000)
    assert before_ms <= whole.since_ms <= app.engine.run(app.engine.now_ms())
    assert (rows["task"].name, rows["task"].reason, rows["task"].until_ms) == ("shop.charge", "bank is down", None)
    assert (rows["tenant"].name, rows["tenant"].by) == ("acme", "billing")
    assert queue.pauses() == app.pauses()
    assert queue.stats().paused
    assert [queue.resume(), queue.resume(task="shop.charge"), queue.resume(tenant="acme")] == [True, True, True]
    assert app.pauses() == []


async def test_a_task_is_paused_in_all_queues_of_the_app(app: Relevo) -> None:
    charge, queues = charge_in(app), ["default", "one", "two"]
    jobs = [await charge.using(queue=name).aenqueue(1) for name in ("one", "two")]
    assert await app.apause(task=charge, reason="bank is down", until="1h") == queues
    assert await app.apause(task="shop.charge") == []
    assert {(one.queue, one.kind, one.name) for one in await app.apauses()} == {
        (name, "task", "shop.charge") for name in queues
    }
    await drain(app, queues=["one", "two"])
    assert [await job.astate() for job in jobs] == [State.WAITING, State.WAITING]
    assert await app.aresume(task=charge) == queues
    await drain(app, queues=["one", "two"])
    assert [await job.aresult(timeout=PATIENCE) for job in jobs] == [1, 1]


def test_a_tenant_is_paused_in_all_queues_of_the_app(app: Relevo) -> None:
    charge_in(app).using(queue="one").enqueue(1)
    assert app.pause(tenant="acme") == ["default", "one"]
    assert app.resume(tenant="acme") == ["default", "one"]
    with pytest.raises(OptionError, match="which task or tenant"):
        app.pause()
    app.queue("one").clear()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"until": "0s"}, "until: a time to come is needed"),
    ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, "which has passed"),
    ({"until": datetime(2040, 1, 1)}, "no time zone"),
    ({"until": datetime(2999, 1, 1, tzinfo=UTC)}, "up to the year 2200"),
    ({"until": "two hours"}, "until: not a duration"),
    ({"reason": "a\nb"}, "reason: printable text"),
    ({"reason": "x" * 501}, "at most 500 characters"),
    ({"by": 7}, "by: printable text"),
    ({"task": "x", "tenant": "y"}, "a tenant or a task"),
    ({"task": 7}, "task: a task or its name"),
]


def test_a_pause_that_makes_no_sense_is_refused_and_changes_nothing(app: Relevo) -> None:
    for given, wrong in WRONG:
        with pytest.raises(OptionError, match=wrong):
            app.queue().pause(**given)
    assert not app.queue().stats().paused
    assert app.queue().pauses() == []


def test_malformed_pause_is_ignored() -> None:
    assert read_pause("q", "t:x", f"5 9 {note_of('why', 'ana').decode()}") is not None
    for name, text in (("z:x", "5 9 {}"), ("t:x", "?"), ("t:x", "5 9 no json"), ("t:x", "")):
        assert read_pause("q", name, text) is None
    assert ends_of(timedelta(seconds=1), 1000) == 2000


# schedules


def test_schedule_paused_until_a_time_goes_on_with_the_first_tick_after_it(times: Times) -> None:
    """Ticks of the pause are not made up for."""
    app = times.app
    ticks = noting(app, cron="0 * * * *", missed="all")
    times.move_past(HOUR)  # else the next one could come by itself
    drained(app)
    times.move_past(HOUR)
    drained(app)
    assert len(ticks) == 1
    handle = app.schedules.get("note")
    assert handle.pause(reason="holiday", by="ana", until="3h") is True
    assert handle.pause(reason="holiday", by="ana", until="3h") is False
    info = handle.info()
    assert info.paused_ms and info.until_ms and info.until_ms - info.paused_ms == pytest.approx(3 * HOUR, abs=MINUTE)
    assert info.next_ms == ticks[0] + 4 * HOUR
    (row,) = app.pauses()
    assert (row.kind, row.name, row.reason, row.by) == ("schedule", "note", "holiday", "ana")
    assert row.until_ms == info.until_ms
    for _ in range(3):
        times.move_past(HOUR)
        drained(app)
    assert len(ticks) == 1
    times.move_past(HOUR)
    assert app.pauses() == []
    assert handle.info().paused_ms is None
    drained(app)
    assert ticks[1:] == [ticks[0] + 4 * HOUR]
    times.move_past(HOUR)
    drained(app)
    assert len(ticks) == 3
    assert handle.resume() is False


def test_a_schedule_that_is_changed_while_it_is_paused_stays_so_until_the_end(times: Times) -> None:
    app = times.app
    ticks = noting(app, cron="0 * * * *")
    times.move_past(HOUR)  # else the next one could come by itself
    drained(app)
    handle = app.schedules.get("note")
    times.move_past(HOUR, by=10 * MINUTE)
    drained(app)
    handle.pause(until="2h", reason="why")
    handle.edit(cron="30 * * * *")
    times.move(HOUR)
    drained(app)
    assert len(ticks) == 1
    assert [one.reason for one in app.pauses()] == ["why"]
    times.move(HOUR + 25 * MINUTE)
    drained(app)
    assert len(ticks) == 2
    assert handle.resume() is False


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


# limits


async def test_limits_of_a_queue_and_of_its_tasks_hold_for_all_workers(app: Relevo) -> None:
    running: dict[str, int] = {"a": 0, "b": 0}
    most = {"a": 0, "b": 0, "both": 0}
    are_full = asyncio.Event()

    def made(name: str) -> Any:
        async def step() -> None:
            running[name] += 1
            most[name] = max(most[name], running[name])
            most["both"] = max(most["both"], sum(running.values()))
            if most["a"] >= 2 and most["both"] >= 5:  # as many as may
                are_full.set()
            await are_full.wait()
            await asyncio.sleep(0.001)
            running[name] -= 1

        return app.task(name=name)(step)

    a, b = made("a"), made("b")
    queue = app.queue()
    await queue.alimit(concurrency=5)
    await queue.alimit(task=a, concurrency=2)
    await a.aenqueue_many([((), {})] * 60)
    await b.aenqueue_many([((), {})] * 60)
    async with working(app, concurrency=8), working(app, concurrency=8):
        await aeventually(lambda: _is_done(app, 120))
    assert most["a"] == 2
    assert most["both"] == 5
    limits = [(one.kind, one.task, one.concurrency, one.running, one.parked) for one in await queue.alimits()]
    assert limits == [("queue", "", 5, 0, 0), ("task", "a", 2, 0, 0)]
    assert await queue.aunlimit() is True
    assert await queue.aunlimit(task="a") is True
    assert await queue.alimits() == []


async def _is_done(app: Relevo, count: int) -> bool:
    return (await app.queue().astats()).totals.get("done", 0) == count


async def test_worker_is_woken_by_a_single_job_of_a_limited_queue(app: Relevo, only_woken: None) -> None:
    charge = charge_in(app)
    await app.queue().alimit(concurrency=1)
    await app.queue().alimit(task=charge, rate=1000)
    async with working(app):
        for number in range(20):
            assert await (await charge.aenqueue(number)).aresult(timeout=PATIENCE) == number


# the command line


@pytest.fixture
def ask(app: Relevo, server: Server) -> Callable[..., Output]:
    """A command about the app of this test."""

    def ask(*arguments: str) -> Output:
        named = ("--name", app.name, "--env", app.settings.env)
        return relevo(*arguments, *named, url=server.url, RELEVO_PREFIX=app.settings.prefix)

    return ask


def test_the_command_pauses_and_resumes_and_leaves_a_trail(app: Relevo, ask: Callable[..., Output]) -> None:
    charge_in(app, queue="mail").enqueue(1)
    seen = ask("pause", "mail", "--reason", "new templates", "--until", "2h")
    assert (seen.code, seen.out) == (0, "paused queue mail\n"), seen
    assert ask("pause", "--task", "shop.charge").out == "paused task shop.charge in all queues\n"
    whole, task = [one for one in app.pauses() if one.queue == "mail"]
    assert (whole.reason, whole.by, task.by) == ("new templates", whoami(), whoami())
    assert whole.until_ms
    status = ask("status")
    assert status.code == 1
    assert re.search(r"mail +all of it +\S+ ago +in \S+ +\S+ +new templates", status.out), status.out
    assert "queue 'mail' is paused: its jobs wait until the pause expires, in 1h5" in status.out
    resumed = {"kind": "queue", "name": "mail", "queue": "mail", "resumed": ["mail"]}
    assert ask("resume", "mail", "--json").json == resumed
    assert ask("resume", "mail").out == "queue mail was not paused\n"
    deeds = [deed for deed in app.audit.list() if deed.app == app.name]
    assert {deed.via for deed in deeds} == {"cli"}
    assert [(deed.what, deed.count) for deed in deeds] == [
        ("queue.resume", 0), ("queue.resume", 1), ("task.pause", 2), ("queue.pause", 1),
    ]  # fmt: skip
    assert deeds[-1].about == {"queue": "mail", "reason": "new templates", "until": "2h"}


def test_the_command_limits_and_lists(app: Relevo, ask: Callable[..., Output]) -> None:
    charge_in(app, queue="mail").enqueue(1)
    assert ask("limit", "mail", "--concurrency", "50").out == "limited queue mail\n"
    app.queue("mail").limit(task="shop.charge", rate="10/s")
    app.queue("mail").pause(tenant="acme")
    listed = ask("limits")
    assert re.search(r"mail +the queue +50 ", listed.out), listed.out
    assert re.search(r"mail +task shop.charge .*10/s +10 ", listed.out)
    assert re.search(r"mail +tenant acme .*paused", listed.out)
    rows = ask("limits", "mail", "--json").json["items"]
    found = [(row["kind"], row["concurrency"], row["paused"]) for row in rows]
    assert found == [("queue", 50, False), ("task", None, False), ("tenant", None, True)]
    assert ask("limit", "mail", "--task", "shop.charge", "--remove", "--json").json["changed"] is True
    assert [one.kind for one in app.queue("mail").limits()] == ["queue", "tenant"]
    assert {deed.what for deed in app.audit.list() if deed.app == app.name} == {"queue.limit", "task.unlimit"}


WRONG_COMMANDS = [
    (("pause",), 2, "what? Give a QUEUE, --task, --tenant or --schedule"),
    (("pause", "mial"), 2, "has no queue 'mial' in use, did you mean 'mail'"),
    (("pause", "mail", "--until", "soon"), 2, "argument --until: not a duration: 'soon'"),
    (("pause", "mail", "--until", "2031-05-01T08:00"), 2, "has no zone: write 2031-05-01T08:00:00+00:00, or"),
    (("pause", "mail", "--until", "2020-05-01T08:00Z"), 2, "found '2020-05-01 08:00:00+00:00', which has passed"),
    (("resume", "--schedule", "nightly"), 1, "no schedule 'nightly'"),
    (("limit", "mail"), 2, "give --concurrency, --rate or both; or --remove"),
    (("limit", "mail", "--rate", "fast"), 2, "not a rate: 'fast'"),
    (("limit", "mail", "--concurrency", "0"), 2, "concurrency: a whole number from 1 to 1,000,000 is needed"),
]


def test_wrong_commands_are_refused_with_a_reason(app: Relevo, ask: Callable[..., Output]) -> None:
    charge_in(app, queue="mail").enqueue(1)
    for arguments, code, wrong in WRONG_COMMANDS:
        seen = ask(*arguments)
        assert seen.code == code, (arguments, seen)
        assert wrong in seen.err, (arguments, seen)
    assert app.pauses() == []


@pytest.mark.parametrize("trace", ["ready", "scheduled", "ended", "limit", "pause", "worker", "code"])
def test_a_task_or_tenant_is_known_by_its_traces(app: Relevo, ask: Callable[..., Output], trace: str) -> None:
    """And where nothing is known of it, it is refused: most often its name is misspelt."""
    charge = charge_in(app, queue="mail")
    if trace == "ready":
        charge.using(tenant="acme").enqueue(1)
    elif trace == "scheduled":
        charge.using(tenant="acme", delay="1h").enqueue(1)
    elif trace == "ended":
        charge.using(tenant="acme").enqueue(1)
        drained(app)
    elif trace == "worker":
        with working(app):
            charge.using(tenant="acme").enqueue(1).result(timeout=PATIENCE)
    else:
        app.task(name="other", queue="mail")(lambda: None).using(tenant="umbra").enqueue()
    if trace == "limit":
        app.queue("mail").limit(task="shop.charge", concurrency=1)
        app.queue("mail").limit("acme", concurrency=1)
    elif trace == "pause":
        app.queue("mail").pause(task="shop.charge")
        app.queue("mail").pause(tenant="acme")
    if trace == "code":
        assert not app.engine.run(not_known(app.engine, "task", "shop.charge", "mail"))
    else:
        for words in (("mail",), ()):
            assert ask("pause", *words, "--task", "shop.charge").code == 0
            assert ask("pause", *words, "--tenant", "acme").code == 0
    for action in (("pause",), ("resume",), ("limit", "--concurrency", "1"), ("limit", "--remove")):
        for kind, name, near in (("task", "charge", "shop.charge"), ("tenant", "acmee", "acme")):
            seen = ask(*action, "mail", f"--{kind}", name)
            assert seen.code == 2 and f"no {kind} {name!r} is known in queue 'mail'" in seen.err, seen
            assert trace == "code" or f"did you mean {near!r}?" in seen.err, seen
    assert {one.name for one in app.pauses()} <= {"shop.charge", "acme"}


def test_a_name_that_is_still_to_come_is_paused_and_limited_by_force(app: Relevo, ask: Callable[..., Output]) -> None:
    charge_in(app, queue="mail").enqueue(1)
    assert "--force if the name is right" in ask("pause", "mail", "--tenant", "umbra").err
    assert "--force" not in ask("resume", "mail", "--tenant", "umbra").err, "what is paused is known"
    assert ask("pause", "mail", "--tenant", "umbra", "--force").out == "paused tenant umbra in mail\n"
    assert ask("limit", "mail", "--task", "shop.refund", "--rate", "1/s", "--force").code == 0
    assert ask("resume", "mail", "--tenant", "umbra").out == "resumed tenant umbra in mail\n"
    assert ask("limit", "mail", "--task", "shop.refund", "--remove").code == 0


def test_nothing_is_paused_in_an_unknown_app(app: Relevo, ask: Callable[..., Output]) -> None:
    """Its name may be misspelt."""
    for words in (("pause", "--task"), ("resume", "--task"), ("pause", "--tenant")):
        seen = ask(*words, "shop.charge")
        assert seen.code == 2 and f"nothing is known of app '{app.name}'" in seen.err, words
    assert (app.pauses(), app.queues()) == ([], [])


def test_a_pool_is_neither_paused_nor_limited(app: Relevo, ask: Callable[..., Output]) -> None:
    """It is listed among the queues once it has dead letters, and hands nothing out."""
    vms = app.pool("vms")
    vms.add("vm-1")
    vms.fail("vm-1", "no ip")
    assert vms.queue in app.queues()
    queue = app.queue(vms.queue)
    for call in (queue.pause, queue.resume, partial(queue.limit, concurrency=1), queue.unlimit):
        with pytest.raises(OptionError, match="is a pool"):
            call()
    for words in (("pause",), ("resume",), ("limit", "--concurrency", "1"), ("limit", "--remove")):
        seen = ask(words[0], vms.queue, *words[1:])
        assert seen.code == 2 and "is a pool" in seen.err, seen
    assert (app.pauses(), queue.limits(), queue.stats().paused) == ([], [], False)
