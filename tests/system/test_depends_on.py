"""Jobs that depend on jobs, at the borders: options, names, policies, takers, dying makers, parents that are gone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from relevo import Job, Relevo, State, chain, group
from relevo.errors import JobCancelled, JobError, OptionError, UnknownJob
from relevo.store.plan import Call
from relevo.testing import bind
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.servers import Server
from tests.system.timed import HOUR, Times
from tests.working import drain, drained, working


class Steps:
    """A task whose jobs fail as long as their number is in `failing`; `runs` are those that were made."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.runs: list[int] = []
        self.failing: set[int] = set()

        @app.task(name="step", retries=0, **options)
        async def step(number: int = 0) -> int:
            self.runs.append(number)
            if number in self.failing:
                raise ValueError(f"number {number}")
            return number

        self.task = step
        self.using = step.using


@pytest.fixture
def steps(app: Relevo) -> Steps:
    return Steps(app)


async def states(*jobs: Job[Any]) -> list[State]:
    return [await job.astate() for job in jobs]


# what is kept


async def test_a_released_job_keeps_its_delay_or_its_time(app: Relevo, steps: Steps) -> None:
    parent = await steps.task.aenqueue(1)
    child = await steps.using(delay="1h", depends_on=[parent]).aenqueue(2)
    eta = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    later = await steps.using(eta=eta, depends_on=[parent]).aenqueue(3)
    await drain(app)
    info = await child.ainfo()
    assert info.state is State.SCHEDULED
    ended = (await parent.ainfo()).ended_ms
    assert info.due_ms is not None and ended is not None
    assert HOUR <= info.due_ms - ended < 2 * HOUR, "it counts from the moment of its release"
    assert (await later.ainfo()).due_ms == int(eta.timestamp() * 1000)


async def test_a_job_that_expired_while_it_waited_does_not_run(app: Relevo, steps: Steps) -> None:
    parent = await steps.task.aenqueue(1)
    child = await steps.using(expires=0.001, depends_on=[parent]).aenqueue(2)
    grandchild = await steps.using(depends_on=[child]).aenqueue(3)
    begun = app.engine.run(app.engine.now_ms())
    eventually(lambda: app.engine.run(app.engine.now_ms()) > begun + 5)
    await drain(app)
    assert await states(parent, child, grandchild) == [State.DONE, State.EXPIRED, State.CANCELLED]
    assert f"it depends on {child.id}, which is expired" in (await grandchild.ainfo()).attempts[0].message
    assert steps.runs == [1]


# names


async def test_a_living_job_of_the_same_name_is_found_and_stays_as_it_is(app: Relevo, steps: Steps) -> None:
    first, second = await steps.task.aenqueue(1), await steps.using(delay="1h").aenqueue(2)
    child = await steps.using(name="only", depends_on=[first]).aenqueue(3)
    again = await steps.using(name="only", depends_on=[second]).aenqueue(4)
    assert (again.id, again.created) == (child.id, False)
    assert (await child.ainfo()).waits_for == 1
    await drain(app)
    assert await child.aresult(PATIENCE) == 3, "it does not wait for the other one's parent"
    await second.acancel()
    assert steps.runs == [1, 3]


@pytest.mark.parametrize("unique", [True, "10m"])
async def test_a_refused_job_does_not_hold_its_name(app: Relevo, steps: Steps, unique: Any) -> None:
    gone = Job[int](app.engine, app.engine.new_id(), "default")
    named = steps.using(name="only", unique=unique)
    for _ in range(2):
        with pytest.raises(UnknownJob, match="Nothing was enqueued"):
            await named.using(depends_on=[gone]).aenqueue(1)
    job = await named.aenqueue(2)
    assert (job.created, await job.astate()) == (True, State.READY)


# parents


async def test_a_parent_given_twice_counts_once_with_its_last_policy(app: Relevo, steps: Steps) -> None:
    steps.failing.add(1)
    parent = await steps.task.aenqueue(1)
    child = await steps.using(depends_on=[parent, (parent, "wait"), (parent, "run")]).aenqueue(2)
    assert (await child.ainfo()).waits_for == 1
    await drain(app)
    assert await child.aresult(PATIENCE) == 2


async def test_a_parent_that_failed_before_counts_as_failed(app: Relevo, steps: Steps) -> None:
    steps.failing.add(1)
    dead = await steps.task.aenqueue(1)
    dropped = await steps.using(delay="1h").aenqueue(2)
    await dropped.acancel()
    await drain(app)
    for parent in (dead, dropped):
        child = await steps.using(depends_on=[parent]).aenqueue(3)
        ran = await steps.using(depends_on=[(parent, "run")]).aenqueue(4)
        waits = await steps.using(depends_on=[(parent, "wait")]).aenqueue(5)
        assert await states(child, ran, waits) == [State.CANCELLED, State.READY, State.WAITING]
    steps.failing.clear()
    await dead.aretry()
    await dropped.aretry()
    await drain(app)
    assert sorted(steps.runs) == [1, 1, 2, 3, 3, 4, 4, 5, 5], "and comes back with its children"


