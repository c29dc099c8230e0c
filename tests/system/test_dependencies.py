"""Dependencies: parameters that a worker fills in for each attempt, and closes after it."""

# Type checkers know nothing of what is filled in, where the annotation says so: they miss the argument.
# mypy: disable-error-code="call-arg, arg-type, call-overload, misc"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from relevo import Depends, Relevo, Task, chain, current_job
from relevo.errors import JobFailed, PayloadError, TargetError
from relevo.middleware import Call, Middleware
from relevo.testing import bind
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system import dependency_tasks as tasks
from tests.working import drain, drained, working


@pytest.fixture
def dependent(app: Relevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relevo]:
    """The app of the tasks, on the test's server."""
    monkeypatch.setenv("DEPENDENCIES_FILE", str(tmp_path / "noted"))
    with tasks.app.engine.rebound(url=app.settings.url, env="test"):
        yield tasks.app
        for queue in tasks.app.queues():
            tasks.app.queue(queue).clear()


EVERYWHERE: list[Task[..., str]] = [tasks.on_loop, tasks.in_thread, tasks.in_process, tasks.loop_in_process]


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_a_dependency_is_filled_in_and_closed_wherever_the_task_runs(
    dependent: Relevo, task: Task[..., str], tmp_path: Path
) -> None:
    with working(dependent):
        assert task.enqueue(7).result(timeout=PATIENCE) in ("db 7", "async db 7")
        with pytest.raises(JobFailed, match="order -1"):
            task.enqueue(-1).result(timeout=PATIENCE)
    assert (tmp_path / "noted").read_text().split("\n")[:-1] == [
        "done", "closed", "rolled back after order -1", "closed",
    ]  # fmt: skip


def test_the_traceback_of_a_failed_attempt_begins_in_the_task(
    dependent: Relevo,
) -> None:
    for task in (tasks.in_thread, tasks.on_loop, tasks.in_process):
        job = task.enqueue(-1)
        drained(dependent)
        lines = job.info().attempts[-1].traceback.splitlines()
        assert f"in {task.target}" in lines[1], lines


# how they are made

happened: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    happened.clear()


def _session() -> Iterator[str]:
    happened.append("open session")
    yield "session"
    happened.append("close session")


Session = Annotated[str, Depends(_session)]


async def _user(session: Session) -> AsyncIterator[str]:
    happened.append("open user")
    yield f"user of {session}"
    happened.append("close user")


class _Rights:
    def __init__(self, session: Session) -> None:
        self.session = session


async def _waited() -> str:
    await asyncio.sleep(0)
    return "waited"


class _Callable:
    async def __call__(self, session: Session) -> str:
        return f"called with {session}"


async def test_dependencies_have_dependencies_and_are_made_once_per_attempt(app: Relevo) -> None:
    @app.task
    async def task(
        user: Annotated[str, Depends(_user)],
        n: int,
        rights: Annotated[Any, Depends(_Rights)],
        waited: Annotated[str, Depends(_waited)],
        called: Annotated[str, Depends(_Callable())],
        part: Annotated[str, Depends(partial(_rest, "part"))],
        *,
        session: Session,
        k: int = 0,
    ) -> list[Any]:
        happened.append("run")
        return [user, n, rights.session, waited, called, part, session, k]

    job = await task.aenqueue(7, k=8)
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == [
        "user of session", 7, "session", "waited", "called with session", "part", "session", 8,
    ]  # fmt: skip
    assert happened == ["open session", "open user", "run", "close user", "close session"]


def _rest(text: str) -> str:
    return text


def test_a_retry_gets_new_ones(app: Relevo) -> None:
    @app.task(retries=1, backoff=0)
    def task(session: Session) -> None:
        if current_job().attempt == 1:
            raise ValueError("again")

    job = task.enqueue()
    with working(app):
        job.result(timeout=PATIENCE)
    assert happened == ["open session", "open session", "close session"], "the first one got the error at its yield"


