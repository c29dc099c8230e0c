"""Gates and late members: jobs that wait until their makers, or those that bring them, have all in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from relevo import Relevo
from relevo.engine.dependents import forget, gate_of, needs_of, push_dependents
from relevo.engine.edges import Edge, Policy
from relevo.engine.job_store import look
from relevo.engine.outbox import REPORTS, deliver, notify, opened, start_letter
from relevo.engine.push import CHUNK, GATE_MS, NewJob, push_rich
from relevo.errors import UnknownJob
from relevo.queues.store import clear
from relevo.store.plan import Call
from relevo.workflows.store import expect
from tests.servers import Server
from tests.store.desk import Desk, moved, new_id, repeated
from tests.store.kin import (
    BODY,
    KEEP_MS,
    OTHER,
    PARENT,
    bag,
    end,
    everything,
    given,
    outbox,
    relayed,
    report,
    state_of,
    step_by_step,
    waiting,
    workflow,
)

ODD = "50% off: {a} b/é"


# --- gates


def gated(desk: Desk, n: int = 1, parents: int = 0, **rich: Any) -> list[str]:
    """Jobs behind one gate."""
    needs = needs_of(parents, KEEP_MS, gated=True)
    jobs = [NewJob(new_id(), 100, BODY.encode(), needs=needs, **rich) for _ in range(n)]
    assert desk.run(push_rich(desk.keys, jobs, "default")) == [job.id for job in jobs]
    return [job.id for job in jobs]


def test_a_gated_job_does_not_start_before_its_gate_opens(desk: Desk) -> None:
    ids = gated(desk, 2)
    assert desk.claim(5) == []
    (letter,) = outbox(desk).items()
    assert letter == (gate_of(ids[0]), f"cancelled 0 gate\n>c:{ids[0]}default >c:{ids[1]}default\n")
    due = desk.score("errands", gate_of(ids[0])) or 0
    assert due == desk.now_ms + GATE_MS
    for _ in range(2):
        assert desk.run(notify(desk.keys, opened(ids), 1000, [gate_of(ids[0])]))[1] is False
        assert desk.members("ready") == ids
        assert outbox(desk) == {}


def test_a_gated_job_with_parents_waits_for_both(desk: Desk) -> None:
    by_gate, by_parent = gated(desk, 2, parents=1)
    report(desk, by_gate, "done")
    report(desk, by_parent, "done", 1, parent="gate")
    assert desk.claim(5) == []
    report(desk, by_gate, "done", 1, parent="gate")
    report(desk, by_parent, "done")
    assert desk.claim(5) == [by_gate, by_parent]


def test_a_gate_that_is_never_opened_cancels_the_jobs_behind_it(desk: Desk) -> None:
    ids = gated(desk, 2, parents=1)
    desk.advance(GATE_MS - 60_000)
    assert relayed(desk) == 0
    desk.advance(60_001)
    assert relayed(desk) == 1
    assert [state_of(desk, id) for id in ids] == ["cancelled", "cancelled"]
    assert outbox(desk) == {}
    record = desk.run(look(desk.keys, ids[0])).record
    assert "died before all of it was stored" in record.story.attempts[0].message
    assert relayed(desk) == 0


def test_a_gate_that_lapses_after_it_was_opened_changes_nothing(desk: Desk) -> None:
    ids = gated(desk, 2, parents=1)
    letter = outbox(desk)
    desk.run(notify(desk.keys, opened(ids), 1000))
    report(desk, ids[0], "done")
    before = everything(desk)
    lapse = [(id, text.encode()) for id, text in letter.items()]
    for _ in range(2):
        desk.run(deliver(lambda _: desk.keys, desk.keys, lapse, 1000))
    assert everything(desk) == before


def test_a_gate_that_is_opened_after_it_lapsed_brings_back_what_was_behind_it(desk: Desk) -> None:
    (id,) = gated(desk)
    report(desk, id, "cancelled", 0, parent="gate")
    assert state_of(desk, id) == "cancelled"
    report(desk, id, "done", 1, parent="gate")
    assert state_of(desk, id) == "ready"


def test_dependents_of_a_job_whose_gate_lapsed_are_cancelled(desk: Desk) -> None:
    flow = workflow(desk, 1)
    (id,) = gated(desk, edges=str(Edge(flow, "default", "n")))
    assert report(desk, id, "cancelled", 0, parent="gate") is True
    assert outbox(desk)[f"{id}.0"].startswith("lapsed 0 ")
    desk.run(notify(desk.keys, [], 1000, [gate_of(id)]))
    relayed(desk)
    known = bag(desk, flow)
    assert (known["state"], known["n:cancelled"]) == ("cancelled", "1")


def test_a_push_of_gated_jobs_that_is_repeated_stores_them_once(desk: Desk) -> None:
    job = NewJob(new_id(), 100, BODY.encode(), needs=needs_of(1, KEEP_MS, gated=True), edges=str(Edge(PARENT, "q")))
    call = push_rich(desk.keys, [job], "default")
    assert desk.run(call) == [job.id]
    report(desk, job.id, "done")
    before = everything(desk)
    assert desk.run(repeated(call)) == [job.id]
    assert everything(desk) == before


def test_an_outbox_message_starts_a_workflow_whose_members_are_stored(desk: Desk, app: Relevo, server: Server) -> None:
    there = Desk(desk.run, app.engine.keys_of(ODD), server)
    (here_id,), (there_id, other_id) = gated(desk), gated(there, 2)
    gates = [("default", gate_of(here_id)), (ODD, gate_of(there_id)), ("nowhere", gate_of(new_id()))]
    flow = workflow(desk, 3, gated=True)
    assert outbox(desk).keys() == {gate_of(here_id)}
    assert desk.run(notify(desk.keys, opened([flow]), 1000, start=start_letter(gates))) == (1, True)
    assert outbox(desk).keys() == {gate_of(here_id), flow + ".start"}
    assert desk.claim() == []
    start = outbox(desk)[flow + ".start"].encode()
    for _ in range(2):
        assert desk.run(app.engine.relay("default")) in (0, 1)
        assert (desk.members("ready"), there.members("ready")) == ([here_id], [there_id, other_id])
        assert outbox(desk) == outbox(there) == {}
        desk.run(deliver(app.engine.keys_of, desk.keys, [("again", start)], 1000))
    assert bag(desk, flow)["open"] == "3"
    desk.ask("DEL", f"carried:{flow}")


# --- push_dependents


@pytest.fixture
def push_child(desk: Desk, app: Relevo) -> Callable[..., str]:
    """Store a job that depends on others as `depends_on` does."""

    def push(*parents: tuple[str, str, Policy], id: str = "", name: str = "", scope: str = "until_done") -> str:
        by_queue: dict[str, list[tuple[str, Policy]]] = {}
        for parent, queue, policy in parents:
            by_queue.setdefault(queue, []).append((parent, policy))
        needs = needs_of(len(parents), KEEP_MS, gated=True)
        job = NewJob(id or new_id(), 100, BODY.encode(), name=name, scope=scope if name else "", needs=needs)
        owners: list[str] = desk.run(push_dependents(app.engine.keys_of, "default", [job], by_queue, 1000))
        return owners[0]

    return push


def test_a_job_waits_for_living_parents_in_any_queues(
    desk: Desk, app: Relevo, server: Server, push_child: Callable[..., str]
) -> None:
    there = Desk(desk.run, app.engine.keys_of(ODD), server)
    (here_id,), (there_id,) = desk.push(BODY), there.push(BODY)
    child = push_child((here_id, "default", "c"), (there_id, ODD, "c"))
    assert (state_of(desk, child), outbox(desk)) == ("waiting", {})
    for where, id in ((there, there_id), (desk, here_id)):
        assert state_of(desk, child) == "waiting"
        end(where, id, "plain")
        desk.run(app.engine.relay(ODD, "default"))
    assert state_of(desk, child) == "ready"


@pytest.mark.parametrize(("how", "becomes"), [("kept", "ready"), ("dead", "cancelled"), ("expired", "cancelled")])
def test_a_new_job_gets_the_reports_of_ended_parents_at_once(
    desk: Desk, how: str, becomes: str, push_child: Callable[..., str]
) -> None:
    (parent,) = desk.push(BODY)
    end(desk, parent, how)
    child = push_child((parent, "default", "c"))
    assert (state_of(desk, child), outbox(desk)) == (becomes, {})


def test_a_job_whose_parent_is_unknown_is_not_stored(desk: Desk, push_child: Callable[..., str]) -> None:
    (parent,) = desk.push(BODY)
    id, lost = new_id(), new_id()
    with pytest.raises(UnknownJob, match=f"depends_on: no job {lost} on default"):
        push_child((parent, "default", "c"), (lost, "default", "c"), id=id, name="n")
    assert (state_of(desk, id), outbox(desk)) == ("unknown", {})
    assert desk.stats().living == 1
    assert desk.ask("EXISTS", "names") == 0
    end(desk, parent, "plain")
    relayed(desk)
    assert desk.stats().living == 0, "the edge that was noted leads nowhere"


@pytest.mark.parametrize("scope", ["queued", "until_done", "60000"])
def test_a_job_that_is_not_stored_gives_its_name_free(desk: Desk, scope: str, push_child: Callable[..., str]) -> None:
    """The name is not held by a job that was never stored."""
    with pytest.raises(UnknownJob, match="Nothing was enqueued"):
        push_child((new_id(), "default", "c"), name="n", scope=scope)
    assert (desk.ask("EXISTS", "names"), desk.ask("EXISTS", "unique:n")) == (0, 0)
    (parent,) = desk.push(BODY)
    id = new_id()
    assert push_child((parent, "default", "c"), id=id, name="n", scope=scope) == id


def test_a_job_that_is_not_stored_leaves_the_names_of_others_alone(desk: Desk) -> None:
    held = desk.push_one(BODY, name="held", scope="60000")
    named = desk.push_one(BODY, name="named", scope="until_done")
    for name in ("held", "named"):
        job = NewJob(new_id(), 100, BODY.encode(), needs=needs_of(0, KEEP_MS, gated=True))
        desk.run(push_rich(desk.keys, [job], "default"))
        desk.run(forget(desk.keys, [msgspec.structs.replace(job, name=name)]))
        desk.run(notify(desk.keys, [], 1000, [gate_of(job.id)]))
    assert (desk.ask("GET", "unique:held"), desk.ask("HGET", "names", "named")) == (held.encode(), named.encode())


def test_a_queue_that_is_cleared_goes_on_holding_names_for_their_time(desk: Desk) -> None:
    """The job came to be, so another one of this name must wait."""
    id = desk.push_one('{"t":"x","n":"n"}', name="n", scope="60000")
    desk.run(clear(desk.keys))
    assert desk.ask("GET", "unique:n") == id.encode()


def test_the_error_of_a_lost_parent_lists_what_was_enqueued_before(desk: Desk, app: Relevo) -> None:
    (parent,) = desk.push(BODY)
    needs = needs_of(1, KEEP_MS, gated=True)
    jobs = [NewJob(new_id(), 100, BODY.encode(), needs=needs) for _ in range(CHUNK + 1)]

    def lose(name: str, call: Call[Any]) -> None:
        if name == "workflows/register_dependents" and jobs[-1].id in str(call.args[1]):
            desk.run(clear_one(desk, parent))

    with pytest.raises(UnknownJob, match=f"The first {CHUNK:,} jobs were enqueued"):
        step_by_step(
            desk.run, push_dependents(app.engine.keys_of, "default", jobs, {"default": [(parent, "c")]}, 1000), lose
        )
    assert state_of(desk, jobs[-1].id) == "unknown"
    relayed(desk)
    assert outbox(desk) == {}


def clear_one(desk: Desk, id: str) -> Call[Any]:
    """Remove a job that has not started."""
    return forget(desk.keys, [NewJob(id, 100, b"")])


def test_a_job_whose_name_is_taken_waits_for_nothing_new(desk: Desk, push_child: Callable[..., str]) -> None:
    (parent,) = desk.push(BODY)
    child = push_child((parent, "default", "c"), name="n")
    before = everything(desk)
    assert push_child((parent, "default", "c"), name="n") == child
    assert everything(desk) == before


def test_more_parents_and_children_than_fit_in_one_call(desk: Desk, app: Relevo) -> None:
    many = REPORTS + 50
    parents = desk.push(*[BODY] * many)
    desk.claim(many)
    for id in parents[: many // 2]:
        desk.turn(0, moved(id, "done", text=b'{"state":"done"}'))
    needs = needs_of(many, KEEP_MS, gated=True)
    jobs = [NewJob(new_id(), 100, BODY.encode(), needs=needs) for _ in range(2)]
    named: list[tuple[str, Policy]] = [(id, "c") for id in parents]
    owners = desk.run(push_dependents(app.engine.keys_of, "default", jobs, {"default": named}, 1000))
    assert owners == [job.id for job in jobs]
    assert {bag(desk, id)["open"] for id in owners} == {str(many - many // 2)}
    for id in parents[many // 2 :]:
        desk.turn(0, moved(id, "done", ms=0))
    relayed(desk)
    assert desk.members("ready") == owners


# --- expect


def test_late_members_are_waited_for_and_their_results_come_behind_the_others(desk: Desk) -> None:
    child = waiting(desk, 1, takes="1")
    late = [new_id(), new_id()]
    members = [(id, "default", "task") for id in late]
    for _ in range(2):
        assert desk.run(expect(desk.keys, child, PARENT, members)) is True
        assert bag(desk, child)["open"] == "3"
    for id in reversed(late):
        report(desk, child, "done", parent=id, policy="C", index="x", input=b'"%b"' % id.encode())
    report(desk, child, "done", index="0", input=b'"first"')
    assert state_of(desk, child) == "ready"
    assert given(desk, child) == [b'"first"', *(b'"%b"' % id.encode() for id in late)]


def test_a_workflow_keeps_a_list_of_members_that_joined_late(desk: Desk) -> None:
    flow, id = workflow(desk, 1), new_id()
    assert desk.run(expect(desk.keys, flow, PARENT, [(id, "mails", "shop.mail")])) is True
    assert bag(desk, flow)[f"x:{id}"] == '["mails","shop.mail"]'
    report(desk, flow, "done", policy="n")
    assert bag(desk, flow)["life"] == "open"
    report(desk, flow, "dead", policy="N", parent=id)
    assert bag(desk, flow)["state"] == "dead"
    report(desk, flow, "revived", 3, policy="N", parent=id)
    assert desk.run(expect(desk.keys, flow, id, [(new_id(), "default", "task")])) is True, "it may bring others"


@pytest.mark.parametrize("late", ["freed", "closed", "unknown", "heard"])
def test_it_is_too_late_to_join_what_waits_no_more(desk: Desk, late: str) -> None:
    child = waiting(desk, 2, takes="one")
    match late:
        case "freed":
            report(desk, child, "done", parent=OTHER)
            report(desk, child, "done")
        case "heard":
            report(desk, child, "done")
        case "closed":
            child = workflow(desk)
            report(desk, child, "done", policy="n", parent=OTHER)
        case "unknown":
            child = new_id()
    before = everything(desk)
    assert desk.run(expect(desk.keys, child, PARENT, [(new_id(), "default", "task")])) is False
    assert everything(desk) == before


def test_a_revived_job_waits_for_members_that_joined_since(desk: Desk) -> None:
    child, late = waiting(desk, 2), new_id()
    report(desk, child, "dead", 2, parent=OTHER)
    assert desk.run(expect(desk.keys, child, PARENT, [(late, "default", "task")])) is True
    assert state_of(desk, child) == "cancelled"
    for parent in (OTHER, PARENT):
        report(desk, child, "done", 4, parent=parent)
    assert state_of(desk, child) == "waiting"
    report(desk, child, "done", policy="C", parent=late)
    assert state_of(desk, child) == "ready"


def test_a_late_member_that_never_came_to_be_is_not_missed(desk: Desk) -> None:
    flow, id = workflow(desk, 1), new_id()
    desk.run(expect(desk.keys, flow, PARENT, [(id, "default", "task")]))
    report(desk, flow, "done", policy="n")
    report(desk, flow, "lapsed", 0, policy="N", parent=id)
    known = bag(desk, flow)
    assert (known["state"], known["n:done"], known["bad"]) == ("done", "1", "0")
    assert known[f"h:{id}"].startswith("0 0 0 excused ")
    assert "n:cancelled" not in known, "it is not counted"
    child = waiting(desk, 1, takes="1")
    desk.run(expect(desk.keys, child, PARENT, [(id, "default", "task")]))
    report(desk, child, "lapsed", 0, policy="C", parent=id)
    assert (state_of(desk, child), bag(desk, child)["open"], bag(desk, child)["bad"]) == ("waiting", "1", "0")
    report(desk, child, "done", index="0", input=b"1")
    assert (state_of(desk, child), given(desk, child)) == ("ready", [b"1"])


@pytest.mark.parametrize(("policy", "state"), [("C", "removed"), ("N", "removed"), ("C", "dead"), ("N", "dead")])
def test_a_late_member_that_came_to_be_and_failed_is_missed(desk: Desk, policy: str, state: str) -> None:
    child, id = waiting(desk, 1) if policy == "C" else workflow(desk, 1), new_id()
    desk.run(expect(desk.keys, child, PARENT, [(id, "default", "task")]))
    report(desk, child, state, policy=policy, parent=id)
    report(desk, child, "done", policy=policy.lower())
    known = bag(desk, child)
    assert known["bad"] == "1"
    assert (known.get("state") or state_of(desk, child)) == (
        "cancelled" if state == "removed" or policy == "C" else state
    )
