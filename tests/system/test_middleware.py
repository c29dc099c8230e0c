"""Middleware: around each enqueue and each attempt, in order, in every executor; headers travel along."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from relevo import Cancel, Job, Relevo, State, Task, chain, current_job, group
from relevo.errors import ConfigurationError, JobCancelled, JobFailed, PayloadError, PayloadTooLarge, TargetError
from relevo.middleware import Call, Middleware
from relevo.testing import job_context
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.system import middleware_tasks as tasks
from tests.system.shell import relevo
from tests.working import drain, drained, working

where: ContextVar[str] = ContextVar("where", default="nowhere")


class Where(Middleware):
    """Carries a context variable, as `ContextVars` does."""

    def enqueue(self, call: Call) -> Iterator[None]:
        call.headers["where"] = where.get()
        yield

    def attempt(self, call: Call) -> Iterator[None]:
        token = where.set(call.headers.get("where", "lost"))
        yield
        where.reset(token)


class Note(Middleware):
    """Writes down what it is around, plain and async."""

    def __init__(self, name: str, happened: list[Any]) -> None:
        self.name = name
        self.happened = happened

    def _around(self, kind: str, call: Call) -> Generator[None, Any, None]:
        self.happened.append(f"{self.name} {kind} {call.target}{call.args}")
        try:
            result = yield
        except BaseException as error:
            self.happened.append(f"{self.name} {error!r}")
            raise
        self.happened.append(f"{self.name} {'job' if isinstance(result, Job) else result}")

    def enqueue(self, call: Call) -> Iterator[None]:
        yield from self._around("enqueue", call)

    def attempt(self, call: Call) -> Iterator[None]:
        yield from self._around("attempt", call)


class AsyncNote(Note):
    """The same, awaiting."""

    async def _aaround(self, kind: str, call: Call) -> AsyncGenerator[None, Any]:
        await asyncio.sleep(0)
        self.happened.append(f"{self.name} a{kind} {call.target}{call.args}")
        try:
            result = yield
        except BaseException as error:
            await asyncio.sleep(0)
            self.happened.append(f"{self.name} {error!r}")
            raise
        await asyncio.sleep(0)
        self.happened.append(f"{self.name} {'job' if isinstance(result, Job) else result}")

    def aenqueue(self, call: Call) -> AsyncGenerator[None, Any]:
        return self._aaround("enqueue", call)

    def aattempt(self, call: Call) -> AsyncGenerator[None, Any]:
        return self._aaround("attempt", call)


# where it runs


@pytest.fixture
def middle(app: Relevo) -> Iterator[Relevo]:
    """The app of the tasks, on the test's server."""
    with tasks.app.engine.rebound(url=app.settings.url, env="test"):
        yield tasks.app
        for queue in tasks.app.queues():
            tasks.app.queue(queue).clear()


EVERYWHERE: list[Task[..., tasks.Told]] = [tasks.on_loop, tasks.in_thread, tasks.in_process, tasks.loop_in_process]


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_it_is_around_the_task_wherever_that_runs(middle: Relevo, task: Task[..., tasks.Told]) -> None:
    here = os.getpid()
    token = tasks.request_id.set("r7")
    with working(middle):
        note, request, is_here = task.enqueue(here).result(timeout=PATIENCE)
    tasks.request_id.reset(token)
    assert note == f"{task.target} ({here},) r7", "Watch is inside of RequestId"
    assert request == "r7"
    assert is_here == ("process" not in task.target)


def test_the_traceback_of_a_failed_attempt_begins_in_the_task(middle: Relevo) -> None:
    with working(middle):
        job = tasks.failing.enqueue(1)
        with pytest.raises(JobFailed, match=r"failing \(1,\) none"):
            job.result(timeout=PATIENCE)
    (attempt,) = job.info().attempts
    assert attempt.traceback.splitlines()[1].strip().startswith("File")
    assert "middleware_tasks.py" in attempt.traceback.splitlines()[1]
    assert "around.py" not in attempt.traceback


# order and outcome


