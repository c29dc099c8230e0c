"""Workflows stored in several calls: founded as a whole, or given up as a whole, whatever becomes of their makers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo, State, Workflow, chain, group
from relevo.engine.dependents import follow, gate_of, needs_of
from relevo.engine.edges import Edge
from relevo.engine.job_store import attach, look
from relevo.engine.outbox import MEMBERS, deliver, notify, opened, start_letter, start_members
from relevo.engine.push import GATE_MS, NewJob, push_rich
from relevo.errors import ServerUnavailable
from relevo.store.plan import Call
from relevo.workflows.steps import Flow
from relevo.workflows.store import store_members
from relevo.workflows.storing import Rows, stored
from tests.conftest import AppFactory
from tests.leaks import leaks
from tests.servers import Server
from tests.store.desk import Desk, new_id, repeated
from tests.store.kin import (
    BODY,
    KEEP_MS,
    bag,
    cancelling,
    everything,
    outbox,
    relayed,
    report,
    state_of,
    step_by_step,
    waiting,
)
from tests.store.kin import workflow as founded


def stands(desk: Desk, flow: str) -> tuple[str, str, str]:
    """Whether a workflow is open, its state, and what it waits for."""
    known = bag(desk, flow)
    return known["life"], known.get("state", ""), known["open"]


def member_of(desk: Desk, flow: str, n: int = 1, **more: Any) -> list[str]:
    """Members behind one gate."""
    needs, edges = needs_of(0, KEEP_MS, gated=True), str(Edge(flow, "default", "n"))
    rows = [NewJob(new_id(), 100, BODY.encode(), needs=needs, edges=edges, **more) for _ in range(n)]
    return list(desk.run(push_rich(desk.keys, rows, "default")))


def founding(desk: Desk, flow: str, *gates: str) -> tuple[int, bool]:
    """Open a workflow's own gate, and ask for those of its members to be opened."""
    start = start_letter([("default", gate) for gate in gates])
    said: tuple[int, bool] = desk.run(notify(desk.keys, opened([flow]), 1000, start=start))
    return said


# --- the scripts


def test_a_workflow_that_is_founded_has_no_end_and_its_start_is_written_in_the_same_step(desk: Desk) -> None:
    flow = founded(desk, 1, gated=True)
    assert stands(desk, flow) == ("draft", "", "2"), "its member and its gate"
    assert GATE_MS < desk.ask("PTTL", f"carried:{flow}") <= 2 * GATE_MS
    assert outbox(desk) == {}, "a workflow that is not founded needs no outbox message to end"
    (member,) = member_of(desk, flow)
    assert founding(desk, flow, gate_of(member)) == (1, True)
    assert desk.ask("PTTL", f"carried:{flow}") == -1
    assert stands(desk, flow) == ("open", "", "1")
    assert outbox(desk)[f"{flow}.start"] == f"start\n{gate_of(member)} default"
    before = everything(desk)
    assert founding(desk, flow, gate_of(member)) == (0, True), "a client that lost the reply changes nothing"
    assert everything(desk) == before
    assert relayed(desk) == 1
    assert (state_of(desk, member), outbox(desk)) == ("ready", {})


def test_only_a_report_that_changes_something_counts_and_asks_for_the_start(desk: Desk) -> None:
    before = everything(desk)
    assert founding(desk, new_id(), gate_of(new_id())) == (0, False)
    assert everything(desk) == before, "a late founding changes nothing"
    first, second = waiting(desk, 2), waiting(desk, 2)
    reports = opened([first, second, new_id(), first])
    assert desk.run(notify(desk.keys, reports, 1000)) == (2, False)
    assert desk.run(notify(desk.keys, reports, 1000, start="start\n")) == (0, False)
    assert desk.run(notify(desk.keys, [], 1000, start="start\n")) == (0, False)
    assert outbox(desk) == {}


