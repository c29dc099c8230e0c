"""follow and hear: what waits for other jobs, and what becomes of it when they end."""

from __future__ import annotations

import random

import pytest

from relevo.engine.dependents import follow
from relevo.engine.edges import Edge, Report, edges_of
from relevo.engine.job import State
from relevo.engine.job_store import attach, discard, look
from relevo.engine.outbox import deliver, notify
from relevo.queues.store import clear
from relevo.workflows.store import expect
from tests.store.desk import Desk, moved, new_id
from tests.store.kin import (
    BODY,
    KEEP_MS,
    OTHER,
    PARENT,
    bag,
    cancelling,
    child_of,
    end,
    everything,
    given,
    outbox,
    relayed,
    report,
    reviving,
    state_of,
    waiting,
    workflow,
)

LEVEL = 2**43
ODD = "50% off: {a} b/é"


# --- follow


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "waiting"])
def test_an_edge_is_noted_with_a_living_parent(desk: Desk, state: str) -> None:
    parent = waiting(desk) if state == "waiting" else desk.push_one(when="+60000" if state == "scheduled" else "")
    if state == "running":
        desk.claim()
    edge = Edge(new_id(), "default")
    assert desk.run(follow(desk.keys, parent, [edge])) == ("", 0)
    assert desk.ask("HGET", "waiters", parent) == str(edge).encode()
    assert state_of(desk, parent) == state


def test_edges_and_waiters_for_a_result_are_kept_together(desk: Desk) -> None:
    (parent,) = desk.push()
    desk.run(attach(desk.keys, parent, b"in1"))
    edges = [Edge(new_id(), "default"), Edge(new_id(), ODD, "w", 7)]
    assert desk.run(follow(desk.keys, parent, edges)) == ("", 0)
    desk.run(attach(desk.keys, parent, b"in2"))
    noted = desk.ask("HGET", "waiters", parent).decode()
    assert noted.split() == ["in1", *map(str, edges), "in2"]
    assert edges_of(noted) == edges


def test_an_edge_that_is_added_twice_is_reported_once(desk: Desk) -> None:
    (parent,) = desk.push()
    child = waiting(desk, 2)
    edge = Edge(child, "default")
    for _ in range(2):
        assert desk.run(follow(desk.keys, parent, [edge])) == ("", 0)
    end(desk, parent, "plain")
    assert relayed(desk) == 1
    assert (state_of(desk, child), bag(desk, child)["open"]) == ("waiting", "1")


@pytest.mark.parametrize(
    ("how", "number"), [("dead", 2), ("expired", 2), ("cancelled", 2), ("cancelled before it started", 0)]
)
def test_a_parent_that_failed_keeps_the_edge_in_its_record_and_brings_it_back(
    desk: Desk, how: str, number: int
) -> None:
    (parent,) = desk.push(BODY)
    if number:
        end(desk, parent, how)
    else:
        cancelling(desk, parent)
    ttl, state = desk.ask("PTTL", f"ended:{parent}"), how.split()[0]
    edges = [Edge(new_id(), "default"), Edge(new_id(), ODD, "r", 3)]
    for edge in edges:
        assert desk.run(follow(desk.keys, parent, [edge])) == (state, number)
    assert 0 < desk.ask("PTTL", f"ended:{parent}") <= ttl
    seen = desk.run(look(desk.keys, parent))
    assert (seen.state, seen.body) == (State(state), BODY.encode()), "the record is as readable as before"
    assert reviving(desk, parent) == 2, "there is something to relay"
    assert desk.ask("HGET", "waiters", parent).decode() == " ".join(map(str, edges))
    revived = f"revived {number + 1} {parent}\n{' '.join(map(str, edges))}\n"
    assert outbox(desk) == {f"{parent}.{number + 1}": revived}, "the number grows with each life"


