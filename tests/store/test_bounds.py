"""No call is long, however much depends on one job, however large its result is."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from relevo import Relevo
from relevo.engine.dependents import gate_of, needs_of, push_dependents
from relevo.engine.edges import Edge, Policy, Report
from relevo.engine.outbox import REPORTS, deliver, notify_all, relay
from relevo.engine.push import CHUNK, CHUNK_BYTES, NewJob
from relevo.store.plan import Call
from tests.store.desk import Desk, new_id
from tests.store.kin import BODY, KEEP_MS, bag, end, given, outbox, state_of, step_by_step, waiting

PER_REPORT = 8  # arguments


class Calls:
    """The calls that were made, and their bytes."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.bytes = 0
        self.heard: list[list[tuple[str, int]]] = []

    def note(self, name: str, call: Call[Any]) -> None:
        self.of[name] += 1
        self.bytes += sum(len(arg) if isinstance(arg, str | bytes) else 8 for arg in call.args)
        if name == "workflows/notify_dependents":
            self.heard.append(heard_by(call))


def heard_by(call: Call[Any]) -> list[tuple[str, int]]:
    """The children in a call of `hear`, and the sizes of their inputs."""
    assert call.script is not None
    fixed = len(call.script.args)
    rows = call.args[fixed + int(call.args[fixed - 1]) :]
    return [
        (str(rows[i]), len(rows[i + PER_REPORT - 2]))  # type: ignore[arg-type]
        for i in range(0, len(rows), PER_REPORT)
    ]


def cut_into(app: Relevo, reports: list[Report], gates: list[str]) -> list[Call[Any]]:
    """The calls in which reports would be sent."""
    calls: list[Call[Any]] = []
    plan = notify_all(app.engine.keys_of("default"), reports, 1000, gates)
    try:
        calls.append(next(plan))
        while True:
            calls.append(plan.send((1, len(calls) == 1)))
    except StopIteration as over:
        assert over.value is bool(calls), "also if only the first call had something to relay"
    return calls


