"""Jobs that wait for jobs: threads that wait for what only they could run, and calls that block an event loop."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from relevo import Job, Relevo, State, as_completed, group
from relevo.errors import BlockingCallWarning, JobFailed, RequestTimeout, WaitDeadlock
from relevo.worker import Worker
from relevo.worker.blocked_waits import BlockedWaits
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.working import working


def duty_of(worker: Worker) -> BlockedWaits:
    (found,) = [one for one in worker.duties if isinstance(one, BlockedWaits)]
    return found


async def until_all_wait(app: Relevo, threads: int) -> None:
    from relevo.engine.waits import Waits

    await aeventually(lambda: len(app.engine.part(Waits).inside) == threads, what="all threads wait")


async def until_a_wait_is_ended(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """By a look of the test, or of the worker itself; the first may come while something still moves."""

    async def look() -> bool:
        await duty_of(worker).run_once()
        return any("only this worker could run" in record.message for record in caplog.records)

    await aeventually(look, what="a wait is ended")


class Stage:
    """An app whose task `parent` waits for `child` in a thread, in one of several ways."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.opened = threading.Event()

        @app.task(name="child", retries=0)
        def child(n: int) -> int:
            return n + 1

        @app.task(name="achild", retries=0)
        async def achild(n: int) -> int:
            return n + 1

        def by_result(n: int, timeout: float | None) -> int:
            return child.enqueue(n).result(timeout=timeout)

        def by_async_child(n: int, timeout: float | None) -> int:
            return achild.enqueue(n).result(timeout=timeout)

        def by_group(n: int, timeout: float | None) -> int:
            return sum(group(child.s(n), child.s(n)).enqueue().result(timeout=timeout))

        def by_as_completed(n: int, timeout: float | None) -> int:
            jobs = [child.enqueue(n), child.enqueue(n)]
            return sum(job.result() for job in as_completed(jobs, timeout=timeout))

        self.ways: dict[str, Callable[[int, float | None], int]] = {
            "result": by_result, "group": by_group, "as_completed": by_as_completed, "async child": by_async_child,
        }  # fmt: skip

        @app.task(name="parent", retries=0)
        def parent(how: str, n: int, timeout: float | None = None) -> int:
            return self.ways[how](n, timeout)

        @app.task(name="busy", retries=0)
        def busy() -> None:
            assert self.opened.wait(PATIENCE)

        self.parent, self.busy, self.child = parent, busy, child


@pytest.fixture
def stage(app: Relevo) -> Stage:
    return Stage(app)