async def test_children_of_a_workflow_wait_for_all_of_it(app: Relevo, steps: Steps) -> None:
    steps.failing.add(3)
    well = await group(steps.task.s(1), steps.task.s(2)).aenqueue()
    badly = await (steps.task.s(3) | steps.task.si(4)).aenqueue()
    after = await steps.using(queue="other", depends_on=[well]).aenqueue(10)
    never = await steps.using(queue="other", depends_on=[badly]).aenqueue(11)
    anyway = await steps.using(queue="other", depends_on=[(badly, "run")]).aenqueue(12)
    async with working(app, queues=["default", "other"]):
        assert await after.aresult(PATIENCE) == 10
        assert await anyway.aresult(PATIENCE) == 12
        with pytest.raises(JobCancelled):
            await never.aresult(PATIENCE)
        late = await steps.using(queue="other", depends_on=[well]).aenqueue(13)
        assert await late.aresult(PATIENCE) == 13, "done is done"
    steps.failing.clear()
    assert await badly.aretry() == 1
    assert await states(never) == [State.WAITING]
    async with working(app, queues=["default", "other"]):
        assert await never.aresult(PATIENCE) == 11
    assert steps.runs.count(12) == 1


@pytest.mark.parametrize("policy", ["cancel", "run", "wait"])
async def test_a_job_cancelled_while_it_waits_stays_cancelled_whatever_its_parent_does(
    app: Relevo, steps: Steps, policy: str
) -> None:
    parent = await steps.task.aenqueue(1)
    child = await steps.using(depends_on=[(parent, policy)]).aenqueue(2)
    grandchild = await steps.using(queue="other", depends_on=[child]).aenqueue(3)
    assert await child.acancel()
    assert await states(child, grandchild) == [State.CANCELLED, State.CANCELLED]
    assert (await child.ainfo()).reason == "cancelled"
    await drain(app)
    assert await states(parent, child, grandchild) == [State.DONE, State.CANCELLED, State.CANCELLED]
    # revived, it waits for no parent
    assert await child.aretry()
    assert await states(child, grandchild) == [State.READY, State.WAITING]
    async with working(app, queues=["default", "other"]):
        assert await grandchild.aresult(PATIENCE) == 3
    assert steps.runs == [1, 2, 3]


async def test_discarding_a_dead_parent_cancels_its_children(app: Relevo, steps: Steps) -> None:
    steps.failing.add(1)
    parent = await steps.task.aenqueue(1)
    waits = await steps.using(queue="other", depends_on=[(parent, "wait")]).aenqueue(2)
    below = await steps.using(depends_on=[waits]).aenqueue(3)
    cut = await steps.using(depends_on=[parent]).aenqueue(4)
    await drain(app)
    assert await states(waits, below, cut) == [State.WAITING, State.WAITING, State.CANCELLED]
    assert await app.dead.adiscard([parent.id]) == 1
    assert await states(waits, below, cut) == [State.CANCELLED] * 3
    info = await waits.ainfo()
    assert info.reason == "dependency_failed"
    assert f"it depends on {parent.id}, which is discarded" in info.attempts[0].message
    with pytest.raises(UnknownJob):
        await steps.using(depends_on=[parent]).aenqueue(5)
    assert steps.runs == [1]


@pytest.mark.parametrize("how", ["its time limit passes", "others take its place"])
async def test_no_child_waits_for_a_parent_whose_record_is_gone(app_factory: AppFactory, how: str) -> None:
    app = app_factory(dead_max=2)
    steps = Steps(app, failure_ttl=0.05 if how == "its time limit passes" else "1h")
    steps.failing.add(1)
    parent = await steps.task.aenqueue(1)
    child = await steps.using(depends_on=[(parent, "wait")], failure_ttl="1h").aenqueue(2)
    await drain(app)
    for _ in range(3):
        await steps.task.aenqueue(1)
    await drain(app)
    await aeventually(lambda: _is_unknown(parent), what="the parent's record has ended")
    await drain(app)
    try:
        assert await child.astate() is State.CANCELLED
    finally:
        await child.acancel()


