"""`as_completed`: jobs in the order in which they end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from relevo import Relevo, Workflow, as_completed, chain
from relevo.errors import JobFailed, OptionError, ResultTimeout, UnknownJob
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.working import drain, drained, working


async def test_jobs_come_in_the_order_in_which_they_end(app: Relevo) -> None:
    gates = {name: asyncio.Event() for name in "abc"}

    @app.task
    async def wait_for(name: str) -> str:
        await gates[name].wait()
        return name

    async with working(app):
        jobs = [await wait_for.aenqueue(name) for name in "abc"]
        gates["b"].set()
        came = []
        async for job in as_completed(jobs, timeout=PATIENCE):
            came.append(await job.aresult(timeout=0))
            if len(came) == 1:
                gates["c"].set()
            elif len(came) == 2:
                gates["a"].set()
    assert came == ["b", "c", "a"]


def test_a_script_gets_each_job_once_with_its_outcome(app: Relevo) -> None:
    @app.task(retries=0)
    def halve(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n // 2

    jobs = halve.enqueue_many([((n,), {}) for n in range(250)])
    with working(app):
        found = list(as_completed(jobs, timeout=PATIENCE))
    assert set(found) == set(jobs)
    assert len(found) == 250
    assert halved(found[0]) in (None, *range(125))
    assert sorted(n for job in found if (n := halved(job)) is not None) == list(range(125))


def halved(job: object) -> int | None:
    try:
        return job.result(timeout=0)  # type: ignore[attr-defined, no-any-return]
    except JobFailed:
        return None


async def test_jobs_that_have_ended_or_never_existed_come_at_once(app: Relevo) -> None:
    @app.task
    async def echo(n: int) -> int:
        return n

    job = await echo.aenqueue(1)
    other = await echo.aenqueue(2)
    await drain(app)
    nowhere = app.engine.new_id()
    unknown = type(job)(app.engine, nowhere, "default")
    found = [one async for one in as_completed([job, unknown, other], timeout=PATIENCE)]
    assert set(found) == {job, unknown, other}
    assert await job.aresult(timeout=0) == 1
    with pytest.raises(UnknownJob):
        await unknown.aresult(timeout=PATIENCE)
    found = await asyncio.to_thread(list, as_completed([job, unknown], timeout=PATIENCE))
    assert {one.id for one in found} == {job.id, nowhere}


def test_time_that_is_up_says_how_many_have_not_ended(app: Relevo) -> None:
    @app.task
    async def echo(n: int) -> int:
        return n

    first, second = echo.enqueue(1), echo.enqueue(2)
    drained(app)
    third = echo.enqueue(3)
    came = []
    with pytest.raises(ResultTimeout, match=r"1 of 3 jobs have not ended within 0.05 s; they go on"):
        for job in as_completed([first, second, third], timeout=0.05):
            came.append(job)
    assert set(came) == {first, second}

    async def again() -> None:
        async for _ in as_completed([first, third], timeout=0.05):
            pass

    with pytest.raises(ResultTimeout, match="1 of 2 jobs"):
        asyncio.run(again())
    third.cancel()


def test_workflows_come_with_their_results(app: Relevo) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    flows: list[Workflow[int]] = [chain(add.s(n, 1), add.s(1)).enqueue() for n in range(5)]
    with working(app):
        assert sorted(flow.result() for flow in as_completed(flows, timeout=PATIENCE)) == [2, 3, 4, 5, 6]


def test_a_loop_that_is_left_early_leaves_nothing_that_waits(app: Relevo) -> None:
    @app.task
    async def echo(n: int) -> int:
        return n

    jobs = echo.enqueue_many([((n,), {}) for n in range(5)])
    drained(app)
    for _ in as_completed([*jobs, echo.enqueue(9)], timeout=PATIENCE):
        break
    inbox = app.engine.client._inbox
    assert not inbox._waiting
    drained(app)


async def test_a_broken_connection_loses_no_end(app_factory: AppFactory, server: Server) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        await cut_while_waiting(app_factory(url=proxy.url), proxy)


async def cut_while_waiting(app: Relevo, proxy: Proxy) -> None:

    @app.task
    async def echo(n: int) -> int:
        return n

    jobs = [await echo.aenqueue(n) for n in range(20)]
    came: list[int] = []

    async def collect() -> None:
        async for job in as_completed(jobs, timeout=PATIENCE):
            came.append(await job.aresult())

    task = asyncio.create_task(collect())
    inbox = app.engine.client._here().inbox
    await aeventually(lambda: len(inbox._waiting) == 20 and all(one.has_begun for one in inbox._waiting.values()))
    proxy.reset_all()
    await asyncio.to_thread(drained, app)
    await task
    assert sorted(came) == list(range(20))


def test_threads_wait_beside_each_other(app: Relevo) -> None:
    @app.task
    async def echo(n: int) -> int:
        return n

    jobs = echo.enqueue_many([((n,), {}) for n in range(30)])
    came: list[list[int]] = []

    def collect() -> None:
        came.append(sorted(job.result() for job in as_completed(list(jobs), timeout=PATIENCE)))

    threads = [threading.Thread(target=collect) for _ in range(3)]
    for thread in threads:
        thread.start()
    with working(app):
        for thread in threads:
            thread.join(PATIENCE)
    assert came == [list(range(30))] * 3


def test_what_is_no_job_is_refused(app: Relevo) -> None:
    with pytest.raises(OptionError, match="as_completed: jobs as enqueue"):
        as_completed(["x"])  # type: ignore[type-var]
    assert list(as_completed([])) == []