def test_the_edges_of_a_workflow_are_there_when_it_is_founded_and_not_before(desk: Desk) -> None:
    """Nothing would remove them if it never was."""
    callback = waiting(desk)
    edge = Edge(callback, "default", "r")
    flow = founded(desk, 1, edge, gated=True)
    assert (desk.ask("EXISTS", "waiters"), bag(desk, flow)["edges"]) == (0, str(edge))
    founding(desk, flow)
    assert (desk.ask("HGET", "waiters", flow), bag(desk, flow).get("edges")) == (str(edge).encode(), None)
    relayed(desk)
    report(desk, flow, "done", policy="n")
    relayed(desk)
    assert state_of(desk, callback) == "ready"


def test_jobs_that_wait_for_a_workflow_before_its_founding_are_kept(desk: Desk) -> None:
    """It is on the list, so a client may have seen it: it gets `unknown`, or its end."""
    callback, other = waiting(desk), waiting(desk)
    flow = founded(desk, 1, Edge(callback, "default"), gated=True)
    state, _ = desk.run(follow(desk.keys, flow, [Edge(other, "default")]))
    found = desk.run(attach(desk.keys, flow, b"in"))
    founding(desk, flow)
    relayed(desk)
    noted = desk.ask("HGET", "waiters", flow).decode().split()
    assert str(Edge(callback, "default")) in noted
    assert state == "unknown" or str(Edge(other, "default")) in noted
    assert found is None or "in" in noted
    report(desk, flow, "done", policy="n")
    relayed(desk)


def test_jobs_that_wait_for_a_workflow_that_is_never_founded_leave_nothing(
    desk: Desk, app: Relevo, server: Server
) -> None:
    flow = founded(desk, 1, gated=True)
    desk.run(follow(desk.keys, flow, [Edge(new_id(), "default")]))
    desk.run(attach(desk.keys, flow, b"in"))
    desk.ask("DEL", f"carried:{flow}")  # its time is over
    found = leaks(server, app.name)
    desk.ask("DEL", "waiters")
    assert found == []


def test_a_founded_workflow_whose_gates_lapse_before_they_are_opened_ends_cancelled(desk: Desk) -> None:
    """Its maker died right after it was founded, and no relay opened the gates in time."""
    callbacks = [waiting(desk) for _ in range(3)]
    edges = [Edge(id, "default", policy) for id, policy in zip(callbacks, "cfr", strict=True)]  # type: ignore[arg-type]
    flow = founded(desk, 2, *edges, gated=True)
    members = member_of(desk, flow, 2)
    assert founding(desk, flow, gate_of(members[0])) == (1, True)
    desk.advance(GATE_MS + 1)
    lapse = outbox(desk)[gate_of(members[0])]
    desk.run(deliver(lambda _: desk.keys, desk.keys, [(gate_of(members[0]), lapse.encode())], 1000))
    desk.run(notify(desk.keys, [], 1000, [gate_of(members[0])]))
    relayed(desk)
    assert [state_of(desk, id) for id in members] == ["cancelled", "cancelled"]
    assert stands(desk, flow) == ("closed", "cancelled", "0")
    assert bag(desk, flow)["n:cancelled"] == "2"
    assert [state_of(desk, id) for id in callbacks] == ["cancelled", "ready", "ready"]
    assert outbox(desk) == {}


