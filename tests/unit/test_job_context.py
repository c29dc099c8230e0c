"""Direct calls of tasks that use `current_job()`, without a server."""

from __future__ import annotations

import pytest

from relevo import Relevo, current_job
from relevo.checkpoints.keeping import Interruption
from relevo.errors import ConfigurationError, OptionError
from relevo.testing import TestedJob, job_context

app = Relevo("direct")


@app.task(retries=5)
def import_orders(count: int) -> list[int]:
    job = current_job()
    done = []
    start = job.step("start", first_number)
    for number in job.iterate(range(start, start + count), every=0):
        done.append(number)
        job.progress((number - start + 1) / count, f"order {number}")
    return done


def first_number() -> int:
    calls.append("first_number")
    return 10


calls: list[str] = []


@app.task
async def about_me() -> list[object]:
    job = current_job()
    assert job.message is not None
    seen = [await job.astep("twice", first_number), [n async for n in job.iterate([1, 2])]]
    about = [job.id, job.target, job.attempt, job.tags, job.tenant, job.name, job.retries_left, job.fence]
    return [*seen, *about, job.message.source, job.message.session, job.message.correlation_id, job.message.type]


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()


def test_a_task_that_uses_its_job_can_be_called_directly() -> None:
    with pytest.raises(ConfigurationError, match=r"inside `with relevo\.testing\.job_context\(\):`"):
        import_orders(2)
    with job_context() as job:
        assert import_orders(2) == [10, 11]
        assert current_job() is job
    assert job.reported == (1.0, "order 11")
    with pytest.raises(ConfigurationError, match="outside a job"):
        current_job()


async def test_the_facts_of_the_job_are_those_of_the_test() -> None:
    facts = {"source": "web", "session": "s1", "correlation_id": "c1"}
    with job_context(about_me, id="j7", attempt=3, tags=("a",), tenant="t", name="n", retries_left=1, message=facts):
        seen = await about_me()
    assert seen == [10, [1, 2], "j7", about_me.target, 3, ("a",), "t", "n", 1, 3, "web", "s1", "c1", about_me.target]
    with job_context() as job:
        assert (job.attempt, job.message, job.reported) == (1, None, None)


def test_an_attempt_after_another_continues_where_that_one_ended() -> None:
    with job_context() as first, pytest.raises(ZeroDivisionError):
        failing(first)
    with job_context(attempt=2, after=first):
        assert import_orders(3) == [11, 12]
    assert calls == ["first_number"]


def failing(job: TestedJob) -> None:
    start = job.step("start", first_number)
    for number in job.iterate(range(start, start + 3), every=0):
        assert number == 10 or 1 / 0


def test_a_task_can_be_tested_for_what_it_does_when_it_is_asked_to_stop() -> None:
    with job_context() as job:
        job.ask_to_stop()
        assert current_job().cancel_requested
        with pytest.raises(Interruption):
            import_orders(2)


def test_a_fact_of_a_message_that_does_not_exist_is_refused() -> None:
    with (
        pytest.raises(OptionError, match="message: unknown name 'sesion', did you mean 'session'"),
        job_context(message={"sesion": "s"}),
    ):
        pass
