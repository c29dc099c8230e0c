"""Handles of jobs: waiting, looking, cancelling."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relevo import Job, Relevo, State, current_job
from relevo.errors import JobCancelled, JobFailed, ResultTimeout, StoreError, UnknownJob
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.system.timed import HOUR, Times
from tests.working import drain, drained, working


def connections(server: Server) -> int:
    listed: bytes = server.command("CLIENT", "LIST")
    return len(listed.splitlines())


def commands_run(server: Server) -> int:
    """Commands the server has carried out, without those of this test and the pings of other tests' connections."""
    stats = server.command("INFO", "commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if not re.search("info|client|ping", name))


def waiters(server: Server, app: Relevo) -> int:
    return int(server.command("HLEN", app.engine.keys_of("default").key("waiters")))


async def is_running(job: Job[Any]) -> bool:
    return await job.astate() is State.RUNNING


# waiting


async def test_waiters_share_their_connections(app: Relevo, server: Server) -> None:
    @app.task
    async def step(number: int) -> int:
        return number

    jobs = await step.aenqueue_many([((number,), {}) for number in range(200)])
    before = connections(server)
    waiting = [asyncio.create_task(job.aresult(timeout=PATIENCE)) for job in jobs]
    await aeventually(lambda: waiters(server, app) == 200)
    assert connections(server) <= before + 1
    await drain(app)
    assert await asyncio.gather(*waiting) == list(range(200))
    assert waiters(server, app) == 0


def test_threads_that_wait_share_one_listener(app: Relevo, server: Server) -> None:
    @app.task
    def step(number: int) -> int:
        return number

    jobs = step.enqueue_many([((number,), {}) for number in range(30)])
    with ThreadPoolExecutor(30) as threads:
        results = threads.map(lambda job: job.result(timeout=PATIENCE), jobs)
        eventually(lambda: waiters(server, app) == 30)
        (channel,) = server.command("PUBSUB", "CHANNELS", f"*{app.name}*")
        assert server.command("PUBSUB", "NUMSUB", channel) == [channel, 1]
        drained(app)
        assert list(results) == list(range(30))


async def test_waiters_send_no_commands(app: Relevo, server: Server) -> None:
    @app.task
    async def step() -> None: ...

    first, second = await step.aenqueue(), await step.aenqueue()
    waiting = asyncio.gather(first.aresult(PATIENCE), asyncio.to_thread(second.result, PATIENCE))
    await aeventually(lambda: waiters(server, app) == 2)
    before = commands_run(server)
    await asyncio.sleep(0.3)  # polling would show; standing still longer changes nothing
    assert commands_run(server) == before
    await drain(app)
    await waiting


@pytest.mark.parametrize("which", ["pubsub", "normal"])
async def test_waiters_survive_the_loss_of_their_connections(app: Relevo, server: Server, which: str) -> None:
    @app.task
    async def step() -> str:
        return "done"

    first, second = await step.aenqueue(), await step.aenqueue()
    waiting = asyncio.gather(first.aresult(PATIENCE), asyncio.to_thread(second.result, PATIENCE))
    await aeventually(lambda: waiters(server, app) == 2)
    assert server.command("CLIENT", "KILL", "TYPE", which, "SKIPME", "yes") >= 2
    async with working(app):
        assert list(await waiting) == ["done", "done"]


def test_a_result_that_does_not_come_in_time_is_a_timeout_and_the_job_stays(app: Relevo) -> None:
    @app.task
    def step() -> None: ...

    job = step.enqueue()
    for seconds in (0, 0.05):
        with pytest.raises(TimeoutError, match="it goes on"):
            job.result(timeout=seconds)
    assert job.state() is State.READY


async def test_a_waiter_that_gives_up_does_not_disturb_the_others(app: Relevo) -> None:
    @app.task
    async def step() -> str:
        return "done"

    job = await step.aenqueue()
    longer = asyncio.create_task(job.aresult(timeout=PATIENCE))
    with pytest.raises(ResultTimeout):
        await job.aresult(timeout=0.05)
    cancelled = asyncio.create_task(job.aresult(timeout=PATIENCE))
    await asyncio.sleep(0)
    cancelled.cancel()
    async with working(app):
        assert await longer == "done"
        assert await job.aresult(timeout=PATIENCE) == "done"


# logs


async def test_logs_of_jobs_that_run_together_never_mix(app: Relevo) -> None:
    together = threading.Barrier(8, timeout=PATIENCE)

    def write(number: int, line: int) -> None:
        print(f"out {number} {line}")
        print(f"err {number} {line}", file=sys.stderr)
        logging.getLogger(f"shop.{number}").warning("log %d %d", number, line)

    @app.task(retries=0)
    async def on_the_loop(number: int) -> None:
        for line in range(20):
            write(number, line)
            await asyncio.sleep(0)
        raise ValueError(f"error {number}")

    @app.task(retries=0)
    def in_a_thread(number: int) -> None:
        together.wait()
        for line in range(20):
            write(number, line)
            time.sleep(0)
        raise ValueError(f"error {number}")

    jobs = await on_the_loop.aenqueue_many([((number,), {}) for number in range(100)])
    jobs += await in_a_thread.aenqueue_many([((number,), {}) for number in range(100, 108)])
    async with working(app, threads=8):
        for job in jobs:
            with pytest.raises(JobFailed):
                await job.aresult(timeout=PATIENCE)
    for number, job in enumerate(jobs):
        text = await aeventually(job.alogs)
        assert re.findall(r"^(?:out|err) (\d+) \d+$", text, re.MULTILINE) == [str(number)] * 40
        assert re.findall(r"log (\d+) \d+", text) == [str(number)] * 20
        assert text.count("Traceback") == 1
        assert text.rstrip().endswith(f"ValueError: error {number}")


async def test_long_logs_keep_head_and_tail(app_factory: AppFactory) -> None:
    app = app_factory(log_max=1000)

    @app.task
    async def step() -> None:
        for line in range(10_000):
            print(f"line {line}")

    job = await step.aenqueue()
    await drain(app)
    text = await job.alogs()
    assert text.startswith("line 0\n")
    assert text.endswith("line 9999\n")
    assert len(text) < 1500


async def test_a_running_job_can_be_read(app: Relevo) -> None:
    finish = asyncio.Event()

    @app.task
    async def step() -> None:
        print("working")
        current_job().progress(0.25, "a quarter")
        await finish.wait()

    async with working(app) as worker:
        job = await step.aenqueue()
        assert "working\n" in await aeventually(job.alogs)
        progress = await aeventually(job.aprogress)
        assert (progress.fraction, progress.message) == (0.25, "a quarter")
        info = await job.ainfo()
        assert (info.state, info.worker, info.ended_ms) == (State.RUNNING, worker.id, None)
        assert info.started_ms is not None
        finish.set()
        await job.aresult(timeout=PATIENCE)


# looking


async def test_a_job_is_seen_through_its_whole_life(app: Relevo) -> None:
    finish = asyncio.Event()

    @app.task(name="step", backoff=0.01)
    async def step(number: int, *, text: str = "") -> str:
        if current_job().attempt == 1:
            raise ValueError("not yet")
        await finish.wait()
        return text

    job = await step.using(delay=0.05, name="n", tenant="acme", priority=7, tags=["t"]).aenqueue(1, text="x")
    info = await job.ainfo()
    assert (info.id, info.state, info.task, info.queue) == (job.id, State.SCHEDULED, "step", "default")
    assert (info.args, info.kwargs, info.priority, info.name) == ([1], {"text": "x"}, 7, "n")
    assert (info.tenant, info.tags, info.attempts, info.started_ms) == ("acme", ("t",), (), None)
    async with working(app) as worker:
        await aeventually(lambda: is_running_again(job))
        info = await job.ainfo()
        assert (info.state, info.worker, info.due_ms) == (State.RUNNING, worker.id, None)
        assert [(a.how, a.error, a.worker) for a in info.attempts] == [("failed", "ValueError", worker.id)]
        finish.set()
        assert await job.aresult(timeout=PATIENCE) == "x"
    info = await job.ainfo()
    assert (info.state, info.result, info.worker) == (State.DONE, "x", worker.id)
    assert info.started_ms is not None
    assert info.ended_ms is not None
    assert info.enqueued_ms <= info.started_ms <= info.ended_ms
    assert (info.args, info.kwargs) == ([1], {"text": "x"})


async def is_running_again(job: Job[Any]) -> bool:
    info = await job.ainfo()
    return info.state is State.RUNNING and len(info.attempts) == 1


def test_blocking_and_async_calls_see_the_same(app: Relevo) -> None:
    @app.task(retries=0)
    def step() -> None:
        print("words")
        current_job().progress(1, "all")
        raise ValueError("no")

    job = step.enqueue()
    drained(app)

    async def asynchronously() -> list[Any]:
        seen = [await job.astate(), await job.ainfo(), await job.alogs(), await job.aprogress()]
        seen.append((await app.ajob(job.id)).id)
        seen.append(await app.aqueues())
        await app.aclose()
        return seen

    here = [job.state(), job.info(), job.logs(), job.progress(), app.job(job.id).id, app.queues()]
    assert here == asyncio.run(asynchronously())


async def test_a_job_is_found_on_any_queue(app: Relevo) -> None:
    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    job = await send.aenqueue()
    assert (await app.ajob(job.id)).queue == "mail"
    assert (await app.ajob(job.id, queue="mail")) == job
    with pytest.raises(UnknownJob):
        await app.ajob(job.id, queue="default")
    assert len({job, await app.ajob(job.id)}) == 1
    await app.aclose()


async def test_a_result_found_by_id_is_typed_by_the_task_if_that_is_known(app: Relevo, app_factory: AppFactory) -> None:
    @app.task(name="pair")
    async def pair() -> tuple[int, int]:
        return (1, 2)

    id = (await pair.aenqueue()).id
    await drain(app)
    assert await (await app.ajob(id)).aresult(timeout=PATIENCE) == (1, 2)
    stranger = app_factory(app.name)
    assert await (await stranger.ajob(id)).aresult(timeout=PATIENCE) == [1, 2]
    await stranger.aclose()
    await app.aclose()


# cancelling


async def test_a_job_that_an_idle_worker_got_with_the_enqueue_is_cancelled(app: Relevo) -> None:
    """An idle worker gets its job with the enqueue itself; a cancellation must find it there, too."""

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with working(app):
        await aeventually(lambda: idle_workers(app))
        job = await hang.aenqueue()
        await aeventually(lambda: is_running(job))
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)