def test_a_workflow_that_lost_members_before_it_was_founded_is_none(desk: Desk) -> None:
    """Its maker was slow: nothing of it runs, neither what lapsed nor what was stored since."""
    flow = founded(desk, 2, gated=True)
    (early,) = member_of(desk, flow)
    desk.advance(GATE_MS // 2)
    (late,) = member_of(desk, flow)
    desk.advance(GATE_MS // 2 + 1)
    relayed(desk)
    before = everything(desk)
    assert founding(desk, flow, gate_of(early), gate_of(late)) == (0, False)
    assert everything(desk) == before, "nothing starts"
    assert (stands(desk, flow), desk.ask("PTTL", f"carried:{flow}") > 0) == (("draft", "", "2"), True)
    desk.advance(GATE_MS)
    relayed(desk)
    assert [state_of(desk, id) for id in (early, late)] == ["cancelled", "cancelled"]
    assert (desk.claim(5), outbox(desk)) == ([], {})


@pytest.mark.parametrize(
    ("policy", "becomes"), [("c", "cancelled"), ("r", "ready"), ("w", "cancelled"), ("f", "ready")]
)
def test_a_job_that_never_came_to_be_is_not_taken_for_one_that_went_well(desk: Desk, policy: Any, becomes: str) -> None:
    child = waiting(desk)
    needs = needs_of(0, KEEP_MS, gated=True)
    job = NewJob(new_id(), 100, BODY.encode(), needs=needs, edges=str(Edge(child, "default", policy)))
    desk.run(push_rich(desk.keys, [job], "default"))
    desk.advance(GATE_MS + 1)
    relayed(desk)
    assert (state_of(desk, job.id), state_of(desk, child)) == ("cancelled", becomes)


# --- plain members


def plain_members(desk: Desk, flow: str, n: int = 2) -> list[str]:
    """Members that wait for nothing but the start."""
    rows = [(new_id(), BODY.encode(), str(Edge(flow, "default", "n"))) for _ in range(n)]
    call = store_members(desk.keys, rows, "default", 50, KEEP_MS)
    assert desk.run(call) == n
    before = everything(desk)
    assert desk.run(repeated(call)) == 0
    assert everything(desk) == before, "stored once"
    return [id for id, _, _ in rows]


def test_plain_members_start_with_their_workflow_in_order(desk: Desk) -> None:
    flow = founded(desk, 2, gated=True)
    ids = plain_members(desk, flow)
    assert (desk.claim(5), desk.members("waiting")) == ([], sorted(ids))
    assert founding(desk, flow, ids[0] + MEMBERS) == (1, True)
    for _ in range(2):
        desk.run(start_members(desk.keys, ids[0] + MEMBERS))
        assert desk.members("ready") == ids
    assert desk.score("ready", ids[0]) // 2**43 == 50  # type: ignore[operator]
    relayed(desk)
    assert desk.claim(5) == ids
    assert outbox(desk) == {}


def test_workers_start_plain_members_whose_maker_died_after_the_founding(desk: Desk) -> None:
    flow = founded(desk, 2, gated=True)
    ids = plain_members(desk, flow)
    start = start_letter([("default", ids[0] + MEMBERS)])
    assert desk.run(notify(desk.keys, opened([flow]), 1000, start=start, start_ms=2000)) == (1, False)
    assert relayed(desk) == 0, "its maker does so now"
    desk.advance(2001)
    relayed(desk)
    assert (desk.claim(5), outbox(desk)) == (ids, {})


def test_plain_members_whose_maker_died_before_the_founding_are_cancelled(desk: Desk) -> None:
    flow = founded(desk, 2, gated=True)
    ids = plain_members(desk, flow)
    desk.advance(GATE_MS + 1)
    relayed(desk)
    assert [state_of(desk, id) for id in ids] == ["cancelled", "cancelled"]
    record = desk.run(look(desk.keys, ids[0])).record
    assert "died before all of it was stored" in record.story.attempts[0].message
    assert founding(desk, flow, ids[0] + MEMBERS) == (0, False)
    desk.run(start_members(desk.keys, ids[0] + MEMBERS))
    assert (desk.claim(5), outbox(desk)) == ([], {})


def test_a_plain_member_that_was_cancelled_before_the_start_does_not_start(desk: Desk) -> None:
    flow = founded(desk, 2, gated=True)
    gone, other = plain_members(desk, flow)
    assert cancelling(desk, gone) is True
    founding(desk, flow, gone + MEMBERS)
    relayed(desk)
    assert desk.claim(5) == [other]
    assert stands(desk, flow) == ("open", "", "1")


# --- as makers meet it


@pytest.fixture
def late_app(app_factory: AppFactory) -> Relevo:
    """An app in a time that the test moves."""
    name = f"t{uuid4().hex[:12]}"
    return app_factory(name)


@pytest.fixture
def desks(late_app: Relevo, server: Server) -> Iterator[list[Desk]]:
    """Its two queues."""
    yield [Desk(late_app.engine.client.run, late_app.engine.keys_of(queue), server) for queue in ("default", "other")]


def flow_of(app: Relevo, *, watched: bool = False) -> Flow[Any, Any]:
    """A flow in two queues: three jobs, then one; `watched`: with callbacks."""

    @app.task(name="add")
    async def add(x: int) -> int:
        return x

    @app.task(name="total", queue="other")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="call", queue="other")
    async def call(what: str) -> None: ...

    flow: Flow[Any, Any] = chain(group(add.s(n) for n in range(3)), total.s())
    if watched:
        flow = flow.on_success(call.s("y")).on_failure(call.s("n")).on_complete(call.s("c"))
    return flow


def made_slowly(
    app: Relevo, desks: list[Desk], before: str, ms: int, *, is_gone: bool = False, is_watched: bool = False
) -> Workflow[Any]:
    """Store a flow; its maker stalls before its last call of a kind, and all that is due until then is done."""
    last = {"engine/push_with_options": 2, "workflows/notify_dependents": 1}[before]
    calls: list[str] = []

    def stall(name: str, call: Call[Any]) -> None:
        calls.append(name)
        if name == before and calls.count(name) == last:
            desks[0].advance(ms)
            app.engine.run(app.engine.relay("default", "other"))
            if is_gone:  # the time limits of keys are those of the server, which lives in another time
                remove_flows(desks[0])

    try:
        flow: Workflow[Any] = step_by_step(
            app.engine.run, stored(Rows(app.engine, flow_of(app, watched=is_watched))), stall
        )
    finally:
        assert (calls.count("engine/push_with_options"), calls.count("workflows/notify_dependents") > 0) == (2, True), (
            "the workflow, what is not plain, its gate"
        )
    return flow


def remove_flows(desk: Desk) -> None:
    """As the server does when their time limit has passed."""
    for id in desk.members("flows"):
        assert desk.ask("PTTL", f"carried:{id}") != -1
        desk.ask("DEL", f"carried:{id}")


def test_a_flow_of_two_queues_is_founded_when_all_of_it_is_in_place(late_app: Relevo, desks: list[Desk]) -> None:
    flow = made_slowly(late_app, desks, "workflows/notify_dependents", GATE_MS - 60_000)
    assert flow.state() is State.READY or flow.state() is State.RUNNING
    assert (desks[0].stats().ready, desks[1].stats().waiting) == (3, 1)
    assert outbox(desks[0]) == outbox(desks[1]) == {}
    flow.cancel()


@pytest.mark.parametrize("before", ["engine/push_with_options", "workflows/notify_dependents"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_client_that_stalls_too_long_gets_an_error_and_nothing_of_its_workflow_runs(
    late_app: Relevo, desks: list[Desk], server: Server, before: str, is_gone: bool
) -> None:
    """Never is a workflow open for ever, wherever its maker stood."""
    with pytest.raises(ServerUnavailable, match="storing the workflow took too long: its parts were given up"):
        made_slowly(late_app, desks, before, GATE_MS + 1, is_gone=is_gone, is_watched=True)
    desks[0].advance(GATE_MS + 1)
    late_app.engine.run(late_app.engine.relay("default", "other"))
    for desk in desks:
        stats = desk.stats()
        assert (stats.living, outbox(desk)) == (0, {})
        assert stats.totals.get("done") is None, "no callback ran either"
    remove_flows(desks[0])
    assert leaks(server, late_app.name) == []


def test_a_maker_that_lost_the_reply_to_its_last_call_has_founded_its_workflow(
    late_app: Relevo, desks: list[Desk]
) -> None:
    def lose_the_reply(name: str, call: Call[Any]) -> None:
        if name == "workflows/notify_dependents":
            late_app.engine.run(call)

    flow = step_by_step(late_app.engine.run, stored(Rows(late_app.engine, flow_of(late_app))), lose_the_reply)
    assert desks[0].stats().ready == 3, "it runs"
    flow.cancel()