def test_adding_an_edge_to_an_unknown_or_done_parent_keeps_nothing(desk: Desk) -> None:
    gone, done, known = desk.push("{}", "{}", "{}")
    end(desk, gone, "plain")
    end(desk, done, "kept")
    edge = Edge(new_id(), "default")
    for _ in range(2):
        found = [desk.run(follow(desk.keys, parent, [edge])) for parent in (new_id(), known, gone, done)]
        assert found == [("unknown", 0), ("", 0), ("unknown", 0), ("done", 2)]
        assert desk.ask("HKEYS", "waiters") == [known.encode()]
    assert desk.record(done) == b'{"state":"done"}'


def test_an_open_workflow_is_followed_like_a_job_and_a_closed_one_keeps_the_edge(desk: Desk) -> None:
    flow = workflow(desk, 1, Edge(PARENT, "default"))
    first, second = Edge(new_id(), "default"), Edge(new_id(), "default", "r")
    assert desk.run(follow(desk.keys, flow, [first])) == ("", 0)
    report(desk, flow, "dead", policy="n")
    assert desk.run(follow(desk.keys, flow, [second])) == ("dead", 1)
    assert bag(desk, flow)["edges"].split() == [str(Edge(PARENT, "default")), str(first), str(second)]
    assert desk.ask("PTTL", f"carried:{flow}") > 0
    relayed(desk)


# --- hear


ENDS = ("done", "dead", "cancelled", "expired", "revived", "discarded", "removed", "lapsed")
BECOMES = {
    # policy: what becomes of the child, by state of its only parent
    "c": dict.fromkeys(ENDS, "cancelled") | {"done": "ready", "revived": "waiting"},
    "r": dict.fromkeys(ENDS, "ready") | {"revived": "waiting"},
    "w": dict.fromkeys(ENDS, "waiting") | {"done": "ready"} | dict.fromkeys(ENDS[5:], "cancelled"),
    "f": dict.fromkeys(ENDS, "ready") | {"done": "cancelled", "revived": "waiting"},
}


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("policy", BECOMES)
def test_a_child_is_released_cancelled_or_kept_waiting_by_its_policy(desk: Desk, policy: str, state: str) -> None:
    """One of two parents decides only where it forbids."""
    both = waiting(desk, 2)
    report(desk, both, state, policy=policy)
    assert state_of(desk, both) == ("cancelled" if BECOMES[policy][state] == "cancelled" else "waiting")
    report(desk, both, "done", parent=OTHER)
    assert state_of(desk, both) == BECOMES[policy][state]
    desk.run(clear(desk.keys))
    child = waiting(desk)
    report(desk, child, state, policy=policy)
    assert state_of(desk, child) == BECOMES[policy][state]
    before = everything(desk)
    for _ in range(2):
        report(desk, child, state, policy=policy)
    assert everything(desk) == before, "heard again it changes nothing"
    stats = desk.stats()
    assert stats.living == (0 if BECOMES[policy][state] == "cancelled" else 1)


@pytest.mark.parametrize(("policy", "small"), [("C", "c"), ("N", "n")])
def test_a_report_of_a_late_member_counts_only_if_it_was_announced(desk: Desk, policy: str, small: str) -> None:
    child = waiting(desk, 1) if small == "c" else workflow(desk, 1)
    before = everything(desk)
    assert not report(desk, child, "dead", policy=policy, parent=OTHER)
    assert everything(desk) == before
    assert desk.run(expect(desk.keys, child, PARENT, [(OTHER, "default", "task")])) is True
    assert bag(desk, child)["open"] == "2"
    report(desk, child, "done", number=0, policy=policy, parent=OTHER)
    assert bag(desk, child)["open"] == "1", "also its first word, whatever its number"
    assert bag(desk, child)[f"h:{OTHER}"].startswith("0 0 0 done ")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("dead", 4), ("done", 2)),
        (("dead", 4), ("done", 4)),
        (("done", 2), ("dead", 4)),
        (("revived", 3), ("dead", 2)),
        (("cancelled", 0), ("revived", 0)),
    ],
)
def test_old_reports_change_nothing_and_a_done_parent_stays_done(
    desk: Desk, first: tuple[str, int], second: tuple[str, int]
) -> None:
    child = waiting(desk, 2)
    report(desk, child, *first)
    before = everything(desk)
    report(desk, child, *second)
    assert everything(desk) == before


