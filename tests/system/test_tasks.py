"""Tasks: every option, and every way to make jobs."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from relevo import Cancel, Failure, Job, Priority, Relevo, State, current_job
from relevo.errors import JobCancelled, JobExpired, JobFailed, ResultNotKept
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.shell import environment
from tests.system.timed import HOUR, MINUTE
from tests.working import drain, working


def record_lives_for(server: Server, job: Job[Any]) -> int:
    key = job._engine.keys_of(job.queue).key("ended") + b":" + job.id.encode()
    return int(server.command("PTTL", key))


# when a job runs


async def test_a_time_that_has_passed_is_now(app: Relevo) -> None:
    @app.task
    async def late() -> None: ...

    for eta in (datetime.now(UTC) - timedelta(days=1), datetime.min.replace(tzinfo=UTC)):
        job = await late.using(eta=eta).aenqueue()
        assert await job.astate() is State.READY


async def test_an_expired_job_never_starts_even_if_it_is_retried(app: Relevo) -> None:
    ran: list[int] = []

    @app.task
    async def step() -> str:
        ran.append(1)
        return "ran"

    job = await step.using(expires=0.001, delay=0.02).aenqueue()
    early = await step.using(expires="1h").aenqueue()
    async with working(app):
        assert await early.aresult(timeout=PATIENCE) == "ran"
        with pytest.raises(JobExpired):
            await job.aresult(timeout=PATIENCE)
    assert (await app.queue().astats()).expired == 1
    assert [row.id for row in await app.queue().ajobs("expired")] == [job.id]
    assert await job.aretry()  # its time is still over
    await drain(app)
    assert await job.astate() is State.EXPIRED
    assert ran == [1]


# limits, retries, backoff


async def test_the_time_limit_of_a_job_replaces_that_of_its_task(app: Relevo) -> None:
    """Also by none: such a job runs on while the worker ends another one for its limit."""
    finish = asyncio.Event()

    @app.task(timeout="1ms", retries=0)
    async def hang() -> str:
        await finish.wait()
        return "done"

    async with working(app):
        unlimited = await hang.using(timeout=None).aenqueue()
        await aeventually(lambda: _is(unlimited, "running"))
        limited = await hang.using(timeout="50ms").aenqueue()
        with pytest.raises(JobFailed, match=r"took longer than 0\.05 s") as failed:
            await limited.aresult(timeout=PATIENCE)
        assert failed.value.error == "TimeoutError"
        finish.set()
        assert await unlimited.aresult(timeout=PATIENCE) == "done"


class Transient(Exception): ...


class VeryTransient(Transient): ...


FILTERS: list[tuple[dict[str, Any], type[Exception], int]] = [  # options, the error, the attempts
    ({"retry_on": [Transient, KeyError]}, VeryTransient, 3),
    ({"retry_on": Transient}, ValueError, 1),
    ({"give_up_on": LookupError}, KeyError, 1),
    ({"give_up_on": LookupError}, ValueError, 3),
    ({"retry_on": Transient, "give_up_on": VeryTransient}, VeryTransient, 1),
]


async def test_retry_on_and_give_up_on_select_the_errors_that_are_retried(app: Relevo) -> None:
    def fail(row: int) -> None:
        raise FILTERS[row][1]

    async def afail(row: int) -> None:
        fail(row)

    jobs = []
    for row, (options, _, attempts) in enumerate(FILTERS):
        for func in (fail, afail):
            task = app.task(name=f"{func.__name__}{row}", retries=2, backoff=0, **options)(func)
            jobs.append((options, await task.aenqueue(row), attempts))
    async with working(app):
        for options, job, attempts in jobs:
            with pytest.raises(JobFailed) as failed:
                await job.aresult(timeout=PATIENCE)
            assert len((await job.ainfo()).attempts) == attempts, options
            assert failed.value.reason == ("permanent" if attempts == 1 else "retries_exhausted")


# results and records


async def test_without_a_result_ttl_nothing_is_kept_and_waiters_are_woken(app: Relevo, server: Server) -> None:
    @app.task(result_ttl=0)
    async def step() -> str:
        return "ran"

    job = await step.aenqueue()
    waiting = asyncio.create_task(job.aresult(timeout=PATIENCE))
    keys = app.engine.keys_of("default")
    await aeventually(lambda: server.command("HLEN", keys.key("waiters")))
    await drain(app)
    with pytest.raises(ResultNotKept, match="result_ttl is 0"):
        await waiting
    assert await job.astate() is State.UNKNOWN
    assert (await app.queue().astats()).done == 0
    assert (await app.queue().astats()).totals["done"] == 1


@pytest.mark.parametrize("options", [{}, {"name": "named"}], ids=["plain", "named"])
async def test_a_record_lives_for_its_time(app: Relevo, server: Server, options: dict[str, Any]) -> None:
    @app.task(result_ttl="10m", failure_ttl="20m", retries=0)
    async def step(is_good: bool) -> None:
        if not is_good:
            raise ValueError

    for is_good, minutes in ((True, 10), (False, 20)):
        by_task = await step.using(**options).aenqueue(is_good)
        await drain(app)
        by_job = await step.using(result_ttl="1h", failure_ttl="1h", **options).aenqueue(is_good)
        await drain(app)
        assert (minutes - 5) * MINUTE < record_lives_for(server, by_task) <= minutes * MINUTE
        assert 55 * MINUTE < record_lives_for(server, by_job) <= HOUR


async def test_a_tiny_result_ttl_is_a_millisecond_and_does_not_stop_the_worker(app: Relevo) -> None:
    @app.task
    async def step(number: int) -> int:
        return number

    await step.using(result_ttl=0.0001).aenqueue(1)
    other = await step.aenqueue(2)
    async with working(app):
        assert await other.aresult(timeout=PATIENCE) == 2


@pytest.mark.parametrize("retried", [False, True], ids=["first run", "after a retry"])
async def test_a_result_that_cannot_be_kept_does_not_fail_the_job(app: Relevo, retried: bool) -> None:
    runs: list[int] = []

    @app.task(backoff=0)
    async def step() -> Any:
        runs.append(1)
        if retried and len(runs) == 1:
            raise ValueError
        return {"connection": object()}

    async with working(app):
        job = await step.aenqueue()
        with pytest.raises(ResultNotKept, match=r"result\['connection'\]: an object cannot be sent as JSON"):
            await job.aresult(timeout=PATIENCE)
    assert await job.astate() is State.DONE
    assert len(runs) == 1 + retried
    with pytest.raises(ResultNotKept, match="an object cannot be sent"):  # also to a call that comes later
        await job.aresult(timeout=PATIENCE)
    assert (await job.ainfo()).result is None


# where a task runs


async def test_a_coroutine_can_run_in_a_thread(app: Relevo) -> None:
    @app.task(executor="thread")
    async def where() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    job = await where.aenqueue()
    await drain(app)
    assert (await job.aresult(timeout=PATIENCE)).startswith("relevo-")


async def test_a_coroutine_behind_a_plain_decorator_is_awaited(app: Relevo) -> None:
    ran: list[int] = []

    def traced(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def inner(*args: Any) -> Any:
            return func(*args)

        return inner

    @traced
    async def step() -> int:
        ran.append(1)
        return 7

    job = await app.task(step).aenqueue()
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == 7
    assert ran == [1]


async def test_objects_and_partial_functions_are_tasks_when_they_have_a_name(app: Relevo) -> None:
    class Adder:
        async def __call__(self, number: int) -> int:
            return number + 1

        def times(self, number: int) -> int:
            return number * 2

    tasks = [
        app.task(name="object")(Adder()),
        app.task(name="method")(Adder().times),
        app.task(name="partial")(functools.partial(pow, exp=2)),
        app.task(name="lambda")(lambda number: number - 1),
    ]
    jobs = [await task.aenqueue(5) for task in tasks]
    await drain(app)
    assert [await job.aresult(timeout=PATIENCE) for job in jobs] == [6, 10, 25, 4]


async def test_a_function_may_have_parameters_called_like_options(app: Relevo) -> None:
    @app.task
    async def step(self: int, func: str, *, name: str, priority: str, delay: str, args: str, retries: str) -> list[Any]:
        return [self, func, name, priority, delay, args, retries]

    named = {"name": "n", "priority": "p", "delay": "d", "args": "a", "retries": "r"}
    jobs = [
        await step.aenqueue(self=1, func="f", **named),
        await app.aenqueue(step, self=1, func="f", **named),
        step.enqueue(1, "f", **named),
        app.enqueue(step, 1, func="f", **named),
    ]
    await drain(app)
    for job in jobs:
        assert await job.aresult(timeout=PATIENCE) == [1, "f", "n", "p", "d", "a", "r"]


# a deploy changes what is queued


async def test_options_of_a_task_are_read_when_its_jobs_run(app_factory: AppFactory) -> None:
    old = app_factory()
    runs: list[int] = []

    async def fail() -> None:
        runs.append(1)
        raise ValueError

    task = old.task(name="fail", retries=0)(fail)
    plain = await task.aenqueue()
    chosen = await task.using(retries=1).aenqueue()
    await old.aclose()

    new = app_factory(old.name)  # the same program, deployed with another number
    new.task(name="fail", retries=4, backoff=0)(fail)
    async with working(new):
        for job in (plain, chosen):
            with pytest.raises(JobFailed):
                await job.aresult(timeout=PATIENCE)
    assert len((await new.job(plain.id).ainfo()).attempts) == 5
    assert len((await new.job(chosen.id).ainfo()).attempts) == 2
    await old.aclose()
    await new.aclose()


async def test_a_job_carries_only_what_was_chosen_for_it(app: Relevo, server: Server) -> None:
    @app.task(name="t", retries=7, timeout="1m", backoff="3s", failure_ttl="1d", result_ttl="1m")
    def step(number: int) -> None: ...

    def body(job: Job[Any]) -> bytes:
        return bytes(server.command("HGET", app.engine.keys_of("default").key("jobs"), job.id))

    assert body(step.enqueue(1)) == b'{"t":"t","a":[1]}'
    assert body(step.using(retries=7, timeout=60).enqueue(1)) == b'{"t":"t","a":[1]}'
    assert body(step.using(retries=0, priority=Priority.HIGH).enqueue(1)) == b'{"t":"t","p":50,"r":0,"a":[1]}'


# names


SCOPES = [{"name": "one"}, {"unique": "until_done"}, {"unique": "queued"}, {"name": "one", "unique": "1h"}]


@pytest.mark.parametrize("options", SCOPES, ids=str)
def test_many_threads_that_enqueue_one_name_get_one_job(app: Relevo, options: dict[str, Any]) -> None:
    @app.task
    def step(number: int) -> None: ...

    task = step.using(**options)
    with ThreadPoolExecutor(64) as threads:
        jobs = list(threads.map(lambda _: task.enqueue(1), range(64)))
    assert len({job.id for job in jobs}) == 1
    assert [job.created for job in jobs].count(True) == 1
    assert app.queue().stats().living == 1


@pytest.mark.parametrize("how", ["done", "dead", "cancelled", "expired", "cleared"])
async def test_a_name_is_free_when_its_job_has_ended(app: Relevo, how: str) -> None:
    @app.task(retries=0)
    async def step() -> None:
        if how == "dead":
            raise ValueError

    named = step.using(name="one")
    job = await (named.using(expires=0.001, delay=0.02) if how == "expired" else named).aenqueue()
    if how == "cancelled":
        await job.acancel()
    elif how == "cleared":
        await app.queue().aclear()
    else:
        async with working(app):
            await aeventually(lambda: _is(job, how))
    assert (await named.aenqueue()).created


async def _is(job: Job[Any], state: str) -> bool:
    return await job.astate() == state


def test_a_name_may_be_only_a_label(app: Relevo) -> None:
    @app.task(unique=False)
    def step() -> None: ...

    jobs = [step.using(name="label").enqueue() for _ in range(3)]
    assert len(set(jobs)) == 3
    assert {job.info().name for job in jobs} == {"label"}


# many


def test_many_jobs_take_all_options(app: Relevo) -> None:
    @app.task
    def step(number: int) -> None: ...

    jobs = step.using(delay="1h", tags=["t"], tenant="acme").enqueue_many([((n,), {}) for n in range(3)])
    for number, job in enumerate(jobs):
        info = job.info()
        assert (info.args, info.tags, info.tenant, info.state) == ([number], ("t",), "acme", State.SCHEDULED)
    assert step.enqueue_many([]) == []


# from inside jobs


async def test_the_failure_handler_gets_the_job_its_arguments_and_its_attempts(app: Relevo) -> None:
    handled: list[Failure] = []

    @app.task(name="handler")
    def handler(failure: Failure) -> None:
        handled.append(failure)

    @app.task(name="pay", retries=1, backoff=0, on_failure="handler")
    def pay(invoice: int, *, cents: int) -> None:
        raise ValueError(f"attempt {current_job().attempt}")

    job = await pay.using(name="pay-7", tags=["eu"]).aenqueue(7, cents=990)
    async with working(app):
        await aeventually(lambda: handled)
    (failure,) = handled
    assert (failure.job, failure.task, failure.queue, failure.name, failure.tags) == (
        job.id,
        "pay",
        "default",
        "pay-7",
        ("eu",),
    )
    assert (failure.reason, failure.error, failure.message) == ("retries_exhausted", "ValueError", "attempt 2")
    assert (failure.args, failure.kwargs) == ([7], {"cents": 990})
    assert [attempt.message for attempt in failure.attempts] == ["attempt 1", "attempt 2"]
    assert 'raise ValueError(f"attempt' in failure.traceback


async def test_each_job_can_have_a_handler_of_its_own(app: Relevo) -> None:
    handled: list[str] = []

    @app.task
    async def usual(failure: Failure) -> None:
        handled.append("usual")

    @app.task
    async def special(failure: Failure) -> None:
        handled.append("special")

    @app.task(retries=0, on_failure=usual)
    async def fail() -> None:
        raise ValueError

    await fail.aenqueue()
    await fail.using(on_failure=special).aenqueue()
    await drain(app)
    assert sorted(handled) == ["special", "usual"]


async def test_no_failure_handler_runs_for_a_job_that_is_done_or_cancelled(app: Relevo) -> None:
    handled: list[str] = []

    @app.task
    async def handler(failure: Failure) -> None:
        handled.append(failure.job)

    @app.task(on_failure=handler)
    async def step(how: str) -> None:
        if how == "cancel":
            raise Cancel("nothing to do")

    for how in ("fine", "cancel"):
        await step.aenqueue(how)
    await (await step.aenqueue("cancelled")).acancel()
    await drain(app)
    assert handled == []
    assert (await app.queue().astats()).cancelled == 2


async def test_the_reason_of_a_cancel_may_be_an_exception(app: Relevo) -> None:
    @app.task
    async def step() -> None:
        raise Cancel(KeyError("gone"))  # type: ignore[arg-type]

    job = await step.aenqueue()
    await drain(app)
    with pytest.raises(JobCancelled, match="'gone'"):
        await job.aresult(timeout=PATIENCE)


# processes


def in_a_process(text: str, url: str | None, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=environment(url),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    text = """
        import socket, threading
        def refuse(*args, **kwargs): raise AssertionError("a socket was opened")
        socket.socket.connect = refuse
        from relevo import Relevo
        app = Relevo("shop", url="redis://127.0.0.1:1")
        @app.task(name="f")
        def f(): ...
        f.using(delay=5); app.queue("mail"); app.dead
        assert threading.active_count() == 1
        print("fine")
    """
    assert in_a_process(text, None, tmp_path) == "fine\n"


def test_a_forked_child_uses_connections_of_its_own(app: Relevo, server: Server, tmp_path: Path) -> None:
    text = f"""
        import asyncio, os
        from relevo import Relevo
        app = Relevo({app.name!r})
        @app.task(name="f")
        def f(n: int) -> int: return n
        f.enqueue(0)
        asyncio.run(f.aenqueue(0))
        children = []
        for child in range(4):
            pid = os.fork()
            if pid == 0:
                ids = {{f.enqueue(n).id for n in range(50)}}
                async def more():
                    await asyncio.gather(*(f.aenqueue(n) for n in range(50)))
                asyncio.run(more())
                assert app.queue().stats().living > 0
                os._exit(0 if len(ids) == 50 else 1)
            children.append(pid)
        for n in range(50): f.enqueue(n)
        for pid in children: assert os.waitpid(pid, 0)[1] == 0
        print(app.queue().stats().ready)
    """
    assert in_a_process(text, server.url, tmp_path) == "452\n"


def test_waiting_for_results_works_on_both_sides_of_a_fork(app: Relevo, server: Server, tmp_path: Path) -> None:
    @app.task(name="f")
    def f(number: int) -> int:
        return number

    text = f"""
        import os
        from relevo import Relevo
        app = Relevo({app.name!r})
        @app.task(name="f")
        def f(n: int) -> int: return n
        assert f.enqueue(1).result(timeout={PATIENCE}) == 1
        pid = os.fork()
        assert f.enqueue(2).result(timeout={PATIENCE}) == 2
        if pid == 0: os._exit(0)
        print(os.waitpid(pid, 0)[1])
    """
    with working(app):
        assert in_a_process(text, server.url, tmp_path) == "0\n"
