"""Workflows at the borders: results that are not kept, options of members, sizes, all kinds of ends, dying makers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from relevo import Failure, Job, Relevo, State, Task, Workflow, WorkflowProgress, chain, current_job, group
from relevo.engine.outbox import take_outbox
from relevo.errors import (
    ConfigurationError,
    JobCancelled,
    JobFailed,
    OptionError,
    ResultNotKept,
    UnknownJob,
)
from relevo.store.call_numbers import Numbers, ServerClock
from relevo.store.plan import Ahead, Ask, Call, Steps
from relevo.testing import bind
from relevo.workflows.joining import join
from relevo.workflows.steps import Flow
from relevo.workflows.storing import Rows, stored
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.plans import one_by_one
from tests.servers import Server
from tests.working import drain, drained, working

QUEUES = ("default", "other")


class Sums:
    """An app's arithmetic in two queues; numbers in `failing` make a job fail, `runs` are the numbers that came."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.app = app
        self.runs: list[int] = []
        self.failing: set[int] = set()
        self.calls: list[str] = []

        @app.task(name="add", **{"retries": 0, **options})
        async def add(x: int, y: int = 0) -> int:
            self.runs.append(x)
            if x in self.failing:
                raise ValueError(f"number {x}")
            return x + y

        @app.task(name="total", queue="other", **{"retries": 0, **options})
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="listed", queue="other", **{"retries": 0, **options})
        async def listed(numbers: list[int]) -> list[int]:
            return numbers

        @app.task(name="call", queue="other")
        async def call(what: str) -> None:
            self.calls.append(what)

        self.add, self.total, self.listed, self.call = add, total, listed, call

    def watched(self, flow: Flow[Any, Any]) -> Flow[Any, Any]:
        """With all three callbacks."""
        flow = flow.on_success(self.call.s("success")).on_failure(self.call.s("failure"))
        return flow.on_complete(self.call.s("complete"))


@pytest.fixture
def sums(app: Relevo) -> Sums:
    return Sums(app)


async def ended(flow: Workflow[Any]) -> State:
    """Its state, once it has ended."""

    async def look() -> State | None:
        state = await flow.astate()
        return state if state.has_ended else None

    return await aeventually(look, what="the workflow has ended")


async def member_states(flow: Workflow[Any]) -> list[State]:
    return [member.state for member in (await flow.ainfo()).members]


async def is_idle(app: Relevo) -> bool:
    """Nothing lives in any queue, and no outbox message is on its way."""
    for name in await app.aqueues():
        letters: int = await app.engine.arun(Call([b"HLEN", app.engine.keys_of(name).key("letters")]))
        if letters or (await app.queue(name).astats()).living:
            return False
    return True


def sent(app: Relevo, plan: Steps[Any], calls: int) -> None:
    """Carry out the first calls of a plan, and nothing after them: its maker has died."""
    steps = one_by_one(plan)
    call = next(steps)
    for left in range(calls, 0, -1):
        answer = app.engine.run(call)
        if left > 1:
            call = steps.send(answer)


# results


async def test_members_that_keep_no_result_pass_it_to_the_next(app: Relevo) -> None:
    sums = Sums(app, result_ttl=0)
    async with working(app):
        flow = await (group(sums.add.s(i, 1) for i in range(30)) | sums.listed.s()).aenqueue()
        assert await flow.aresult(PATIENCE) == list(range(1, 31))
        deep = await (sums.add.s(1, 1) | sums.add.s(1) | sums.add.s(1) | sums.add.s(1)).aenqueue()
        assert await deep.aresult(PATIENCE) == 5, "also the last one's, to the workflow"
        assert await (await chain(sums.add.s(1)).aenqueue()).aresult(PATIENCE) == 1
    for name in QUEUES:
        assert not await app.engine.arun(Call([b"EXISTS", app.engine.keys_of(name).key("done")])), "and none was kept"