def test_use_cache_false_makes_one_for_each(app: Relevo) -> None:
    Own = Annotated[str, Depends(_session, use_cache=False)]

    def task(a: str, b: str) -> None: ...

    task.__annotations__ = {"a": Own, "b": Own}
    app.task(name="task")(task).enqueue()
    drained(app)
    assert happened == ["open session", "open session", "close session", "close session"]


def test_an_error_before_the_yield_fails_the_attempt_and_closes_the_others(app: Relevo) -> None:
    def broken(session: Session) -> str:
        raise OSError("the database does not answer")

    @app.task(retries=0)
    def task(broken: Annotated[str, Depends(broken)]) -> None:
        happened.append("run")

    task.func.__annotations__["broken"] = Annotated[str, Depends(broken)]
    job = app.task(name="again", retries=0)(task.func).enqueue()
    drained(app)
    assert job.info().attempts[-1].error == "OSError"
    assert happened == ["open session"]


def test_an_error_after_the_yield_fails_the_attempt(app: Relevo) -> None:
    def commits() -> Iterator[str]:
        yield "session"
        raise OSError("commit failed")

    def task(session: str) -> None: ...

    task.__annotations__["session"] = Annotated[str, Depends(commits)]
    job = app.task(name="task", retries=0)(task).enqueue()
    drained(app)
    assert job.info().attempts[-1].message == "commit failed"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_dependency_cannot_hide_an_error(app: Relevo, is_async: bool) -> None:
    def quiet() -> Iterator[str]:
        try:
            yield "session"
        except ValueError:
            happened.append("caught")

    async def async_task(session: str) -> None:
        raise ValueError("no")

    def plain_task(session: str) -> None:
        raise ValueError("no")

    func: Callable[..., Any] = async_task if is_async else plain_task
    func.__annotations__["session"] = Annotated[str, Depends(quiet)]
    job = app.task(name="task", retries=0)(func).enqueue()
    drained(app)
    assert job.info().attempts[-1].error == "ValueError"
    assert happened == ["caught"]


def test_they_are_inside_of_middleware(app: Relevo) -> None:
    class Around(Middleware):
        def attempt(self, call: Call) -> Iterator[None]:
            assert call.kwargs == {}
            happened.append("before")
            yield
            happened.append("after")

    app.middleware(Around())

    @app.task
    def task(session: Session) -> None: ...

    task.enqueue()
    drained(app)
    assert happened == ["before", "open session", "close session", "after"]


def test_they_find_the_job_and_the_state_of_the_lifespan(app: Relevo) -> None:
    @app.lifespan
    def lifespan() -> Iterator[str]:
        yield "pool"

    def get_db() -> str:
        return f"{current_job().state} for {current_job().target}"

    def task(db: str) -> str:
        return db

    task.__annotations__["db"] = Annotated[str, Depends(get_db)]
    job = app.task(name="task")(task).enqueue()
    drained(app)
    assert job.result(timeout=PATIENCE) == "pool for task"


# no part of a call


def test_they_are_no_part_of_the_call(app: Relevo) -> None:
    @app.task(name="task")
    def task(session: Session, order: int, user: str = Depends(_waited_plain)) -> str:
        return f"{session} {order} {user}"

    with pytest.raises(
        PayloadError, match=r"unexpected keyword argument 'session'; it takes \(order: 'int'\) -> 'str'"
    ):
        task.enqueue(7, session="mine")
    assert [slot.name for slot in task.signature.parameters] == ["order"]

    def same(order: int) -> str: ...  # type: ignore[empty-body]

    assert task.signature.digest == app.task(name="same")(same).signature.digest
    job = task.enqueue(order=7)
    drained(app)
    assert job.result(timeout=PATIENCE) == "session 7 plain"


def _waited_plain() -> str:
    return "plain"


def test_a_direct_call_is_given_them() -> None:
    app = Relevo("direct")

    @app.task
    def task(order: int, session: Session) -> str:
        return f"{session} {order}"

    assert task(7, session="fake") == "fake 7"


