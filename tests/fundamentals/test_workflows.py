"""Jobs that wait for jobs: dependencies, chains, groups and workflows."""

from __future__ import annotations

import asyncio
import datetime as dt

import msgspec
import pytest

from relevo import Job, Relevo, State, Workflow, WorkflowProgress, chain, current_job, group
from relevo.errors import JobCancelled, JobFailed, OptionError, PayloadError, UnknownJob
from tests.eventually import PATIENCE, aeventually
from tests.working import drain, working

# depends_on


async def test_a_job_waits_for_jobs_in_other_queues(app: Relevo) -> None:
    # Given two jobs in two queues, and a third that depends on both
    order: list[str] = []

    @app.task(queue="kitchen")
    async def cook(dish: str) -> None:
        order.append(dish)

    @app.task(queue="cellar")
    async def fetch(bottle: str) -> None:
        order.append(bottle)

    @app.task
    async def serve() -> str:
        order.append("serve")
        return "enjoy"

    soup, wine = await cook.aenqueue("soup"), await fetch.aenqueue("wine")
    meal = await serve.using(depends_on=[soup, wine]).aenqueue()

    # I expect it to wait for two jobs
    assert await meal.astate() is State.WAITING
    assert (await meal.ainfo()).waits_for == 2

    # If a worker runs, I expect it to run last
    async with working(app):
        assert await meal.aresult(timeout=PATIENCE) == "enjoy"
    assert sorted(order[:2]) == ["soup", "wine"]
    assert order[2] == "serve"


async def test_a_job_does_not_wait_for_a_parent_that_is_done(app: Relevo) -> None:
    # Given a job that is done
    @app.task
    async def step(number: int) -> int:
        return number

    async with working(app):
        first = await step.aenqueue(1)
        await first.aresult(timeout=PATIENCE)

        # If another one depends on it, I expect it to run at once
        assert await (await step.using(depends_on=first).aenqueue(2)).aresult(timeout=PATIENCE) == 2


async def test_dependents_of_a_dead_job_are_cancelled_with_the_reason(app: Relevo) -> None:
    # Given a job that will fail, one that depends on it, and one that depends on that one
    @app.task(retries=0)
    async def charge() -> None:
        raise ValueError("card declined")

    @app.task(queue="mail")
    async def thank() -> None: ...

    charged = await charge.aenqueue()
    thanked = await thank.using(depends_on=[charged]).aenqueue()
    filed = await thank.using(depends_on=[thanked]).aenqueue()

    # If the first one becomes a dead letter
    async with working(app):
        with pytest.raises(JobCancelled, match="dependency_failed"):
            await thanked.aresult(timeout=PATIENCE)
        with pytest.raises(JobCancelled, match="dependency_failed"):
            await filed.aresult(timeout=PATIENCE)

    # I expect both to be cancelled, each with the id of the job that it depended on
    for job, because in ((thanked, charged), (filed, thanked)):
        info = await job.ainfo()
        assert (info.state, info.reason) == (State.CANCELLED, "dependency_failed")
        assert because.id in info.attempts[-1].message
    assert [row.id for row in await app.queue("mail").ajobs("cancelled")] == [filed.id, thanked.id]


async def test_a_dependent_can_run_although_its_parent_failed(app: Relevo) -> None:
    # Given a job that depends on another one with "run"
    @app.task(retries=0)
    async def charge() -> None:
        raise ValueError("card declined")

    @app.task
    async def clean_up() -> str:
        return "clean"

    charged = await charge.aenqueue()
    cleaned = await clean_up.using(depends_on=[(charged, "run")]).aenqueue()
    assert await cleaned.astate() is State.WAITING

    # If its parent fails, I expect it to run
    async with working(app):
        assert await cleaned.aresult(timeout=PATIENCE) == "clean"
        assert await charged.astate() is State.DEAD


async def test_a_dependent_can_wait_until_its_dead_parent_is_retried(app: Relevo) -> None:
    # Given a job that depends on a dead one with "wait"
    account = {"money": 0}

    @app.task(retries=0)
    async def charge() -> None:
        if not account["money"]:
            raise ValueError("card declined")

    @app.task
    async def thank() -> str:
        return "thanks"

    charged = await charge.aenqueue()
    thanked = await thank.using(depends_on=[(charged, "wait")]).aenqueue()
    await drain(app)
    assert await charged.astate() is State.DEAD
    assert await thanked.astate() is State.WAITING

    # If the parent is retried and succeeds, I expect the dependent to run
    account["money"] = 100
    assert await charged.aretry()
    async with working(app):
        assert await thanked.aresult(timeout=PATIENCE) == "thanks"