@pytest.mark.parametrize("kind", ["job", "workflow"])
async def test_a_child_of_a_dead_parent_waits_no_longer_than_the_parent_can_be_retried(
    server: Server, app_factory: AppFactory, kind: str
) -> None:
    times = Times(server, app_factory)
    app = times.another(failure_ttl="1h")
    steps = Steps(app)
    steps.failing.add(1)
    parent: Any = await (steps.task.aenqueue(1) if kind == "job" else chain(steps.task.s(1)).aenqueue())
    await drain(app)
    child = await steps.using(depends_on=[(parent, "wait")], failure_ttl="9h").aenqueue(2)
    await drain(app)
    assert await child.astate() is State.WAITING
    times.move(2 * HOUR)
    for key in dict(server.keys()):  # as the server does after an hour
        if app.name in key and parent.id in key:
            server.command("DEL", key)
    await drain(app)
    assert await child.astate() is State.CANCELLED
    assert steps.runs == [1]


@pytest.mark.parametrize("kind", ["job", "workflow"])
async def test_a_parent_that_was_retried_in_time_is_not_given_up_later(
    server: Server, app_factory: AppFactory, kind: str
) -> None:
    times = Times(server, app_factory)
    app = times.another(failure_ttl="1h")
    steps = Steps(app)
    steps.failing.add(1)
    parent: Any = await (steps.task.aenqueue(1) if kind == "job" else chain(steps.task.s(1)).aenqueue())
    lasting = await steps.using(delay="9h").aenqueue(2)
    child = await steps.using(depends_on=[(parent, "wait"), lasting]).aenqueue(3)
    await drain(app)
    steps.failing.clear()
    assert await parent.aretry()
    await drain(app)
    times.move(2 * HOUR)
    await drain(app)
    assert await child.astate() is State.WAITING
    assert (await child.ainfo()).waits_for == 1, "for the other one"
    await lasting.acancel()


async def _is_unknown(job: Any) -> bool:
    return await job.astate() is State.UNKNOWN


async def test_a_retried_job_whose_parent_has_failed_does_not_wait_for_ever(app: Relevo, steps: Steps) -> None:
    steps.failing.add(1)
    parent = await steps.task.aenqueue(1)
    cut = await steps.using(depends_on=[parent]).aenqueue(2)
    cancelled = await steps.using(depends_on=[parent]).aenqueue(3)
    await cancelled.acancel()
    await drain(app)
    for job in (cut, cancelled):
        with pytest.raises(JobError, match="Retry that one"):
            await job.aretry()
    await drain(app)
    await app.dead.adiscard([parent.id])  # from now on nothing can release them
    await drain(app)
    assert await states(cut, cancelled) == [State.CANCELLED, State.CANCELLED]


async def test_of_many_generations_all_are_cancelled_and_all_come_back(app: Relevo, steps: Steps) -> None:
    steps.failing.add(0)
    family = [await steps.task.aenqueue(0)]
    for number in range(1, 24):
        queue = ("default", "other", "third")[number % 3]
        family.append(await steps.using(queue=queue, depends_on=family[-2:]).aenqueue(number))
    async with working(app, queues=["default", "other", "third"]):
        with pytest.raises(JobCancelled):
            await family[-1].aresult(PATIENCE)
    steps.failing.clear()
    assert await app.dead.aretry(all=True) == 1
    assert await states(*family) == [State.READY, *[State.WAITING] * 23]
    async with working(app, queues=["default", "other", "third"]):
        assert await family[-1].aresult(PATIENCE) == 23
    assert steps.runs == [0, *range(24)]


async def test_a_thousand_children_of_two_parents_are_enqueued_in_one_call(app: Relevo, steps: Steps) -> None:
    parents = [await steps.using(delay="1h", queue="other").aenqueue(-1), await steps.task.aenqueue(-2)]
    jobs = await steps.using(result_ttl=0, depends_on=parents).aenqueue_many([((n,), {}) for n in range(1100)])
    assert (await app.queue().astats()).waiting == 1100
    await drain(app)
    assert steps.runs == [-2]
    assert (await jobs[-1].ainfo()).waits_for == 1
    await parents[0].acancel()
    stats = await app.queue().astats()
    assert (stats.waiting, stats.cancelled, stats.living) == (0, 1100, 0)
    await parents[0].aretry()
    async with working(app, queues=["default", "other"]):
        await aeventually(lambda: len(steps.runs) == 1102, what="all of them ran")
    assert sorted(steps.runs) == [-2, -1, *range(1100)]


# what is refused


