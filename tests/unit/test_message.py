"""Messages as values: their headers, what the next message inherits, and replies."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from msgspec import Raw

from relevo.bus.headers import DEEPEST, Sending, headers_of
from relevo.engine.job import Attempt, Envelope, Record, State, Story, read_envelope, write
from relevo.engine.message import Headers, Intent, Message, Reply
from relevo.engine.replies import fault_of, reply_of
from relevo.errors import BusError

NOW = 1_700_000_000_000
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

CARRIED = Headers(
    "request", "shop", "w1", "2", "free", "s1", "chat-7", "op-1", "cause-1", "relevo:dev:shop:responses:w1", "cb", 4,
    TRACE, "vendor=1",
)  # fmt: skip


def message(id: str, headers: Headers, *, type: str = "a.b", tenant: str = "", until: int | None = None) -> Message:
    return Message(id=id, type=type, attempt=1, tenant=tenant, deadline_ms=until, headers=headers)


def parent(carried: Headers = CARRIED, *, tenant: str = "acme") -> Message:
    """The message with these headers, as its handler sees it."""
    return message("m-1", carried, type="billing.charge", tenant=tenant, until=NOW)


def handed_on(
    said: Sending | None = None, carried: Headers = CARRIED, *, intent: Intent = "send", tenant: str = "acme"
) -> tuple[str, Headers]:
    """What a message inherits that `billing` sends while it works on one from `shop`."""
    work = parent(carried, tenant=tenant)
    return headers_of(said or Sending(), work, intent=intent, source="billing", instance="w2")


# --- headers


def test_headers_come_back_as_they_were_and_empty_ones_take_no_room() -> None:
    assert write(Envelope("a.b", headers=Headers())) == b'{"t":"a.b","m":{}}'
    assert read_envelope(write(Envelope("billing.charge", headers=CARRIED))).headers == CARRIED


def test_headers_of_a_newer_version_are_ignored_and_a_job_without_any_is_no_message() -> None:
    found = read_envelope(b'{"t":"a.b","m":{"f":"shop","zz":[1]}}')
    assert found.headers == Headers(source="shop")
    assert read_envelope(b'{"t":"a.b"}').headers is None


@pytest.mark.parametrize(
    "headers", [b"[]", b'"x"', b'{"o":"shout"}', b'{"d":"deep"}', b'{"f":7}', b'{"c":null}', b'{"d":1.5}']
)
def test_malformed_headers_make_a_body_unreadable(headers: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_envelope(b'{"t":"a.b","m":' + headers + b"}")


# --- a message as its handler sees it


def test_a_message_says_all_that_its_envelope_says() -> None:
    found = parent()
    expected = {
        "id": "m-1",
        "type": "billing.charge",
        "attempt": 1,
        "intent": "request",
        "source": "shop",
        "instance": "w1",
        "version": "2",
        "tenant": "acme",
        "tier": "free",
        "session": "s1",
        "conversation_id": "chat-7",
        "correlation_id": "op-1",
        "causation_id": "cause-1",
        "reply_to": "relevo:dev:shop:responses:w1",
        "deadline_ms": NOW,
        "traceparent": TRACE,
        "tracestate": "vendor=1",
    }
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_first_message_of_an_operation_gives_it_its_id() -> None:
    first = message("m-1", Headers())
    assert (first.correlation_id, first.conversation_id, first.causation_id) == ("m-1", "m-1", "")
    of_none = message("m-1", Headers(correlation="op-1"))
    assert of_none.conversation_id == "op-1"


# --- what is handed on


@pytest.mark.parametrize("intent", get_args(Intent))
def test_a_message_of_a_handler_inherits_its_operation(intent: Intent) -> None:
    tenant, headers = handed_on(intent=intent)
    assert tenant == "acme"
    assert headers == Headers(
        intent=intent,
        source="billing",
        instance="w2",
        tier="free",
        session="s1",
        conversation="chat-7",
        correlation="op-1",
        causation="m-1",
        depth=5,
        traceparent=TRACE,
        tracestate="vendor=1",
    )


def test_the_operation_of_the_first_message_is_handed_on_by_its_id() -> None:
    _, headers = handed_on(carried=Headers(source="shop"))
    assert (headers.correlation, headers.causation, headers.depth) == ("m-1", "m-1", 1)


def test_given_headers_win_over_inherited_ones() -> None:
    given: dict[str, Any] = {
        "tier": "enterprise",
        "session": "s2",
        "conversation": "chat-8",
        "version": "3",
        "traceparent": "00-1-2-01",
    }
    tenant, headers = handed_on(Sending(tenant="other", correlation_id="op-2", **given))
    _, inherited = handed_on()
    assert tenant == "other"
    assert headers == msgspec.structs.replace(inherited, correlation="op-2", **given)


def test_an_empty_header_wins_over_the_inherited_one() -> None:
    """An empty text is an answer: this message belongs to no tenant, to no session."""
    tenant, headers = handed_on(Sending(tenant="", tier="", session="", conversation="", traceparent=""))
    assert (tenant, headers.tier, headers.session, headers.conversation, headers.traceparent) == ("", "", "", "", "")
    assert headers.correlation == "op-1", "but it always belongs to the operation"


def test_a_message_sent_outside_a_handler_inherits_nothing() -> None:
    own = Sending(tenant="acme", tier="free", session="s1", correlation_id="op-9", version="2", traceparent=TRACE)
    tenant, headers = headers_of(own, None, intent="request", source="shop", instance="p1")
    assert tenant == "acme"
    assert headers == Headers("request", "shop", "p1", "2", "free", "s1", "", "op-9", traceparent=TRACE)
    nothing = headers_of(Sending(), None, intent="send", source="shop", instance="p1")
    assert nothing == ("", Headers("send", "shop", "p1"))


@pytest.mark.parametrize(("correlation", "expected"), [(None, "chat-7"), ("op-1", "op-1")])
def test_the_conversation_is_the_operation_unless_another_is_named(correlation: str | None, expected: str) -> None:
    own = Sending(conversation="chat-7", correlation_id=correlation)
    _, headers = headers_of(own, None, intent="send", source="a", instance="p")
    assert (headers.conversation, headers.correlation) == ("chat-7", expected)


def test_messages_cannot_cause_messages_for_ever() -> None:
    carried = CARRIED
    for depth in range(CARRIED.depth + 1, DEEPEST + 1):
        _, carried = handed_on(carried=carried)
        assert carried.depth == depth
    with pytest.raises(BusError, match=rf"{DEEPEST} times over, the last one billing.charge: is it a circle"):
        handed_on(carried=carried)


def test_a_chain_of_messages_keeps_the_headers_of_its_first() -> None:
    own = Sending(
        tenant="acme", tier="free", session="s1", conversation="chat-7", correlation_id="op-1", traceparent=TRACE
    )
    tenant, headers = headers_of(own, None, intent="send", source="a", instance="p")
    causes = []
    for n in range(10):
        causes.append(headers.causation)
        working_on = message(f"m{n}", headers, tenant=tenant)
        tenant, headers = headers_of(Sending(), working_on, intent="send", source=f"s{n}", instance="p")
    assert causes == ["", *(f"m{n}" for n in range(9))]
    assert (tenant, headers.tier, headers.session, headers.conversation) == ("acme", "free", "s1", "chat-7")
    assert (headers.correlation, headers.traceparent, headers.depth) == ("op-1", TRACE, 10)


# --- what an end says


def ended(state: State, reason: str = "", *attempts: Attempt, **more: Any) -> Record:
    return Record(state, "a.b", reason=reason, story=Story(attempts=attempts), **more)


def test_a_fault_has_the_error_of_the_last_attempt() -> None:
    first, last = Attempt("failed", error="KeyError", message="7"), Attempt("failed", error="ValueError", message="no")
    fault = fault_of(ended(State.DEAD, "retries_exhausted", first, last))
    assert (fault.type, fault.message, fault.reason, fault.retryable) == ("ValueError", "no", "retries_exhausted", True)
    assert fault.traceback == ""


def test_a_fault_says_whether_to_try_again() -> None:
    reasons = ("retries_exhausted", "poison", "permanent", "bad_arguments", "unknown_task", "unreadable", "")
    faults = {reason: fault_of(ended(State.DEAD, reason, Attempt("failed", error="E"))) for reason in reasons}
    assert [reason for reason in reasons if faults[reason].retryable] == ["retries_exhausted", "poison"]


def test_a_fault_without_an_attempt_is_named_by_its_reason_or_its_state() -> None:
    assert fault_of(ended(State.DEAD, "unreadable")).type == "unreadable"
    assert fault_of(ended(State.EXPIRED)).type == "expired"


@pytest.mark.parametrize(
    ("state", "status"),
    [(State.DEAD, "failed"), (State.CANCELLED, "cancelled")],
)
def test_a_reply_about_what_did_not_go_well_has_an_error_and_no_result(state: State, status: str) -> None:
    reply = reply_of(ended(state, "because"))
    assert (reply.status, reply.result, reply.ok, reply.is_final) == (status, None, False, True)
    assert reply.error is not None
    assert reply.error.reason == "because"


def test_a_reply_of_success_has_the_result_as_it_was_encoded() -> None:
    reply = reply_of(ended(State.DONE, result=Raw(b'{"n": 1.0}')))
    assert reply.ok
    assert write(reply) == b'{"status":"done","result":{"n": 1.0}}'


def test_a_result_that_was_not_kept_is_a_failure_and_not_a_none() -> None:
    reply = reply_of(ended(State.DONE, not_kept="it was too large"))
    assert (reply.status, reply.ok) == ("failed", False)
    assert reply.error is not None
    assert (reply.error.type, reply.error.message) == ("PayloadError", "it was too large")
    assert reply_of(ended(State.DONE)).error is not None


def test_only_a_progress_report_is_not_final() -> None:
    assert not Reply(status="progress").is_final
    assert not Reply(status="progress").ok
    assert Reply(status="timeout").is_final