async def test_a_parent_that_does_not_exist_is_refused(app: Relevo) -> None:
    # Given a job whose record is gone
    @app.task(result_ttl=0)
    async def step() -> None: ...

    gone = await step.aenqueue()
    await drain(app)

    # If another job is to depend on it, I expect an error that names it, and nothing enqueued
    with pytest.raises(UnknownJob, match=rf"no job {gone.id} on default.*Nothing was enqueued"):
        await step.using(depends_on=[gone]).aenqueue()
    assert (await app.queue().astats()).living == 0


async def test_retrying_a_dead_job_restores_its_cancelled_dependents(app: Relevo) -> None:
    # Given a dead job, and dependents that were cancelled because of it
    account = {"money": 0}

    @app.task(retries=0)
    async def charge() -> None:
        if not account["money"]:
            raise ValueError("card declined")

    @app.task(queue="mail")
    async def thank(whom: str) -> str:
        return whom

    charged = await charge.aenqueue()
    child = await thank.using(depends_on=[charged]).aenqueue("child")
    grandchild = await thank.using(depends_on=[child]).aenqueue("grandchild")
    async with working(app):
        with pytest.raises(JobCancelled):
            await grandchild.aresult(timeout=PATIENCE)

    # If the dead one is retried, I expect all of them to be restored, under the same ids
    account["money"] = 100
    assert await charged.aretry()
    assert [await job.astate() for job in (charged, child, grandchild)] == [State.READY, State.WAITING, State.WAITING]

    # and to run
    async with working(app):
        assert await grandchild.aresult(timeout=PATIENCE) == "grandchild"
        assert await child.aresult(timeout=PATIENCE) == "child"
    assert (await child.ainfo()).reason == ""


# chains and groups


async def test_a_chain_hands_each_result_to_the_next_step(app: Relevo) -> None:
    # Given tasks that take the result of another one
    @app.task
    async def price(article: int) -> int:
        return article * 100

    @app.task(queue="sales")
    async def discount(cents: int, *, percent: int) -> int:
        return cents * (100 - percent) // 100

    # If they are put in a chain
    async with working(app):
        flow = await chain(price.s(7), discount.s(percent=10), discount.s(percent=50)).aenqueue()

        # I expect the result of the last step
        assert await flow.aresult(timeout=PATIENCE) == 315

        # and the same with the operator
        flow = await (price.s(7) | discount.s(percent=10)).aenqueue()
        assert await flow.aresult(timeout=PATIENCE) == 630


async def test_a_group_gives_the_list_of_results_in_order(app: Relevo) -> None:
    # Given a task that is fast for some numbers and slow for others
    @app.task
    async def square(number: int) -> int:
        await asyncio.sleep(0.01 if number % 2 else 0)
        return number * number

    # If many of them run at once, I expect their results in the order of the group
    async with working(app):
        flow = await group(square.s(i) for i in range(8)).aenqueue()
        assert await flow.aresult(timeout=PATIENCE) == [0, 1, 4, 9, 16, 25, 36, 49]


async def test_the_step_after_a_group_gets_the_list_of_results(app: Relevo) -> None:
    # Given a task for one page and one for all of them
    @app.task
    async def words(page: str) -> int:
        return len(page.split())

    @app.task(queue="totals")
    async def total(counts: list[int], *, unit: str) -> str:
        return f"{sum(counts)} {unit}"

    # If the total follows a group of pages, I expect it to run once, with all results
    async with working(app):
        pages = ["to be", "or not", "to be or what"]
        flow: Workflow[str] = await group(words.s(page) for page in pages).then(total.s(unit="words")).aenqueue()
        assert await flow.aresult(timeout=PATIENCE) == "8 words"


async def test_chains_and_groups_can_be_nested(app: Relevo) -> None:
    # Given some arithmetic
    @app.task
    async def add(x: int, y: int) -> int:
        return x + y

    @app.task(queue="totals")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    async with working(app):
        # If there is a chain in a group, I expect its last result as that member's
        flow = await group(add.s(1, 1), add.s(1, 1) | add.s(10), chain(add.s(1, 1), add.s(2), add.s(3))).aenqueue()
        assert await flow.aresult(timeout=PATIENCE) == [2, 12, 7]

        # a group in a group is a list in a list
        nested = await group(group(add.s(1, 1), add.s(2, 2)), group(add.s(3, 3), add.s(4, 4))).aenqueue()
        assert await nested.aresult(timeout=PATIENCE) == [[2, 4], [6, 8]]

        # and where a group follows a group, each of its members gets the whole list
        wide = group(add.s(i, i) for i in range(3)) | group(total.s(), total.s()) | total.s() | add.s(1)
        assert await (await wide.aenqueue()).aresult(timeout=PATIENCE) == 13


class Invoice(msgspec.Struct):
    number: int
    due: dt.datetime
    lines: list[tuple[str, int]]


