"""Names of workflows: enqueueing again gives the first one instead of a second."""

from __future__ import annotations

from typing import Any

import pytest

from relevo import Relevo, State, chain, group
from relevo.errors import OptionError
from relevo.testing import bind
from relevo.workflows import storing
from relevo.workflows.steps import Flow
from tests.conftest import AppFactory
from tests.eventually import PATIENCE
from tests.plans import one_by_one
from tests.servers import Server
from tests.working import drained

#: Members of a flow that is stored in one call, and of one that is stored in several.
SIZES = (3, 700)


def flow_of(app: Relevo, size: int, ran: list[int]) -> Flow[Any, int]:
    @app.task(name="member", retries=0)
    async def member(n: int) -> int:
        ran.append(n)
        return n

    @app.task(name="total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    return group(member.s(n) for n in range(size)).then(total.s())


@pytest.mark.parametrize("size", SIZES)
def test_a_second_enqueue_gives_the_first_workflow_until_that_has_ended(app: Relevo, size: int) -> None:
    ran: list[int] = []
    flow = flow_of(app, size, ran)
    first, second = flow.enqueue(name="nightly"), flow.enqueue(name="nightly")
    assert (first == second, first.created, second.created) == (True, True, False)
    other = flow.enqueue(name="weekly")
    assert (other == first, other.created) == (False, True)
    drained(app)
    assert sorted(ran) == sorted([*range(size)] * 2)
    assert second.result(timeout=PATIENCE) == sum(range(size))
    third = flow.enqueue(name="nightly")
    assert (third == first, third.created) == (False, True)
    third.cancel()


@pytest.mark.parametrize("size", SIZES)
def test_a_name_is_held_for_a_time(app: Relevo, server: Server, size: int) -> None:
    ran: list[int] = []
    with bind(app, url=server.url) as kit:
        flow = flow_of(app, size, ran)
        first = flow.enqueue(name="2026-11-19", unique="1d")
        kit.drain()
        again = flow.enqueue(name="2026-11-19", unique="1d")
        assert (again == first, again.created) == (True, False)
        assert again.state() is State.DONE
        kit.drain()
    assert sorted(ran) == list(range(size))


@pytest.mark.parametrize("calls", range(2, 7))
def test_a_maker_that_dies_half_way_keeps_no_name(app: Relevo, calls: int) -> None:
    ran: list[int] = []
    flow = flow_of(app, 700, ran)
    app.engine.run(app.engine.list_queue("default"))
    plan = one_by_one(storing.stored(storing.Rows(app.engine, flow, storing.Name.of("n", None))))
    call = next(plan)
    for _ in range(calls):
        call = plan.send(app.engine.run(call))
    again = flow.enqueue(name="n")
    drained(app)
    assert again.result(timeout=PATIENCE) == sum(range(700))
    assert sorted(ran) == list(range(700)), "once"


def test_the_slower_of_two_makers_gets_the_workflow_of_the_faster(app: Relevo) -> None:
    ran: list[int] = []
    flow = flow_of(app, 700, ran)
    app.engine.run(app.engine.list_queue("default"))
    plan = one_by_one(storing.stored(storing.Rows(app.engine, flow, storing.Name.of("n", None))))
    call = next(plan)
    faster = None
    while True:
        if call.script is not None and call.script.name == "workflows/notify_dependents" and faster is None:
            faster = flow.enqueue(name="n")
        try:
            call = plan.send(app.engine.run(call))
        except StopIteration as end:
            slower = end.value
            break
    assert (slower == faster, slower.created) == (True, False)
    drained(app)
    assert sorted(ran) == list(range(700))


def test_a_workflow_that_is_retried_has_its_name_again(app: Relevo) -> None:
    failing = [True]

    @app.task(name="step", retries=0)
    async def step(n: int) -> int:
        if failing:
            raise ValueError("no")
        return n

    flow = chain(step.s(1), step.s())
    first = flow.enqueue(name="n")
    drained(app)
    assert first.state() is State.DEAD
    first.retry()
    again = flow.enqueue(name="n")
    assert (again == first, again.created) == (True, False)
    failing.clear()
    drained(app)
    assert first.result(timeout=PATIENCE) == 1


def test_names_of_jobs_and_of_workflows_are_apart(app: Relevo) -> None:
    ran: list[int] = []
    flow = flow_of(app, 3, ran).enqueue(name="n")
    job = app.tasks["member"].using(name="n").enqueue(9)
    assert job.created
    drained(app)
    assert sorted(ran) == [0, 1, 2, 9]
    assert flow.result(timeout=PATIENCE) == 3


def test_wrong_names_are_refused(app_factory: AppFactory) -> None:
    flow = flow_of(app_factory(), 3, [])
    for options in ({"name": "n", "unique": "queued"}, {"unique": True}, {"name": "n", "unique": False}):
        with pytest.raises(OptionError, match="a workflow takes name="):
            flow.enqueue(**options)
    with pytest.raises(OptionError, match="name: printable text"):
        flow.enqueue(name="a\nb")