def test_a_child_cancelled_by_one_parent_still_receives_reports_of_the_other(desk: Desk) -> None:
    child = waiting(desk, 2)
    report(desk, child, "dead", 2)
    report(desk, child, "done", 2, parent=OTHER)
    assert state_of(desk, child) == "cancelled"
    report(desk, child, "revived", 3)
    assert (state_of(desk, child), bag(desk, child)["open"]) == ("waiting", "1")
    assert desk.ask("PTTL", f"carried:{child}") == -1
    report(desk, child, "dead", 4)
    assert state_of(desk, child) == "cancelled"
    report(desk, child, "done", 6)
    assert state_of(desk, child) == "ready"
    report(desk, child, "revived", 5)
    assert state_of(desk, child) == "ready", "it was done before its revival was reported"
    end(desk, child, "plain")


def test_the_record_of_a_cancelled_child_names_the_parent(desk: Desk) -> None:
    child = waiting(desk)
    report(desk, child, "dead", 2)
    record = desk.run(look(desk.keys, child)).record
    assert record.runs == 0, "it never ran"
    assert (record.state, record.reason, record.queue_from) == (State.CANCELLED, "dependency_failed", "waiting")
    assert (record.target, bytes(record.body)) == ("shop.charge", BODY.encode())
    assert f"it depends on {PARENT}, which is dead" in record.story.attempts[0].message
    for key in (f"ended:{child}", f"carried:{child}"):
        assert 0 < desk.ask("PTTL", key) <= KEEP_MS
    stats = desk.stats()
    assert (stats.waiting, stats.cancelled, stats.totals["cancelled"]) == (0, 1, 1)


@pytest.mark.parametrize("others", [("done", "c"), ("dead", "r"), ("dead", "w"), ("revived", "c"), ("done", "c", "0")])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_child_that_was_cut_blames_the_parent_that_forbids_it(
    desk: Desk, others: tuple[str, ...], is_first: bool
) -> None:
    """Whatever else was reported in the same call."""
    child = waiting(desk, 3)
    state, policy, index = (*others, "")[:3]
    news = [Report(child, id, 2, state, policy, index) for id in (OTHER, "2" * 20)]
    news.insert(0 if is_first else 1, Report(child, PARENT, 2, "expired"))
    assert desk.run(notify(desk.keys, news, 1000)) == (3, False)
    record = desk.run(look(desk.keys, child)).record
    assert [attempt.message for attempt in record.story.attempts] == [f"it depends on {PARENT}, which is expired"]
    assert (record.reason, record.runs) == ("dependency_failed", 0)
    one, other = waiting(desk), waiting(desk)
    desk.run(notify(desk.keys, [Report(one, PARENT, 2, "dead"), Report(other, OTHER, 2, "cancelled")], 1000))
    for child, parent, state in ((one, PARENT, "dead"), (other, OTHER, "cancelled")):
        (attempt,) = desk.run(look(desk.keys, child)).record.story.attempts
        assert attempt.message == f"it depends on {parent}, which is {state}"


def test_an_unneeded_failure_callback_is_cancelled_without_a_cause(desk: Desk) -> None:
    child = waiting(desk)
    report(desk, child, "done", policy="f")
    record = desk.run(look(desk.keys, child)).record
    assert (record.state, record.reason, record.story.attempts) == (State.CANCELLED, "not_needed", ())