async def test_the_first_one_is_outermost_around_enqueue_and_around_attempts(app: Relevo) -> None:
    happened: list[Any] = []
    app.middleware(Note("outer", happened))
    app.middleware(AsyncNote("inner", happened))

    @app.task(name="plain")
    def plain(a: int) -> int:
        happened.append("runs")
        return a + 1

    @app.task(name="waits")
    async def waits(a: int) -> int:
        happened.append("runs")
        return a + 1

    await asyncio.to_thread(plain.enqueue, 1)
    await drain(app)
    assert happened == [
        "outer enqueue plain(1,)", "inner enqueue plain(1,)", "inner job", "outer job",
        "outer attempt plain(1,)", "inner attempt plain(1,)", "runs", "inner 2", "outer 2",
    ]  # fmt: skip
    happened.clear()
    await waits.aenqueue(1)
    await drain(app)
    assert happened == [
        "outer enqueue waits(1,)", "inner aenqueue waits(1,)", "inner job", "outer job",
        "outer attempt waits(1,)", "inner aattempt waits(1,)", "runs", "inner 2", "outer 2",
    ]  # fmt: skip


def test_an_app_is_made_with_middleware_and_a_class_may_be_decorated(app_factory: AppFactory) -> None:
    happened: list[Any] = []
    app = app_factory(middleware=[Note("first", happened)])

    @app.middleware
    class Second(Middleware):
        def attempt(self, call: Call) -> Iterator[None]:
            happened.append("second")
            yield

    @app.task(name="task")
    def task() -> None: ...

    assert isinstance(Second, type)
    task.enqueue()
    drained(app)
    assert happened == ["first enqueue task()", "first job", "first attempt task()", "second", "first None"]


@pytest.mark.parametrize("kind", [Note, AsyncNote])
@pytest.mark.parametrize("is_async", [False, True])
def test_it_sees_the_error_of_a_failed_attempt(app: Relevo, kind: type[Note], is_async: bool) -> None:
    happened: list[Any] = []
    app.middleware(kind("it", happened))
    if is_async:

        @app.task(name="task", retries=0)
        async def task() -> None:
            raise ValueError("no")
    else:

        @app.task(name="task", retries=0)
        def task() -> None:
            raise ValueError("no")

    task.enqueue()
    drained(app)
    assert happened[-1] == "it ValueError('no')"


class Swallow(Middleware):
    def attempt(self, call: Call) -> Iterator[None]:
        try:
            yield
        except ValueError:
            pass


class Replace(Middleware):
    def attempt(self, call: Call) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise KeyError("another") from error


def test_it_may_raise_another_error_but_not_hide_one(app_factory: AppFactory) -> None:
    for middleware, expected in ((Swallow(), "ValueError"), (Replace(), "KeyError")):
        app = app_factory(middleware=[middleware])

        @app.task(retries=0)
        def task() -> None:
            raise ValueError("no")

        job = task.enqueue()
        drained(app)
        assert job.info().attempts[-1].error == expected


# refusing and changing


class OnlyEven(Middleware):
    def enqueue(self, call: Call) -> Iterator[None]:
        if call.args[0] % 2:
            raise ValueError(f"{call.args[0]} is odd")
        call.args = (call.args[0] * 10,)
        yield


def test_it_may_refuse_an_enqueue_and_change_the_arguments(app_factory: AppFactory) -> None:
    happened: list[Any] = []
    app = app_factory(middleware=[Note("outer", happened), OnlyEven()])

    @app.task(name="task")
    def task(n: int) -> int:
        return n

    with pytest.raises(ValueError, match="3 is odd"):
        task.enqueue(3)
    assert happened == ["outer enqueue task(3,)", "outer ValueError('3 is odd')"]
    with pytest.raises(ValueError, match="5 is odd"):
        task.enqueue_many([((4,), {}), ((5,), {})])
    assert app.queue().stats().ready == 0, "nothing of it was enqueued"
    jobs = [task.enqueue(2), *task.enqueue_many([((4,), {}), ((6,), {})])]
    drained(app)
    assert [job.result(timeout=PATIENCE) for job in jobs] == [20, 40, 60]


