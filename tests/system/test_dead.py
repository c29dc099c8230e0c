"""Dead letters: what is in them, finding them, running them again, forgetting them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from relevo import Failure, Relevo, State, Task, __version__
from relevo.engine.push import push_plain
from relevo.errors import JobError, JobFailed
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.working import drain, drained, working


@pytest.fixture
def good() -> set[int]:
    """Numbers with which the task succeeds."""
    return set()


@pytest.fixture
def step(app: Relevo, good: set[int]) -> Task[..., int]:
    @app.task(name="step", retries=0)
    def step(number: int, *, error: str = "ValueError") -> int:
        if number not in good:
            raise {"ValueError": ValueError, "KeyError": KeyError}[error](f"no {number}")
        return number

    return step


def push(app: Relevo, body: bytes, queue: str = "default") -> str:
    """A body that another program wrote."""
    id = app.engine.new_id()
    app.engine.run(app.engine.list_queue(queue))
    app.engine.run(push_plain(app.engine.keys_of(queue), [(id, body)], 100, 1000))
    return id


async def test_a_dead_letter_holds_the_job_and_its_attempts(app: Relevo) -> None:
    @app.task(name="pay", retries=1, backoff=0)
    async def pay(invoice: int, *, cents: int) -> None:
        raise ValueError("no account")

    job = await pay.using(name="pay-7", tenant="acme", priority=9, tags=["eu"]).aenqueue(7, cents=990)
    async with working(app) as worker:
        with pytest.raises(JobFailed):
            await job.aresult(timeout=PATIENCE)
    info = app.dead.show(job.id)
    assert (info.id, info.state, info.task, info.queue) == (job.id, State.DEAD, "pay", "default")
    assert (info.args, info.kwargs, info.name, info.tenant) == ([7], {"cents": 990}, "pay-7", "acme")
    assert (info.priority, info.tags, info.reason, info.worker) == (9, ("eu",), "retries_exhausted", worker.id)
    assert len(info.attempts) == 2
    for attempt in info.attempts:
        assert (attempt.how, attempt.error, attempt.message) == ("failed", "ValueError", "no account")
        assert 'raise ValueError("no account")' in attempt.traceback
        assert attempt.worker == worker.id
        assert 0 < attempt.started_ms <= attempt.ended_ms
    assert info.ended_ms is not None
    assert (info.came_from, info.permanent, info.version) == ("running", False, __version__)
    assert (info.correlation_id, info.source, info.origin, info.replaced_by) == ("", "", "", "")
    (row,) = app.dead.list()
    assert (row.fingerprint, row.came_from, row.permanent) == (info.fingerprint, "running", False)
    assert (row.attempts, row.tenant) == (2, "acme")


def test_no_dead_letter_is_listed_twice_while_others_arrive(app: Relevo, step: Task[..., int]) -> None:
    queue = app.queue()
    step.enqueue_many([((number,), {}) for number in range(150)])

    def bury() -> None:
        while leases := queue.take(1):
            leases[0].bury("no")

    with ThreadPoolExecutor(1) as threads:
        burying = threads.submit(bury)
        while not burying.done():
            ids = [letter.id for letter in app.dead.list(limit=1000)]
            assert len(ids) == len(set(ids))
        burying.result()
    assert len(app.dead.list(limit=1000)) == 150


def test_dead_letters_are_retried_by_id_by_queue_and_all(app: Relevo, step: Task[..., int], good: set[int]) -> None:
    jobs = [step.using(queue=f"q{number % 2}").enqueue(number) for number in range(6)]
    queues = ["q0", "q1"]
    drained(app, queues=queues)
    good.update(range(6))
    assert app.dead.retry([jobs[0].id, jobs[1].id]) == 2
    assert app.dead.retry([jobs[0].id]) == 0  # no longer dead
    assert app.dead.retry([jobs[2].id], queue="q1") == app.dead.discard([jobs[2].id], queue="q1") == 0
    assert app.dead.retry(all=True, queue="q0") == 2
    assert app.dead.retry(all=True) == 2
    assert app.dead.retry(all=True) == 0
    assert app.dead.retry([]) == 0
    drained(app, queues=queues)
    assert [job.result(timeout=PATIENCE) for job in jobs] == list(range(6))
    assert app.dead.list() == []


def test_concurrent_retries_of_the_same_dead_letters_run_each_once(app: Relevo) -> None:
    runs: list[int] = []

    @app.task(retries=0)
    def step(number: int) -> None:
        runs.append(number)
        raise ValueError

    ids = [job.id for job in step.enqueue_many([((n,), {}) for n in range(20)])]
    drained(app)
    runs.clear()
    with ThreadPoolExecutor(8) as threads:
        calls: list[Callable[[], int]] = [lambda: app.dead.retry(ids), lambda: app.dead.retry(all=True)] * 4
        counts = list(threads.map(lambda call: call(), calls))
    assert sum(counts) == 20
    drained(app)
    assert sorted(runs) == list(range(20))


def test_the_oldest_dead_letters_are_dropped_beyond_the_limit(app_factory: AppFactory) -> None:
    app = app_factory(dead_max=3)

    @app.task(retries=0)
    def step(number: int) -> None:
        raise ValueError

    for number in range(8):
        step.enqueue(number)
        drained(app)
    assert sorted(app.dead.show(letter.id).args[0] for letter in app.dead.list()) == [5, 6, 7]
    assert app.queue().stats().totals["dropped"] == 5


def test_bodies_that_cannot_be_read_are_kept_untouched(app: Relevo, step: Task[..., int]) -> None:
    bodies = [
        b"",
        b"\x00\xff garbage",
        b"{}",
        b"[1]",
        b'"text"',
        b'{"t":5}',
        b'{"t":"step","a":[1],"p":"high"}',
        b'{"t":"step","a":[1],"p":100000}',
        b'{"t":"step","a":[1],"rt":1e300}',
        b'{"t":"step","a":[1],"ft":-1}',
        b'{"t":"step","a":[1],"g":"x","w":0}',
        b'{"t":"step","a":[1],"b":{"kind":"never"}}',
        b'{"t":"step","a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ]
    ids = [push(app, body) for body in bodies]
    fine = step.enqueue(1)
    drained(app)
    assert fine.state() is State.DEAD  # it ran, and failed on its own
    letters = {letter.id: letter for letter in app.dead.list()}
    for id, body in zip(ids, bodies, strict=True):
        assert letters[id].reason in ("unreadable", "bad_arguments"), body
        info = app.dead.show(id)
        assert info.state is State.DEAD
        assert info.attempts[0].message
    with pytest.raises(JobError, match="cannot run again: its body is unreadable"):
        app.dead.retry(ids[:-1])  # Python 3.13 reads the nested one
    assert {letter.id for letter in app.dead.list()} >= set(ids)
    assert app.dead.discard(all=True) == len(ids) + 1


def test_jobs_whose_arguments_do_not_fit_their_task_are_dead_letters(app: Relevo, step: Task[..., int]) -> None:
    rows = {
        b'"a":["seven"]': "argument 'number'",
        b'"a":[]': "missing a required argument: 'number'",
        b'"a":[1,2]': "too many positional arguments",
        b'"a":5': "stored arguments",
        b'"a":[1],"k":{"colour":"red"}': "unexpected keyword argument 'colour'",
    }
    ids = [push(app, b'{"t":"step",' + arguments + b"}") for arguments in rows]
    drained(app)
    for id, says in zip(ids, rows.values(), strict=True):
        info = app.dead.show(id)
        assert info.reason == "bad_arguments"
        assert says in info.attempts[0].message


async def test_a_failure_handler_that_fails_is_a_dead_letter_with_a_handler_of_its_own(app: Relevo) -> None:
    tries: list[str] = []
    handled: list[str] = []

    @app.task(name="last", retries=0)
    async def last(failure: Failure) -> None:
        handled.append(failure.task)

    @app.task(name="handler", retries=1, backoff=0, on_failure=last)
    async def handler(failure: Failure) -> None:
        tries.append(failure.job)
        raise KeyError("mail server")

    @app.task(name="pay", retries=0, on_failure=handler)
    async def pay() -> None:
        raise ValueError

    job = await pay.aenqueue()
    async with working(app):
        await aeventually(lambda: handled)
    assert (tries, handled) == ([job.id] * 2, ["handler"])
    assert {letter.task for letter in await app.dead.alist()} == {"pay", "handler"}
    (letter,) = await app.dead.alist(error="mail server")
    assert (await app.ajob(letter.id)).state() is State.DEAD


async def test_a_failure_handler_runs_again_when_its_job_dies_again(app: Relevo) -> None:
    handled: list[str] = []

    @app.task(name="handler")
    async def handler(failure: Failure) -> None:
        handled.append(failure.job)

    @app.task(name="pay", retries=0, on_failure=handler)
    async def pay() -> None:
        raise ValueError

    job = await pay.aenqueue()
    await drain(app)
    assert await app.dead.aretry([job.id]) == 1
    await drain(app)
    assert handled == [job.id, job.id]
    assert len((await app.dead.ashow(job.id)).attempts) == 1, "a retried job starts from the beginning"
