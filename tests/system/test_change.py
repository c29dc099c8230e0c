"""`job.change()`, and names whose waiting job is replaced: `on_conflict="replace"`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo import Job, Relevo, State
from relevo.errors import CannotChange, OptionError, PayloadError, UnknownJob
from relevo.testing import bind
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.working import drain, drained, working


@pytest.fixture
def ran(app: Relevo) -> list[Any]:
    """What the task `note` was called with."""
    ran: list[Any] = []

    @app.task(name="note")
    async def note(what: str, times: int = 1) -> str:
        ran.append((what, times) if times != 1 else what)
        return what

    return ran


def note(app: Relevo, *args: Any, **options: Any) -> Job[Any]:
    return app.tasks["note"].using(**options).enqueue(*args)


def test_a_waiting_job_gets_another_priority(app: Relevo, ran: list[Any]) -> None:
    first, second = note(app, "first"), note(app, "second")
    second.change(priority=1)
    assert second.info().priority == 1
    drained(app)
    assert ran == ["second", "first"]
    assert first.state() is State.DONE


def test_a_waiting_job_gets_other_arguments_and_keeps_its_place(app: Relevo, ran: list[Any]) -> None:
    first, _ = note(app, "first"), note(app, "second")
    first.change(args=["changed"], kwargs={"times": 2})
    assert (first.info().args, first.info().kwargs) == (["changed"], {"times": 2})
    drained(app)
    assert ran == [("changed", 2), "second"]
    assert first.result(timeout=PATIENCE) == "changed"


def test_a_job_is_put_off_and_brought_forward(app: Relevo, ran: list[Any], server: Server) -> None:
    with bind(app, url=server.url) as kit:
        now, later = note(app, "now"), note(app, "later", delay="1h")
        now.change(delay="10m")
        later.change(delay=0)
        kit.drain()
        assert ran == ["later"]
        assert now.state() is State.SCHEDULED
        kit.clock.move("11m")
        kit.drain()
        assert ran == ["later", "now"]


def test_what_is_not_changed_stays(app: Relevo, ran: list[Any], server: Server) -> None:
    with bind(app, url=server.url) as kit:
        job = note(app, "x", delay="10m", tenant="acme", weight=2, tags=["a"], retries=7, name="n")
        before = job.info()
        job.change(priority=3)
        after = job.info()
        assert (after.due_ms, after.tenant, after.tags, after.name) == (before.due_ms, "acme", ("a",), "n")
        assert after.priority == 3
        kit.clock.move("11m")
        kit.drain()
    assert ran == ["x"]


def test_a_job_that_waits_for_others_is_changed(app: Relevo, ran: list[Any]) -> None:
    parent = note(app, "parent")
    child, other = note(app, "child", depends_on=[parent]), note(app, "other", depends_on=[parent])
    other.change(priority=5, args=["changed"])
    assert other.state() is State.WAITING
    drained(app)
    assert ran == ["parent", "changed", "child"]
    assert child.state() is State.DONE


def test_a_job_in_the_line_of_its_tenant_is_changed(app: Relevo, ran: list[Any]) -> None:
    app.queue().pause(tenant="acme")
    jobs = [note(app, name, tenant="acme") for name in "ab"]
    drained(app)
    assert [job.state() for job in jobs] == [State.WAITING, State.WAITING]
    jobs[1].change(priority=1, args=["changed"])
    app.queue().resume(tenant="acme")
    drained(app)
    assert ran == ["changed", "a"]


async def test_a_job_that_runs_or_has_ended_or_never_was_is_refused(app: Relevo) -> None:
    gate = asyncio.Event()

    @app.task
    async def wait() -> None:
        await gate.wait()

    job = await wait.aenqueue()
    async with working(app):
        await aeventually(lambda: job.state() is State.RUNNING)
        with pytest.raises(CannotChange, match="has started") as refused:
            await job.achange(priority=1)
        assert refused.value.code == "started"
        gate.set()
        await job.aresult(timeout=PATIENCE)
    with pytest.raises(CannotChange, match="has ended") as refused:
        await job.achange(delay=5)
    assert refused.value.code == "ended"
    with pytest.raises(UnknownJob):
        await Job(app.engine, app.engine.new_id(), "default").achange(priority=1)


async def test_arguments_of_a_job_that_waits_for_its_retry_stay(app: Relevo) -> None:
    ran: list[int] = []

    @app.task(retries=1, backoff="1h")
    async def fail(n: int) -> None:
        ran.append(n)
        if len(ran) == 1:
            raise ValueError("once")

    job = await fail.aenqueue(1)
    await drain(app)
    assert await job.astate() is State.SCHEDULED
    with pytest.raises(CannotChange, match="has started"):
        await job.achange(args=[2])
    await job.achange(delay=0)
    await drain(app)
    assert ran == [1, 1]


def test_wrong_changes_are_refused_and_change_nothing(app: Relevo, ran: list[Any]) -> None:
    job = note(app, "x")
    with pytest.raises(OptionError, match="change: give priority"):
        job.change()
    with pytest.raises(OptionError, match="priority: a whole number"):
        job.change(priority=5000)
    with pytest.raises(PayloadError):
        job.change(args=[1, 2, 3])
    assert job.info().args == ["x"]
    job.cancel()


def test_a_signed_job_is_changed(app_factory: AppFactory) -> None:
    app = app_factory(signing_keys=["k1:" + "0123456789abcdef" * 2])
    ran: list[str] = []

    @app.task(name="note")
    async def record(what: str) -> None:
        ran.append(what)

    job = record.enqueue("x")
    job.change(args=["y"], priority=7)
    drained(app)
    assert (ran, job.state()) == (["y"], State.DONE)


# --- on_conflict


def test_the_waiting_job_of_a_name_is_replaced(app: Relevo, ran: list[Any], server: Server) -> None:
    with bind(app, url=server.url) as kit:
        first = note(app, "first", name="n", delay="10m")
        second = note(app, "second", name="n", delay="20m", priority=7, on_conflict="replace")
        assert (second == first, second.created) == (True, False)
        assert (second.info().args, second.info().priority) == (["second"], 7)
        kit.clock.move("11m")
        kit.drain()
        assert ran == []
        kit.clock.move("10m")
        kit.drain()
    assert ran == ["second"]


def test_a_free_name_makes_a_new_job(app: Relevo, ran: list[Any]) -> None:
    first = note(app, "first", name="n", on_conflict="replace")
    drained(app)
    second = note(app, "second", name="n", on_conflict="replace")
    assert (first.created, second.created, first == second) == (True, True, False)
    drained(app)
    assert ran == ["first", "second"]


async def test_a_job_that_runs_is_kept(app: Relevo) -> None:
    gate = asyncio.Event()
    ran: list[int] = []

    @app.task(unique=True)
    async def wait(n: int) -> None:
        ran.append(n)
        await gate.wait()

    named = wait.using(name="n", on_conflict="replace")
    async with working(app):
        first = await named.aenqueue(1)
        await aeventually(lambda: first.state() is State.RUNNING)
        second = await named.aenqueue(2)
        assert (second == first, second.created) == (True, False)
        gate.set()
        await first.aresult(timeout=PATIENCE)
    assert ran == [1]


def test_many_jobs_replace_each_other_in_order(app: Relevo, ran: list[Any]) -> None:
    named = app.tasks["note"].using(name="n", on_conflict="replace")
    jobs = named.enqueue_many([((word,), {}) for word in ("a", "b", "c")])
    assert len(set(jobs)) == 1
    drained(app)
    assert ran == ["c"]


def test_replace_without_a_name_is_refused(app: Relevo, ran: list[Any]) -> None:
    with pytest.raises(OptionError, match="on_conflict='replace' needs a name"):
        app.tasks["note"].using(on_conflict="replace")
    with pytest.raises(OptionError, match="'keep', 'replace' or 'add'"):
        app.tasks["note"].using(name="n", on_conflict="fail")


def test_a_job_is_added_where_its_name_is_taken(app: Relevo, ran: list[Any]) -> None:
    """The name stays with the first one, and is free when that has ended."""
    first, second = (note(app, word, name="n", on_conflict="add") for word in ("first", "second"))
    assert (first.created, second.created, first == second) == (True, True, False)
    assert (second.info().name, note(app, "third", name="n")) == ("n", first)
    many = app.tasks["note"].using(name="n", on_conflict="add").enqueue_many([(("fourth",), {}), (("fifth",), {})])
    assert len({first, second, *many}) == 4
    drained(app)
    assert ran == ["first", "second", "fourth", "fifth"]
    assert note(app, "sixth", name="n").created
    drained(app)


def test_add_needs_a_name_that_is_held_until_the_job_is_done(app: Relevo, ran: list[Any]) -> None:
    for options in ({}, {"unique": True}, {"name": "n", "unique": "1h"}, {"name": "n", "unique": False}):
        with pytest.raises(OptionError, match="on_conflict='add' needs a name="):
            app.tasks["note"].using(on_conflict="add", **options)