async def test_results_arrive_as_the_type_that_the_next_step_takes(app: Relevo) -> None:
    # Given tasks whose results are more than plain JSON
    written = dt.datetime(2026, 2, 28, 12, 30, tzinfo=dt.UTC)

    @app.task
    async def write(number: int) -> Invoice:
        return Invoice(number, written, [("soup", 450)])

    @app.task
    async def due(invoice: Invoice, *, days: int) -> dt.datetime:
        assert isinstance(invoice, Invoice)
        assert invoice.lines == [("soup", 450)]
        return invoice.due + dt.timedelta(days=days)

    @app.task
    async def earliest(dates: list[dt.datetime]) -> dt.datetime:
        assert all(isinstance(date, dt.datetime) for date in dates)
        return min(dates)

    # If they follow each other, I expect typed values at every step
    async with working(app):
        flow = await (write.s(7) | group(due.s(days=3), due.s(days=1)) | earliest.s()).aenqueue()
        assert await flow.aresult(timeout=PATIENCE) == written + dt.timedelta(days=1)


async def test_a_step_can_ignore_the_result_before_it(app: Relevo) -> None:
    # Given a step with all its arguments
    @app.task
    async def prepare() -> str:
        return "not used"

    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    # If it is written with .si, I expect only its own arguments
    async with working(app):
        assert await (await (prepare.s() | greet.si("Ana")).aenqueue()).aresult(timeout=PATIENCE) == "hello Ana"


# workflows


async def test_a_workflow_has_a_progress(app: Relevo) -> None:
    # Given a workflow of four jobs, half of which run
    doors = {name: asyncio.Event() for name in ("first", "second")}

    @app.task
    async def step(door: str) -> str:
        await doors[door].wait()
        return door

    @app.task
    async def count(names: list[str]) -> int:
        return len(names)

    async with working(app):
        flow = await group(step.s("first"), step.s("first"), step.s("second")).then(count.s()).aenqueue()
        assert await flow.astate() is State.RUNNING
        assert await flow.aprogress() == WorkflowProgress(total=4, done=0, failed=0, open=4)

        # If two have ended, I expect it to be half done
        doors["first"].set()
        halfway = WorkflowProgress(total=4, done=2, failed=0, open=2)
        await aeventually(lambda: _is(flow, halfway), what="two are done")
        assert halfway.fraction == 0.5

        # and in the end done, found by its id, with all its members
        doors["second"].set()
        assert await flow.aresult(timeout=PATIENCE) == 3
        found = await app.aworkflow(flow.id)
        assert found == flow
        info = await found.ainfo()
        assert (info.state, info.progress.fraction, len(info.members)) == (State.DONE, 1.0, 4)


async def _is(flow: Workflow[int], progress: WorkflowProgress) -> bool:
    return await flow.aprogress() == progress


async def test_callbacks_of_a_workflow_run_once_when_it_has_ended(app: Relevo) -> None:
    # Given a workflow with all kinds of callbacks
    called: list[tuple[str, State]] = []

    @app.task(retries=0)
    async def step(number: int) -> int:
        if number < 0:
            raise ValueError("below zero")
        return number

    @app.task(queue="mail")
    async def tell(what: str) -> None:
        flow = await app.aworkflow()
        called.append((what, await flow.astate()))

    async with working(app):
        for numbers, expected in (
            ((1, 2), [("complete", State.DONE), ("success", State.DONE)]),
            ((1, -2), [("complete", State.DEAD), ("failure", State.DEAD)]),
        ):
            called.clear()
            members = group(step.s(number) for number in numbers)
            flow = members.on_success(tell.s("success")).on_failure(tell.s("failure"))

            # If it ends, with success or not
            await flow.on_complete(tell.s("complete")).aenqueue()

            # I expect the callbacks of that outcome
            await aeventually(lambda: len(called) == 2, what="two callbacks")
            assert sorted(called) == expected
            await aeventually(lambda: _is_empty(app), what="nothing else comes")
            assert sorted(called) == expected


async def _is_empty(app: Relevo) -> bool:
    return not any([(await app.queue(name).astats()).living for name in await app.aqueues()])


async def test_a_failed_workflow_names_the_job_that_failed(app: Relevo) -> None:
    # Given a workflow whose second step fails
    @app.task
    async def fetch(url: str) -> str:
        return url

    @app.task(retries=0)
    async def parse(page: str) -> int:
        raise ValueError("this is no page")

    @app.task
    async def store(number: int) -> None: ...

    # If I wait for its result, I expect the error of that job
    async with working(app):
        flow = await (fetch.s("a") | parse.s() | store.s()).aenqueue()
        with pytest.raises(JobFailed, match=r"parse\) is dead: ValueError: this is no page"):
            await flow.aresult(timeout=PATIENCE)

    # and the workflow to be dead as a whole, with what came after cancelled
    info = await flow.ainfo()
    assert info.state is State.DEAD
    assert [member.state for member in info.members] == [State.DONE, State.DEAD, State.CANCELLED]
    assert info.members[2].reason == "dependency_failed"


