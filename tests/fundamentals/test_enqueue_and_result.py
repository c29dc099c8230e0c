"""Start here: a task is a function, a job is one call of it, and a worker makes that call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from relevo import Relevo, State
from relevo.errors import JobFailed, PayloadError, ResultTimeout
from tests.conftest import AppFactory
from tests.eventually import PATIENCE
from tests.fundamentals import shop
from tests.working import drain, drained, working


def test_a_plain_function_is_enqueued_and_its_result_waited_for(app: Relevo) -> None:
    # Given a task
    @app.task
    def double(number: int) -> int:
        return number * 2

    # If a worker runs and I enqueue a call
    with working(app):
        job = double.enqueue(21)

        # I expect to get what the function returned
        assert job.result(timeout=PATIENCE) == 42


async def test_a_coroutine_is_enqueued_and_its_result_awaited(app: Relevo) -> None:
    # Given a task that is a coroutine
    @app.task
    async def double(number: int) -> int:
        return number * 2

    # If a worker runs and I enqueue a call from async code
    async with working(app):
        job = await double.aenqueue(21)

        # I expect to get what the function returned
        assert await job.aresult(timeout=PATIENCE) == 42


async def test_nothing_runs_before_a_worker_does(app: Relevo) -> None:
    # Given a job, and no worker
    @app.task
    def double(number: int) -> int:
        return number * 2

    job = await double.aenqueue(21)

    # I expect it to be ready, and the caller to stop waiting at its timeout
    assert await job.astate() is State.READY
    with pytest.raises(ResultTimeout):
        await job.aresult(timeout=0.05)

    # If a worker starts, I expect the job to run
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == 42
    assert await job.astate() is State.DONE


def test_a_task_is_still_a_function(app: Relevo) -> None:
    # Given a task
    @app.task
    def double(number: int) -> int:
        return number * 2

    # If I call it, I expect it to run in this process, without a server
    assert double(21) == 42


def test_many_jobs_are_enqueued_at_once(app: Relevo) -> None:
    # Given a task
    @app.task
    def price(cents: int, *, pieces: int = 1) -> int:
        return cents * pieces

    # If I enqueue many calls, each a pair of positional and named arguments
    jobs = price.enqueue_many([((10,), {}), ((20,), {"pieces": 2}), ((30,), {"pieces": 3})])
    drained(app)

    # I expect the jobs in the order of the calls
    assert [job.result(timeout=PATIENCE) for job in jobs] == [10, 40, 90]


async def test_a_job_can_be_found_again_by_its_id(app: Relevo) -> None:
    # Given a job that has run
    @app.task
    def double(number: int) -> int:
        return number * 2

    id = (await double.aenqueue(21)).id
    await drain(app)

    # If I know only its id
    job = await app.ajob(id)

    # I expect its result and its state
    assert await job.aresult(timeout=PATIENCE) == 42
    info = await job.ainfo()
    assert (info.state, info.result) == (State.DONE, 42)


async def test_an_error_of_the_task_is_raised_where_the_result_is_awaited(app: Relevo) -> None:
    # Given a task that fails
    @app.task(retries=0)
    def divide(by: int) -> float:
        return 1 / by

    # If I wait for its result
    job = await divide.aenqueue(0)
    await drain(app)

    # I expect the error and its traceback
    with pytest.raises(JobFailed, match="ZeroDivisionError: division by zero") as failed:
        await job.aresult(timeout=PATIENCE)
    assert failed.value.error == "ZeroDivisionError"
    assert "return 1 / by" in failed.value.traceback


@dataclass
class Invoice:
    number: UUID
    day: date
    sent: datetime
    total: Decimal
    lines: tuple[str, ...]


async def test_arguments_and_results_come_back_as_the_types_they_were(app: Relevo) -> None:
    # Given a task with an annotated signature
    @app.task
    def remind(invoice: Invoice) -> Invoice:
        assert isinstance(invoice.total, Decimal)
        return invoice

    # If I pass such values
    invoice = Invoice(uuid4(), date(2026, 2, 28), datetime.now(UTC), Decimal("9.90"), ("tea", "biscuits"))
    job = await remind.aenqueue(invoice)
    await drain(app)

    # I expect the function to get equal values, and me to get an equal result
    assert await job.aresult(timeout=PATIENCE) == invoice


async def test_arguments_that_would_change_in_json_are_refused_at_once(app: Relevo) -> None:
    # Given a task whose parameter has no annotation
    @app.task
    def remind(invoice) -> None:  # type: ignore[no-untyped-def]
        ...

    # If I pass a value that JSON would change
    # I expect a refusal here, not an error in the worker
    with pytest.raises(PayloadError, match="a tuple would come back as a list"):
        await remind.aenqueue((1, 2))


async def test_plain_functions_of_allowed_modules_can_be_enqueued(app_factory: AppFactory) -> None:
    # Given an app that allows a module of plain functions
    app = app_factory(allow=["tests.fundamentals.shop"])

    # If I enqueue calls of them
    price = await app.aenqueue(shop.price, 25, pieces=4)
    parcel = await app.aenqueue(shop.ship, "parcel 7")
    await drain(app)

    # I expect workers to find them by their import path
    assert await price.aresult(timeout=PATIENCE) == 100
    assert await parcel.aresult(timeout=PATIENCE) == "parcel 7 is on its way"
