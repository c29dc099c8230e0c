"""What waits for a failed job to be retried waits no longer than that is possible."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo import Relevo
from relevo.engine.dependents import follow
from relevo.engine.edges import Edge, Policy
from relevo.engine.handle import Job
from relevo.engine.job_store import attach, discard, look
from relevo.errors import JobError
from relevo.queues.store import clear
from tests.servers import Server
from tests.store.desk import Desk, new_id
from tests.store.kin import (
    BODY,
    KEEP_MS,
    cancelling,
    child_of,
    end,
    everything,
    outbox,
    relayed,
    report,
    reviving,
    state_of,
    waiting,
    workflow,
)

#: Ways in which a job fails, to be brought back.
Fails = Callable[[Desk, str], object]
FAILS: dict[str, Fails] = {
    "dead": lambda desk, job: end(desk, job, "dead"),
    "expired": lambda desk, job: end(desk, job, "expired"),
    "cancelled": lambda desk, job: end(desk, job, "cancelled"),
    "cancelled before it started": cancelling,
}


def message_of(desk: Desk, id: str) -> str:
    """Why a job was cut."""
    (attempt,) = desk.run(look(desk.keys, id)).record.story.attempts
    return str(attempt.message)


@pytest.mark.parametrize("fails", FAILS)
def test_what_waits_for_a_retry_ends_with_the_record_of_its_parent(desk: Desk, fails: str) -> None:
    parent = desk.push_one(BODY)
    child, other = child_of(desk, parent, policy="w"), child_of(desk, parent, policy="r")
    FAILS[fails](desk, parent)
    relayed(desk)
    gone = f"{parent}.gone"
    assert (state_of(desk, child), list(outbox(desk))) == ("waiting", [gone])
    left_ms = (desk.score("errands", gone) or 0) - desk.now_ms
    assert desk.ask("PTTL", f"ended:{parent}") <= left_ms <= KEEP_MS, "when its record ends, and not before"
    desk.advance(KEEP_MS // 2)
    assert relayed(desk) == 0
    desk.advance(KEEP_MS // 2 + 1)
    assert relayed(desk) == 1
    assert (state_of(desk, child), outbox(desk)) == ("cancelled", {})
    assert message_of(desk, child) == f"it depends on {parent}, which is discarded"
    assert state_of(desk, other) == "ready", "the others had heard all they need"


@pytest.mark.parametrize("fails", FAILS)
def test_a_job_that_begins_to_wait_for_a_failed_one_waits_no_longer_than_its_record(desk: Desk, fails: str) -> None:
    parent = desk.push_one(BODY)
    FAILS[fails](desk, parent)
    assert outbox(desk) == {}
    desk.run(follow(desk.keys, parent, [Edge(new_id(), "default")]))
    assert outbox(desk) == {}, "a job that does not wait needs no outbox message"
    first, second = waiting(desk), waiting(desk)
    for child in (first, second):
        state, number = desk.run(follow(desk.keys, parent, [Edge(child, "default", "w")]))
        report(desk, child, state, number, parent=parent, policy="w")
        assert state_of(desk, child) == "waiting"
    assert list(outbox(desk)) == [f"{parent}.gone"]
    desk.advance(KEEP_MS + 1)
    assert relayed(desk) == 1
    assert [state_of(desk, child) for child in (first, second)] == ["cancelled", "cancelled"]


@pytest.mark.parametrize("fails", FAILS)
def test_a_job_that_is_retried_in_time_is_waited_for_without_a_limit(desk: Desk, fails: str) -> None:
    parent = desk.push_one(BODY)
    child = child_of(desk, parent, policy="w")
    FAILS[fails](desk, parent)
    relayed(desk)
    desk.advance(KEEP_MS // 2)
    assert reviving(desk, parent) == 2
    assert not any(id.endswith(".gone") for id in outbox(desk))
    relayed(desk)
    desk.advance(2 * KEEP_MS)
    assert relayed(desk) == 0
    assert state_of(desk, child) == "waiting"
    end(desk, parent, "dead")
    relayed(desk)
    assert list(outbox(desk)) == [f"{parent}.gone"], "its next failure has a limit of its own"
    desk.advance(KEEP_MS + 1)
    relayed(desk)
    assert state_of(desk, child) == "cancelled"


def test_an_outbox_message_of_a_wait_limit_taken_before_the_retry_changes_nothing(desk: Desk) -> None:
    parent = desk.push_one(BODY)
    child = child_of(desk, parent, policy="w")
    end(desk, parent, "dead")
    relayed(desk)
    _, number, *_ = outbox(desk)[f"{parent}.gone"].split()
    reviving(desk, parent)
    relayed(desk)
    before = everything(desk)
    report(desk, child, "discarded", int(number), parent=parent, policy="w")
    assert everything(desk) == before


@pytest.mark.parametrize(
    ("policy", "becomes"), [("c", "cancelled"), ("r", "ready"), ("w", "cancelled"), ("f", "ready")]
)
def test_dependents_of_a_cleared_job_are_cancelled(
    desk: Desk, app: Relevo, server: Server, policy: Policy, becomes: str
) -> None:
    there = Desk(desk.run, app.engine.keys_of("other"), server)
    parent, child = desk.push_one(BODY), waiting(there)
    desk.run(follow(desk.keys, parent, [Edge(child, "other", policy)]))
    assert desk.run(clear(desk.keys)) == (1, True)
    desk.run(app.engine.relay("default"))
    assert (state_of(there, child), outbox(desk)) == (becomes, {})
    if becomes == "cancelled":
        assert message_of(there, child) == f"it depends on {parent}, which is removed"


@pytest.mark.parametrize("how", ["turn", "cancel", "hear"])
@pytest.mark.parametrize("children", [1, 150])  # more than a glance at the beginning of the record would show
def test_what_waits_for_a_record_that_is_dropped_to_make_room_ends_at_once(desk: Desk, how: str, children: int) -> None:
    parent = desk.push_one(BODY)
    ids = [child_of(desk, parent, policy="w") for _ in range(children)]
    match how:
        case "turn":
            end(desk, parent, "dead")
            others = [desk.push_one(BODY) for _ in range(2)]
            relayed(desk)
            due = [end(desk, other, "dead", dead_max=2) for other in others][-1]
        case "cancel":
            cancelling(desk, parent)
            others = [desk.push_one(BODY) for _ in range(2)]
            relayed(desk)
            due = [cancelling(desk, other, 2) for other in others][-1]
        case _:
            cancelling(desk, parent)
            others = [waiting(desk) for _ in range(2)]
            relayed(desk)
            for other in others:
                report(desk, other, "dead", dead_max=2)
            due = True
    assert due, "the caller gets that there is something to relay"
    assert (desk.record(parent), list(outbox(desk))) == (None, [f"{parent}.gone"])
    relayed(desk)
    assert [state_of(desk, child) for child in ids] == ["cancelled"] * children
    assert outbox(desk) == {}


@pytest.mark.parametrize("joins", ["before", "after"])
def test_what_waits_for_a_failed_workflow_ends_with_its_record(desk: Desk, joins: str) -> None:
    child = waiting(desk)
    edge = Edge(child, "default", "w")
    flow = workflow(desk, 1, *[edge] * (joins == "before"))
    report(desk, flow, "dead", policy="n")
    if joins == "after":
        assert desk.run(follow(desk.keys, flow, [edge])) == ("dead", 1)
        report(desk, child, "dead", 1, parent=flow, policy="w")
    relayed(desk)
    assert (state_of(desk, child), list(outbox(desk))) == ("waiting", [f"{flow}.gone"])
    desk.advance(KEEP_MS // 2)
    assert relayed(desk) == 0
    desk.advance(KEEP_MS // 2 + 1)
    assert relayed(desk) == 1
    assert state_of(desk, child) == "cancelled"


def test_a_workflow_that_opens_again_in_time_is_waited_for_without_a_limit(desk: Desk) -> None:
    child = waiting(desk)
    flow = workflow(desk, 1, Edge(child, "default", "w"))
    report(desk, flow, "dead", 2, policy="n")
    relayed(desk)
    report(desk, flow, "revived", 3, policy="n")
    relayed(desk)
    desk.advance(KEEP_MS + 1)
    relayed(desk)
    assert (state_of(desk, child), outbox(desk)) == ("waiting", {})
    report(desk, flow, "done", 6, policy="n")
    assert list(outbox(desk)) == [f"{flow}.3"], "one that went well sets no limit"
    relayed(desk)
    assert state_of(desk, child) == "ready"


# --- what is left of a job is not the job


@pytest.mark.parametrize("life", ["freed", "cut", "waits", "closed", ""])
def test_no_job_waits_for_data_without_its_job(desk: Desk, life: str) -> None:
    """A bag outlives a record that is dropped."""
    id = new_id()
    desk.ask("HSET", f"carried:{id}", "s:fetch", "1", *(["life", life] if life else []))
    desk.ask("PEXPIRE", f"carried:{id}", KEEP_MS)
    before = everything(desk)
    assert desk.run(follow(desk.keys, id, [Edge(new_id(), "default")])) == ("unknown", 0)
    assert desk.run(attach(desk.keys, id, b"in")) is None
    assert everything(desk) == before


# --- as people meet it


def test_retrying_a_job_whose_parent_failed_names_the_parent(desk: Desk, app: Relevo) -> None:
    parent = desk.push_one(BODY)
    child = child_of(desk, parent)
    end(desk, parent, "dead")
    relayed(desk)
    refused = f"job {child} cannot run again: a job that it depends on has failed"
    with pytest.raises(JobError, match=refused):
        Job(app.engine, child, "default").retry()
    assert state_of(desk, child) == "cancelled"
    assert Job(app.engine, parent, "default").retry() is True
    assert state_of(desk, child) == "waiting"
    end(desk, parent, "dead")
    relayed(desk)
    desk.run(discard(desk.keys, [parent]))
    with pytest.raises(JobError, match=refused):
        Job(app.engine, child, "default").retry()