@pytest.mark.parametrize("how", ["result", "group", "as_completed"])
async def test_threads_that_wait_for_what_only_they_could_run_get_an_error(
    stage: Stage, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(stage.app, threads=2) as worker:
        jobs = [await stage.parent.aenqueue(how, n) for n in range(2)]
        await until_all_wait(stage.app, 2)
        await until_a_wait_is_ended(worker, caplog)
        states = await asyncio.gather(*(job.aresult(timeout=PATIENCE) for job in jobs), return_exceptions=True)
    (failed,) = [one for one in states if isinstance(one, JobFailed)]
    assert failed.error == "relevo.errors.WaitDeadlock"
    assert "each of the 2 running jobs of this worker waits for one that only this worker could run" in str(failed)
    assert "await job.aresult()" in str(failed)
    (good,) = [one for one in states if isinstance(one, int)]
    assert good > 0, "the thread that became free ran what the other one waits for"


async def test_the_wait_ends_that_would_end_first(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with working(stage.app, threads=2) as worker:
        patient = await stage.parent.aenqueue("result", 1)
        hasty = await stage.parent.aenqueue("result", 2, timeout=PATIENCE)
        await until_all_wait(stage.app, 2)
        await until_a_wait_is_ended(worker, caplog)
        assert await patient.aresult(timeout=PATIENCE) == 2
        with pytest.raises(JobFailed, match="cannot run"):
            await hasty.aresult(timeout=PATIENCE)


async def looks(worker: Worker) -> int:
    return sum([await duty_of(worker).run_once() for _ in range(3)])


async def test_a_job_that_is_paused_is_no_deadlock(stage: Stage) -> None:
    async with working(stage.app, threads=2) as worker:
        await stage.app.apause(task="child")
        job = await stage.parent.aenqueue("result", 1)
        await until_all_wait(stage.app, 1)
        assert await looks(worker) == 0
        await stage.app.aresume(task="child")
        assert await job.aresult(timeout=PATIENCE) == 2


async def test_a_job_that_runs_is_no_deadlock(stage: Stage) -> None:
    async with working(stage.app, threads=2) as worker:
        busy = await stage.busy.aenqueue()
        await aeventually(lambda: is_running(busy), what="one runs")
        job = await stage.parent.aenqueue("result", 1)
        await until_all_wait(stage.app, 1)
        assert await looks(worker) == 0
        stage.opened.set()
        assert await job.aresult(timeout=PATIENCE) == 2


async def is_running(job: Job[Any]) -> bool:
    return await job.astate() is State.RUNNING


async def test_a_worker_that_could_run_it_elsewhere_is_no_deadlock(stage: Stage, app_factory: AppFactory) -> None:
    other = Stage(app_factory(stage.app.name))
    async with working(other.app, concurrency=1) as second:
        kept = await other.busy.aenqueue()
        await aeventually(lambda: is_running(kept), what="the other worker is busy, and will be free")
        async with working(stage.app, concurrency=1) as worker:
            job = await stage.parent.aenqueue("result", 1)
            await until_all_wait(stage.app, 1)
            assert await looks(worker) == 0
            other.opened.set()
            assert await job.aresult(timeout=PATIENCE) == 2
        assert second.done >= 1


async def test_a_worker_that_does_not_know_the_task_cannot_help(
    stage: Stage, app_factory: AppFactory, caplog: pytest.LogCaptureFixture
) -> None:
    other = app_factory(stage.app.name)

    @other.task(name="another")
    async def another() -> None: ...

    async with working(other), working(stage.app, threads=1) as worker:
        job = await stage.parent.aenqueue("result", 1)
        await until_all_wait(stage.app, 1)
        await until_a_wait_is_ended(worker, caplog)
        with pytest.raises(JobFailed, match="only this worker could run"):
            await job.aresult(timeout=PATIENCE)


async def test_an_awaited_job_on_the_event_loop_needs_no_thread(stage: Stage) -> None:
    async with working(stage.app, threads=1):
        assert await (await stage.parent.aenqueue("async child", 1)).aresult(timeout=PATIENCE) == 2


async def test_a_request_to_the_own_service_gets_the_error(bus: Relevo, caplog: pytest.LogCaptureFixture) -> None:
    service = bus.service("calc")

    @service.action("outer", retries=0)
    def outer(n: int) -> int:
        return int(service.request("calc.inner", {"n": n}, timeout=PATIENCE, wait=True))

    @service.action("inner")
    def inner(n: int) -> int:
        return n + 1

    async with working(bus, threads=1) as worker:
        asked = asyncio.create_task(service.arequest("calc.outer", {"n": 1}, timeout=PATIENCE, wait=True))
        await until_all_wait(bus, 1)
        await until_a_wait_is_ended(worker, caplog)
        with pytest.raises(Exception, match="only this worker could run") as refused:
            await asked
        assert not isinstance(refused.value, RequestTimeout)


async def test_a_blocking_wait_on_an_event_loop_is_warned_of(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @stage.app.task(name="wrong")
    async def wrong() -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    stage.child.enqueue(1).result(timeout=0)
        return f"{len(caught)} {caught[0].category.__name__} {caught[0].filename == __file__}"

    async with working(stage.app):
        job = await wrong.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == "1 BlockingCallWarning True"
    (line,) = [record.message for record in caplog.records if "blocks the event loop" in record.message]
    assert line.startswith(__file__) and line.endswith("nothing else runs there: use `await job.aresult()`")


async def test_each_kind_of_wait_names_its_twin(stage: Stage) -> None:
    job, flow = stage.child.enqueue(1), group(stage.child.s(1)).enqueue()
    service = stage.app.service("calc")
    with pytest.warns(BlockingCallWarning, match="await job.aresult"), pytest.raises(TimeoutError):
        job.result(timeout=0)
    with pytest.warns(BlockingCallWarning, match="await workflow.aresult"), pytest.raises(TimeoutError):
        flow.result(timeout=0)
    with pytest.warns(BlockingCallWarning, match="async for job in as_completed"), pytest.raises(TimeoutError):
        next(iter(as_completed([job], timeout=0)))
    with pytest.warns(BlockingCallWarning, match="await service.arequest"), pytest.raises(RequestTimeout):
        service.request("calc.add", {}, timeout=0.001, wait=True)
    stage.app.queue().clear()


def test_without_an_event_loop_there_is_no_warning(stage: Stage) -> None:
    with warnings.catch_warnings(), pytest.raises(TimeoutError):
        warnings.simplefilter("error")
        stage.child.enqueue(1).result(timeout=0)
    stage.app.queue().clear()


def test_the_error_is_about_the_code() -> None:
    assert WaitDeadlock.__mro__[1].__name__ == "ConfigurationError"