async def idle_workers(app: Relevo) -> int:
    return (await app.queue().astats()).idle_workers


async def test_a_function_in_a_thread_is_interrupted(app: Relevo) -> None:
    reached: list[str] = []

    @app.task
    def spin() -> None:
        try:
            while True:
                time.sleep(0.001)
        except Exception:  # an interruption is none
            reached.append("swallowed")

    async with working(app):
        job = await spin.aenqueue()
        await aeventually(lambda: is_running(job))
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
    assert reached == []
    assert (await job.ainfo()).reason == "cancelled"


async def test_a_job_that_ends_well_before_it_can_be_cancelled_is_done(app: Relevo) -> None:
    @app.task
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "finished all the same"
        return ""

    async with working(app):
        job = await stubborn.aenqueue()
        await aeventually(lambda: is_running(job))
        await job.acancel()
        assert await job.aresult(timeout=PATIENCE) == "finished all the same"


@pytest.mark.parametrize("by", ["worker", "taker"])
async def test_a_cancellation_survives_the_death_of_the_worker(
    server: Server, app_factory: AppFactory, by: str
) -> None:
    times = Times(server, app_factory)
    app = times.app
    ran: list[int] = []

    @app.task
    async def step() -> None:
        ran.append(1)

    job = await step.aenqueue()
    (lease,) = await app.queue().atake(1, worker="w1", lease="1h")  # which dies
    assert await job.acancel()
    assert (await job.ainfo()).cancel_asked
    times.move(HOUR)
    if by == "worker":
        await drain(app)
    else:
        assert await app.queue().atake(10, worker="w2") == []
    assert await job.astate() is State.CANCELLED
    assert ran == []
    assert await lease.adone() is False
    await app.aclose()