@pytest.mark.parametrize("before", [[], [("revived", 3)], [("revived", 3), ("done", 4)]])
def test_a_failure_releases_its_callback_although_its_report_is_late(desk: Desk, before: list[tuple[str, int]]) -> None:
    """It was retried since, and may have succeeded: it failed all the same."""
    child = waiting(desk)
    for state, number in before:
        report(desk, child, state, number, policy="f")
    report(desk, child, "dead", 2, policy="f")
    assert desk.members("ready") == [child]
    for state, number in (("dead", 2), ("revived", 3), ("done", 4), ("dead", 6)):
        report(desk, child, state, number, policy="f")
    assert desk.members("ready") == [child]


def test_a_child_that_was_cut_and_forgotten_does_not_come_back(desk: Desk) -> None:
    child = waiting(desk)
    report(desk, child, "dead", 2)
    assert desk.run(discard(desk.keys, [child])) == (1, False)
    before = everything(desk)
    report(desk, child, "revived", 3)
    assert everything(desk) == before


def test_what_depends_on_a_cut_child_is_cut_and_comes_back_with_it(desk: Desk) -> None:
    (parent,) = desk.push(BODY)
    child = child_of(desk, parent)
    grandchild = child_of(desk, child)
    end(desk, parent, "dead")
    assert relayed(desk) == 2, "of the parent and, since something depends on it, of the child"
    assert (state_of(desk, child), state_of(desk, grandchild)) == ("cancelled", "cancelled")
    assert reviving(desk, parent) == 2
    relayed(desk)
    assert (state_of(desk, child), state_of(desk, grandchild)) == ("waiting", "waiting")
    for id in (parent, child, grandchild):
        end(desk, id, "plain")
        relayed(desk)
    assert desk.stats().living == 0


@pytest.mark.parametrize("taken", [False, True])
def test_a_named_child_gives_its_name_free_when_it_is_cut_and_takes_it_again(desk: Desk, taken: bool) -> None:
    """Unless it is in use."""
    child = waiting(desk, name="only", scope="until_done")
    assert desk.push_one(name="only", scope="until_done") == child
    report(desk, child, "dead", 2)
    assert desk.ask("EXISTS", "names") == 0
    owner = desk.push_one(name="only", scope="until_done") if taken else child
    assert (owner != child) is taken
    report(desk, child, "revived", 3)
    assert desk.ask("HGET", "names", "only") == owner.encode()


def test_a_child_that_is_let_go_takes_its_place_by_priority_tenant_and_weight(desk: Desk) -> None:
    urgent = waiting(desk, priority=7, tenant="a tenant", weight=2.0)
    desk.push_one(priority=7, tenant="other")
    report(desk, urgent, "done")
    assert desk.score("ready", urgent) == 7 * LEVEL + 32
    assert desk.ask("EXISTS", f"carried:{urgent}") == 0, "it takes nothing with it"
    assert desk.claim() == [urgent]


def test_a_delay_counts_from_the_moment_the_child_is_let_go_and_a_chosen_time_is_kept(desk: Desk) -> None:
    now = desk.now_ms
    child = waiting(desk, priority=3, when="+60000", tenant="g", weight=0.5)
    later, past = waiting(desk, when=str(now + 900_000)), waiting(desk, when=str(now + 60_000))
    desk.advance(120_000)
    for one in (child, later, past):
        report(desk, one, "done")
    assert desk.score("scheduled", child) == (desk.now_ms + 60_000) * 1024 + 3
    assert desk.score("scheduled", later) == (now + 900_000) * 1024 + 100
    assert desk.ask("HGET", "groups", child) == b"0.5 g"
    assert desk.claim(5) == [past]
    desk.advance(60_001)
    assert desk.claim(5) == [child]


@pytest.mark.parametrize("when", ["", "+60000"])
def test_a_child_that_is_let_go_calls_an_idle_worker(desk: Desk, when: str) -> None:
    child = waiting(desk, when=when)
    desk.wait("w1")
    report(desk, child, "dead", policy="w")
    assert desk.bell("w1") == []
    report(desk, child, "done", 4, policy="w")
    assert desk.bell("w1") == [b""]


