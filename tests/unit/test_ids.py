"""Ids: unique between threads and generators, ordered by age, readable as a time."""

from __future__ import annotations

import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from relevo.engine.ids import LENGTH, Ids, looks_like_id, made_ms


def test_an_id_is_20_letters_and_digits_without_look_alikes() -> None:
    id = Ids()()
    assert len(id) == LENGTH == 20
    assert id.isascii() and id.isalnum() and id == id.lower()
    assert not set(id) & set("ilou")
    assert looks_like_id(id)


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 19, "0" * 21, "0" * 19 + "i", "0" * 19 + "A", "0" * 19 + " ", "é" * 20]
)
def test_other_texts_do_not_look_like_an_id(text: str) -> None:
    assert not looks_like_id(text)


def test_the_time_of_an_id_can_be_read() -> None:
    before = time.time_ns() // 1_000_000
    made = made_ms(Ids()())
    assert before <= made <= time.time_ns() // 1_000_000


def test_ids_are_sorted_by_age_and_unique_also_when_the_counter_starts_over() -> None:
    make = Ids()
    make._counter = itertools.count(2**20 - 500)
    ids = [make() for _ in range(20_000)]
    assert ids == sorted(set(ids))
    makers = [Ids() for _ in range(50)]
    assert len({make() for _ in range(200) for make in makers}) == 10_000, "between generators, too"


def test_many_ids_made_at_once_are_sorted_and_unique_also_when_the_counter_starts_over() -> None:
    ids = Ids()
    ids._counter = itertools.count(2**20 - 500)
    made = [*ids.many(0), *ids.many(1), *ids.many(1000), ids()]
    assert len(made) == 1002
    assert made == sorted(set(made))
    assert all(map(looks_like_id, made[:100]))


def test_a_clock_that_steps_back_does_not_step_the_order_back(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Ids()
    now = time.time_ns()
    times = iter([now, now + 10**9, now - 3600 * 10**9, now, now + 2 * 10**9])
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    ids = [make() for _ in range(5)]
    assert ids == sorted(ids)


def test_ids_are_unique_between_threads() -> None:
    make = Ids()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as threads:
            parts = list(threads.map(lambda _: [make() for _ in range(1000)], range(16)))
    finally:
        sys.setswitchinterval(switch)
    assert len({id for part in parts for id in part}) == 16_000
