"""Groups some of whose members may fail (`tolerate=`), and groups that stop at the first failure (`fail_fast=`)."""

from __future__ import annotations

from typing import Any

import pytest

from relevo import Relevo, State, Task, chain, group
from relevo.errors import JobError, JobFailed, OptionError
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.working import drained, working


class Tasks:
    """Tasks that note what ran; numbers in `failing` fail."""

    def __init__(self, app: Relevo) -> None:
        self.failing: set[int] = set()
        self.ran: list[int] = []
        self.totals: list[list[int]] = []

        @app.task(name="member", retries=0)
        async def member(n: int) -> int:
            self.ran.append(n)
            if n in self.failing:
                raise ValueError(f"no {n}")
            return n

        @app.task(name="after", retries=0)
        async def after(n: int) -> int:
            return member.func(n + 100)  # type: ignore[no-any-return]

        @app.task(name="total")
        async def total(numbers: list[int]) -> int:
            self.totals.append(numbers)
            return sum(numbers)

        @app.task(name="late", queue="late")
        async def late(n: int) -> int:
            self.ran.append(n)
            return n

        self.member: Task[..., Any] = member
        self.total: Task[..., Any] = total
        self.late: Task[..., Any] = late


@pytest.fixture
def tasks(app: Relevo) -> Tasks:
    return Tasks(app)


# --- tolerate


@pytest.mark.parametrize("members", [5, 700])
def test_members_that_may_fail_are_left_out_of_the_list(app: Relevo, tasks: Tasks, members: int) -> None:
    tasks.failing |= {1, 3}
    flow = group((tasks.member.s(n) for n in range(members)), tolerate=2).then(tasks.total.s()).enqueue()
    drained(app)
    assert tasks.totals == [[n for n in range(members) if n not in (1, 3)]]
    assert flow.state() is State.DONE
    assert flow.result(timeout=PATIENCE) == sum(tasks.totals[0])
    progress = flow.progress()
    assert (progress.failed, progress.open) == (2, 0)


def test_a_group_at_the_end_gives_the_list_without_its_failures(app: Relevo, tasks: Tasks) -> None:
    tasks.failing.add(0)
    flow = group([tasks.member.s(n) for n in range(4)], tolerate=0.25).enqueue()
    drained(app)
    assert flow.result(timeout=PATIENCE) == [1, 2, 3]


def test_one_failure_more_fails_the_group_and_what_waits_for_it(app: Relevo, tasks: Tasks) -> None:
    tasks.failing |= {1, 2, 3}
    flow = group([tasks.member.s(n) for n in range(5)], tolerate=2).then(tasks.total.s()).enqueue()
    drained(app)
    assert (tasks.totals, sorted(tasks.ran)) == ([], [0, 1, 2, 3, 4])
    assert flow.state() is State.DEAD
    with pytest.raises(JobFailed, match="no 1"):
        flow.result(timeout=PATIENCE)

    # If one of them goes well after a retry, I expect the rest to follow
    tasks.failing -= {1}
    flow.retry()
    drained(app)
    assert tasks.totals == [[0, 1, 4]]
    assert flow.state() is State.DONE


def test_a_chain_in_a_group_counts_as_one_member(app: Relevo, tasks: Tasks) -> None:
    tasks.failing |= {1}
    parts = [chain(tasks.member.s(n), tasks.member.s()) for n in range(3)]
    flow = group(parts, tolerate=1).then(tasks.total.s()).enqueue()
    drained(app)
    assert tasks.totals == [[0, 2]]
    assert flow.state() is State.DONE


def test_other_failures_of_the_flow_are_not_tolerated(app: Relevo, tasks: Tasks) -> None:
    tasks.failing |= {1}
    inner = group([tasks.member.s(n) for n in (1, 2)], tolerate=1).then(tasks.total.s())
    flow = group(inner, tasks.member.s(3)).enqueue()
    drained(app)
    assert flow.result(timeout=PATIENCE) == [2, 3]
    tasks.failing |= {3}
    again = group(inner, tasks.member.s(3)).enqueue()
    drained(app)
    assert again.state() is State.DEAD


def test_all_members_may_fail(app: Relevo, tasks: Tasks) -> None:
    tasks.failing |= {0, 1}
    flow = group([tasks.member.s(n) for n in range(2)], tolerate=1.0).then(tasks.total.s()).enqueue()
    drained(app)
    assert tasks.totals == [[]]
    assert flow.result(timeout=PATIENCE) == 0


def test_callbacks_see_a_group_within_its_tolerance_as_done(app: Relevo, tasks: Tasks) -> None:
    tasks.failing |= {0}
    members = group([tasks.member.s(n) for n in range(2)], tolerate=1)
    members.on_success(tasks.late.si(200)).on_failure(tasks.late.si(201)).enqueue()
    drained(app, queues=["default", "late"])
    assert sorted(tasks.ran) == [0, 1, 200]