async def test_retrying_a_workflow_runs_only_what_failed(app: Relevo) -> None:
    # Given a workflow of which one member fails
    runs: list[str] = []
    weather = {"good": False}

    @app.task(retries=0)
    async def measure(place: str) -> str:
        runs.append(place)
        if place == "top" and not weather["good"]:
            raise ConnectionError("connection refused")
        return place

    @app.task(queue="totals")
    async def report(places: list[str]) -> str:
        runs.append("report")
        return " and ".join(places)

    async with working(app):
        flow = await group(measure.s("valley"), measure.s("top")).then(report.s()).aenqueue()
        with pytest.raises(JobFailed):
            await flow.aresult(timeout=PATIENCE)

    # If I retry it when the weather is better
    weather["good"] = True
    assert await flow.aretry() == 1
    assert await flow.astate() is State.RUNNING

    # I expect its result, and that finished jobs did not run again
    async with working(app):
        assert await flow.aresult(timeout=PATIENCE) == "valley and top"
    assert runs == ["valley", "top", "top", "report"]
    assert await flow.astate() is State.DONE


async def test_a_workflow_can_be_cancelled_as_a_whole(app: Relevo) -> None:
    # Given a workflow, one job of which runs while others wait
    started = asyncio.Event()

    @app.task
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    @app.task(queue="later")
    async def after() -> None: ...

    async with working(app):
        flow = await (wait.s() | after.si() | after.si()).aenqueue()
        await asyncio.wait_for(started.wait(), PATIENCE)

        # If I cancel it, I expect the running one to be stopped and the others never to start
        assert await flow.acancel() == 3
        with pytest.raises(JobCancelled):
            await flow.aresult(timeout=PATIENCE)
    assert [member.state for member in (await flow.ainfo()).members] == [State.CANCELLED] * 3
    assert await flow.acancel() == 0


async def test_a_job_can_add_others_to_its_own_workflow(app: Relevo) -> None:
    # Given a task that finds more to do while it runs
    links = {"index": ["news", "shop"], "news": ["today"], "shop": [], "today": []}
    seen: list[str] = []

    @app.task
    async def visit(page: str) -> str:
        seen.append(page)
        flow = await app.aworkflow()
        await flow.aadd(*(visit.s(link) for link in links[page]))
        return page

    @app.task(queue="totals")
    async def total(pages: list[str]) -> list[str]:
        return pages

    # If a workflow begins with it
    async with working(app):
        flow = await group(visit.s("index")).then(total.s()).aenqueue()

        # I expect the next step to wait for all of them, and to get the results of the added ones last
        assert await flow.aresult(timeout=PATIENCE) == ["index", "news", "shop", "today"]
    assert sorted(seen) == ["index", "news", "shop", "today"]
    assert (await flow.aprogress()).total == 5


async def test_workflows_of_plain_functions_and_blocking_calls(app: Relevo) -> None:
    # Given plain functions
    @app.task
    def add(x: int, y: int) -> int:
        if current_job().attempt == 1 and x < 0:
            app.workflow().add(add.s(1, 1))
        return x + y

    @app.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    # If a program without an event loop uses them
    def program() -> tuple[int, State, Job[int]]:
        flow = group(add.s(-1, 2), add.s(3, 4)).then(total.s()).enqueue()
        after = add.using(depends_on=[flow]).enqueue(5, 6)
        return flow.result(timeout=PATIENCE), flow.state(), after

    # I expect the same results
    async with working(app):
        result, state, after = await asyncio.to_thread(program)
        assert (result, state) == (1 + 7 + 2, State.DONE)
        assert await after.aresult(timeout=PATIENCE) == 11


def test_a_workflow_that_cannot_work_is_refused_before_anything_is_sent(app: Relevo) -> None:
    # Given a task for numbers and one for texts
    @app.task(name="shout")
    def shout(text: str) -> str:
        return text.upper()

    @app.task(name="double")
    def double(number: int) -> int:
        return number * 2

    # If a result can never fit the argument of the next step, I expect an error
    with pytest.raises(PayloadError, match="never fits what comes before"):
        (shout.s("a") | double.s()).enqueue()  # type: ignore[operator]

    # and one if a step of a workflow has dependencies of its own
    job = double.enqueue(1)
    with pytest.raises(OptionError, match="depends_on is not for a step of a flow"):
        (double.s(1) | double.using(depends_on=[job]).s()).enqueue()
    assert app.queue().stats().living == 1
