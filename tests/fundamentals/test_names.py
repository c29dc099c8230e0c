"""One job instead of many: unique names, and how long they are held."""

from __future__ import annotations

from relevo import Relevo
from tests.eventually import PATIENCE
from tests.working import drain


async def test_a_name_belongs_to_one_unfinished_job(app: Relevo) -> None:
    # Given a job with a name
    @app.task
    async def rebuild(what: str) -> str:
        return what

    first = await rebuild.using(name="rebuild").aenqueue("index")
    assert first.created

    # If I enqueue another job under that name
    second = await rebuild.using(name="rebuild").aenqueue("something else")

    # I expect to get the first job instead
    assert not second.created
    assert second == first
    await drain(app)
    assert await second.aresult(timeout=PATIENCE) == "index"

    # and the name to be free once it is done
    assert (await rebuild.using(name="rebuild").aenqueue("index")).created


async def test_a_unique_task_has_one_job_for_equal_arguments(app: Relevo) -> None:
    # Given a task that is unique by its arguments
    @app.task(unique=True)
    async def index(document: int) -> None: ...

    # If I enqueue calls, I expect equal arguments to give the same job
    first = await index.aenqueue(7)
    assert await index.aenqueue(7) == first
    assert await index.aenqueue(8) != first


async def test_a_job_can_release_its_name_when_it_starts(app: Relevo) -> None:
    # Given a task that reads the newest state when it starts: a change after that needs another job
    @app.task(unique="queued")
    async def index(document: int) -> None: ...

    waiting = await index.aenqueue(7)
    assert not (await index.aenqueue(7)).created

    # If it starts
    (lease,) = await app.queue().atake(1)
    assert lease.id == waiting.id

    # I expect the next call to make a job
    assert (await index.aenqueue(7)).created


async def test_a_name_can_be_held_for_a_time(app: Relevo) -> None:
    # Given a task that runs at most once an hour for the same arguments
    @app.task(unique="1h")
    async def greet(user: str) -> str:
        return f"hello {user}"

    first = await greet.aenqueue("Ana")
    await drain(app)

    # If I enqueue it again although it is done, I expect the first job
    again = await greet.aenqueue("Ana")
    assert not again.created
    assert await again.aresult(timeout=PATIENCE) == "hello Ana"
    assert again == first
