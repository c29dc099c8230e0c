"""count, page, clear, pause: a queue as a whole."""

from __future__ import annotations

import pytest

from relevo.engine.job import State
from relevo.engine.job_store import attach
from relevo.engine.push import NewJob, push
from relevo.engine.turn import leave
from relevo.errors import OptionError
from relevo.health.vitals_store import keep_minute
from relevo.queues.store import WALKED_BYTES, Mark, clear, page, pause, walk
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id


def body(n: int) -> str:
    return f'{{"t":"task{n}"}}'


# --- count


def test_the_numbers_of_a_queue_add_up_in_every_state(desk: Desk) -> None:
    """`Desk.stats` checks the sum each time."""
    stats = desk.stats()
    assert (stats.living, stats.paused, stats.next_due_ms, stats.idle_workers, stats.totals) == (0, False, None, 0, {})
    ids = desk.push(*[body(n) for n in range(10)])
    desk.push_one(when="+60000")
    assert (desk.stats().ready, desk.stats().scheduled) == (10, 1)
    desk.claim(6)
    desk.turn(0, kept([ids[0]]))
    for id, verb in zip(ids[1:4], ("dead", "cancelled", "expired"), strict=True):
        desk.turn(0, moved(id, verb, text=b'{"state":"dead"}'))
    desk.turn(0, moved(ids[4], "retry", ms=9000, text=b"{}"))
    stats = desk.stats()
    assert (stats.ready, stats.scheduled, stats.running) == (4, 2, 1)
    assert (stats.done, stats.dead, stats.cancelled, stats.expired) == (1, 1, 1, 1)
    assert stats.living == 7
    assert stats.totals == {"enqueued": 11, "done": 1, "dead": 1, "cancelled": 1, "expired": 1, "retry": 1}


def test_the_next_due_time_is_the_earliest(desk: Desk) -> None:
    now = desk.turn(0).now_ms
    desk.push_one(when=str(now + 90_000))
    desk.push_one(when=str(now + 30_000), priority=1023)
    assert desk.stats().next_due_ms == now + 30_000


def test_idle_workers_count_while_they_are_believed_alive(desk: Desk) -> None:
    desk.wait("w1", idle_ms=60_000)
    desk.wait("w2", idle_ms=180_000)
    assert desk.stats().idle_workers == 2
    desk.advance(100_000)
    assert desk.stats().idle_workers == 1


@pytest.mark.parametrize("gone", [1, 99, 100, 101, 490])
def test_entries_whose_record_has_ended_do_not_count_and_are_swept_once_a_minute(desk: Desk, gone: int) -> None:
    ids = [new_id() for _ in range(gone + 5)]
    for state in ("done", "dead"):
        desk.ask("ZADD", state, *(value for n, id in enumerate(ids) for value in (n, id)))
        desk.ask("PEXPIRE", state, 60_000)
    for id in ids[gone:]:
        desk.ask("SET", f"ended:{id}", "{}", "PX", 60_000)
    stats = desk.stats()
    assert (stats.done, stats.dead) == (5, 5)
    assert desk.members("dead") == ids, "a look changes nothing"
    desk.run(keep_minute(desk.keys))
    assert desk.members("done") == desk.members("dead") == ids[gone:]


def test_what_lives_longer_than_those_behind_it_hides_them_for_a_minute(desk: Desk) -> None:
    """A task may keep its dead letters for a week, and another one of the same queue for an hour."""
    ids = [new_id() for _ in range(8)]
    for index in ("done", "dead", "alike:abcd"):
        desk.ask("ZADD", index, *(value for n, id in enumerate(ids) for value in (n, id)))
        desk.ask("PEXPIRE", index, 60_000)
    desk.ask("HSET", "kinds", "abcd", "0 {}")
    desk.ask("PEXPIRE", "kinds", 60_000)
    for id in (ids[2], ids[7]):
        desk.ask("SET", f"ended:{id}", "{}", "PX", 60_000)
    assert desk.stats().done == 6, "those at the beginning are left out"
    desk.run(keep_minute(desk.keys))
    assert desk.members("done") == desk.members("dead") == desk.members("alike:abcd") == [ids[2], ids[7]]
    assert (desk.stats().done, desk.stats().dead) == (2, 2)


