"""How the queues of one worker share its slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.errors import OptionError
from relevo.text.slots import queues_with_slots
from relevo.worker.division import checked_concurrency, divided


def test_names_of_queues_may_have_slots_behind_them() -> None:
    assert queues_with_slots("-Q", ["default:80", "mail"]) == {"default": 80, "mail": None}
    assert queues_with_slots("-Q", ["games:actions:20", "games:42:actions"]) == {
        "games:actions": 20,
        "games:42:actions": None,
    }
    assert queues_with_slots("-Q", ["a", "a:5", "a"]) == {"a": 5}


@pytest.mark.parametrize("wrong", [["a:0"], ["a:5", "a:6"], [""], [3], ["a:999999999999999999999999"]])
def test_wrong_slots_are_refused(wrong: list[object]) -> None:
    with pytest.raises(OptionError, match="queue"):
        queues_with_slots("queues", wrong)


def test_one_queue_has_all_slots() -> None:
    assert divided(100, [None], of=100).free(0, [0]) == 100


@pytest.mark.parametrize("size", [2, 3, 4, 10, 100])
@pytest.mark.parametrize("count", [2, 3, 30])
def test_no_queue_takes_every_slot(size: int, count: int) -> None:
    division = divided(size, [None] * count, of=size)
    assert size // 2 <= division.most(0) < size
    full = [division.most(0)] + [0] * (count - 1)
    assert division.free(0, full) == 0
    assert division.free(1, full) > 0


def test_a_worker_with_one_slot_gives_it_to_any_queue() -> None:
    assert divided(1, [None, None], of=1).most(0) == 1


def test_small_pools_are_not_divided() -> None:
    """Keeping one of two processes idle would cost half of what they compute."""
    assert divided(2, [None, None], of=100, least=0).most(0) == 2
    assert divided(4, [None, None], of=100, least=0).most(0) == 3


def test_slots_with_numbers_belong_to_their_queue() -> None:
    division = divided(100, [80, 20], of=100)
    assert division.most(0) == 80
    assert division.free(1, [80, 0]) == 20
    assert division.free(0, [80, 0]) == 0
    some = divided(100, [None, 20], of=100)
    assert some.most(0) == 80
    assert some.most(1) == 20


def test_pools_are_divided_as_the_slots_are() -> None:
    threads = divided(32, [80, 20], of=100, least=0)
    assert threads.own == (25, 6)
    assert threads.free(1, [26, 0]) == 6


def test_slots_that_do_not_fit_are_refused() -> None:
    assert checked_concurrency({"a": 80, "b": 40}, None, 100) == 120
    assert checked_concurrency({"a": 80, "b": None}, None, 100) == 100
    assert checked_concurrency({}, None, 100) == 100
    assert checked_concurrency({"a": None}, 1, 100) == 1
    with pytest.raises(OptionError, match="120 slots are given to queues, of 100"):
        checked_concurrency({"a": 80, "b": 40}, 100, 100)
    with pytest.raises(OptionError, match="'b' needs some"):
        checked_concurrency({"a": 100, "b": None}, None, 100)


@given(
    size=st.integers(1, 200),
    slots=st.lists(st.none() | st.integers(1, 20), min_size=2, max_size=8),
    order=st.lists(st.integers(0, 7), max_size=300),
)
def test_slots_are_never_overdrawn_and_reserves_can_be_taken(
    size: int, slots: list[int | None], order: list[int]
) -> None:
    given_slots = sum(one or 0 for one in slots)
    if given_slots >= size:
        return
    division = divided(size, slots, of=size)
    taken = [0] * len(slots)
    for number in order:
        number %= len(slots)
        if division.free(number, taken) > 0:
            taken[number] += 1
    assert sum(taken) <= size
    for number, number_of_slots in enumerate(slots):
        if number_of_slots is not None and taken[number] < number_of_slots:
            assert division.free(number, taken) > 0  # whatever the others took
