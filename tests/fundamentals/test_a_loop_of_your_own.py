"""Without relevo's worker: take jobs, do them your way, and say what became of them."""

from __future__ import annotations

import pytest

from relevo import Relevo, State
from relevo.errors import JobFailed
from tests.eventually import eventually


def test_a_job_is_taken_and_done(app: Relevo) -> None:
    # Given a job
    @app.task(name="price")
    def price(cents: int, *, pieces: int = 1) -> int:
        raise NotImplementedError("done elsewhere")

    job = price.enqueue(25, pieces=4)

    # If I take it and do it myself
    for lease in app.queue("default").take(10, worker="my-loop"):
        assert (lease.task, lease.args, lease.kwargs) == ("price", [25], {"pieces": 4})
        assert job.status() is State.RUNNING
        assert lease.done(100)

    # I expect whoever waits to get the result
    assert job.result(timeout=10) == 100


def test_a_taken_job_is_put_off(app: Relevo) -> None:
    # Given a job in my hands
    @app.task
    def price() -> None: ...

    job = price.enqueue()
    (lease,) = app.queue().take(1)

    # If I cannot do it now, I expect it to be there again after a time
    assert lease.retry(delay="5m", reason="the shop is closed")
    assert job.status() is State.SCHEDULED
    assert job.info().attempts[0].message == "the shop is closed"


def test_a_taken_job_is_given_up(app: Relevo) -> None:
    # Given a job in my hands
    @app.task
    def price() -> None: ...

    job = price.enqueue()
    (lease,) = app.queue().take(1)

    # If it can never be done, I expect it among the dead letters
    assert lease.bury("no such article")
    with pytest.raises(JobFailed, match="no such article"):
        job.result(timeout=10)
    assert [letter.id for letter in app.dead.list()] == [job.id]


def test_whoever_is_too_slow_has_lost_the_job(app: Relevo) -> None:
    # Given a job that I have taken for a moment only
    @app.task
    def price() -> None: ...

    price.enqueue()
    queue = app.queue()
    (mine,) = queue.take(1, lease=0.001)

    # If somebody else comes by after that time
    theirs = eventually(lambda: queue.take(1, worker="somebody-else"))

    # I expect the job to be theirs: what I say about it does not count any more
    assert not mine.done()
    assert theirs[0].done()