@pytest.mark.parametrize("result_ttl", [0, 60])
@pytest.mark.parametrize("what", ["too large", "no JSON"])
async def test_a_member_whose_input_cannot_be_kept_is_dead_and_shows_why(
    app_factory: AppFactory, result_ttl: int, what: str
) -> None:
    app = app_factory(max_payload=1000)

    @app.task(name="make", result_ttl=result_ttl)
    async def make(number: int) -> Any:
        return number if number else "x" * 2000 if what == "too large" else object()

    @app.task(name="take", queue="other")
    async def take(value: Any) -> None:
        raise AssertionError("never called")

    @app.task(name="ignore", queue="other")
    async def ignore() -> str:
        return "fine"

    why = "2,002 bytes" if what == "too large" else "object"
    async with working(app):
        for flow in (make.s(0) | take.s(), group(make.s(1), make.s(0)) | take.s()):
            made = await flow.aenqueue()
            with pytest.raises(JobFailed, match="InputLacking"):
                await made.aresult(PATIENCE)
            info = await made.ainfo()
            assert (info.members[-1].state, info.members[-1].reason) == (State.DEAD, "input_lacking")
            story = (await Job[None](app.engine, info.members[-1].id, "other").ainfo()).attempts
            assert why in story[-1].message
            assert [member.state for member in info.members[:-1]] == [State.DONE] * (len(info.members) - 1)
        fine = await (make.s(0) | ignore.si()).aenqueue()
        assert await fine.aresult(PATIENCE) == "fine", "a step that takes no result does not need it"
        alone = await group(make.s(1), make.s(0)).aenqueue()
        with pytest.raises(ResultNotKept, match=why):
            await alone.aresult(PATIENCE)
        assert await alone.astate() is State.DONE


async def test_a_member_whose_input_has_the_wrong_type_is_dead(app: Relevo, sums: Sums) -> None:
    @app.task(name="vague")
    async def vague() -> Any:
        return "three"

    async with working(app):
        flow = await (vague.s() | sums.add.s()).aenqueue()
        assert await ended(flow) is State.DEAD
    last = (await flow.ainfo()).members[-1]
    assert last.reason == "bad_arguments"
    assert not sums.runs


# options of members


async def test_members_keep_priority_group_tags_name_and_limits(app: Relevo) -> None:
    seen: list[tuple[Any, ...]] = []

    @app.task(name="look", retries=0)
    async def look(number: int) -> int:
        me = current_job()
        seen.append((number, me.name, me.tenant, me.tags, me.attempt))
        if number == 2 and me.attempt == 1:
            raise ValueError
        return number

    rich = look.using(priority=10, tenant="t", weight=2, tags=["x"], name="same", retries=1, backoff=0)
    members = [look.s(1), rich.s(2), rich.s(3)]
    flow = await group(members).aenqueue()
    info = [await Job[int](app.engine, member.id, "default").ainfo() for member in (await flow.ainfo()).members]
    assert [one.priority for one in info] == [100, 10, 10]
    assert {one.workflow for one in info} == {flow.id}
    await drain(app, concurrency=1)
    assert await flow.aresult(PATIENCE) == [1, 2, 3], "a name is only a label here"
    assert seen[:2] == [(2, "same", "t", ("x",), 1), (3, "same", "t", ("x",), 1)]
    assert sorted(seen[2:]) == [(1, "", "", (), 1), (2, "same", "t", ("x",), 2)]


async def test_the_failure_handler_of_a_member_gets_its_input(app: Relevo, sums: Sums) -> None:
    handled: list[Failure] = []

    @app.task(name="handle")
    async def handle(failure: Failure) -> None:
        handled.append(failure)

    sums.failing.add(3)
    async with working(app):
        flow = await (sums.add.s(1, 2) | sums.add.using(on_failure=handle).s(7) | sums.add.s()).aenqueue()
        assert await ended(flow) is State.DEAD
        await aeventually(lambda: handled, what="the handler ran")
    (failure,) = handled
    assert failure.job == (await flow.ainfo()).members[1].id
    assert failure.args == [3, 7]
    assert (await flow.aprogress()).total == 3, "the handler's job is none of the workflow's"


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_members_run_in_any_executor(app: Relevo, executor: Any) -> None:
    doubled: Task[[int], int] = app.task(name="double", executor=executor, result_ttl=0)(double)
    summed: Task[[list[int]], int] = app.task(name="sum", executor=executor, queue="other")(sum_up)
    async with working(app):
        flow = await (group(doubled.s(i) for i in range(4)) | summed.s() | doubled.s()).aenqueue()
        assert await flow.aresult(PATIENCE) == 24


def double(number: int) -> int:
    assert current_job().flow
    return number * 2


def sum_up(numbers: list[int]) -> int:
    return sum(numbers)


# sizes


def test_groups_of_none_and_of_one_are_groups(app: Relevo, sums: Sums) -> None:
    def program() -> list[Any]:
        flows: list[Flow[Any, Any]] = [
            group() | sums.listed.s(),
            sums.add.s(1) | group() | sums.total.s(),
            group(group(), group(sums.add.s(1))),
            group(sums.add.s(1)) | group(),
        ]
        return [flow.enqueue().result(PATIENCE) for flow in flows]

    with working(app):
        assert program() == [[], 0, [[], [1]], []]
    with pytest.raises(OptionError, match="no step at all"):
        group().enqueue()


