"""How a queue is doing: every number of `vitals`, exact in small queues, estimated and bounded in large ones."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from relevo.engine.ids import Ids, _text
from relevo.engine.push import push_plain
from relevo.health.vitals import TaskLoad, Vitals
from relevo.health.vitals_store import LATE_MS, keep_minute, vitals
from relevo.queues.store import pause
from relevo.store.plan import Call
from tests.store.desk import Desk, kept, moved, new_id

MINUTE, HOUR = 60_000, 3_600_000


def look(desk: Desk, **options: int) -> Vitals:
    found: Vitals = desk.run(vitals(desk.keys, "default", **options))
    return found


def id_made(ms: int) -> str:
    """An id that says it was made then."""
    return _text(ms, 9) + new_id()[9:]


def body(task: str, extra: str = "") -> str:
    return f'{{"t":"{task}"{extra}}}'


def near(ms: int | None, expected: int, by: int = 5_000) -> bool:
    return ms is not None and abs(ms - expected) <= by


def test_an_empty_queue_has_nothing_to_tell(desk: Desk) -> None:
    found = look(desk)
    assert set(found.states) == {"ready", "scheduled", "running", "waiting", "done", "dead"}
    for one in found.states.values():
        assert (one.size, one.oldest_age_ms, one.mean_age_ms, one.exact) == (0, None, None, True)
    assert [found.overdue, found.silent, found.stuck, found.idle_workers] == [0] * 4
    assert (found.paused, found.tasks) == (False, ())
    assert found.rates == {"1m": None, "5m": None, "15m": None}


def test_ready_jobs_are_counted_with_oldest_mean_and_stuck(desk: Desk) -> None:
    now = desk.now_ms
    for hours in (1, 2, 3):
        desk.push_one(body("mail"), id=id_made(now - hours * HOUR))
    ready = look(desk).states["ready"]
    assert (ready.size, ready.stuck, ready.exact) == (3, 2, True)
    assert near(ready.oldest_age_ms, 3 * HOUR) and near(ready.mean_age_ms, 2 * HOUR)
    assert look(desk, stuck_ms=4 * HOUR).states["ready"].stuck == 0


def test_a_job_that_was_made_for_later_is_as_old_as_it_is_due(desk: Desk) -> None:
    """Else each job with a delay would miss every target the moment it is ready."""
    made = desk.now_ms - 2 * HOUR
    desk.push_one(body("mail", f',"d":{2 * HOUR - 60_000}'), id=id_made(made))
    assert near(look(desk).states["ready"].oldest_age_ms, MINUTE)
    assert look(desk).stuck == 0


@pytest.mark.parametrize("extra", [',"d":0', ',"wf":"x"', ',"i":"reply"'])
def test_what_waited_for_others_does_not_make_its_queue_look_old(desk: Desk, extra: str) -> None:
    now = desk.now_ms
    desk.push_one(body("step", extra), id=id_made(now - 5 * HOUR))
    desk.push_one(body("mail"), id=id_made(now - MINUTE))
    ready = look(desk).states["ready"]
    assert near(ready.oldest_age_ms, MINUTE) and not ready.exact and ready.stuck == 0


def test_the_oldest_is_found_in_the_level_that_runs_last(desk: Desk) -> None:
    now = desk.now_ms
    old = id_made(now - HOUR)
    desk.push_one(body("slow"), id=old, priority=900)
    for _ in range(30):
        desk.push(*[body("mail")] * 10, priority=100)
    assert near(look(desk).states["ready"].oldest_age_ms, HOUR)


def test_scheduled_jobs_that_are_overdue_are_counted(desk: Desk) -> None:
    for minutes in (1, 2, 300):
        desk.push_one(body("mail"), when=f"+{minutes * MINUTE}")
    assert (look(desk).overdue, look(desk).overdue_age_ms) == (0, 0)
    desk.advance(90_000)
    found = look(desk)
    assert found.overdue == 1 and near(found.overdue_age_ms, 30_000) and found.states["scheduled"].stuck == 0
    desk.advance(3 * HOUR)
    found = look(desk)
    assert (found.overdue, found.states["scheduled"].size, found.states["scheduled"].stuck) == (2, 3, 2)
    assert found.stuck == 2


def test_running_jobs_are_as_old_as_their_last_attempt(desk: Desk) -> None:
    desk.push(body("mail"), body("mail"), body("report"))
    desk.claim(2, lease_ms=4 * HOUR)
    desk.advance(HOUR)
    desk.claim(1, lease_ms=4 * HOUR)
    desk.advance(90 * MINUTE)
    found = look(desk)
    running = found.states["running"]
    assert (running.size, running.stuck, running.exact, found.silent) == (3, 2, True, 0)
    assert near(running.oldest_age_ms, 150 * MINUTE) and near(running.mean_age_ms, 130 * MINUTE)
    assert found.tasks == (TaskLoad("mail", 2, 0), TaskLoad("report", 1, 0))


def test_an_expired_lease_counts_while_no_worker_takes_the_job_back(desk: Desk) -> None:
    desk.push(body("mail"))
    desk.claim(1, lease_ms=1000)
    desk.advance(1000)
    assert look(desk).silent == 0
    desk.advance(LATE_MS + 1)
    assert look(desk).silent == 1


def test_waiting_jobs_are_as_old_as_their_wait(desk: Desk) -> None:
    desk.push_one(body("step"), needs="w 1 60000 ")
    desk.advance(2 * HOUR)
    desk.push_one(body("step"), needs="w 1 60000 ")
    desk.advance(HOUR)
    assert look(desk).parked == 0
    waiting = look(desk).states["waiting"]
    assert (waiting.size, waiting.stuck, waiting.exact) == (2, 0, True), "waiting for others is no standstill"
    assert near(waiting.oldest_age_ms, 3 * HOUR) and near(waiting.mean_age_ms, 2 * HOUR)
    assert look(desk, wait_ms=2 * HOUR).states["waiting"].stuck == 1
    assert look(desk).tasks == (TaskLoad("step", 0, 2),)


def test_dead_letters_are_as_old_as_their_death(desk: Desk) -> None:
    desk.push("{}", "{}", "{}")
    first, second, third = desk.claim(3)
    ended: dict[str, Any] = {"ms": 10 * HOUR, "text": b'{"state":"dead"}'}
    desk.turn(0, moved(first, "dead", **ended))
    desk.advance(HOUR)
    desk.turn(0, moved(second, "dead", **ended))
    desk.turn(0, kept([third]))
    desk.advance(10 * MINUTE)
    found = look(desk)
    assert (found.states["dead"].size, found.dead_recently, found.states["done"].size) == (2, 1, 1)
    assert near(found.states["dead"].oldest_age_ms, 70 * MINUTE) and near(found.states["dead"].mean_age_ms, 40 * MINUTE)
    assert near(found.states["done"].oldest_age_ms, 10 * MINUTE)
    assert found.stuck == 0, "what has ended stands still for good"
    desk.ask("DEL", f"ended:{first}")
    assert look(desk).states["dead"].size == 1, "one whose record has ended is not counted"


def test_idle_workers_and_a_pause_are_shown(desk: Desk) -> None:
    desk.wait("w1")
    assert not look(desk).paused
    assert look(desk).idle_workers == 1
    desk.run(pause(desk.keys, True))
    assert look(desk).paused
    desk.run(pause(desk.keys, False))


def test_rates_are_differences_of_samples(desk: Desk) -> None:
    desk.run(keep_minute(desk.keys))
    desk.push(*["{}"] * 60)
    desk.advance(MINUTE)
    desk.finish(desk.claim(30))
    found = look(desk)
    one = found.rates["1m"]
    assert one is not None and one == found.rates["15m"] and 60 <= one.span_s < 90
    assert [round(rate * one.span_s / 60) for rate in (one.enqueued, one.done)] == [60, 30]
    assert found.clears_in_s is None, "more comes than goes"
    desk.run(keep_minute(desk.keys))
    desk.finish(desk.claim(1))
    desk.advance(MINUTE)
    assert look(desk).clears_in_s is not None, "the burst is over, though it is not five minutes ago"
    for _ in range(6):
        desk.advance(MINUTE)
        desk.run(keep_minute(desk.keys))
    desk.finish(desk.claim(20))
    desk.advance(MINUTE)
    found = look(desk)
    five = found.rates["5m"]
    assert five is not None and five.enqueued == 0 and near(round(five.done * five.span_s / 60), 20, 0)
    assert found.clears_in_s is not None and near(round(found.clears_in_s), round(9 / five.done * 60), 2)


def test_samples_of_more_than_an_hour_ago_are_forgotten(desk: Desk) -> None:
    desk.advance(MINUTE - desk.turn().now_ms % MINUTE)  # now a minute begins: none is left out
    for _ in range(70):
        desk.run(keep_minute(desk.keys))
        desk.advance(MINUTE)
    assert desk.ask("HLEN", "minutes") == 62
    assert 0 < desk.ask("PTTL", "minutes") <= 2 * HOUR


def test_malformed_samples_are_skipped(desk: Desk) -> None:
    desk.ask("HSET", "minutes", "1", "no sample", "x", "1 2 3")
    desk.ask("HSET", "stats", "done", "many")
    desk.ask("ZADD", "ready", 1, "malformed")
    desk.ask("HSET", "jobs", "malformed", "no JSON")
    found = look(desk)
    ready = found.states["ready"]
    assert (ready.size, ready.oldest_age_ms, ready.exact) == (1, None, False)
    assert (found.totals["done"], found.tasks) == (0, ())
    desk.ask("DEL", "minutes")
    desk.ask("DEL", "stats")
    desk.ask("ZREM", "ready", "malformed")
    desk.ask("HDEL", "jobs", "malformed")


def test_large_bodies_are_not_read(desk: Desk) -> None:
    """The name of the task stands in the body, and a hundred of a megabyte each would delay every other call."""
    desk.push(body("large", f',"a":["{"x" * 20_000}"]'), body("small"))
    assert look(desk).tasks == (TaskLoad("small", 0, 2, exact=False, oldest_age_ms=ANY),)


def test_ten_thousand_jobs_cost_as_many_commands_as_a_thousand(desk: Desk) -> None:
    """The cost grows with the number of queues, never with that of jobs."""
    now, ids = desk.now_ms, Ids()
    old = [(_text(now - 3 * HOUR, 9) + id[9:], body("mail").encode()) for id in ids.many(2_000)]
    new = [(id, body("report").encode()) for id in ids.many(8_000)]
    rows = old + new
    for start in range(0, len(rows), 1000):
        desk.run(push_plain(desk.keys, rows[start : start + 1000], 100, 1000))
    assert desk.commands(lambda: look(desk)).total() < 1500, "commands inside the script, of fixed number"
    found = look(desk)
    ready = found.states["ready"]
    assert (ready.size, ready.exact) == (10_000, False)
    assert near(ready.oldest_age_ms, 3 * HOUR, MINUTE), "it stands first"
    assert 500 <= ready.stuck <= 4_000, "a fifth, about"
    assert {one.task for one in found.tasks} == {"mail", "report"} and not found.tasks[0].exact
    assert abs(sum(one.waiting for one in found.tasks) - 10_000) <= 2
    desk.server.command("UNLINK", desk.keys.key("ready"), desk.keys.key("jobs"), desk.keys.key("clock"))


def test_a_look_writes_nothing(desk: Desk) -> None:
    """A read-only user can call it."""
    assert not look(desk).minute_kept
    assert desk.run(Call([b"EXISTS", desk.keys.key("minutes")])) == 0
    desk.run(keep_minute(desk.keys))
    assert 0 < desk.run(Call([b"PTTL", desk.keys.key("minutes")])) <= 2 * HOUR
    first = desk.ask("HGETALL", "minutes")
    desk.push("{}")
    assert look(desk).minute_kept
    desk.run(keep_minute(desk.keys))
    assert desk.ask("HGETALL", "minutes") == first, "a minute is kept once"