def test_changed_arguments_must_fit_the_task_as_others_do(app: Relevo) -> None:
    class Break(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            call.args = ("text",)
            yield

    app.middleware(Break())

    @app.task
    def task(n: int) -> None: ...

    with pytest.raises(PayloadError, match="argument 'n'"):
        task.enqueue(1)


def test_it_may_refuse_an_attempt_with_a_verdict(app: Relevo) -> None:
    class Closed(Middleware):
        def attempt(self, call: Call) -> Iterator[None]:
            raise Cancel("closed today")
            yield

    app.middleware(Closed())

    @app.task
    def task() -> None:
        raise AssertionError("it must not run")

    job = task.enqueue()
    drained(app)
    with pytest.raises(JobCancelled):
        job.result(timeout=PATIENCE)


# headers


def _reporting(app: Relevo) -> list[str]:
    """Tasks of an app that write down where they are."""
    found: list[str] = []

    @app.task(name="report")
    def report(*_: Any) -> None:
        found.append(where.get())

    @app.task(name="ask")
    def ask() -> str:
        report.enqueue()
        return where.get()

    return found


@pytest.fixture
def located(app: Relevo) -> Relevo:
    app.middleware(Where())
    return app


def _from(place: str, act: Callable[[], Any]) -> Any:
    token = where.set(place)
    try:
        return act()
    finally:
        where.reset(token)


def test_what_a_job_enqueues_has_its_headers(app_factory: AppFactory) -> None:
    class Once(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            if where.get() != "nowhere":
                call.headers["where"] = where.get()
            yield

    app, found = app_factory(middleware=[Once()]), list[str]()

    @app.task
    def child() -> None:
        found.append(current_job().headers["where"])

    @app.task
    def parent() -> None:
        child.enqueue()

    _from("the shop", parent.enqueue)
    drained(app)
    assert found == ["the shop"]


def test_headers_travel_through_retries_and_to_the_handler_of_failures(located: Relevo) -> None:
    found: list[str] = []

    @located.task(name="mourn")
    def mourn(failure: Any) -> None:
        found.append(f"mourned {where.get()}")

    @located.task(retries=1, backoff=0, on_failure="mourn")
    def fail() -> None:
        found.append(where.get())
        raise ValueError("no")

    _from("the shop", fail.enqueue)
    with working(located):
        eventually(lambda: len(found) == 3)
    assert found == ["the shop", "the shop", "mourned the shop"]


def test_headers_travel_through_chains_groups_and_callbacks(located: Relevo) -> None:
    found = _reporting(located)
    report = located.tasks["report"]
    flow = chain(report.si(), group([report.si(1), report.si(2)]), report.s()).on_success(report.si())
    workflow = _from("the shop", flow.enqueue)
    with working(located):
        workflow.result(timeout=PATIENCE)
        eventually(lambda: len(found) == 5)
    assert found == ["the shop"] * 5


async def test_headers_travel_through_a_large_group_that_is_enqueued_from_async_code(located: Relevo) -> None:
    found = _reporting(located)
    report = located.tasks["report"]
    token = where.set("the shop")
    await group(report.si(n) for n in range(700)).aenqueue()
    where.reset(token)
    await drain(located)
    assert found == ["the shop"] * 700


def test_headers_travel_to_jobs_that_join_a_workflow(located: Relevo) -> None:
    found = _reporting(located)

    @located.task
    def split() -> None:
        located.workflow().add(located.tasks["report"].si(1))

    workflow = _from("the shop", (split.s() | located.tasks["report"].si()).enqueue)
    with working(located):
        workflow.result(timeout=PATIENCE)
    assert found == ["the shop", "the shop"]


def test_headers_travel_with_the_jobs_of_a_schedule(located: Relevo) -> None:
    found = _reporting(located)
    schedule = _from("the shop", lambda: located.schedule("nightly", located.tasks["report"], every="1h"))
    schedule.run_now()
    drained(located)
    assert found == ["the shop"]
    _from("the office", lambda: located.schedule("nightly", located.tasks["report"].s(1), every="1h"))
    schedule.run_now()
    drained(located)
    assert found == ["the shop", "the office"]
    schedule.remove()


def test_headers_travel_with_unique_jobs_and_are_no_part_of_what_makes_them_unique(located: Relevo) -> None:
    _reporting(located)
    report = located.tasks["report"].using(unique=True)
    first = _from("the shop", lambda: report.enqueue(1))
    assert not _from("the office", lambda: report.enqueue(1)).created
    assert _from("the office", lambda: report.enqueue(2)).created
    assert [job.created for job in _from("here", lambda: report.enqueue_many([((1,), {}), ((3,), {})]))] == [
        False,
        True,
    ]
    assert first.created
    drained(located)


def test_headers_travel_with_delayed_jobs_and_survive_a_change(located: Relevo) -> None:
    found = _reporting(located)
    job = _from("the shop", lambda: located.tasks["report"].using(delay="1h", tenant="acme").enqueue(1))
    job.change(args=(2,), priority=5)
    job.change(delay=0)
    drained(located)
    assert found == ["the shop"]


def test_headers_survive_a_revival_of_the_dead_letter(located: Relevo) -> None:
    found: list[str] = []

    @located.task(retries=0)
    def task() -> None:
        found.append(where.get())
        if len(found) == 1:
            raise ValueError("no")

    job = _from("the shop", task.enqueue)
    drained(located)
    job.retry()
    drained(located)
    assert found == ["the shop", "the shop"]


def test_headers_travel_with_signed_jobs(app_factory: AppFactory) -> None:
    app = app_factory(signing_keys=("one:" + "k" * 32,), middleware=[Where()])
    found = _reporting(app)
    _from("the shop", lambda: app.tasks["report"].enqueue(1))
    _from("the shop", lambda: chain(app.tasks["report"].si(1), app.tasks["report"].si(2)).enqueue())
    drained(app)
    assert found == ["the shop"] * 3


@pytest.mark.parametrize(
    "headers",
    [{"n": 7}, {"": "x"}, {"a\nb": "x"}, {"n" * 201: "x"}, {7: "x"}, {"n": "\ud800"}, ["n"]],
    ids=["number", "no name", "unprintable name", "long name", "numbered", "surrogate", "list"],
)
def test_headers_that_are_no_texts_are_refused(app: Relevo, headers: Any) -> None:
    class Bad(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            call.headers = headers
            yield

    app.middleware(Bad())

    @app.task(name="task")
    def task() -> None: ...

    with pytest.raises(PayloadError, match=r"task: .*header"):
        task.enqueue()


def test_headers_that_are_too_large_are_refused(app: Relevo) -> None:
    class Big(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            call.headers["blob"] = "x" * 9000
            yield

    app.middleware(Big())

    @app.task(name="task")
    def task() -> None: ...

    with pytest.raises(PayloadTooLarge, match="task: headers"):
        task.enqueue()


def test_headers_are_shown_with_the_job_and_masked(app: Relevo, server: Server) -> None:
    class Give(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            call.headers |= {"request_id": "r7", "api_token": "hunter2"}
            yield

    app.middleware(Give())

    @app.task
    def task(text: str = "") -> None: ...

    job, large = task.enqueue(), task.enqueue("x" * 5000)
    assert job.info().headers == {"request_id": "r7", "api_token": "hunter2"}
    drained(app)
    assert job.info().headers == {"request_id": "r7", "api_token": "hunter2"}, "the record of a done job has them"
    assert large.info().headers == {}, "that of a large one has neither arguments nor headers"
    shown = relevo("job", "show", job.id, "--name", app.name, url=server.url)
    assert "request_id=r7, api_token=***" in shown.out


# the bus


async def test_headers_travel_with_messages_and_to_their_replies(app: Relevo) -> None:
    app.middleware(Where())
    shop, bank = app.service("shop"), app.service("bank")
    found: list[tuple[str, str]] = []

    @bank.action("charge")
    async def charge(cents: int) -> int:
        found.append(("charge", where.get()))
        await bank.apublish("charged", {"cents": cents})
        return cents

    @shop.action("charged")
    async def charged(reply: Any) -> None:
        found.append(("reply", where.get()))

    @shop.on("bank.charged")
    async def on_charged(cents: int) -> None:
        found.append(("event", where.get()))

    async with working(app):
        token = where.set("the shop")
        assert await shop.arequest("bank.charge", {"cents": 1}, timeout=PATIENCE, wait=True) == 1
        await asyncio.to_thread(shop.send, "bank.charge", {"cents": 2}, on_reply="charged")
        where.reset(token)
        for _ in range(10_000):
            if len(found) >= 5:
                break
            await asyncio.sleep(0.01)
    assert sorted(set(found)) == [("charge", "the shop"), ("event", "the shop"), ("reply", "the shop")]


async def test_a_service_without_middleware_passes_headers_on(app_factory: AppFactory) -> None:
    shop_app, bank_app = app_factory(middleware=[Where()]), app_factory()
    shop, bank, vault = shop_app.service("shop"), bank_app.service("bank"), shop_app.service("vault")

    @bank.action("charge")
    async def charge() -> str:
        return str(await bank.arequest("vault.open", timeout=PATIENCE, wait=True))

    @vault.action("open")
    async def open_vault() -> str:
        return where.get()

    async with working(bank_app), working(shop_app):
        token = where.set("the shop")
        assert await shop.arequest("bank.charge", timeout=PATIENCE, wait=True) == "the shop"
        where.reset(token)


async def test_it_sees_and_changes_the_data_of_messages(app: Relevo) -> None:
    happened: list[Any] = []

    class Double(Middleware):
        async def aenqueue(self, call: Call) -> AsyncIterator[None]:
            call.kwargs["cents"] *= 2
            happened.append((call.target, call.task))
            happened.append((yield))

    app.middleware(Double())
    bank = app.service("bank")

    @bank.action("charge")
    async def charge(cents: int) -> int:
        return cents

    async with working(app):
        assert await bank.arequest("bank.charge", {"cents": 2}, timeout=PATIENCE, wait=True) == 4
    assert happened == [("bank.charge", None), 4]


# what is refused


class Waits(Middleware):
    async def aattempt(self, call: Call) -> AsyncIterator[None]:
        yield

    async def aenqueue(self, call: Call) -> AsyncIterator[None]:
        yield


def test_middleware_that_can_only_await_is_refused_around_plain_code(app: Relevo) -> None:
    app.middleware(Waits())

    @app.task(name="task")
    def task() -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"Waits.aenqueue awaits, which enqueue\(\) of task cannot: give Waits a plain enqueue"
    ):
        task.enqueue()
    with pytest.raises(ConfigurationError, match=r"Waits.aattempt awaits, which the plain function task cannot"):
        Worker(app)


def test_what_is_no_middleware_is_refused(app: Relevo) -> None:
    class Forgot(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            return iter(())

    class Coroutine(Middleware):
        async def aattempt(self, call: Call) -> Any: ...  # type: ignore[override]

    class Plain(Middleware):
        def aattempt(self, call: Call) -> Any:
            yield

    @app.task
    def task() -> None: ...

    with pytest.raises(TargetError, match=r"Coroutine.aattempt must be async, with one `yield`"):
        app.middleware(Coroutine())
    with pytest.raises(TargetError, match=r"Plain.aattempt must be async, with one `yield`"):
        app.middleware(Plain)
    with pytest.raises(TargetError, match=r"a relevo.middleware.Middleware is needed, found 7"):
        app.middleware(7)  # type: ignore[type-var]
    app.middleware(Forgot())
    with pytest.raises(ConfigurationError, match=r"Forgot.enqueue must have one `yield`"):
        task.enqueue()


def test_a_second_yield_fails_the_call(app: Relevo) -> None:
    class Twice(Middleware):
        def attempt(self, call: Call) -> Iterator[None]:
            yield
            yield

    app.middleware(Twice())

    @app.task(retries=0)
    def task() -> None: ...

    job = task.enqueue()
    drained(app)
    assert "yields a second time" in job.info().attempts[-1].message


def test_middleware_that_comes_late_is_around_what_ran_before(app: Relevo) -> None:
    happened: list[Any] = []

    @app.task(name="task")
    def task() -> None: ...

    task.enqueue()
    drained(app)
    app.middleware(Note("it", happened))
    task.enqueue()
    drained(app)
    assert happened == ["it enqueue task()", "it job", "it attempt task()", "it None"]


def test_an_app_without_middleware_calls_the_function_itself(app: Relevo) -> None:
    @app.task
    def task() -> None: ...

    class OnlyEnqueue(Middleware):
        def enqueue(self, call: Call) -> Iterator[None]:
            yield

    assert task.attempt is task.func
    app.middleware(OnlyEnqueue())
    assert task.attempt is task.func


def test_a_direct_call_finds_the_headers_that_the_test_gives() -> None:
    with job_context(headers={"locale": "es"}):
        assert current_job().headers == {"locale": "es"}


def test_a_cancelled_job_passes_through_it(app: Relevo) -> None:
    happened: list[Any] = []
    app.middleware(AsyncNote("it", happened))
    begun = False

    @app.task(name="task")
    async def task() -> None:
        nonlocal begun
        begun = True
        await asyncio.Event().wait()

    job = task.enqueue()
    with working(app):
        eventually(lambda: begun)
        job.cancel()
        eventually(lambda: job.state() == State.CANCELLED)
    assert happened[-1] == "it CancelledError()"
