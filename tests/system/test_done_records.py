"""What is known of a job that is done, as long as its record lives."""

from __future__ import annotations

from typing import Any

import pytest

from relevo import Job, Relevo, State
from relevo.engine.settle import BODY_KEPT
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system.shell import relevo
from tests.working import drain, working


@pytest.mark.parametrize("name", ["", "nightly"])
async def test_a_done_job_is_told_as_it_was_enqueued(app: Relevo, name: str) -> None:
    @app.task
    async def add(left: int, *, right: int) -> int:
        return left + right

    options: dict[str, Any] = {"name": name} if name else {}
    job = await add.using(priority=5, tags=("a", "b"), tenant="acme", **options).aenqueue(2, right=3)
    await drain(app)
    info = await job.ainfo()
    assert (info.state, info.task, info.result) == (State.DONE, add.target, 5)
    assert (info.args, info.kwargs) == ([2], {"right": 3})
    assert (info.priority, info.name, info.tenant, info.tags) == (5, name, "acme", ("a", "b"))
    [row] = await app.queue().ajobs("done")
    assert (row.task, row.priority, row.name, row.tenant) == (add.target, 5, name, "acme")


async def test_a_done_job_that_was_retried_is_told_as_it_was_enqueued(app: Relevo) -> None:
    runs: list[int] = []

    @app.task(retries=1, backoff=0.001)
    async def shaky(number: int) -> int:
        runs.append(number)
        if len(runs) == 1:
            raise ValueError(number)
        return number

    job = await shaky.using(priority=7, tags=("x",)).aenqueue(1)
    async with working(app):
        await job.aresult(timeout=PATIENCE)
    info = await job.ainfo()
    assert (info.state, info.args, info.priority, info.tags) == (State.DONE, [1], 7, ("x",))
    [row] = await app.queue().ajobs("done")
    assert (row.reason, row.error) == ("", ""), "it has ended well, whatever its first attempt was"


@pytest.mark.parametrize("name", ["", "large"])
async def test_arguments_beyond_the_cap_are_none_and_all_else_is_told(app: Relevo, name: str) -> None:
    @app.task
    async def measure(text: str) -> int:
        return len(text)

    options: dict[str, Any] = {"name": name} if name else {}
    job = await measure.using(priority=5, tags=("a",), **options).aenqueue("x" * BODY_KEPT)
    await drain(app)
    info = await job.ainfo()
    assert (info.state, info.result, info.task) == (State.DONE, BODY_KEPT, measure.target)
    assert (info.args, info.kwargs) == (None, None)
    assert (info.priority, info.name, info.tags) == (5, name, ("a",))


async def test_arguments_up_to_the_cap_are_told(app: Relevo) -> None:
    @app.task
    async def measure(text: str) -> int:
        return len(text)

    text = "x" * (BODY_KEPT - 200)
    job = await measure.aenqueue(text)
    await drain(app)
    assert (await job.ainfo()).args == [text]


async def test_what_a_record_does_not_tell_is_none(app: Relevo, server: Server) -> None:
    @app.task
    async def quiet() -> None: ...

    job = await quiet.using(priority=5).aenqueue()
    await drain(app)
    keys = app.engine.keys_of("default")
    # as versions before wrote it
    server.command(
        "SET", keys.key("ended") + b":" + job.id.encode(), b'{"state":"done","target":"old.task"}', "KEEPTTL"
    )
    info = await job.ainfo()
    assert (info.state, info.task) == (State.DONE, "old.task")
    unknown = (info.priority, info.name, info.tenant, info.tags, info.args, info.kwargs, info.workflow)
    assert unknown == (None,) * 7
    [row] = await app.queue().ajobs("done")
    assert (row.task, row.priority, row.name, row.tenant) == ("old.task", None, None, None)
    told = relevo("job", job.id, "--name", app.name, "--json", url=server.url).json
    assert (told["task"], told["priority"], told["tags"], told["args"]) == ("old.task", None, None, None)
    assert "not known" in relevo("job", job.id, "--name", app.name, url=server.url).out


async def test_a_done_job_cannot_be_run_again_by_its_record(app: Relevo) -> None:
    @app.task
    async def once() -> int:
        return 1

    job: Job[int] = await once.aenqueue()
    await drain(app)
    assert not await job.aretry()
    assert await job.aresult() == 1
