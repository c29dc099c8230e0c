"""Without relevo's worker: take jobs, run them your way, and settle them."""

from __future__ import annotations

import pytest

from relevo import Relevo, State
from relevo.errors import JobFailed
from tests.eventually import PATIENCE, eventually


def test_a_job_is_taken_and_done(app: Relevo) -> None:
    # Given a job
    @app.task(name="price")
    def price(cents: int, *, pieces: int = 1) -> int:
        raise NotImplementedError("run by the loop below")

    job = price.enqueue(25, pieces=4)

    # If I take it and run it myself
    for lease in app.queue("default").take(10, worker="my-loop"):
        assert (lease.task, lease.args, lease.kwargs) == ("price", [25], {"pieces": 4})
        assert job.state() is State.RUNNING
        assert lease.done(100)

    # I expect the caller to get the result
    assert job.result(timeout=PATIENCE) == 100


def test_a_taken_job_is_retried_later(app: Relevo) -> None:
    # Given a job that I have taken
    @app.task
    def price() -> None: ...

    job = price.enqueue()
    (lease,) = app.queue().take(1)

    # If I cannot run it now, I expect it to be ready again after the delay
    assert lease.retry(delay="5m", reason="the shop is closed")
    assert job.state() is State.SCHEDULED
    assert job.info().attempts[0].message == "the shop is closed"


def test_a_taken_job_is_given_up(app: Relevo) -> None:
    # Given a job that I have taken
    @app.task
    def price() -> None: ...

    job = price.enqueue()
    (lease,) = app.queue().take(1)

    # If it can never succeed, I expect it among the dead letters
    assert lease.bury("no such article")
    with pytest.raises(JobFailed, match="no such article"):
        job.result(timeout=PATIENCE)
    assert [letter.id for letter in app.dead.list()] == [job.id]


def test_a_job_whose_lease_expired_belongs_to_the_next_worker(app: Relevo) -> None:
    # Given a job that I have taken with a very short lease
    @app.task
    def price() -> None: ...

    price.enqueue()
    queue = app.queue()
    (mine,) = queue.take(1, lease=0.001)

    # If another worker takes jobs after the lease has expired
    theirs = eventually(lambda: queue.take(1, worker="another"))

    # I expect the job to be theirs: I cannot settle it any more
    assert not mine.done()
    assert theirs[0].done()