async def test_a_group_of_thousands_is_one_call_and_ends(app: Relevo) -> None:
    sums = Sums(app, result_ttl=0)
    async with working(app):
        flow = await group(sums.add.s(i) for i in range(2_500)).then(sums.total.s()).aenqueue()
        assert await flow.aresult(PATIENCE) == sum(range(2_500))
        assert await flow.aprogress() == WorkflowProgress(total=2_501, done=2_501, failed=0, open=0)
    assert sorted(sums.runs) == list(range(2_500))


async def test_many_chords_are_small_messages(app: Relevo, sums: Sums) -> None:
    chords: Flow[Any, Any] = group(sums.add.s(i) for i in range(50)) | sums.total.s()
    for _ in range(4):
        chords = chords | group(sums.add.s(i) for i in range(50)) | sums.total.s()
    flow = await chords.aenqueue()
    longest, edges, fans = 0, 0, 0
    for name in QUEUES:
        keys = app.engine.keys_of(name)
        ids: list[bytes] = await app.engine.arun(Call([b"HKEYS", keys.key("jobs")]))
        for id in ids:
            longest = max(longest, await app.engine.arun(Call([b"HSTRLEN", keys.key("jobs"), id])))
            waiters: bytes = await app.engine.arun(Call([b"HGET", keys.key("waiters"), id]))
            count = waiters.count(b">")
            fans = max(fans, count)
            edges = max(edges, len(waiters) // count)
    assert longest < 256, "no job has others inside it"
    assert edges < 40
    assert fans == 51, "to the next fifty and to the workflow"
    async with working(app, queues=["default"]), working(app, queues=["other"]):
        assert await flow.aresult(PATIENCE) > 0, "also by workers of one queue each"
    assert (await flow.aprogress()).done == 255


# ends


ENDS = {
    (State.DONE, State.DONE): State.DONE,
    (State.DONE, State.CANCELLED): State.CANCELLED,
    (State.EXPIRED, State.CANCELLED): State.EXPIRED,
    (State.DEAD, State.EXPIRED, State.CANCELLED, State.DONE): State.DEAD,
}


@pytest.mark.parametrize("kinds", ENDS, ids=lambda kinds: "-".join(kinds))
async def test_a_workflow_ends_in_the_worst_state_of_its_members(
    app: Relevo, sums: Sums, kinds: tuple[State, ...]
) -> None:
    sums.failing.add(13)
    steps = {
        State.DONE: sums.add.s(1),
        State.DEAD: sums.add.s(13),
        State.EXPIRED: sums.add.using(expires=0.001).s(2),
        State.CANCELLED: sums.add.using(delay="1h").s(3),
    }
    flow = await sums.watched(group(steps[kind] for kind in kinds)).aenqueue()
    for member, kind in zip((await flow.ainfo()).members, kinds, strict=True):
        if kind is State.CANCELLED:
            await Job[int](app.engine, member.id, member.queue).acancel()
    begun = app.engine.run(app.engine.now_ms())
    eventually(lambda: app.engine.run(app.engine.now_ms()) > begun + 5)
    async with working(app):
        assert await ended(flow) is ENDS[kinds]
        await aeventually(lambda: is_idle(app))
    assert tuple(await member_states(flow)) == kinds
    assert sorted(sums.calls) == (["complete", "success"] if ENDS[kinds] is State.DONE else ["complete", "failure"])


async def progress_is(flow: Workflow[Any], progress: WorkflowProgress) -> bool:
    return await flow.aprogress() == progress


async def test_cancelling_one_member_cancels_the_steps_after_it(app: Relevo, sums: Sums) -> None:
    started, door = asyncio.Event(), asyncio.Event()

    @app.task(name="hang")
    async def hang() -> int:
        started.set()
        await asyncio.Event().wait()
        return 1

    @app.task(name="held")
    async def held() -> int:
        await door.wait()
        return 1

    async with working(app):
        running = await sums.watched(group(hang.s(), sums.add.s(1)).then(sums.total.s())).aenqueue()
        waiting = await sums.watched(held.s() | sums.add.s() | sums.add.s()).aenqueue()
        await asyncio.wait_for(started.wait(), PATIENCE)
        assert await Job[int](app.engine, (await running.ainfo()).members[0].id, "default").acancel()
        assert await Job[int](app.engine, (await waiting.ainfo()).members[1].id, "default").acancel()
        door.set()
        with pytest.raises(JobCancelled, match=r"job \w+ \(hang\) is cancelled"):
            await running.aresult(PATIENCE)
        with pytest.raises(JobCancelled):
            await waiting.aresult(PATIENCE)
        await aeventually(lambda: is_idle(app))
    assert await member_states(running) == [State.CANCELLED, State.DONE, State.CANCELLED]
    assert await member_states(waiting) == [State.DONE, State.CANCELLED, State.CANCELLED]
    assert Counter(sums.calls) == {"failure": 2, "complete": 2}


async def test_a_workflow_of_hundreds_is_cancelled_and_retried_as_a_whole(app: Relevo) -> None:
    sums = Sums(app, result_ttl=0)
    head = sums.add.using(queue="other", delay="1h")
    flow = await sums.watched(head.s(-1) | group(sums.add.si(i) for i in range(520)) | sums.total.s()).aenqueue()
    assert await flow.acancel() == 522
    assert await flow.astate() is State.CANCELLED
    assert await flow.aprogress() == WorkflowProgress(total=522, done=0, failed=522, open=0)
    async with working(app):
        await aeventually(lambda: is_idle(app))
    assert sorted(sums.calls) == ["complete", "failure"]
    assert not sums.runs
    assert await flow.aretry() == 522
    assert await flow.astate() is State.RUNNING
    async with working(app):
        assert await flow.aresult(PATIENCE) == sum(range(520)), "a retry does not wait for the delay"
        await aeventually(lambda: is_idle(app))
    assert sorted(sums.calls) == ["complete", "failure", "success"]
    assert sorted(sums.runs) == [-1, *range(520)]


async def test_clearing_a_queue_ends_the_workflows_that_had_jobs_there(app: Relevo, sums: Sums) -> None:
    flow = await sums.watched(group(sums.add.s(i) for i in range(3)).then(sums.listed.s())).aenqueue()
    other = await sums.watched(sums.add.using(queue="third").s(1) | sums.add.s()).aenqueue()
    assert await app.queue().aclear() == 4
    assert await flow.astate() is State.CANCELLED
    assert await flow.aretry() == 0, "they are gone, and not only cancelled"
    async with working(app, queues=["third", "other"]):
        assert await ended(other) is State.CANCELLED
        await aeventually(lambda: is_idle(app))
    assert Counter(sums.calls) == {"failure": 2, "complete": 2}


async def test_callbacks_run_once_however_often_a_workflow_is_retried(app: Relevo, sums: Sums) -> None:
    sums.failing |= {1, 2}
    flow = await sums.watched(group(sums.add.s(1), sums.add.s(2), sums.add.s(3)).then(sums.total.s())).aenqueue()
    for expected, cured in (
        (["complete", "failure"], 1),
        (["complete", "failure"], 2),
        (["complete", "failure", "success"], 0),
    ):
        async with working(app):
            assert await ended(flow) is (State.DEAD if cured else State.DONE)
            await aeventually(lambda: is_idle(app))
        assert sorted(sums.calls) == expected
        sums.failing.discard(cured)
        if cured == 2:  # also by the id of a member, or as a dead letter
            assert await app.dead.aretry(all=True) == 1
        else:
            assert await flow.aretry() == {1: 2, 0: 0}[cured]
    assert sorted(sums.runs) == [1, 1, 2, 2, 2, 3]
    assert await flow.aresult(PATIENCE) == 6


async def test_forgetting_a_dead_member_leaves_the_workflow_dead(app: Relevo, sums: Sums) -> None:
    sums.failing.add(1)
    flow = await (sums.add.s(1) | sums.add.s()).aenqueue()
    await drain(app)
    assert await app.dead.adiscard(all=True) == 1
    assert await flow.aretry() == 0
    assert (await flow.astate(), await flow.aprogress()) == (State.DEAD, WorkflowProgress(2, 0, 2, 0))
    with pytest.raises(JobFailed):
        await flow.aresult(PATIENCE)


async def test_after_the_end_every_key_has_an_end(app_factory: AppFactory, server: Server) -> None:
    app = app_factory(result_ttl="2m", failure_ttl="3m")
    sums = Sums(app)
    sums.failing.add(13)
    async with working(app):
        well = await sums.watched(group(sums.add.s(i) for i in range(3)).then(sums.total.s())).aenqueue()
        badly = await sums.watched(sums.add.s(13) | sums.add.s() | sums.total.si([1])).aenqueue()
        dropped = await sums.watched(sums.add.using(delay="1h").s(1) | sums.add.s()).aenqueue()
        await dropped.acancel()
        assert [await ended(flow) for flow in (well, badly, dropped)] == [State.DONE, State.DEAD, State.CANCELLED]
        await aeventually(lambda: is_idle(app))
    left = dict(server.keys())
    left = {key: left[key] for key in left if app.name in key}
    assert not [key for key, ttl in left.items() if ttl == -1]
    own = {key: ttl for key, ttl in left.items() if "}:carried:" in key or "}:ended:" in key}
    assert own, "results and records"
    assert all(ttl <= 180 for ttl in own.values()), own
    kept = [key for key in own if "}:carried:" in key]
    done = {member.id for member in (await well.ainfo()).members}
    assert not [key for key in kept if key.rpartition(":")[2] in done], "members that are done keep no input"


async def test_a_workflow_can_be_fetched_for_a_minute_although_nothing_is_kept(app: Relevo, server: Server) -> None:
    sums = Sums(app, result_ttl=0)
    flow = await chain(sums.add.s(1), sums.add.s(1)).aenqueue()
    await drain(app)
    assert await flow.aresult(PATIENCE) == 2
    (bag,) = (key for key in dict(server.keys()) if key.endswith(f":carried:{flow.id}"))
    assert 0 < dict(server.keys())[bag] <= 60


def test_an_id_that_is_no_workflow_is_refused(app: Relevo, sums: Sums) -> None:
    job = sums.add.enqueue(1)
    for id in (job.id, app.engine.new_id()):
        with pytest.raises(UnknownJob, match="no workflow"):
            app.workflow(id)
    with pytest.raises(UnknownJob, match="not the id of a workflow"):
        app.workflow("x")
    with pytest.raises(ConfigurationError, match="outside a job"):
        app.workflow()
    unknown: Workflow[Any] = Workflow(app.engine, app.engine.new_id(), "default")
    assert unknown.state() is State.UNKNOWN
    for ask in (unknown.info, unknown.progress, unknown.cancel, unknown.retry):
        with pytest.raises(UnknownJob, match="no workflow"):
            ask()
    with pytest.raises(UnknownJob):
        unknown.result(PATIENCE)


# members that join


async def test_members_that_join_may_be_of_any_queue_and_fail_as_any_other(app: Relevo, sums: Sums) -> None:
    sums.failing.add(13)

    @app.task(name="grow")
    async def grow() -> int:
        made = await (await app.aworkflow()).aadd(
            sums.add.using(queue="third", delay=0.2).s(13), sums.total.s([20]), sums.add.using(delay=0.05).s(30)
        )
        assert [job.queue for job in made] == ["third", "other", "default"]
        return 1

    flow = await sums.watched(group(grow.s(), sums.add.s(2)).then(sums.listed.s())).aenqueue()
    async with working(app, queues=[*QUEUES, "third"]):
        assert await ended(flow) is State.DEAD
        await aeventually(lambda: is_idle(app))
    info = await flow.ainfo()
    assert [(member.task, member.state) for member in info.members if not member.joined] == [
        ("grow", State.DONE),
        ("add", State.DONE),
        ("listed", State.CANCELLED),
    ]
    assert sorted((member.queue, member.task, member.state) for member in info.members if member.joined) == [
        ("default", "add", State.DONE),
        ("other", "total", State.DONE),
        ("third", "add", State.DEAD),
    ]
    assert info.progress == WorkflowProgress(total=6, done=4, failed=2, open=0)
    sums.failing.clear()
    assert await flow.aretry() == 1
    async with working(app, queues=[*QUEUES, "third"]):
        assert await flow.aresult(PATIENCE) == [1, 2, 13, 20, 30]
        await aeventually(lambda: is_idle(app))
    assert sorted(sums.calls) == ["complete", "failure", "success"]


async def test_results_of_members_that_join_stand_behind_the_others(app: Relevo, sums: Sums) -> None:
    @app.task(name="grow", result_ttl=0)
    async def grow(number: int) -> int:
        if number:
            await (await app.aworkflow()).aadd(*(grow.s(0) for _ in range(number)))
        return number

    async with working(app):
        flow = await group(grow.s(2), grow.s(3), sums.add.s(10)).aenqueue()
        assert await flow.aresult(PATIENCE) == [2, 3, 10, 0, 0, 0, 0, 0]
        chained = await (grow.s(2) | sums.add.s(1) | sums.add.s(1)).aenqueue()
        assert await chained.aresult(PATIENCE) == 4, "in a chain they are waited for, and add no result"
        assert (await chained.aprogress()).total == 5


async def test_a_thousand_members_join_at_once(app: Relevo, sums: Sums) -> None:
    @app.task(name="grow")
    async def grow() -> int:
        await (await app.aworkflow()).aadd(*(sums.add.using(result_ttl=0).s(1) for _ in range(1200)))
        return 0

    async with working(app):
        flow = await group(grow.s()).then(sums.total.s()).aenqueue()
        assert await flow.aresult(PATIENCE) == 1200


async def test_a_job_that_is_no_member_cannot_add_members(app: Relevo, sums: Sums) -> None:
    refused: list[str] = []
    grown = await chain(sums.add.s(1)).aenqueue()

    @app.task(name="try_it")
    async def try_it(*steps: str) -> None:
        try:
            await (await app.aworkflow(grown.id) if "other" in steps else await app.aworkflow()).aadd(sums.add.s(1))
        except (ConfigurationError, UnknownJob) as error:
            refused.append(str(error))

    async with working(app):
        await (await try_it.aenqueue()).aresult(PATIENCE)
        await (await try_it.aenqueue("other")).aresult(PATIENCE)
        await (await chain(try_it.s("other")).aenqueue()).aresult(PATIENCE)
        await chain(sums.add.s(1)).on_complete(try_it.s()).aenqueue()
        await aeventually(lambda: len(refused) == 4)
        await aeventually(lambda: is_idle(app))
    assert "belongs to no workflow" in refused[0]
    assert all(f"only a job of workflow {grown.id} can add others to it" in text for text in refused[1:3])
    assert "a callback comes after its end" in refused[3]


async def test_only_steps_can_join_a_workflow(app: Relevo, sums: Sums) -> None:
    refused: list[str] = []

    @app.task(name="try_it")
    async def try_it() -> None:
        flow = await app.aworkflow()
        wrong: list[Any] = [
            sums.add,
            sums.add.s(1) | sums.add.s(),
            group(sums.add.s(1)),
            sums.add.using(unique=True).s(1),
            None,
        ]
        for step in wrong:
            try:
                await flow.aadd(sums.add.s(1), step)
            except OptionError as error:
                refused.append(str(error))
        assert await flow.aadd() == []

    async with working(app):
        flow = await chain(try_it.s()).aenqueue()
        await flow.aresult(PATIENCE)
    assert len(refused) == 5
    assert (await flow.aprogress()).total == 1, "and nothing of it did"
    assert not sums.runs


async def test_a_member_can_add_others_after_another_one_failed(app: Relevo, sums: Sums) -> None:
    sums.failing.add(13)
    door = asyncio.Event()

    @app.task(name="grow", retries=0)
    async def grow() -> int:
        await door.wait()
        await (await app.aworkflow()).aadd(sums.add.s(5))
        return 1

    async with working(app):
        flow = await group(sums.add.s(13), grow.s()).then(sums.total.s()).aenqueue()
        expected = WorkflowProgress(total=3, done=0, failed=2, open=1)
        await aeventually(lambda: progress_is(flow, expected), what="one fails and one is cancelled")
        door.set()
        assert await ended(flow) is State.DEAD
    assert [member.state for member in (await flow.ainfo()).members] == [
        State.DEAD,
        State.DONE,
        State.CANCELLED,
        State.DONE,
    ]
    sums.failing.clear()
    await flow.aretry()
    async with working(app):
        assert await flow.aresult(PATIENCE) == 13 + 1 + 5


async def test_a_retried_member_can_add_others_although_a_child_ran_already(app: Relevo, sums: Sums) -> None:
    is_ready = asyncio.Event()

    @app.task(name="grow", retries=0)
    async def grow() -> int:
        if not is_ready.is_set():
            raise ValueError
        await (await app.aworkflow()).aadd(sums.add.s(5))
        return 1

    flow = await chain(grow.s()).aenqueue()
    member = Job[int](app.engine, (await flow.ainfo()).members[0].id, "default")
    child = await sums.add.using(depends_on=[(member, "run")]).aenqueue(1)
    await drain(app)
    assert await child.astate() is State.DONE
    is_ready.set()
    await flow.aretry()
    await drain(app)
    assert await flow.astate() is State.DONE


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5])
async def test_a_workflow_ends_although_a_program_died_while_it_added_members(
    app: Relevo, server: Server, calls: int
) -> None:
    """The members it stored so far are cancelled after a while, and no step waits for them."""
    sums = Sums(app)

    @app.task(name="grow", retries=0)
    async def grow() -> int:
        me = await app.aworkflow()
        plan = join(app.engine, me.id, [sums.add.using(queue="other").s(5), sums.add.using(queue="other").s(6)])
        await asyncio.to_thread(sent, app, plan, calls + 1)  # the first one only asks for the edges
        return 1

    async with bind(app, url=server.url) as kit:
        app.engine.run(app.engine.list_queue("other"))
        flow = await group(grow.s(), sums.add.s(2)).then(sums.total.s()).aenqueue()
        await kit.adrain()
        if calls < 5:
            assert sums.runs == [2], "none of them may run before all steps that wait for them are noted"
        kit.clock.move("11m")
        await kit.adrain()
        await kit.adrain()
        if calls < 5:
            assert await flow.aresult(PATIENCE) == 3
            assert sums.runs == [2]
        else:
            assert await flow.aresult(PATIENCE) == 3 + 11
        assert (await flow.aprogress()).open == 0


