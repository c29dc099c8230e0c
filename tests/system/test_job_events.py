"""`job.events()` and `app.events()`: what happens to jobs, as it happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from relevo import JobEvent, Relevo, State, current_job
from relevo.engine.job_events import is_watched
from relevo.errors import ConfigurationError, OptionError, UnknownJob
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.working import drain, working


async def collected(events: AsyncGenerator[JobEvent, None], most: int = 1000) -> list[JobEvent]:
    """All events until the end, or so many."""
    found: list[JobEvent] = []
    async with asyncio.timeout(PATIENCE), contextlib.aclosing(events):
        async for event in events:
            found.append(event)
            if len(found) == most:
                break
    return found


async def test_a_job_is_followed_from_its_start_to_its_end(app: Relevo) -> None:
    gate = asyncio.Event()

    @app.task(name="report")
    async def report() -> str:
        print("page 1")
        current_job().progress(0.5, "half")
        await gate.wait()
        print("page 2")
        current_job().progress(1)
        return "done"

    job = await report.aenqueue()
    following = asyncio.create_task(collected(job.events()))
    await aeventually(lambda: app.engine.run(is_watched(app.engine.keys_of("default"))))
    async with working(app):
        await aeventually(lambda: job.progress() is not None)
        gate.set()
        found = await following
    assert {event.job for event in found} == {job.id}
    assert found[0].kind == "started"
    assert (found[0].task, found[0].attempt, found[0].queue) == ("report", 1, "default")
    assert [(one.fraction, one.message) for one in found if one.kind == "progress"] == [(0.5, "half"), (1.0, "")]
    assert "".join(one.text for one in found if one.kind == "logs") == "page 1\npage 2\n"
    assert (found[-1].kind, found[-1].state) == ("ended", State.DONE)
    assert [one.kind for one in found].count("ended") == 1


async def test_who_comes_late_begins_with_the_latest_progress(app: Relevo) -> None:
    gate = asyncio.Event()

    @app.task
    async def slow() -> None:
        current_job().progress(0.25, "a quarter")
        await gate.wait()
        current_job().progress(0.75)

    async with working(app):
        job = await slow.aenqueue()
        await aeventually(lambda: job.progress() is not None)
        events = job.events()
        first = await anext(events)
        assert (first.kind, first.fraction, first.message) == ("progress", 0.25, "a quarter")
        gate.set()
        rest = await collected(events)
    assert [one.fraction for one in rest if one.kind == "progress"] == [0.75]
    assert rest[-1].state is State.DONE


async def test_retries_and_the_error_are_told(app: Relevo) -> None:
    @app.task(retries=1, backoff=0.0)
    def fail() -> None:
        raise ValueError("no luck")

    job = await fail.aenqueue()
    following = asyncio.create_task(collected(job.events()))
    await aeventually(lambda: app.engine.run(is_watched(app.engine.keys_of("default"))))
    async with working(app):
        found = await following
    kinds = [one.kind for one in found if one.kind != "logs"]
    assert kinds == ["started", "retried", "started", "ended"]
    retried = next(one for one in found if one.kind == "retried")
    assert retried.error == "ValueError: no luck"
    assert retried.attempt == 1
    assert retried.due_ms
    assert (found[-1].state, found[-1].reason, found[-1].error) == (
        State.DEAD,
        "retries_exhausted",
        "ValueError: no luck",
    )


async def test_a_job_that_has_ended_gives_its_end_alone(app: Relevo) -> None:
    @app.task
    async def echo() -> int:
        return 1

    job = await echo.aenqueue()
    await drain(app)
    (end,) = await collected(job.events())
    assert (end.kind, end.state) == ("ended", State.DONE)
    cancelled = await echo.aenqueue()
    following = asyncio.create_task(collected(cancelled.events()))
    await cancelled.acancel()
    (end,) = await following
    assert end.state is State.CANCELLED
    with pytest.raises(UnknownJob):
        await collected(type(job)(app.engine, app.engine.new_id(), "default").events())


async def test_all_jobs_of_an_app_are_followed_with_filters(app: Relevo) -> None:
    @app.task(name="mail", queue="mail")
    async def mail(n: int) -> int:
        return n

    @app.task(name="pay", retries=0)
    async def pay(n: int) -> int:
        if n == 2:
            raise ValueError("no")
        return n

    before = [await mail.aenqueue(0), await pay.aenqueue(0)]  # so that both queues are known
    await drain(app, queues=["default", "mail"])
    assert all([await job.astate() is State.DONE for job in before])
    everything = asyncio.create_task(collected(app.events(kinds=["ended"]), 3))
    mails = asyncio.create_task(collected(app.events(queue="mail", kinds=["started", "ended"]), 2))
    pays = asyncio.create_task(collected(app.events(task=pay, kinds=["ended"]), 2))
    await aeventually(lambda: listening(app) >= 5)
    async with working(app, queues=["default", "mail"]):
        jobs = [await mail.aenqueue(1), await pay.aenqueue(1), await pay.aenqueue(2)]
        assert {(one.job, one.state) for one in await everything} == {
            (jobs[0].id, State.DONE),
            (jobs[1].id, State.DONE),
            (jobs[2].id, State.DEAD),
        }
        assert [(one.kind, one.job, one.task) for one in await mails] == [
            ("started", jobs[0].id, "mail"),
            ("ended", jobs[0].id, "mail"),
        ]
        assert {one.job for one in await pays} == {jobs[1].id, jobs[2].id}


async def test_a_job_that_is_cancelled_before_it_starts_is_told_to_who_follows_the_app(app: Relevo) -> None:
    @app.task(name="echo")
    async def echo() -> None: ...

    job = await echo.aenqueue()
    coming = asyncio.create_task(collected(app.events(task="echo"), 1))
    await aeventually(lambda: app.engine.run(is_watched(app.engine.keys_of("default"))))
    await job.acancel()
    (end,) = await coming
    assert (end.kind, end.job, end.state) == ("ended", job.id, State.CANCELLED)


def listening(app: Relevo) -> int:
    return sum(map(len, app.engine.client.inbox().listeners._calls.values()))


async def test_a_worker_that_runs_already_hears_of_the_first_watcher_and_of_the_last(app: Relevo) -> None:
    @app.task
    async def echo(n: int) -> int:
        return n

    keys = app.engine.keys_of("default")
    async with working(app) as worker:
        await (await echo.aenqueue(0)).aresult(PATIENCE)
        (consumer,) = worker.consumers
        await aeventually(lambda: not consumer.events.is_on)
        events = app.events(kinds=["ended"])
        coming = asyncio.create_task(anext(events))
        await aeventually(lambda: consumer.events.is_on)
        job = await echo.aenqueue(1)
        assert (await coming).job == job.id
        await events.aclose()
        assert not app.engine.run(is_watched(keys))
        await (await echo.aenqueue(2)).aresult(PATIENCE)
        await aeventually(lambda: not consumer.events.is_on)


async def test_a_broken_connection_loses_no_end(app_factory: AppFactory, server: Server) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        app = app_factory(url=proxy.url)

        @app.task
        async def echo(n: int) -> int:
            return n

        job = await echo.aenqueue(1)
        following = asyncio.create_task(collected(job.events()))
        await aeventually(lambda: app.engine.run(is_watched(app.engine.keys_of("default"))))
        proxy.reset_all()
        async with working(app):
            assert (await following)[-1].state is State.DONE


async def test_what_was_said_last_is_told_though_its_events_were_lost(app: Relevo) -> None:
    gate = asyncio.Event()

    @app.task
    async def report() -> None:
        print("page 1")
        current_job().progress(0.5)
        await gate.wait()
        print("page 2")
        current_job().progress(1, "all")

    job = await report.aenqueue()
    events = job.events()
    async with working(app):
        seen = [await anext(events)]
        while "progress" not in {one.kind for one in seen}:
            seen.append(await anext(events))
        await app.engine.arun(Call([b"UNLINK", app.engine.keys_of("default").key("watching")]))  # nothing is published
        gate.set()
        seen += await collected(events)
    assert [(one.fraction, one.message) for one in seen if one.kind == "progress"] == [(0.5, ""), (1.0, "all")]
    assert "".join(one.text for one in seen if one.kind == "logs") == "page 1\npage 2\n"
    assert [one.kind for one in seen].count("ended") == 1


async def test_a_process_that_follows_a_job_and_the_app_gets_each_event_once(app: Relevo) -> None:
    @app.task(name="report")
    async def report() -> None:
        print("page 1")
        current_job().progress(1)

    job = await report.aenqueue()
    of_app = asyncio.create_task(collected(app.events(kinds=["started"]), most=1))
    of_job = asyncio.create_task(collected(job.events()))
    watching = app.engine.keys_of("default").key("watching")
    await aeventually(lambda: app.engine.run(Call([b"HLEN", watching])) == 2)
    async with working(app):
        found = await of_job
    await of_app
    assert [one.kind for one in found] == ["started", "logs", "progress", "ended"]


async def test_who_follows_again_soon_after_gets_events(app: Relevo) -> None:
    @app.task
    async def echo() -> None: ...

    async def followed() -> list[JobEvent]:
        following = asyncio.create_task(collected(app.events(kinds=["ended"]), most=1))
        await aeventually(lambda: app.engine.run(is_watched(app.engine.keys_of("default"))))
        await echo.aenqueue()
        return await following

    async with working(app):
        assert len(await followed()) == 1
        await (await echo.aenqueue()).aresult(PATIENCE)  # nobody follows: the worker stops publishing
        assert len(await followed()) == 1


def test_a_script_watches_a_job(app: Relevo) -> None:
    @app.task
    def report(pages: int) -> None:
        print("pages:", pages)

    job = report.enqueue(3)
    kinds = []
    with working(app):
        for event in job.watch():
            kinds.append(event.kind)
    assert kinds[-1] == "ended"


async def test_watch_is_refused_where_an_event_loop_runs(app: Relevo) -> None:
    @app.task
    async def echo() -> None: ...

    job = await echo.aenqueue()
    with pytest.raises(ConfigurationError, match=r"async for event in ….events\(\)"):
        next(job.watch())
    await job.acancel()


def test_filters_that_match_nothing_are_refused(app: Relevo) -> None:
    with pytest.raises(OptionError, match="no kind 'finished'"):
        app.events(kinds=["finished"])  # type: ignore[list-item]