async def test_wrong_dependencies_are_refused(app: Relevo, steps: Steps, app_factory: AppFactory) -> None:
    job = await steps.task.aenqueue(1)
    stranger = await Steps(app_factory()).task.aenqueue(1)
    wrong: list[tuple[Any, str]] = [
        ("abc", "jobs as enqueue"),
        ([job.id], "jobs as enqueue"),
        ([None], "jobs as enqueue"),
        ([(job, "maybe")], "'cancel', 'run' or 'wait', found 'maybe'"),
        ([stranger], "is one of the app"),
    ]
    for value, why in wrong:
        with pytest.raises(OptionError, match=why):
            steps.using(depends_on=value)
    with pytest.raises(OptionError, match="not of this call"):
        app.task(name="other", depends_on=[job])(lambda: None)
    assert (await steps.using(depends_on=()).aenqueue(2)).created
    assert await states(await steps.using(depends_on=None).aenqueue(3)) == [State.READY]


async def test_of_several_parents_one_that_is_missing_refuses_the_job(app: Relevo, steps: Steps) -> None:
    good = await steps.using(queue="other").aenqueue(1)
    gone = Job[int](app.engine, app.engine.new_id(), "default")
    with pytest.raises(UnknownJob, match=gone.id):
        await steps.using(depends_on=[good, gone]).aenqueue_many([((2,), {}), ((3,), {})])
    stats = await app.queue().astats()
    assert (stats.living, stats.cancelled) == (0, 0)
    await drain(app, queues=["default", "other"])
    assert steps.runs == [1], "the good parent, which had noted a child, ends as ever"


# makers that die


def test_a_job_whose_program_died_half_way_never_runs_and_ends(app: Relevo, steps: Steps, server: Server) -> None:
    with bind(app, url=server.url) as kit:
        parent, child = steps.task.enqueue(1), steps.using(queue="other", depends_on=())
        id, plan = steps.using(queue="other", depends_on=[parent])._new((2,), {})
        job = Job[int](app.engine, id, "other")
        assert not isinstance(plan, Call)
        _carried_out(
            app,
            plan,
            until=lambda call: call.script is not None and call.script.name == "workflows/register_dependents",
        )
        assert job.state() is State.WAITING
        grandchild = child.using(depends_on=[job]).enqueue(3)
        kit.drain()
        assert states_of(parent, job, grandchild) == [State.DONE, State.WAITING, State.WAITING]
        kit.clock.move("11m")
        kit.drain()
        assert job.state() is State.CANCELLED
        assert "died before all of it was stored" in job.info().attempts[0].message
        # One that never came to be has not gone well: what depends on it does not run.
        assert grandchild.state() is State.CANCELLED
        assert steps.runs == [1]


def states_of(*jobs: Job[Any]) -> list[State]:
    return [job.state() for job in jobs]


def _carried_out(app: Relevo, plan: Any, *, until: Callable[[Call[Any]], bool]) -> None:
    """Carry out the calls of a plan up to and with the first that `until` says, and nothing after it."""
    call = next(plan)
    while True:
        answer = app.engine.run(call)
        if until(call):
            return
        call = plan.send(answer)


# takers, queues, workers


STRANGE = ("with spaces", "100%", "a%20b", "año ñandú", "{braces}:and:colons", "quote\"s'", "日本", "> c7:", "x" * 100)


async def test_queues_may_have_strange_names(app: Relevo) -> None:
    steps = Steps(app)
    async with working(app, queues=["default", *STRANGE, *(name + " too" for name in STRANGE)]):
        for name in STRANGE:
            parent = await steps.using(queue=name).aenqueue(1)
            child = await steps.using(queue=name + " too", depends_on=[parent]).aenqueue(2)
            grandchild = await steps.using(queue=name, depends_on=[child, parent]).aenqueue(3)
            assert await grandchild.aresult(PATIENCE) == 3
            flow = await (
                steps.using(queue=name).s(1) | group(steps.using(queue=name + " too").s() for _ in range(3))
            ).aenqueue()
            assert await flow.aresult(PATIENCE) == [1, 1, 1]
            assert await (await app.aworkflow(flow.id)).astate() is State.DONE


def test_blocking_calls_do_the_same(app: Relevo, steps: Steps) -> None:
    steps.failing.add(1)
    parent = steps.task.enqueue(1)
    child = steps.using(depends_on=[parent]).enqueue(2)
    many = steps.using(depends_on=[parent]).enqueue_many([((3,), {}), ((4,), {})])
    assert states_of(child, *many) == [State.WAITING] * 3
    drained(app)
    assert states_of(parent, child, *many) == [State.DEAD, *[State.CANCELLED] * 3]
    steps.failing.clear()
    assert parent.retry()
    assert many[0].cancel()
    drained(app)
    assert states_of(parent, child, *many) == [State.DONE, State.DONE, State.CANCELLED, State.DONE]
    with pytest.raises(UnknownJob):
        steps.using(depends_on=[Job(app.engine, app.engine.new_id(), "default")]).enqueue(5)