# programs that die, sleep, or ask twice


def large(sums: Sums) -> Flow[Any, Any]:
    """More than one call: two queues."""
    return group(sums.add.s(i) for i in range(3)).then(sums.total.s())


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_flow_whose_program_died_half_way_never_runs_and_ends(app: Relevo, server: Server, calls: int) -> None:
    sums = Sums(app)
    with bind(app, url=server.url) as kit:
        for queue in QUEUES:
            app.engine.run(app.engine.list_queue(queue))
        sent(app, stored(Rows(app.engine, sums.watched(large(sums)))), calls)
        assert kit.drain().done == 0
        kit.clock.move("11m")
        assert kit.drain().done == 0
        stats = [app.queue(name).stats() for name in QUEUES]
        assert [one.living for one in stats] == [0, 0]
        assert sum(one.cancelled for one in stats) == (0, 3, 3 + 4)[calls - 1]
        assert not sums.runs
        assert not sums.calls


def test_a_flow_whose_program_died_after_its_last_call_is_started_by_workers(app: Relevo, sums: Sums) -> None:
    for queue in QUEUES:
        app.engine.run(app.engine.list_queue(queue))
    sent(app, stored(Rows(app.engine, sums.watched(large(sums)))), 4)
    with working(app):
        eventually(lambda: sorted(sums.calls) == ["complete", "success"], what="it ends well")
    assert sorted(sums.runs) == [0, 1, 2]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_flow_whose_program_slept_too_long_runs_as_a_whole_or_not_at_all(
    app: Relevo, server: Server, calls: int
) -> None:
    sums = Sums(app)
    with bind(app, url=server.url) as kit:
        for queue in QUEUES:
            app.engine.run(app.engine.list_queue(queue))
        plan = one_by_one(stored(Rows(app.engine, sums.watched(large(sums)))))
        flow: Workflow[Any] | None = None
        call = next(plan)
        try:
            for number in range(1, 100):
                answer = app.engine.run(call)
                if number == calls:
                    kit.clock.move("11m")
                    kit.drain()
                call = plan.send(answer)
        except StopIteration as end:
            flow = end.value
        except Exception as refused:
            print(f"refused: {refused}")
        kit.drain()
        kit.drain()
        kit.clock.move("11m")
        kit.drain()
        if flow is None:
            assert not sums.runs
        else:
            assert flow.state().has_ended
            assert sums.runs in ([], [0, 1, 2])