def test_a_step_of_a_chain_takes_the_result_as_its_first_argument(app: Relevo) -> None:
    @app.task
    def first() -> int:
        return 1

    @app.task
    def second(session: Session, n: int, add: int) -> str:
        return f"{session} {n + add}"

    workflow = chain(first.s(), second.s(add=2)).enqueue()
    with working(app):
        assert workflow.result(timeout=PATIENCE) == "session 3"


async def test_actions_and_handlers_of_events_have_them(app: Relevo) -> None:
    bank = app.service("bank")

    @bank.action("charge")
    async def charge(cents: int, session: Session, user: Annotated[str, Depends(_user)]) -> str:
        return f"{cents} {session} {user}"

    schema = charge.signature.described()  # type: ignore[attr-defined]
    assert list(schema["takes"]["properties"]) == ["cents"]
    async with working(app):
        found = await bank.arequest("bank.charge", {"cents": 2}, timeout=PATIENCE, wait=True)
    assert found == "2 session user of session"


# in tests of users


def test_tests_override_them_and_a_binding_sets_them_back(server: Server) -> None:
    app = Relevo("kit")

    def fake() -> str:
        return "fake"

    @app.task
    def task(session: Session) -> str:
        return session

    with bind(app, url=server.url) as kit:
        app.dependency_overrides[_session] = fake
        job = task.enqueue()
        kit.drain()
        assert job.result(timeout=PATIENCE) == "fake"
    assert app.dependency_overrides == {}
    assert happened == []


def test_an_async_override_of_a_plain_task_is_refused(app: Relevo) -> None:
    @app.task(retries=0)
    def task(session: Session) -> None: ...

    app.dependency_overrides[_session] = _waited
    job = task.enqueue()
    drained(app)
    assert "_waited() awaits, which a plain function cannot" in job.info().attempts[-1].message


# what is refused


def _takes_more(order: int) -> str: ...  # type: ignore[empty-body]


def _circle(value: Annotated[str, Depends(lambda: None)]) -> str: ...  # type: ignore[empty-body]


_circle.__annotations__["value"] = Annotated[str, Depends(_circle)]


def _positional(value: Session, /) -> str: ...  # type: ignore[empty-body]


def test_what_cannot_be_filled_in_is_refused_at_registration(app: Relevo) -> None:
    def waits(db: Annotated[str, Depends(_waited)]) -> None: ...
    def more(db: Annotated[str, Depends(_takes_more)]) -> None: ...
    def circle(db: Annotated[str, Depends(_circle)]) -> None: ...
    def inner(db: Annotated[str, Depends(_positional)]) -> None: ...
    def positional(db: Session, /) -> None: ...
    def rest(db: Session, *rest: int) -> None: ...

    for func, message in (
        (waits, r"_waited\(\) awaits, which the plain function .*waits cannot"),
        (more, r"_takes_more\(\) takes 'order', which is no dependency"),
        (circle, r"_circle\(\) depends on itself"),
        (inner, r"_positional\(\): 'value' is filled in by its name"),
        (positional, r"a dependency is filled in by its name: put 'db' behind the `/`"),
        (rest, r"put the dependency 'db' behind the `\*` argument"),
    ):
        with pytest.raises(TargetError, match=message):
            app.task(func)
    with pytest.raises(TargetError, match="Depends needs a function that gives the value, found 7"):
        Depends(7)
    with pytest.raises(TargetError, match="Depends needs a function that can be hashed"):
        Depends(_Unhashable())


class _Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> None: ...


def test_a_task_that_is_async_behind_a_plain_decorator_is_refused(app: Relevo) -> None:
    import functools

    def plain_decorator(func: Any) -> Any:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        return wrapper

    @app.task(name="task", retries=0)
    @plain_decorator
    async def task(session: Session) -> None: ...

    job = task.enqueue()
    drained(app)
    assert "task is async behind a plain decorator" in job.info().attempts[-1].message