def test_a_job_that_ran_after_tolerated_failures_can_be_retried(app: Relevo, tasks: Tasks) -> None:
    @app.task(name="last", retries=0)
    async def last(numbers: list[int]) -> int:
        tasks.totals.append(numbers)
        if len(tasks.totals) == 1:
            raise ValueError("once")
        return len(numbers)

    tasks.failing |= {0}
    flow = group([tasks.member.s(n) for n in range(3)], tolerate=1).then(last.s()).enqueue()
    drained(app)
    assert flow.state() is State.DEAD
    tasks.failing.clear()
    assert flow.retry() >= 1
    drained(app)
    assert flow.state() is State.DONE


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "2", None])
def test_a_tolerance_that_is_none_is_refused(tasks: Tasks, wrong: Any) -> None:
    with pytest.raises(OptionError, match="tolerate: a"):
        group([tasks.member.s(1)], tolerate=wrong)


def test_tolerance_with_signatures_is_refused(app_factory: AppFactory) -> None:
    tasks = Tasks(app_factory(signing_keys=["k1:" + "0123456789abcdef" * 2]))
    with pytest.raises(OptionError, match="tolerate= is not possible with signing_keys"):
        group([tasks.member.s(1), tasks.member.s(2)], tolerate=1).enqueue()


# --- fail_fast


@pytest.mark.parametrize("members", [4, 700])
def test_the_first_failure_cancels_what_has_not_ended(app: Relevo, tasks: Tasks, members: int) -> None:
    tasks.failing.add(0)
    steps = [tasks.member.s(0), *(tasks.late.s(n) for n in range(1, members))]
    flow = group(steps, fail_fast=True).then(tasks.total.s()).enqueue()
    with working(app, queues=["default"]):  # serves the queue of the first one alone
        eventually(lambda: flow.state().has_ended, what="the workflow ends")
    assert flow.state() is State.DEAD
    assert flow.progress().failed == members + 1
    assert app.queue("late").stats().totals["cancelled"] == members - 1
    assert (tasks.ran, tasks.totals) == ([0], [])
    with pytest.raises(JobError, match="no 0"):
        flow.result(timeout=PATIENCE)

    # If it is retried without the fault, I expect all of them to run
    tasks.failing.clear()
    flow.retry()
    drained(app, queues=["default", "late"])
    assert flow.state() is State.DONE
    assert tasks.totals == [list(range(members))]


def test_a_tolerant_group_that_fails_fast_stops_beyond_its_tolerance(app: Relevo, tasks: Tasks) -> None:
    tasks.failing |= {0, 1}
    steps = [tasks.member.s(0), tasks.member.s(1), tasks.late.s(2), tasks.late.s(3)]
    flow = group(steps, fail_fast=True, tolerate=2).then(tasks.total.s()).enqueue()
    drained(app, queues=["default"])
    assert flow.state() is State.RUNNING
    flow.cancel()
    drained(app, queues=["default"])
    flow = group(steps, fail_fast=True, tolerate=1).then(tasks.total.s()).enqueue()
    drained(app, queues=["default"])
    assert flow.state() is State.DEAD
    assert [row.state for row in flow.info().members].count(State.CANCELLED) == 3


def test_jobs_beside_the_group_go_on(app: Relevo, tasks: Tasks) -> None:
    tasks.failing.add(0)
    inner = group([tasks.member.s(0), tasks.late.s(1)], fail_fast=True)
    flow = group(inner, tasks.late.s(7)).enqueue()
    drained(app, queues=["default"])
    assert not flow.state().has_ended
    drained(app, queues=["default", "late"])
    assert tasks.ran == [0, 7]
    assert flow.state() is State.DEAD


def test_a_workflow_of_which_not_all_is_kept_is_not_retried_in_part(app_factory: AppFactory) -> None:
    app = app_factory(dead_max=5)
    tasks = Tasks(app)
    tasks.failing.add(0)
    steps = [tasks.member.s(0), *(tasks.late.s(n) for n in range(1, 21))]
    flow = group(steps, fail_fast=True).then(tasks.total.s()).enqueue()
    with working(app, queues=["default"]):
        eventually(lambda: flow.state().has_ended, what="the workflow ends")
    with pytest.raises(JobError, match=r"15 of its 22 failed jobs are no longer kept.*dead_max \(5\)"):
        flow.retry()
    assert app.queue().stats().living + app.queue("late").stats().living == 0


def test_a_long_chain_of_cancelled_jobs_in_two_queues_is_retried_as_a_whole(app: Relevo, tasks: Tasks) -> None:
    steps = [tasks.member.s(1), *(tasks.late.s() if n % 2 else tasks.member.s() for n in range(249))]
    flow = chain(*steps).enqueue()
    assert flow.cancel() == 250
    assert flow.state() is State.CANCELLED
    assert flow.retry() >= 1
    drained(app, queues=["default", "late"])
    assert flow.result(timeout=PATIENCE) == 1
    assert len(tasks.ran) == 250