async def test_a_flow_that_is_sent_twice_because_a_reply_was_lost_runs_once(app: Relevo) -> None:
    sums = Sums(app, result_ttl=0)
    app.engine.run(app.engine.list_queue("default"))
    plan = one_by_one(stored(Rows(app.engine, group(sums.add.s(1), sums.add.s(2)))))
    call = next(plan)
    numbers = Numbers(ServerClock(), app.settings.call_timeout)
    tried = numbers.next(*call.numbering)
    app.engine.run(Call(call.command(tried, text=True), call.decode))
    await drain(app)
    app.engine.run(Call(call.command(numbers.next(call.route, tried.name), text=True), call.decode))
    await drain(app)
    assert sorted(sums.runs) == [1, 2]


def step_by_step(app: Relevo, plan: Steps[Any], after_revival: Callable[[], object]) -> None:
    """Carry out a plan, and do something else after each job that it revives."""
    try:
        step = next(plan)
        while True:
            assert not isinstance(step, Ask)
            calls = [*step.calls] if isinstance(step, Ahead) else [step]
            answers = [app.engine.run(call) for call in calls]
            if any(call.script is not None and call.script.name == "engine/revive_job" for call in calls):
                after_revival()
            step = plan.send(answers if isinstance(step, Ahead) else answers[0])
    except StopIteration:
        return


