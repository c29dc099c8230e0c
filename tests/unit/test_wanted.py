"""Which dead letters are meant, and when a replay may send the next one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from relevo.dead.error_groups import trend
from relevo.dead.replay import SILENT_MS, Canary, Replay
from relevo.dead.wanted import Wanted, fits, wanted_of
from relevo.engine.job import Attempt, Record, State, Story, read_envelope
from relevo.errors import OptionError

NOW_MS = 1_800_000_000_000
BODY = '{"t":"shop.charge","a":[7,"Größe \\"XL\\""],"k":{"city":"Lima"},"g":"acme","n":"charge-7","l":["eu"]}'.encode()
TRIED = (
    Attempt("failed", "w0", error="OSError", message="first"),
    Attempt("failed", "w1", 0, 0, "TimeoutError", "no answer", "in ask"),
)
RECORD = Record(
    State.DEAD, "shop.charge", queue_from="running", reason="retries_exhausted", worker="w1", story=Story(TRIED),
    body=Raw(BODY),
)  # fmt: skip


@pytest.mark.parametrize(
    ("filters", "is_wanted"),
    [
        ({}, True),
        ({"task": "shop.charge"}, True),
        ({"task": "shop"}, False),
        ({"error": "timeout"}, True),
        ({"error": "TimeoutError: no"}, True),
        ({"error": "exhausted"}, True),
        ({"error": "OSError"}, False),
        ({"reason": "retries_exhausted"}, True),
        ({"reason": "retries"}, False),
        ({"came_from": "running"}, True),
        ({"came_from": "ready"}, False),
        ({"tenant": "acme"}, True),
        ({"tenant": "other"}, False),
        ({"permanent": False}, True),
        ({"permanent": True}, False),
        ({"text": "lima"}, True),
        ({"text": 'größe "xl"'}, True),
        ({"text": "OSERROR"}, True),
        ({"text": "in ask"}, True),
        ({"text": "charge-7"}, True),
        ({"text": "nowhere"}, False),
        ({"task": "shop.charge", "tenant": "other"}, False),
    ],
    ids=str,
)
def test_a_dead_letter_matches_when_all_conditions_hold(filters: Any, is_wanted: bool) -> None:
    assert fits(wanted_of(filters, NOW_MS), RECORD, read_envelope(BODY)) is is_wanted


def test_an_unreadable_dead_letter_is_found_by_its_bytes() -> None:
    record = Record(State.DEAD, reason="unreadable", unreadable=b"\xff Garbage")
    assert fits(Wanted(text="garbage"), record, None)
    assert not fits(Wanted(task="shop.charge"), record, None)
    assert not fits(Wanted(tenant="acme"), record, None)


@pytest.mark.parametrize(
    ("given", "ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        (90, NOW_MS - 90_000),
        (timedelta(days=1), NOW_MS - 86_400_000),
        (datetime(2026, 11, 16, 8, tzinfo=UTC), 1_794_816_000_000),
    ],
)
def test_times_are_absolute_or_relative(given: Any, ms: int) -> None:
    assert wanted_of({"since": given}, NOW_MS).since_ms == ms
    assert wanted_of({"until": given}, NOW_MS).until_ms == ms


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"taks": "x"}, "did you mean 'task'"),
        ({"task": 5}, "task: the name of a task is needed, found 5"),
        ({"error_group": "abc"}, "error_group: a fingerprint of 16 hex digits"),
        ({"permanent": "yes"}, "permanent: True or False"),
        ({"since": "24"}, "since .a datetime, or how long ago."),
        ({"since": datetime(2026, 1, 1)}, "with a time zone"),
        ({"since": "1h", "until": "2h"}, "since is later than until"),
    ],
)
def test_a_wrong_condition_is_refused_with_the_reason(filters: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        wanted_of(filters, NOW_MS)


@pytest.mark.parametrize(
    ("wanted", "in_index", "anything"),
    [
        (Wanted(), True, True),
        (Wanted(queue="mail"), True, True),
        (Wanted(error_group="0" * 16), True, False),
        (Wanted(since_ms=1), True, False),
        (Wanted(permanent=False), False, False),
        (Wanted(text="x"), False, False),
    ],
)
def test_what_an_index_finds_is_known(wanted: Wanted, in_index: bool, anything: bool) -> None:
    assert (wanted.is_in_index, wanted.is_anything) == (in_index, anything)


def canary(number: int) -> Canary:
    return Canary("default", f"{number:020}")


def test_one_goes_then_ten_then_the_rest() -> None:
    run = Replay(id="r", canary=True)
    went = []
    number = 0
    for _ in range(60):
        if run.may_send:
            number += 1
            run = run.went(canary(number))
        else:
            went.append(len(run.watched))
            for one in run.watched:
                run = run.ended_well(one)
    assert went == [1, 10]
    assert (run.retried, run.well, run.watched, run.may_send) == (number, 11, (), True)


def test_canaries_that_end_one_by_one_are_all_waited_for() -> None:
    run = Replay(id="r", canary=True, stage=1).went(canary(0)).ended_well(canary(0))
    assert (run.stage, run.sent, run.may_send) == (1, 1, True), "others may still go"
    for number in range(1, 10):
        assert run.may_send
        run = run.went(canary(number))
    for number in range(1, 10):
        assert not run.may_send
        run = run.ended_well(canary(number))
    assert run.may_send


def test_a_replay_without_canaries_waits_for_none() -> None:
    run = Replay(id="r")
    for number in range(20):
        run = run.went(canary(number))
    assert (run.may_send, run.watched, run.retried) == (True, (), 20)


def test_a_replay_without_a_leader_or_a_heartbeat_is_silent() -> None:
    led = Replay(id="r", heard_ms=NOW_MS, is_led=True)
    assert not led.is_silent(NOW_MS + SILENT_MS)
    assert led.is_silent(NOW_MS + SILENT_MS + 1)
    assert Replay(id="r", heard_ms=NOW_MS).is_silent(NOW_MS)
    assert not Replay(id="r", state="done", heard_ms=NOW_MS).is_silent(NOW_MS + SILENT_MS + 1)


@pytest.mark.parametrize(
    ("recent", "before", "expected"),
    [
        (0, 0, "quiet"),
        (0, 9, "quiet"),
        (1, 0, "rising"),
        (1, 24, "steady"),
        (2, 24, "rising"),
        (3, 48, "steady"),
        (4, 48, "rising"),
        (1, 48, "falling"),
    ],
)
def test_the_trend_is_the_last_hour_against_the_day_before(recent: int, before: int, expected: str) -> None:
    assert trend(recent, before) == expected
    assert trend(recent, before, is_new=True) == ("new" if recent and not before else expected)