async def test_a_cancelled_job_is_not_tried_again(app: Relevo) -> None:
    runs: list[int] = []

    @app.task(retries=5, backoff=0)
    async def fail_when_stopped() -> None:
        runs.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in the clean-up")

    async with working(app):
        job = await fail_when_stopped.aenqueue()
        await aeventually(lambda: is_running(job))
        await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
    assert runs == [1]


async def test_a_waiter_whose_connection_was_cut_gets_the_result_whichever_call_opened_it_again(
    app: Relevo, app_factory: AppFactory, server: Server
) -> None:
    """Ends are published on a channel, which keeps nothing: after a cut, waiters must ask."""

    @app.task
    def work() -> int:
        return 7

    known = work.enqueue().id
    await drain(app)
    with Proxy("127.0.0.1", server.port) as proxy:
        # Many, for it depends on which task of the loop is quicker.
        far = [app_factory(app.name, url=proxy.url, call_timeout=1, connect_timeout=1) for _ in range(10)]
        failures = 0
        jobs = [await one.ajob(work.enqueue().id) for one in far]
        waiting = [asyncio.create_task(job.aresult(timeout=PATIENCE)) for job in jobs]
        attached = app.engine.keys_of("default").key("waiters")
        await aeventually(lambda: app.engine.run(Call([b"HLEN", attached])) == len(far), what="all are known to wait")
        proxy.black_hole_all()
        proxy.reset_all()
        await drain(app)

        async def look(one: Relevo, until: asyncio.Task[int]) -> None:
            nonlocal failures
            while not until.done():
                try:
                    await (await one.ajob(known)).aresult(timeout=0.3)
                except (StoreError, ResultTimeout):
                    failures += 1
                await asyncio.sleep(0.002)

        others = [asyncio.create_task(look(*pair)) for pair in zip(far, waiting, strict=True) for _ in range(3)]
        await aeventually(lambda: failures >= len(far), what="calls that did not get through")
        proxy.heal()
        assert await asyncio.gather(*waiting) == [7] * len(far)
        await asyncio.gather(*others)
        for one in far:
            await one.aclose()