def test_a_retried_workflow_is_open_when_retry_returns(app: Relevo, sums: Sums) -> None:
    sums.failing.add(1)
    flow = chain(sums.add.s(1), sums.add.s()).enqueue()
    drained(app)
    taken: list[int] = []

    def take() -> None:  # a worker was quicker, and delivers it soon
        taken.append(len(app.engine.run(take_outbox(app.engine.keys_of("default"))).ids))

    step_by_step(app, flow._retry(), take)
    assert taken == [1]
    assert flow.state() is State.RUNNING


def test_a_workflow_that_fails_while_it_is_retried_ends(app: Relevo, sums: Sums) -> None:
    sums.failing.add(1)
    flow = chain(sums.add.s(1), sums.add.s()).enqueue()
    flow.cancel()
    step_by_step(app, flow._retry(), lambda: drained(app))  # the first fails before the second is revived
    drained(app)
    state = flow.state()
    flow.cancel()
    assert state is State.DEAD


# takers, queues, workers


def test_a_taker_gets_results_as_arguments_and_passes_its_own_on(app: Relevo) -> None:
    @app.task(name="step", queue="mine", result_ttl=0)
    def step(x: int, y: int = 0) -> int:
        raise NotImplementedError("done elsewhere")

    @app.task(name="total", queue="mine")
    def total(numbers: list[int], *, unit: str = "") -> int:
        raise NotImplementedError("done elsewhere")

    flow = (group(step.s(1), step.s(2) | step.s(7)) | total.s(unit="m")).enqueue()
    queue = app.queue("mine")
    first, second = queue.take(10)
    assert (first.args, second.args) == ([1], [2])
    assert second.done(20)
    (third,) = queue.take(10)
    assert third.args == [20, 7]
    assert third.give_back()
    (third,) = queue.take(10)
    assert third.args == [20, 7], "they are still there the second time"
    assert third.retry(reason="once more")
    assert first.done({"any": "value"})
    third = eventually(lambda: queue.take(10))[0]
    assert (third.args, third.attempt) == ([20, 7], 2)
    assert third.done(27)
    (last,) = queue.take(10)
    assert (last.args, last.kwargs) == ([[{"any": "value"}, 27]], {"unit": "m"})
    assert flow.state() is State.RUNNING
    assert last.done(99)
    assert flow.result(PATIENCE) == 99
    assert not queue.take(10)