def test_no_more_workers_are_called_than_there_are_jobs(desk: Desk) -> None:
    children = [waiting(desk) for _ in range(3)]
    for n in range(5):
        desk.wait(f"w{n}")
    desk.run(notify(desk.keys, [Report(child, PARENT, 2, "done") for child in children], 1000))
    assert sum(len(desk.bell(f"w{n}")) for n in range(5)) == 3


def test_a_child_cancelled_by_hand_receives_reports_and_stays_cancelled(desk: Desk) -> None:
    done, kept = waiting(desk, 1), waiting(desk, 2)
    for child in (done, kept):
        cancelling(desk, child)
        report(desk, child, "done")
        assert state_of(desk, child) == "cancelled"
        assert child not in desk.members("ready")
        assert reviving(desk, child) == 1
    assert state_of(desk, done) == "ready", "nothing is left to wait for"
    assert (state_of(desk, kept), bag(desk, kept)["open"]) == ("waiting", "1")
    assert desk.ask("PTTL", f"carried:{kept}") == -1
    report(desk, kept, "done", parent=OTHER)
    assert state_of(desk, kept) == "ready"


def test_a_child_that_was_cut_cannot_be_revived_as_long_as_a_parent_forbids_it_to_run(desk: Desk) -> None:
    child = waiting(desk, 2)
    report(desk, child, "dead", 2)
    report(desk, child, "expired", 2, parent=OTHER)
    before = everything(desk)
    desk.advance(5000)
    for _ in range(2):
        assert reviving(desk, child) == -1
        assert everything(desk) == before, "also its place in the list"
    report(desk, child, "revived", 3)
    assert reviving(desk, child) == -1, "the other one forbids it still"
    assert state_of(desk, child) == "cancelled"
    report(desk, child, "revived", 3, parent=OTHER)
    assert (state_of(desk, child), reviving(desk, child)) == ("waiting", 0)


def test_a_child_cancelled_by_hand_cannot_be_revived_after_a_parent_failed(desk: Desk) -> None:
    child = waiting(desk)
    cancelling(desk, child)
    report(desk, child, "dead", 2)
    assert reviving(desk, child) == -1
    report(desk, child, "revived", 3)
    assert state_of(desk, child) == "cancelled", "it was not cancelled because of its parent"
    assert reviving(desk, child) == 1
    assert state_of(desk, child) == "waiting"
    report(desk, child, "done", 6)
    assert state_of(desk, child) == "ready"


def test_a_waiting_job_is_counted_looked_at_and_cleared(desk: Desk) -> None:
    child = waiting(desk, 3)
    seen = desk.run(look(desk.keys, child))
    assert (seen.state, seen.open) == (State.WAITING, 3)
    assert (desk.stats().waiting, desk.stats().living, desk.claim()) == (1, 1, [])
    assert desk.run(clear(desk.keys)) == (1, False)
    assert desk.ask("EXISTS", f"carried:{child}") == 0


# --- inputs


@pytest.mark.parametrize("takes", ["one", "2"])
def test_results_of_parents_are_carried_until_the_job_is_done(desk: Desk, takes: str) -> None:
    parents = desk.push(*[BODY] * (1 if takes == "one" else 2))
    child = waiting(desk, len(parents), takes=takes)
    for place, parent in enumerate(parents):
        desk.run(follow(desk.keys, parent, [Edge(child, "default", "c", place)]))
    assert desk.claim(2) == parents
    for place, parent in reversed(list(enumerate(parents))):
        assert state_of(desk, child) == "waiting"
        desk.turn(0, moved(parent, "done", text=b'{"state":"done","result":{"n":%d}}' % place))
        relayed(desk)
    assert given(desk, child) == [b'{"n":%d}' % place for place in range(len(parents))]
    assert (state_of(desk, child), bag(desk, child)["life"]) == ("ready", "freed")
    end(desk, child, "dead")
    assert 0 < desk.ask("PTTL", f"carried:{child}") <= KEEP_MS
    reviving(desk, child)
    assert desk.ask("PTTL", f"carried:{child}") == -1
    assert len(given(desk, child)) == len(parents), "a revival will need them"
    end(desk, child, "plain")
    assert desk.ask("EXISTS", f"carried:{child}") == 0


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b'{"state":"done"}', b"!its result was not kept"),
        (b'{"state":"done","not_kept":"too large"}', b"!too large"),
    ],
)
def test_a_result_that_is_lacking_is_marked_with_the_reason(desk: Desk, record: bytes, why: bytes) -> None:
    (parent,) = desk.push(BODY)
    child = waiting(desk, takes="one")
    desk.run(follow(desk.keys, parent, [Edge(child, "default", "c", 0)]))
    end(desk, parent, "kept", record=record)
    relayed(desk)
    assert (state_of(desk, child), given(desk, child)) == ("ready", [why])