def test_a_long_list_is_swept_part_by_part(desk: Desk) -> None:
    ids = [new_id() for _ in range(1_200)]
    desk.ask("ZADD", "dead", *(value for n, id in enumerate(ids) for value in (n, id)))
    desk.ask("PEXPIRE", "dead", 600_000)
    desk.ask("SET", f"ended:{ids[0]}", "{}", "PX", 600_000)
    desk.advance(60_000 - desk.turn().now_ms % 60_000)  # now a minute begins
    desk.run(keep_minute(desk.keys))
    left = desk.stats().dead
    assert 700 <= left <= 1_000
    desk.run(keep_minute(desk.keys))
    assert desk.stats().dead == left, "once a minute, by the first call"
    for _ in range(5):
        desk.advance(60_000)
        desk.run(keep_minute(desk.keys))
    assert desk.members("dead") == ids[:1]


# --- page


def test_ready_jobs_are_listed_in_the_order_they_will_run(desk: Desk) -> None:
    ids = desk.push(*[body(n) for n in range(5)], "no json")
    urgent = desk.push('{"t":"urgent"}', priority=0)
    desk.turn(0, moved(desk.claim()[0], "back", priority=0))
    rows = desk.run(page(desk.keys, "ready", 0, 10))
    assert [row.id for row in rows] == [*urgent, *ids]
    assert [row.envelope.target for row in rows[:2]] == ["urgent", "task0"]
    assert (rows[6].envelope, rows[6].body) == (None, b"no json")
    assert {row.state for row in rows} == {State.READY}
    assert {row.due_ms for row in rows} == {None}, "also of one that ran before"
    assert [row.id for row in desk.run(page(desk.keys, "ready", 2, 2))] == ids[1:3]
    assert desk.run(page(desk.keys, "ready", 7, 2)) == []


def test_scheduled_and_running_jobs_are_listed_with_their_times(desk: Desk) -> None:
    now = desk.turn(0).now_ms
    later = desk.push_one(body(2), when=str(now + 90_000))
    sooner = desk.push_one(body(1), when=str(now + 60_000), priority=1023)
    rows = desk.run(page(desk.keys, "scheduled", 0, 10))
    assert [(row.id, row.due_ms) for row in rows] == [(sooner, now + 60_000), (later, now + 90_000)]
    (id,) = desk.push(body(3))
    found = desk.turn(1, worker="w1", lease_ms=20_000)
    (row,) = desk.run(page(desk.keys, "running", 0, 10))
    assert (row.id, row.claim.worker, row.due_ms) == (id, "w1", found.now_ms + 20_000)


@pytest.mark.parametrize("state", ["done", "dead", "cancelled", "expired"])
def test_ended_jobs_are_listed_newest_first_without_ghosts(desk: Desk, state: str) -> None:
    ids = desk.push("{}", "{}", "{}")
    desk.claim(3)
    for id in ids:
        desk.advance(10)
        record = f'{{"state":"{state}","reason":"r","body":{{"t":"x"}}}}'.encode()
        desk.turn(0, moved(id, state, text=record))
    desk.ask("DEL", f"ended:{ids[1]}")
    rows = desk.run(page(desk.keys, state, 0, 10))
    assert [(row.id, row.record.reason, row.envelope.target) for row in rows] == [
        (ids[2], "r", "x"),
        (ids[0], "r", "x"),
    ]
    assert desk.members(state) == ids, "a look changes nothing"


