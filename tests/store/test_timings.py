"""Sums of how long tasks waited and ran, as the store keeps them."""

from __future__ import annotations

from relevo.engine.push import KEEP_MS
from relevo.metrics.timing_store import MOST_FIELDS, PART, heard_since, measure, timings
from relevo.metrics.timings import OTHER, RAN, SIZE, WAITS, TaskTimings
from tests.store.desk import Desk


def sums(runs: int, seconds: float = 0.0, *, place: int = 3) -> list[float]:
    found: list[float] = [0] * SIZE
    found[place] = runs
    found[RAN] = seconds
    return found


def full() -> list[float]:
    return [1.0] * SIZE


def known(desk: Desk) -> dict[str, TaskTimings]:
    found: dict[str, TaskTimings] = desk.run(timings(desk.keys))
    return found


def test_what_workers_measured_adds_up_and_ends_a_week_after_the_last_traffic(desk: Desk) -> None:
    assert known(desk) == {}
    for _ in range(2):
        desk.run(measure(desk.keys, [("shop.charge", sums(3, 0.25)), ("shop.mail", sums(1, 1.5))]))
    found = known(desk)
    assert (found["shop.charge"].ran.count, found["shop.charge"].ran.total) == (6, 0.5)
    assert (found["shop.mail"].ran.count, found["shop.mail"].ran.total) == (2, 3.0)
    assert KEEP_MS // 2 < desk.ask("PTTL", "timings") <= KEEP_MS


def test_tasks_for_which_there_is_no_room_count_together(desk: Desk) -> None:
    for start in range(0, 200, PART):
        rows = [(f"task{n}", full()) for n in range(start, start + PART)]
        fields = desk.run(measure(desk.keys, rows))
    found = known(desk)
    assert fields < MOST_FIELDS + 2 * (SIZE + 1)
    assert OTHER in found
    assert sum(one.ran.count for one in found.values()) == 200 * WAITS, "none is lost"
    before = found["task0"].ran.count
    desk.run(measure(desk.keys, [("task0", full())]))
    assert known(desk)["task0"].ran.count == before + WAITS, "one that is known goes on being counted by itself"


def test_tasks_that_were_silent_for_a_week_make_room(desk: Desk) -> None:
    """Else the names of old versions of a program would be there for ever."""
    rows = [(f"old{n}", full()) for n in range(60)]
    for start in range(0, len(rows), PART):
        desk.run(measure(desk.keys, rows[start : start + PART]))
    desk.advance(KEEP_MS + 60_000)
    desk.run(measure(desk.keys, [("new", full())]))
    assert set(known(desk)) == {"new"}


def test_a_task_silent_for_a_week_is_not_listed(desk: Desk) -> None:
    desk.run(measure(desk.keys, [("a", sums(1))]))
    found = known(desk)
    at_ms = found["a"].at_ms
    assert set(heard_since(found, at_ms + KEEP_MS)) == {"a"}
    assert not heard_since(found, at_ms + KEEP_MS + 1)


def test_one_call_is_bounded_in_commands_even_when_there_is_no_room_for_its_tasks(desk: Desk) -> None:
    for start in range(0, 100, PART):
        desk.run(measure(desk.keys, [(f"task{n}", full()) for n in range(start, start + PART)]))
    rows = [(f"else{n}", full()) for n in range(PART)]
    made = desk.commands(lambda: desk.run(measure(desk.keys, rows)))
    assert made["hgetall"] == 1, "one look for tasks that are silent"
    assert made.total() <= PART * (SIZE + 6) + 10