# --- in any order


# What may become of a parent, reported in this order: (state, number). The last one counts.
LIVES: list[list[tuple[str, int]]] = [
    [("done", 2)],
    [("dead", 2)],
    [("cancelled", 0)],
    [("dead", 2), ("revived", 3)],
    [("dead", 2), ("revived", 3), ("done", 6)],
    [("expired", 2), ("revived", 3), ("cancelled", 4)],
    [("cancelled", 0), ("revived", 1), ("dead", 4), ("revived", 5), ("done", 8)],
]


@pytest.mark.parametrize("seed", range(25))
def test_outbox_messages_in_any_order_and_number_lead_to_the_same_state(desk: Desk, seed: int) -> None:
    chance = random.Random(seed)
    number = chance.randint(1, 4)
    parents = [f"{n:020d}" for n in range(number)]
    lives = [chance.choice(LIVES) for _ in parents]
    policies = [chance.choice("cw") for _ in parents]
    child, flow = waiting(desk, number), workflow(desk, number)
    written = []
    for parent, life, policy in zip(parents, lives, policies, strict=True):
        edges = f">{policy}:{child}default >n:{flow}default"
        written += [(f"{parent}.{n}", f"{state} {n} {parent}\n{edges}\n".encode()) for state, n in life]
    left = written * chance.randint(1, 3)
    chance.shuffle(left)
    while left:
        some = chance.randint(1, len(left))
        desk.run(deliver(lambda _: desk.keys, desk.keys, left[:some], 1000))
        left = left[some:]

    last = [life[-1][0] for life in lives]
    failed = [p for p, state in zip(policies, last, strict=True) if state not in ("done", "revived")]
    expected = "cancelled" if "c" in failed else "ready" if set(last) == {"done"} else "waiting"
    assert state_of(desk, child) == expected
    if expected != "ready":
        known = bag(desk, child)
        assert (int(known["open"]), int(known["bad"])) == (len(last) - last.count("done"), failed.count("c"))
    known = bag(desk, flow)
    worst = [state for state in ("dead", "expired", "cancelled", "done") if state in last]
    assert (known["life"], known.get("state")) == (("open", None) if "revived" in last else ("closed", worst[0]))
    assert {state: int(known.get(f"n:{state}", 0)) for state in set(last) - {"revived"}} == {
        state: last.count(state) for state in set(last) - {"revived"}
    }
    stats = desk.stats()
    assert stats.living == (expected != "cancelled")
    relayed(desk)


@pytest.mark.parametrize("queue", ["default", ODD, "a b", "ñ", "%41", "\\d%s", "~.-_"])
def test_an_edge_is_read_as_it_was_written(queue: str) -> None:
    edges = [Edge(new_id(), queue), Edge(new_id(), queue, "w", 0), Edge(new_id(), queue, "C", "x")]
    text = " ".join(map(str, edges))
    assert edges_of(text) == edges
    assert edges_of(f"inbox {text} >q:nonsense >c:short") == edges
    assert not set(text) & set('"\n\\')