@pytest.mark.parametrize("seed", range(8))
def test_reports_are_sent_in_calls_bounded_in_rows_and_bytes(app: Relevo, seed: int) -> None:
    chance = random.Random(seed)
    largest = chance.choice([10, 10_000, CHUNK_BYTES // 2, CHUNK_BYTES, 3 * CHUNK_BYTES])
    sizes = [chance.randint(0, largest) for _ in range(chance.randint(1, 30 if largest > 10 else 3 * REPORTS))]
    reports = [Report(new_id(), "p" * 20, 2, "done", input=bytes(size)) for size in sizes]
    calls = cut_into(app, reports, ["a.gate"])
    heard = [heard_by(call) for call in calls]
    assert [row for rows in heard for row in rows] == [(one.child, len(one.input)) for one in reports]
    for rows, following in zip(heard, [*heard[1:], []], strict=True):
        assert 1 <= len(rows) <= REPORTS
        assert len(rows) == 1 or sum(size for _, size in rows) <= CHUNK_BYTES
        if following:
            is_full = len(rows) == REPORTS or sum(size for _, size in rows) + following[0][1] > CHUNK_BYTES
            assert is_full, "and in no more calls than that takes"
    assert ["a.gate" in call.args for call in calls] == [False] * (len(calls) - 1) + [True], "in the last call"


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([CHUNK_BYTES], 1),
        ([CHUNK_BYTES + 1], 1),
        ([CHUNK_BYTES // 2] * 2, 1),
        ([CHUNK_BYTES // 2, CHUNK_BYTES // 2 + 1], 2),
        ([0, CHUNK_BYTES + 1, 0], 3),
        ([0] * REPORTS, 1),
        ([0] * (REPORTS + 1), 2),
        ([], 0),
    ],
)
def test_reports_at_the_bounds(app: Relevo, sizes: list[int], calls: int) -> None:
    reports = [Report(new_id(), "p" * 20, 2, "done", input=bytes(size)) for size in sizes]
    assert len(cut_into(app, reports, [])) == calls
    assert len(cut_into(app, reports, ["a.gate"])) == max(1, calls), "gates are always opened"


def test_large_results_reach_a_job_in_calls_of_bounded_size(desk: Desk) -> None:
    size, parents = 200_000, [f"{n:020d}" for n in range(8)]
    child = waiting(desk, len(parents), takes=str(len(parents)))
    written = []
    for place, parent in enumerate(parents):
        record = b'{"state":"done","result":"%b"}' % (b"%d" % place * size)
        written.append(
            (parent, b"done 2 %b\n%b\n%b" % (parent.encode(), str(Edge(child, "default", "c", place)).encode(), record))
        )
    calls = Calls()
    finished, _ = step_by_step(desk.run, deliver(lambda _: desk.keys, desk.keys, written, 1000), calls.note)
    assert finished == parents
    assert len(calls.heard) == 4, "two results fit into one call"
    assert all(sum(size for _, size in rows) <= CHUNK_BYTES for rows in calls.heard)
    assert [len(raw) for raw in given(desk, child)] == [size + 2] * len(parents)
    assert state_of(desk, child) == "ready"


@pytest.mark.parametrize(
    ("how", "policies", "becomes"),
    [("", "c", "waiting"), ("dead", "w", "waiting"), ("dead", "cw", "cancelled")],
)
def test_thousands_of_jobs_depend_on_one(desk: Desk, how: str, policies: str, becomes: str) -> None:
    """Edges are added to their parents once a chunk; what is written grows with their number and not faster."""
    many = 2 * CHUNK
    parents = [desk.push_one(BODY) for _ in policies]
    for parent in parents if how else []:
        end(desk, parent, how)
    named: list[tuple[str, Policy]] = [(id, policy) for id, policy in zip(parents, policies, strict=True)]  # type: ignore[misc]
    needs = needs_of(len(parents), KEEP_MS, gated=True)
    jobs = [NewJob(new_id(), 100, BODY.encode(), needs=needs) for _ in range(many)]
    calls = Calls()
    plan = push_dependents(lambda _: desk.keys, "default", jobs, {"default": named}, 100_000)
    owners = step_by_step(desk.run, plan, calls.note)
    assert owners == [job.id for job in jobs]
    assert (calls.of["engine/push_with_options"], calls.of["workflows/register_dependents"]) == (2, 2 * len(parents))
    reports = many * (1 + len(parents) * bool(how))
    assert calls.of["workflows/notify_dependents"] == reports // REPORTS
    assert calls.bytes < 1000 * many
    assert all(len(rows) <= REPORTS for rows in calls.heard)
    stats = desk.stats()
    assert getattr(stats, becomes) == many
    assert len(outbox(desk)) == ("w" in policies), "one outbox message ends the waiting of all"


def test_one_outbox_message_reports_an_end_to_thousands_of_jobs(desk: Desk) -> None:
    parent = desk.push_one(BODY)
    jobs = [NewJob(new_id(), 100, BODY.encode(), needs=needs_of(1, KEEP_MS, gated=True)) for _ in range(2 * CHUNK)]
    desk.run(push_dependents(lambda _: desk.keys, "default", jobs, {"default": [(parent, "c")]}, 1000))
    end(desk, parent, "plain")
    assert list(outbox(desk)) == [f"{parent}.2"]
    calls = Calls()
    assert step_by_step(desk.run, relay(lambda _: desk.keys, ["default"], 1000), calls.note) == 1
    assert calls.of == {"engine/take_outbox": 2, "workflows/notify_dependents": len(jobs) // REPORTS}
    assert (desk.stats().ready, desk.stats().waiting, outbox(desk)) == (len(jobs), 0, {})


def test_a_gate_is_the_last_thing_that_is_opened(desk: Desk) -> None:
    """Its outbox message is there until all it stands for was reported."""
    parents = [desk.push_one(BODY) for _ in range(3)]
    needs = needs_of(3, KEEP_MS, gated=True)
    jobs = [NewJob(new_id(), 100, BODY.encode(), needs=needs) for _ in range(REPORTS)]
    seen: list[bool] = []

    def look(name: str, call: Call[Any]) -> None:
        if name in ("workflows/register_dependents", "workflows/notify_dependents"):
            seen.append(gate_of(jobs[0].id) in outbox(desk))

    for parent in parents:
        end(desk, parent, "kept")
    named: list[tuple[str, Policy]] = [(id, "c") for id in parents]
    step_by_step(desk.run, push_dependents(lambda _: desk.keys, "default", jobs, {"default": named}, 1000), look)
    assert seen == [True] * (3 + 4)
    assert outbox(desk) == {}
    assert (desk.stats().ready, bag(desk, jobs[0].id)) == (REPORTS, {})