@pytest.mark.parametrize(
    ("state", "offset", "limit", "message"),
    [
        *((state, 0, 10, "state: one of ready") for state in ("", "waiters", "jobs", "unknown")),
        *(("ready", offset, limit, "1 to 1000") for offset, limit in ((-1, 10), (0, 0), (0, 1001))),
    ],
)
def test_a_page_that_cannot_be_is_refused(desk: Desk, state: str, offset: int, limit: int, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        page(desk.keys, state, offset, limit)


# --- clear


def test_clearing_removes_what_has_not_started(desk: Desk) -> None:
    named = desk.push_one('{"t":"x","n":"name"}', name="name", scope="until_done", tenant="g")
    jobs = [NewJob(new_id(), 100, b"{}", when="+60000" if n % 2 else "", tenant="g") for n in range(1200)]
    desk.run(push(desk.keys, jobs, LEASE_MS))
    running = desk.claim(1)
    assert running == [named]
    desk.turn(0, moved(named, "retry", ms=60_000, text=b"{}"))
    (runs,) = desk.claim(1)
    (unreadable,) = desk.push("no json")
    desk.run(attach(desk.keys, unreadable, b"inbox"))
    assert desk.run(clear(desk.keys)) == (1201, False)
    assert desk.run(clear(desk.keys)) == (0, False)
    stats = desk.stats()
    assert (stats.living, stats.running, stats.totals["cleared"]) == (1, 1, 1201)
    for key in ("ready", "scheduled", "groups", "story", "names", "clock", "waiters"):
        assert desk.ask("EXISTS", key) == 0, key
    assert desk.finish([runs]) == []


# --- pause


def test_pausing_and_resuming_return_whether_anything_changed(desk: Desk) -> None:
    assert [desk.run(pause(desk.keys, how)) for how in (False, True, True, False, False)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert desk.ask("EXISTS", "paused") == 0


def test_a_paused_queue_takes_jobs_and_hands_none_over(desk: Desk) -> None:
    desk.wait("w1")
    desk.run(pause(desk.keys, True))
    assert desk.members("idle") == []
    (id,) = desk.push()
    assert desk.bell("w1") == []
    assert desk.members("ready") == [id]
    assert desk.claim() == []
    desk.run(pause(desk.keys, False))
    assert desk.bell("w1") == [b""], "a worker that was idle before the pause is called, too"
    assert desk.claim() == [id]


def test_a_worker_that_leaves_a_paused_queue_is_not_called(desk: Desk) -> None:
    desk.run(pause(desk.keys, True))
    desk.wait("w1")
    desk.run(leave(desk.keys, "w1"))
    assert desk.stats().paused
    desk.run(pause(desk.keys, False))
    assert desk.bell("w1") == []


# --- walk


def ids_of_walk(desk: Desk, state: State, limit: int) -> list[str]:
    found: list[str] = []
    mark: Mark | None = Mark()
    while mark is not None:
        part = desk.run(walk(desk.keys, state, mark, limit))
        assert part.looked <= limit
        found += [one.id for one in part.jobs]
        mark = part.mark
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_walk_meets_each_living_job_once_in_the_order_in_which_they_run(desk: Desk, limit: int) -> None:
    for n in range(10):
        desk.push_one(body(n), priority=n % 3)
    assert ids_of_walk(desk, State.READY, limit) == desk.members("ready")
    assert ids_of_walk(desk, State.SCHEDULED, limit) == []


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_walk_meets_ended_jobs_of_the_same_moment_once_the_newest_first(desk: Desk, limit: int) -> None:
    ids = sorted(new_id() for _ in range(9))
    desk.ask("ZADD", "done", *(value for n, id in enumerate(ids) for value in (n // 3, id)))
    desk.ask("PEXPIRE", "done", 60_000)
    for id in ids:
        desk.ask("SET", f"ended:{id}", '{"state":"done"}', "PX", 60_000)
    assert ids_of_walk(desk, State.DONE, limit) == ids[::-1]


def test_walk_goes_on_behind_a_job_that_is_gone(desk: Desk) -> None:
    ids = sorted(new_id() for _ in range(9))
    desk.ask("ZADD", "done", *(value for id in ids for value in (5, id)))
    desk.ask("PEXPIRE", "done", 60_000)
    for id in ids:
        desk.ask("SET", f"ended:{id}", '{"state":"done"}', "PX", 60_000)
    part = desk.run(walk(desk.keys, State.DONE, Mark(), 4))
    desk.ask("ZREM", "done", *ids[4:])
    rest = desk.run(walk(desk.keys, State.DONE, part.mark, 100))
    assert ([one.id for one in part.jobs], [one.id for one in rest.jobs]) == (ids[:4:-1], ids[3::-1])


def test_walk_stops_where_enough_was_read(desk: Desk) -> None:
    for n in range(3):
        desk.push_one('{"t":"task","a":["' + "x" * WALKED_BYTES + f'",{n}]' + "}")
    part = desk.run(walk(desk.keys, State.READY, Mark(), 100))
    assert (len(part.jobs), part.looked) == (1, 1)
    assert ids_of_walk(desk, State.READY, 100) == desk.members("ready")
