"""Outbox messages: written in the step that ends a job, delivered by any relay, applied, and then removed."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from relevo import Relevo
from relevo.engine.dependents import follow
from relevo.engine.edges import Edge, OutboxMessage, outbox_message
from relevo.engine.job import State, read_record
from relevo.engine.job_store import attach, cancel, discard, look
from relevo.engine.outbox import RESERVED_MS, ROUND, Taken, deliver, relay, take_outbox
from relevo.engine.push import NewJob, push_rich
from relevo.engine.turn import rest
from relevo.queues.store import clear, pause
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, moved, new_id, repeated
from tests.store.kin import (
    BODY,
    KEEP_MS,
    OTHER,
    PARENT,
    bag,
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

EDGE = Edge(PARENT, "default")


def noted(desk: Desk, *edges: Edge, **rich: Any) -> str:
    """A job with these edges."""
    parent = desk.push_one(BODY, **rich)
    if edges:
        desk.run(follow(desk.keys, parent, edges))
    return parent


def take(desk: Desk, *finished: str, ticks: bool = False) -> Taken:
    taken: Taken = desk.run(take_outbox(desk.keys, finished, ticks=ticks))
    return taken


# --- written when a job ends, if something depends on it

#: How a job ends.
HOW = ("plain", "kept", "done", "dead", "cancelled", "expired")


@pytest.mark.parametrize("how", HOW)
def test_a_turn_that_ends_a_job_writes_one_outbox_message_with_all_its_edges(desk: Desk, how: str) -> None:
    state, number = "done" if how in ("plain", "kept") else how, 2
    edges = [EDGE, Edge(OTHER, "50% off", "w")]
    parent = noted(desk, *edges)
    due = end(desk, parent, how)
    text = f"{state} {number} {parent}\n{edges[0]} {edges[1]}\n"
    others = {} if state == "done" else {f"{parent}.gone": f"discarded {number + 1} {text.partition(' ')[2][2:]}"}
    assert outbox(desk) == {f"{parent}.{number}": text} | others
    assert due == desk.score("errands", f"{parent}.{number}") > 0  # type: ignore[operator]
    assert outbox_message(text.encode()) == OutboxMessage(state, number, parent, edges)
    assert desk.ask("EXISTS", "waiters") == 0
    before = everything(desk)
    assert desk.turn(0, moved(parent, "dead", 1)).refused == [parent.encode()]
    assert everything(desk) == before, "repeated, it is refused, and nothing is written"


@pytest.mark.parametrize("how", HOW)
def test_a_turn_that_ends_a_job_on_which_nothing_depends_writes_nothing(desk: Desk, how: str) -> None:
    noted(desk, EDGE, when="+60000")  # something in the queue has dependents, so it is looked
    parent = desk.push_one(BODY)
    desk.run(attach(desk.keys, parent, b"inbox"))
    assert end(desk, parent, how) == 0
    assert outbox(desk) == {}


@pytest.mark.parametrize("verb", ["retry", "back"])
def test_a_job_that_runs_again_keeps_its_edges_and_writes_nothing(desk: Desk, verb: str) -> None:
    parent = noted(desk, EDGE)
    for _ in range(2):
        assert end(desk, parent, verb, record=b"{}") == 0
        assert outbox(desk) == {}
        assert desk.ask("HGET", "waiters", parent) == str(EDGE).encode()
        desk.advance(KEEP_MS)
    assert desk.claim() == [parent]
    assert desk.run(cancel(desk.keys, [(parent, KEEP_MS, "")], 1000)) == (["asked"], False)
    assert outbox(desk) == {}, "nor while it is asked to stop"
    desk.turn(0, moved(parent, "done", 3, ms=0))
    assert list(outbox(desk)) == [f"{parent}.6"], "the number of an end grows with each delivery"


@pytest.mark.parametrize("index", [0, 12, "x"])
def test_an_outbox_message_holds_the_record_only_if_a_child_takes_the_result(desk: Desk, index: Any) -> None:
    record = b'{"state":"done","result":"a\\nb"}'
    takes, takes_not = noted(desk, EDGE, Edge(OTHER, "default", "c", index)), noted(desk, EDGE)
    failed = noted(desk, Edge(OTHER, "default", "r", 0))
    end(desk, takes, "kept", record=record)
    end(desk, takes_not, "kept", record=record)
    end(desk, failed, "dead")
    written = outbox(desk)
    assert outbox_message(written[f"{failed}.2"].encode()).record == b""
    assert outbox_message(written[f"{takes}.2"].encode()).record == record
    assert outbox_message(written[f"{takes_not}.2"].encode()).record == b""
    reports = outbox_message(written[f"{takes}.2"].encode()).reports("")
    assert [(one.index, one.input) for _, one in reports] == [("", b""), (str(index), b'"a\\nb"')]


@pytest.mark.parametrize(("when", "has_edges"), [("", True), ("+60000", True), ("", False), ("+60000", False)])
def test_cancel_and_clear_write_an_outbox_message_if_a_job_depends_on_it(
    desk: Desk, when: str, has_edges: bool
) -> None:
    parent = noted(desk, *[EDGE] * has_edges, when=when)
    bystander = desk.push_one(BODY, when="+90000")
    assert desk.run(cancel(desk.keys, [(bystander, KEEP_MS, ""), (parent, KEEP_MS, "")], 1000)) == (
        ["cancelled", "cancelled"],
        has_edges,
    )
    assert outbox(desk) == ({f"{parent}.0": f"cancelled 0 {parent}\n{EDGE}\n"} if has_edges else {})
    again = desk.run(cancel(desk.keys, [(parent, KEEP_MS, "")], 1000))
    assert again == (["unknown"], has_edges), "a client that lost the reply gets again that there is something to relay"
    relayed(desk)
    cleared = noted(desk, *[EDGE] * has_edges, when=when)
    desk.push()
    assert desk.run(clear(desk.keys)) == (2, has_edges)
    assert outbox(desk) == ({f"{cleared}.0": f"removed 0 {cleared}\n{EDGE}\n"} if has_edges else {})


@pytest.mark.parametrize("policy", ["c", "r", "w", "f", "n"])
@pytest.mark.parametrize("how", ["dead", "cancelled", "expired"])
def test_discarding_a_failed_job_is_reported_to_jobs_that_wait_for_it(desk: Desk, how: str, policy: Any) -> None:
    done = noted(desk, Edge(new_id(), "default", policy))
    end(desk, done, "kept")
    relayed(desk)
    assert (desk.run(discard(desk.keys, [done])), outbox(desk)) == ((1, False), {}), "it is not reported of a done job"
    child = waiting(desk)
    parent = noted(desk, Edge(child, "default", policy))
    end(desk, parent, how)
    relayed(desk)
    before = state_of(desk, child)
    gone = [f"{parent}.gone"] * (policy == "w")
    assert list(outbox(desk)) == gone
    assert desk.run(discard(desk.keys, [parent])) == (1, policy == "w")
    assert list(outbox(desk)) == gone
    assert desk.run(discard(desk.keys, [parent])) == (0, policy == "w"), (
        "a client that lost the reply gets again that there is something to relay"
    )
    relayed(desk)
    assert outbox(desk) == {}
    assert state_of(desk, child) == ("cancelled" if policy == "w" else before)


# --- what a job carried with it


@pytest.mark.parametrize(
    ("how", "ttl"),
    [("done", 0), ("dead", KEEP_MS), ("cancelled", KEEP_MS), ("expired", KEEP_MS), ("retry", -1), ("back", -1)],
)
def test_what_a_job_carries_ends_with_it_or_waits_for_its_revival(desk: Desk, how: str, ttl: int) -> None:
    child = waiting(desk, takes="one")
    report(desk, child, "done", index="0", input=b"7")
    end(desk, child, how, record=b"{}")
    left = desk.ask("PTTL", f"carried:{child}")
    assert left == {0: -2, -1: -1}.get(ttl, left)
    assert ttl <= 0 or 0 < left <= ttl


@pytest.mark.parametrize("how", ["cancel", "clear", "discard"])
def test_data_of_a_job_ends_with_it_however_it_ends(desk: Desk, how: str) -> None:
    child = waiting(desk, takes="one")
    if how == "clear":
        desk.run(clear(desk.keys))
    else:
        desk.run(cancel(desk.keys, [(child, KEEP_MS, "")], 1000))
        assert 0 < desk.ask("PTTL", f"carried:{child}") <= KEEP_MS
    if how == "discard":
        desk.run(discard(desk.keys, [child]))
    assert desk.ask("EXISTS", f"carried:{child}") == (how == "cancel")


# --- errands


def test_an_errand_is_taken_by_one_and_again_by_another_if_it_is_not_finished(desk: Desk) -> None:
    parent = noted(desk, EDGE)
    end(desk, parent, "plain")
    letter = f"{parent}.2"
    taken = take(desk)
    assert (taken.ids, taken.texts) == ([letter], [outbox(desk)[letter].encode()])
    assert taken.next_ms == taken.now_ms + RESERVED_MS
    assert take(desk).ids == []
    desk.advance(RESERVED_MS + 1)
    assert take(desk).ids == [letter], "the relay that took it has died"
    taken = take(desk, letter)
    assert (taken.ids, taken.next_ms, outbox(desk)) == ([], 0, {})
    assert take(desk, letter, "unknown").ids == []


def test_errands_are_taken_in_the_order_of_their_times_some_at_once(desk: Desk) -> None:
    parents = [noted(desk, EDGE) for _ in range(ROUND + 5)]
    for parent in parents:
        end(desk, parent, "plain")
        desk.advance(1)
    first, second = take(desk), take(desk)
    assert len(first.ids) == ROUND
    assert first.ids + second.ids == [f"{parent}.2" for parent in parents]
    assert take(desk, *first.ids, *second.ids).next_ms == 0


def test_an_errand_whose_outbox_message_is_gone_is_dropped(desk: Desk) -> None:
    desk.ask("ZADD", "errands", 1, "ghost.2")
    desk.ask("ZADD", "errands", 2, "@ghost")
    assert take(desk).ids == []
    assert desk.members("errands") == ["@ghost"]
    assert take(desk, ticks=True).ids == []
    assert desk.ask("EXISTS", "errands") == 0


@pytest.mark.parametrize("schedules", [1, ROUND, 3 * ROUND])
def test_overdue_schedules_do_not_hide_outbox_messages(desk: Desk, schedules: int) -> None:
    """A client that cancels something must be able to carry the news though no worker fires the schedules."""
    desk.ask("HSET", "schedules", *(word for n in range(schedules) for word in (f"s{n}", "{}")))
    desk.ask("ZADD", "errands", *(word for n in range(schedules) for word in (1 + n, f"@s{n}")))
    parents = [noted(desk, EDGE) for _ in range(2)]
    for parent in parents:
        end(desk, parent, "plain")
    taken = take(desk)
    assert sorted(taken.ids) == sorted(f"{parent}.2" for parent in parents)
    assert take(desk, *taken.ids).ids == []
    assert take(desk, ticks=True).ids == [f"@s{n}" for n in range(min(schedules, ROUND))]
    desk.ask("DEL", "errands")


def test_every_turn_and_rest_gives_the_time_of_the_next_errand(desk: Desk) -> None:
    desk.wait("w1")
    assert desk.run(rest(desk.keys, "w1", LEASE_MS, 60_000))[3] == 0
    parent = noted(desk, EDGE)
    due = end(desk, parent, "plain")
    assert due > 0
    desk.push("{}", "{}")
    assert desk.run(rest(desk.keys, "w1", LEASE_MS, 60_000))[3] == due
    assert desk.turn(0).errand_ms == due, "without room"
    assert desk.turn(1).errand_ms == due, "with a full house"
    assert desk.turn(5).errand_ms == due, "with nothing left"
    desk.run(pause(desk.keys, True))
    assert desk.turn(1).errand_ms == due, "paused"
    desk.run(pause(desk.keys, False))
    relayed(desk)
    assert desk.turn(1).errand_ms == 0


# --- carried to where they lead


GARBAGE = [b"", b"done", b"done 2 x\n", b"done two x\n\n", b"done 2\n\n", b"\xff 2 x\n\n", b"done 2 x\n\xff\n"]


@pytest.mark.parametrize("garbage", [*GARBAGE, b"start\nodd", b"start\n\xff"])
def test_an_unreadable_outbox_message_is_dropped_and_delays_no_other(
    desk: Desk, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    parent = desk.push_one(BODY)
    child = child_of(desk, parent)
    desk.ask("HSET", "letters", "a.2", garbage)
    desk.ask("ZADD", "errands", 1, "a.2")
    end(desk, parent, "plain")
    with caplog.at_level(logging.ERROR, "relevo.relay"):
        assert relayed(desk) == 2
    assert "outbox message a.2 cannot be read and is dropped" in caplog.text
    assert (outbox(desk), state_of(desk, child)) == ({}, "ready")


POISON = {
    # letters that read well and lead nowhere: what stands in the queue's letters under these names
    "no gates": {"a.start": b"start\n"},
    "an odd number of words": {"a.start": b"start\na.gate"},
    "no text": {"a.start": b"start\n\xff default"},
    "a gate that is gone": {"a.start": b"start\na.gate default b.gate elsewhere"},
    "a gate of garbage": {"a.start": b"start\na.gate default", "a.gate": b"\xff\xfe"},
    "a gate without lines": {"a.start": b"start\na.gate default", "a.gate": b"x"},
    "an empty gate": {"a.start": b"start\na.gate default", "a.gate": b""},
    "a gate to an unknown job": {
        "a.start": b"start\na.gate default",
        "a.gate": b"cancelled 0 gate\n>c:%bdefault\n" % (b"9" * 20),
    },
    "a gate that lapsed": {"a.gate": b"cancelled 0 gate\n>c:%bdefault >c:short >z:\xc3\xa9\n" % (b"9" * 20)},
    "a gate that lapsed to garbage": {"a.gate": b"cancelled 0 gate\n\xff\n"},
    "an edge to an invalid queue": {"a.2": b"done 2 x\n>c:%bdead_letter\n" % (b"9" * 20)},
    "a start in an invalid queue": {"a.2": b"start\na.gate dead_letter"},
    "a queue with a long name": {"a.2": b"done 2 x\n>c:%b%b\n" % (b"9" * 20, b"q" * 5000)},
}


@pytest.mark.parametrize("poison", POISON)
def test_an_outbox_message_that_leads_nowhere_delays_no_other(desk: Desk, app: Relevo, poison: str) -> None:
    parent = desk.push_one(BODY)
    child = child_of(desk, parent)
    for id, text in POISON[poison].items():
        desk.ask("HSET", "letters", id, text)
        desk.ask("ZADD", "errands", 1, id)
    end(desk, parent, "plain")
    assert desk.run(app.engine.relay("default")) == len(POISON[poison]) + 1
    assert (outbox(desk), state_of(desk, child)) == ({}, "ready")


def test_an_outbox_message_to_an_unknown_job_changes_nothing(desk: Desk) -> None:
    done = desk.push_one(BODY)
    end(desk, done, "kept")
    for state in ("done", "dead", "cancelled", "expired", "revived", "discarded", "removed", "lapsed"):
        before = everything(desk)
        edges = " ".join(f">{policy}0:{child}default" for policy in "crwfnCN" for child in (new_id(), done))
        text = f"{state} 2 {PARENT}\n{edges}\n".encode()
        assert desk.run(deliver(lambda _: desk.keys, desk.keys, [("x", text)], 1000)) == (["x"], set())
        assert everything(desk) == before


def test_one_relay_follows_outbox_messages_through_many_queues(desk: Desk, app: Relevo, server: Server) -> None:
    queues = ["default", "50% off: {a}", "b b", "default"]
    desks = [Desk(desk.run, app.engine.keys_of(queue), server) for queue in queues]
    ids = [desk.push_one(BODY)]
    for before, here, queue in zip(desks, desks[1:], queues[1:], strict=False):
        child = waiting(here)
        assert before.run(follow(before.keys, ids[-1], [Edge(child, queue)])) == ("", 0)
        ids.append(child)
    end(desk, ids[0], "dead")
    assert desk.run(relay(app.engine.keys_of, ["default"], 1000)) == 3
    assert [state_of(here, id) for here, id in zip(desks, ids, strict=True)] == ["dead", *["cancelled"] * 3]
    assert reviving(desk, ids[0]) == 2
    assert desk.run(relay(app.engine.keys_of, queues, 1000)) == 3
    assert [state_of(here, id) for here, id in zip(desks, ids, strict=True)] == ["ready", *["waiting"] * 3]
    for here, id in zip(desks, ids, strict=True):
        end(here, id, "plain")
        desk.run(relay(app.engine.keys_of, queues, 1000))
    assert all(here.stats().living == 0 for here in desks)
    assert all(outbox(here) == {} for here in desks)


def test_a_relay_that_dies_before_it_confirms_has_delivered(desk: Desk) -> None:
    parent = desk.push_one(BODY)
    child = child_of(desk, parent)
    end(desk, parent, "plain")
    taken = take(desk)
    desk.run(deliver(lambda _: desk.keys, desk.keys, list(zip(taken.ids, taken.texts, strict=True)), 1000))
    assert state_of(desk, child) == "ready"
    assert relayed(desk) == 0
    desk.advance(RESERVED_MS + 1)
    before = desk.members("ready")
    assert relayed(desk) == 1
    assert (desk.members("ready"), outbox(desk)) == (before, {})


# --- workflows


def test_a_workflow_is_founded_without_being_a_job(desk: Desk) -> None:
    edge = Edge(PARENT, "default", "r")
    flow = workflow(desk, 3, edge, takes="2")
    known = bag(desk, flow)
    assert {name: known[name] for name in ("life", "open", "bad", "takes", "plan", "number")} == {
        "life": "open",
        "open": "3",
        "bad": "0",
        "takes": "2",
        "plan": '{"plan":1}',
        "number": "0",
    }
    assert (desk.members("flows"), desk.ask("PTTL", "flows") > 0) == ([flow], True)
    assert desk.ask("HGET", "waiters", flow) == str(edge).encode()
    stats = desk.stats()
    assert (stats.living, stats.totals) == (0, {})


def test_the_list_of_workflows_keeps_the_newest(desk: Desk) -> None:
    now = desk.turn(0).now_ms
    old = [(now - 20_000 + n, f"old{n}") for n in range(10_000)]
    for start in range(0, len(old), 1000):
        desk.ask("ZADD", "flows", *(word for row in old[start : start + 1000] for word in row))
    flows = [workflow(desk, 1) for _ in range(3)]
    kept = desk.members("flows")
    assert (len(kept), kept[-3:], kept[0]) == (10_000, flows, "old3")
    for flow in flows:
        desk.ask("DEL", f"carried:{flow}")


def test_a_workflow_is_founded_once_with_its_members(desk: Desk) -> None:
    flow, member = new_id(), new_id()
    rows = [
        NewJob(flow, 0, b"{}", needs=f"f 1 {KEEP_MS} {KEEP_MS}"),
        NewJob(member, 100, BODY.encode(), edges=str(Edge(flow, "default", "n"))),
    ]
    call = push_rich(desk.keys, rows)
    assert desk.run(call) == [flow, member]
    before = everything(desk)
    assert desk.run(repeated(call)) == [flow, member]
    assert everything(desk) == before
    end(desk, member, "kept")
    relayed(desk)
    assert bag(desk, flow)["state"] == "done"


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        (("done", "done"), "done"),
        (("done", "cancelled"), "cancelled"),
        (("cancelled", "expired"), "expired"),
        (("expired", "dead", "cancelled"), "dead"),
        (("dead", "done"), "dead"),
        (("done", "lapsed"), "cancelled"),
        (("removed", "done"), "cancelled"),
        (("lapsed", "removed", "cancelled", "expired"), "expired"),
    ],
)
def test_a_workflow_ends_once_in_the_worst_state_of_its_members(desk: Desk, ends: tuple[str, ...], state: str) -> None:
    edges = [Edge(PARENT, "default", "c"), Edge(OTHER, "mails", "f")]
    flow = workflow(desk, len(ends), *edges)
    members = [new_id() for _ in ends]
    for member, how in zip(members, ends, strict=True):
        assert bag(desk, flow)["life"] == "open"
        assert desk.record(flow) is None
        report(desk, flow, how, parent=member, policy="n")
    known = bag(desk, flow)
    assert (known["life"], known["state"]) == ("closed", state)
    counted = ["cancelled" if how in ("lapsed", "removed") else how for how in ends]
    assert {how: int(known[f"n:{how}"]) for how in counted} == {how: counted.count(how) for how in counted}
    assert [known[f"h:{member}"].split()[3] for member in members] == counted
    assert known["edges"] == " ".join(map(str, edges))
    assert outbox(desk) == {f"{flow}.1": f"{state} 1 {flow}\n{known['edges']}\n"}
    assert read_record(desk.record(flow) or b"").state == state
    keep = KEEP_MS // 2 if state == "done" else KEEP_MS
    for key in (f"carried:{flow}", f"ended:{flow}"):
        assert keep // 2 < desk.ask("PTTL", key) <= keep
    before = everything(desk)
    for member, how in zip(members, ends, strict=True):
        report(desk, flow, how, parent=member, policy="n")
    assert everything(desk) == before


def test_a_workflow_reopens_when_a_member_lives_again_and_ends_anew(desk: Desk) -> None:
    edge = Edge(PARENT, "default", "c")
    flow = workflow(desk, 2, edge)
    report(desk, flow, "done", parent=OTHER, policy="n")
    report(desk, flow, "dead", 2, policy="n")
    for _ in range(2):
        report(desk, flow, "revived", 3, policy="n")
        known = bag(desk, flow)
        assert (known["life"], known["open"], known["n:dead"]) == ("open", "1", "0")
        assert not {"state", "edges", "ended"} & set(known)
        assert desk.record(flow) is None
        assert desk.ask("PTTL", f"carried:{flow}") == -1
        assert desk.ask("HGET", "waiters", flow) == str(edge).encode()
    report(desk, flow, "done", 6, policy="n")
    assert bag(desk, flow)["state"] == "done"
    assert [text.split()[0] for _, text in sorted(outbox(desk).items())] == ["dead", "revived", "done"]
    assert sorted(outbox(desk)) == [f"{flow}.1", f"{flow}.2", f"{flow}.3"]


def test_a_callback_fires_once_however_often_its_workflow_ends(desk: Desk) -> None:
    callback = waiting(desk)
    flow = workflow(desk, 1, Edge(callback, "default", "r"))
    report(desk, flow, "dead", 2, policy="n")
    relayed(desk)
    end(desk, callback, "plain")
    for state, number in (("revived", 3), ("dead", 6), ("revived", 7), ("done", 10)):
        report(desk, flow, state, number, policy="n")
        relayed(desk)
        assert state_of(desk, callback) == "unknown"
    assert desk.stats().totals["done"] == 1


@pytest.mark.parametrize("state", ["done", "dead"])
def test_callbacks_run_by_how_a_workflow_ends(desk: Desk, state: str) -> None:
    on_success, on_failure, on_complete = waiting(desk), waiting(desk), waiting(desk)
    edges = [Edge(on_success, "default", "c"), Edge(on_failure, "default", "f"), Edge(on_complete, "default", "r")]
    flow = workflow(desk, 1, *edges)
    report(desk, flow, state, policy="n")
    relayed(desk)
    good, bad = ("ready", "cancelled") if state == "done" else ("cancelled", "ready")
    assert [state_of(desk, id) for id in (on_success, on_failure, on_complete)] == [good, bad, "ready"]


def test_the_end_of_a_workflow_is_published_to_its_waiters(desk: Desk, server: Server) -> None:
    flow = workflow(desk, 1)
    assert desk.run(attach(desk.keys, flow, b"inbox-of-flow")) is True
    with redis.Redis.from_url(server.url, protocol=2) as client, client.pubsub() as sub:
        sub.subscribe("inbox-of-flow")
        sub.parse_response()
        report(desk, flow, "dead", policy="n")
        message = sub.parse_response()[2]
    assert message[:20] == flow.encode()
    assert read_record(message[20:]).state is State.DEAD
    assert desk.ask("EXISTS", "waiters") == 0
    assert desk.run(attach(desk.keys, flow, b"late")).state is State.DEAD
    assert desk.run(look(desk.keys, flow)).state is State.DEAD
