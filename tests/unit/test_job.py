"""A job as it is stored: small, readable by the next version, and never forgetting how often it was tried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from relevo.engine.backoff import Backoff
from relevo.engine.job import (
    ATTEMPTS_TOLD,
    Attempt,
    Envelope,
    Record,
    State,
    Story,
    read_envelope,
    read_record,
    read_story,
    write,
)


def test_a_plain_body_holds_the_target_and_nothing_else() -> None:
    assert write(Envelope("shop.charge")) == b'{"t":"shop.charge"}'


def test_a_body_is_read_back() -> None:
    where = {"priority": 3, "tenant": "tenant", "weight": 2.5, "name": "charge-7", "tags": ("a", "b")}
    times = {"later_ms": 7, "expires_ms": 5, "timeout": 0.0, "result_ttl": 0.0, "failure_ttl": 60.0}
    retrying = {"retries": 0, "backoff": Backoff.linear("5s"), "on_failure": "shop.broken"}
    fields: dict[str, Any] = {**where, **times, **retrying}
    envelope = Envelope("shop.charge", Raw(b"[7]"), Raw(b'{"cents":990}'), **fields)
    assert read_envelope(write(envelope)) == envelope
    assert b'"d":7' in write(envelope), "the server reads it too"


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert read_envelope(b'{"t":"x","zz":[1,2,3]}') == Envelope("x")
    assert read_record(b'{"state":"done","zz":1}').state is State.DONE
    assert read_story(b'{"spent":1,"zz":1}').spent == 1


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"{}", b"\xff", b'{"t":"x"', b'{"t":1}', b'{"t":"x","p":-1}', b'{"t":"x","p":1024}'),
        *(b'{"t":"x","p":"high"}', b'{"t":"x","w":0}', b'{"t":"x","r":-1}', b'{"t":"x","o":-1}'),
        *(b'{"t":"x","ft":1e99}', b'{"t":"x","b":{"jitter":2}}'),
    ],
)
def test_a_malformed_body_is_refused(body: bytes) -> None:
    """Also one whose numbers the server could not take."""
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        read_envelope(body)


def test_a_record_is_read_back() -> None:
    record = Record(
        *(State.DEAD, "shop.charge", "0123456789abcdef", "running", "poison", "ValueError: no stock", "acme", "0.1.0"),
        *("00000000000000000007", 1, 2, "w1", 3),
        story=Story((Attempt("lost", "w1", 1, 2),), 1, 2, 3),
        body=Raw(b'{"t":"x",\n"a":[1]}'),  # of several lines, as another program may write it
        unreadable=b"\x00\xff",
    )
    assert read_record(write(record)) == record


HEAD = b'{"token":3,"edges":">c:x","state":"cancelled","target":"x","runs":0}'


@pytest.mark.parametrize("body", [b'{"t":"x"}', b'{"t":"x",\n"a":[1]}\n', b'{"t":"x","a":["' + b"y" * 2**20 + b'"]}'])
def test_a_body_behind_a_record_is_read_with_it(body: bytes) -> None:
    record = read_record(HEAD + b"\x1e" + body)
    assert (record.state, record.runs, bytes(record.body), record.unreadable) == (State.CANCELLED, 0, body, b"")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\n", b"not json", b'{"t":"x","a":[NaN]}', b'{"t":"x"}\x1e{"t":"y"}', b"\xff", b'{"t":1}'),
        *(b"[" * 100_000, b"\0"),
    ],
)
def test_bytes_after_a_record_that_are_no_body_are_kept(body: bytes) -> None:
    record = read_record(HEAD + b"\x1e" + body)
    assert (record.state, record.unreadable, bytes(record.body)) == (State.CANCELLED, body, b"")


def test_four_states_are_ends() -> None:
    assert {state for state in State if state.has_ended} == {"done", "dead", "cancelled", "expired"}


def test_a_history_keeps_the_newest_attempts_and_counts_all() -> None:
    story = Story()
    for n in range(100):
        story = story.with_attempt(Attempt("failed", started_ms=n), spent=1, crashes=n % 2)
    assert [attempt.started_ms for attempt in story.attempts] == list(range(100 - ATTEMPTS_TOLD, 100))
    assert (story.spent, story.crashes) == (100, 50)