def test_a_taker_does_not_get_a_job_whose_input_is_lacking(app_factory: AppFactory) -> None:
    app = app_factory(max_payload=100)

    @app.task(name="make")
    async def make() -> str:
        return "x" * 200

    @app.task(name="take", queue="mine")
    def take(text: str) -> None: ...

    flow = (make.s() | take.s()).enqueue()
    drained(app, queues=["default"])
    assert app.queue("mine").take(10) == []
    assert flow.state() is State.DEAD
    assert flow.info().members[1].reason == "input_lacking"


def test_blocking_calls_do_the_same(app: Relevo, sums: Sums) -> None:
    @app.task(name="grow")
    def grow() -> int:
        assert threading.current_thread() is not threading.main_thread()
        (job,) = app.workflow().add(sums.add.s(5))
        assert job.state() is not State.UNKNOWN
        return 1

    sums.failing.add(13)
    flow = sums.watched(group(sums.add.s(13), sums.add.s(1)).then(sums.listed.s())).enqueue()
    with working(app):
        with pytest.raises(JobFailed, match="number 13"):
            flow.result(PATIENCE)
        eventually(lambda: asyncio.run(idle_and_close(app)))
    assert flow.state() is State.DEAD
    assert flow.progress() == WorkflowProgress(total=3, done=1, failed=2, open=0)
    info = app.workflow(flow.id).info()
    assert [member.state for member in info.members] == [State.DEAD, State.DONE, State.CANCELLED]
    assert [(kind, member.state) for kind, member in info.callbacks] == [
        ("on_success", State.CANCELLED),
        ("on_failure", State.DONE),
        ("on_complete", State.DONE),
    ]
    assert info.shape == {"chain": [{"group": ["0-1"]}, 2]}
    sums.failing.clear()
    assert flow.retry() == 1
    assert flow.state() is State.RUNNING
    with working(app):
        assert flow.result(PATIENCE) == [13, 1]
        assert group(grow.s()).then(sums.total.s()).enqueue().result(PATIENCE) == 6
    assert flow.cancel() == 0
    assert flow.retry() == 0


async def idle_and_close(app: Relevo) -> bool:
    try:
        return await is_idle(app)
    finally:
        await app.aclose()
