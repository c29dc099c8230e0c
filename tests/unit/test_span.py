"""Spans: what they belong to, and the timeline of an operation made from them."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.bus.span import Span, timeline


def span(id: str, causation: str = "", *, sent_ms: int = 1000, attempt: int = 1, queue: str = "a:actions") -> Span:
    return Span(
        id=id,
        type=f"a.{id}",
        queue=queue,
        intent="send",
        causation=causation,
        sent_ms=sent_ms,
        attempt=attempt,
        correlation="operation",
    )


def rows_of(*spans: Span) -> list[tuple[int, str]]:
    """The timeline, by ids."""
    return [(depth, one.id) for depth, one in timeline(spans)]


# --- what it belongs to


def test_a_span_belongs_to_its_operation_its_conversation_and_its_message() -> None:
    one = Span(
        id="message",
        type="a.b",
        queue="a:actions",
        intent="send",
        conversation="chat",
        correlation="operation",
        causation="cause",
    )
    ids = ("message", "chat", "operation", "cause", "a.b", "other")
    assert [id for id in ids if one.belongs_to(id)] == ["message", "chat", "operation"]
    assert not msgspec.structs.replace(one, conversation="").belongs_to("chat")


def test_what_is_written_is_what_is_read() -> None:
    whole = Span(
        id="i",
        type="a.b",
        queue="a:actions",
        intent="event",
        source="shop",
        worker="w",
        tenant="acme",
        conversation="t",
        correlation="c",
        causation="u",
        attempt=3,
        sent_ms=1,
        started_ms=2,
        ended_ms=4,
        outcome="dead",
        error="é: \N{ROCKET} \\ \n",
    )
    for one in (whole, Span(id="i", type="a.b", queue="a:actions", intent="send")):
        assert msgspec.json.decode(msgspec.json.encode(one), type=Span) == one


# --- order and depth


def test_attempts_of_a_message_follow_each_other_at_one_depth() -> None:
    attempts = [span("2", "1", sent_ms=1005, attempt=n) for n in (3, 1, 2)]
    rows = timeline([*attempts, span("1")])
    assert [(depth, one.id, one.attempt) for depth, one in rows] == [(0, "1", 1), (1, "2", 1), (1, "2", 2), (1, "2", 3)]


def test_an_event_has_one_row_for_each_subscriber() -> None:
    rows = timeline([span("1"), *(span("2", "1", sent_ms=1001, queue=f"{name}:notifications:a.b") for name in "xyz")])
    assert sorted((depth, one.queue[0]) for depth, one in rows[1:]) == [(1, "x"), (1, "y"), (1, "z")]


def test_a_message_of_an_unknown_cause_is_at_the_top() -> None:
    assert rows_of(span("2", "gone"), span("3", "2", sent_ms=1001)) == [(0, "2"), (1, "3")]


@pytest.mark.parametrize("length", [1, 2, 3, 50])
def test_a_circle_of_causes_ends(length: int) -> None:
    """Only a foreign program writes one; the timeline must end all the same."""
    ids = [f"{n:03}" for n in range(length)]
    rows = rows_of(*(span(id, ids[(n + 1) % length], sent_ms=1000 + n) for n, id in enumerate(ids)))
    assert [id for _, id in rows] == ids
    assert all(0 <= depth < length for depth, _ in rows)


def test_the_longest_chain_is_shown_whole() -> None:
    many = [span(f"{n:05}", f"{n - 1:05}" if n else "", sent_ms=1000 + n) for n in range(1000)]
    assert rows_of(*random.sample(many, len(many))) == [(n, f"{n:05}") for n in range(1000)]


def test_a_cause_comes_first_also_in_the_same_millisecond_and_when_clocks_differ() -> None:
    assert timeline([]) == []
    assert rows_of(span("a", "z"), span("z")) == [(0, "z"), (1, "a")]
    rows = rows_of(span("1", sent_ms=5000), span("2", "1", sent_ms=4990), span("3", "2", sent_ms=5010))
    assert rows == [(0, "1"), (1, "2"), (2, "3")]


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_every_span_is_shown_once_one_level_below_its_cause(chance: random.Random, count: int) -> None:
    made: list[Span] = []
    for n in range(count):
        cause = chance.choice(made).id if made and chance.random() < 0.8 else ""
        made.append(span(f"{n:03}", cause, sent_ms=1000 + n))
    rows = timeline(chance.sample(made, count))
    assert [one for _, one in rows] == made
    depths = {one.id: depth for depth, one in rows}
    assert all(depths[one.id] == (depths[one.causation] + 1 if one.causation else 0) for one in made)
