"""Signatures: what they cover, whose are believed, and how keys are changed without losing anything."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from relevo.engine.job import Attempt, Envelope, Proof, Record, State, Story, read_envelope, write
from relevo.engine.message import Fault, Headers
from relevo.engine.signed_bodies import verify_body
from relevo.engine.signed_ends import (
    done_signature_field,
    input_of,
    passed_on,
    signed_record,
    verify_end,
    verify_record,
)
from relevo.errors import ConfigurationError, SettingsError
from relevo.settings import load
from relevo.signing import Keyring, Signer
from relevo.signing.signer import Kind

OLD, NEW = "old:0123456789abcdef", "new:fedcba9876543210"
ID, PLACE = "1m7hqsemvfd826nzz4ps", "relevo:dev:billing:actions"
HEADERS = Headers(source="shop", reply_to="relevo:dev:shop:callbacks", callback="2" * 20)


def signer(*keys: str, place: str = PLACE) -> Signer:
    return Signer(Keyring(keys or (OLD,)), place)


def body_of(envelope: Envelope, *, by: Signer | None = None, kind: Kind = "send", until: int | None = None) -> bytes:
    """A body as its sender writes it; `until`: as it is delivered to one subscriber."""
    by, text = by or signer(), write(envelope)[:-1]
    service = envelope.headers.source if envelope.headers else None
    topic = envelope.target if kind == "event" else ""
    end = b"}" if until is None else b',"x":%d}' % until
    return text + by.signature_field(kind, ID, text, service=service, topic=topic) + end


def verify(body: bytes, by: Signer | None = None, id: str = ID) -> str:
    """What a worker says of a body as it is stored."""
    return verify_body(by or signer(), id, body, read_envelope(body))


SEND = Envelope("billing.charge", headers=HEADERS, priority=50, tenant="acme", kwargs=msgspec.Raw(b'{"cents":990}'))
EVENT = Envelope("shop.sold", headers=Headers("event", "shop"), proof=Proof(made_ms=1_790_000_000_000))
HEARD_AT = "relevo:dev:mail:notifications:shop.*"
WHOLE: dict[str, tuple[bytes, Signer]] = {
    "a job": (body_of(Envelope("shop.pay", msgspec.Raw(b"[7]"), expires_ms=1), kind="job"), signer()),
    "a message": (body_of(SEND), signer()),
    "an event": (body_of(EVENT, kind="event", until=1_790_000_060_000), signer(place=HEARD_AT)),
}


# --- bodies


@pytest.mark.parametrize("what", WHOLE)
def test_a_body_is_believed_as_it_was_signed(what: str) -> None:
    body, by = WHOLE[what]
    assert verify(body, by) == ""
    assert verify(body, by, id="3" * 20), "stored once more under another id"
    assert verify(body, Signer(Keyring([OLD]), by.place.replace(":dev:", ":prod:"))), "in another env"
    assert verify(body, Signer(Keyring([OLD]), by.place.replace("relevo:", "other:"))), "under another prefix"


@pytest.mark.parametrize("what", WHOLE)
def test_no_byte_of_a_body_can_be_changed(what: str) -> None:
    """Each one is changed, removed and doubled; but of an event until when a subscriber wants it, which he knows."""
    body, by = WHOLE[what]
    signed = len(body) if what != "an event" else body.rindex(b',"x":')
    for at in range(signed):
        for changed in (bytes([body[at] ^ 1]), bytes([body[at] ^ 0x20]), b"", body[at : at + 1] * 2):
            _check_refused(body, body[:at] + changed + body[at + 1 :], by)


@given(some.data())
def test_a_body_that_was_changed_at_random_is_refused(data: some.DataObject) -> None:
    body, by = WHOLE[data.draw(some.sampled_from(["a job", "a message"]))]
    start = data.draw(some.integers(0, len(body)))
    end = data.draw(some.integers(start, len(body)))
    put = data.draw(
        some.one_of(some.binary(max_size=30), some.sampled_from([body[a : a + 9] for a in range(len(body))]))
    )
    _check_refused(body, body[:start] + put + body[end:], by)


def _check_refused(body: bytes, changed: bytes, by: Signer) -> None:
    try:
        envelope = read_envelope(changed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return  # a dead letter `unreadable`
    assert changed == body or verify_body(by, ID, changed, envelope)


FORGED = {
    "one more field": (b',"k":', b',"r":9,"k":'),
    "its data twice": (b'"k":{"cents":990}', b'"k":{"cents":990},"k":{"cents":1}'),
    "a field behind the signature": (b'"}', b'","k":{"cents":1}}'),
    "a deadline behind the signature": (b'"}', b'","x":1}'),
    "a second signature": (b',"k":', b',"s":"v2.send.old.x","k":'),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_message_that_was_added_to_is_refused(what: str) -> None:
    found, put = FORGED[what]
    head, _, tail = WHOLE["a message"][0].rpartition(found)
    assert verify(head + put + tail)


def test_a_message_belongs_on_a_queue_of_its_kind() -> None:
    for place in ("relevo:dev:billing:callbacks", "relevo:dev:billing:notifications:shop.*"):
        body = body_of(SEND, by=signer(place=place))
        assert "queue of" in verify(body, signer(place=place))
    # An event is signed for its topic, so the place of no queue keeps it from one: its intent does.
    assert "queue of actions" in verify(body_of(EVENT, kind="event"), signer(place="relevo:dev:shop:actions"))
    for pattern in ("shop.bought", "mail.*", "shop.sold.>"):
        elsewhere = signer(place=f"relevo:dev:mail:notifications:{pattern}")
        assert "does not belong here" in verify(body_of(EVENT, kind="event"), elsewhere)
    other = msgspec.structs.replace(EVENT, headers=Headers("event", "bank"))
    assert "does not belong here" in verify(body_of(other, kind="event"), signer(place=HEARD_AT))


KINDS: tuple[Kind, ...] = (
    "job",
    "request",
    "event",
    "callback",
    "report",
    "end",
    "schedule",
    "flow",
    "template",
    "late",
)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_signed_as_something_else_is_no_message(kind: Kind) -> None:
    assert kind in verify(body_of(SEND, kind=kind))
    renamed = body_of(SEND, kind=kind).replace(b'"s":"v2.%b.' % kind.encode(), b'"s":"v2.send.')
    assert "is wrong" in verify(renamed)


@pytest.mark.parametrize("signature", [
    "", ".", "v2", "v2.", "v2.send", "v2.send.", "v2.send.old", "v2.send.old.", "v2.send.old.é", "v2.send.OLD.00",
    "v2..old.00", "v3.send.old.00", "old.00", "\\u0000", "v2.send.new.00", "v2.send.old.\\u00e9", "v2.send.old.日本語",
])  # fmt: skip
def test_a_malformed_signature_is_refused(signature: str) -> None:
    assert verify(write(SEND)[:-1] + f',"s":"{signature}"}}'.encode())


def test_a_refusal_says_what_is_wrong() -> None:
    assert "bears no signature" in verify(write(SEND))
    earlier = write(SEND).replace(b'"t":"billing.charge"', b'"t":"billing.charge","s":"old.%b"' % (b"0" * 64))
    assert "an earlier release" in verify(earlier)
    assert "'new'" in verify(body_of(SEND, by=signer(NEW))) and "does not name here" in verify(
        body_of(SEND, by=signer(NEW))
    )
    assert "changed" in verify(WHOLE["a message"][0].replace(b"990", b"991"))


def test_a_signature_is_the_mac_that_the_documentation_describes() -> None:
    text = b'{"t":"shop.pay"'
    said = f"relevo signature 2\nold\njob\n{PLACE}\n{ID}\n".encode() + text
    mac = b64encode(hmac.new(b"0123456789abcdef", said, hashlib.sha256).digest())[:43].decode()
    assert signer().sign("job", ID, text) == f"v2.job.old.{mac}"


# --- ends


def test_no_part_of_an_end_can_be_changed() -> None:
    error = Attempt("failed", error="ValueError", message="below zero", traceback="line 7")
    dead = Record(State.DEAD, reason="permanent", story=Story((error,)), shows_traceback=True)
    done = Record(State.DONE, result=msgspec.Raw(b"7"))
    cancelled, expired = Record(State.CANCELLED, reason="no need"), Record(State.EXPIRED, reason="expired")
    changes: list[tuple[Record, dict[str, Any]]] = [
        (done, {"result": msgspec.Raw(b"8")}),
        (done, {"state": State.DEAD}),
        (dead, {"state": State.CANCELLED}),
        (dead, {"reason": "poison"}),
        (dead, {"story": Story((msgspec.structs.replace(error, message="above"),))}),
        (dead, {"story": Story((msgspec.structs.replace(error, traceback="line 8"),))}),
        (dead, {"shows_traceback": False}),
        (cancelled, {"reason": "dependency_failed"}),
        (cancelled, {"state": State.EXPIRED}),
        (expired, {"state": State.CANCELLED}),
    ]
    for record, change in changes:
        signed = signed_record(signer(), ID, record)
        assert verify_record(signer(), ID, signed) == ""
        assert verify_record(signer(), ID, msgspec.structs.replace(signed, **change)), change
        assert verify_record(signer(), "3" * 20, signed), "of another job"
        assert verify_record(signer(place="relevo:dev:billing:acme:actions"), ID, signed), "in another queue"
        assert verify_record(signer(), ID, msgspec.structs.replace(signed, signature=""))


def test_a_job_that_is_done_and_kept_no_result_cannot_be_made_one_that_failed() -> None:
    done = signed_record(signer(), ID, Record(State.DONE))
    assert done.signature.encode() in done_signature_field(signer(), ID, b"")
    last = Attempt("failed", error="PayloadError", message="its result was not kept")
    failed = Record(State.DEAD, reason="result_not_kept", story=Story((last,)), signature=done.signature)
    assert (
        verify_end(
            signer(), ID, "failed", b"", Fault("PayloadError", last.message, reason=failed.reason), failed.signature
        )
        == ""
    )
    assert verify_record(signer(), ID, failed)


def test_a_result_that_is_passed_on_is_of_one_job() -> None:
    text = passed_on(b"[7]", ID, PLACE, signer().sign("end", ID, b'["done",null]\n[7]'))
    keyring = Keyring([OLD])
    assert input_of(text).verify(keyring) == ""
    assert input_of(text).raw == b"[7]" == input_of(b"[7]").raw
    for changed in (text.replace(b"[7]", b"[8]"), text.replace(ID.encode(), b"3" * 20), text.replace(b"billing", b"b")):
        assert input_of(changed).verify(keyring)
    for garbage in (b"[7]", b"[7]\x1e", b"[7]\x1e[]", b'[7]\x1e["a","b","c"]', b"[7]\x1e\xff", b"[7]\x1e[1,2,3]"):
        assert input_of(garbage).verify(keyring)


# --- keys


def test_a_key_is_changed_in_three_steps() -> None:
    """Appended everywhere, so that all believe it; put in front everywhere; dropped. At no step is anything refused."""
    steps = [[OLD], [OLD, NEW], [NEW, OLD], [NEW]]
    assert [read_envelope(body_of(SEND, by=signer(*keys))).signature.split(".")[2] for keys in steps] == [
        "old", "old", "new", "new",
    ]  # fmt: skip
    for before, after in pairwise(steps):  # while a step is under way both are there
        for says, reads in ((before, after), (after, before)):
            assert verify(body_of(SEND, by=signer(*says)), signer(*reads)) == ""
    assert verify(body_of(SEND, by=signer(NEW, OLD)), signer(OLD)), "which is why it is not put in front at once"


OF_SHOP, OF_BANK = "shop:k1:0123456789abcdef", "bank:k1:fedcba9876543210"


def test_a_service_that_has_keys_is_believed_by_these_only() -> None:
    by = signer(OF_SHOP, OF_BANK, NEW)
    honest = body_of(SEND, by=by)
    assert (read_envelope(honest).signature.split(".")[2], verify(honest, by)) == ("shop:k1", "")
    text = write(SEND)[:-1]
    for service, whose in (
        ("bank", "'bank'"),
        ("mail", "that all share"),
    ):  # who holds another key says that he is shop
        forged = text + by.signature_field("send", ID, text, service=service) + b"}"
        assert whose in verify(forged, by) and "'shop'" in verify(forged, by)
    mail = msgspec.structs.replace(SEND, headers=Headers(source="mail"))
    assert verify(body_of(mail, by=by), by) == "", "who has no key of its own signs with the shared one"
    assert verify(body_of(mail, by=signer(NEW)), by) == ""
    assert verify(body_of(SEND, by=signer(NEW)), by), "but then it is nobody who has one"
    with pytest.raises(ConfigurationError, match="'mail'"):
        body_of(mail, by=signer(OF_SHOP, OF_BANK))


@pytest.mark.parametrize(
    "keys",
    [
        ["k1"], ["k1:short"], [":0123456789abcdef"], ["k.1:0123456789abcdef"], [7], "k1:short", 7, {"k1": "x" * 20},
        ["a:b:c:0123456789abcdef"], ["a b:k1:0123456789abcdef"],
    ],
)  # fmt: skip
def test_keys_that_cannot_be_are_refused_without_showing_them(keys: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        load(arguments={"signing_keys": keys}, environ={})
    assert "service:id:secret" in str(refused.value) or "a list of keys" in str(refused.value)
    assert "short" not in str(refused.value) and "0123456789abcdef" not in str(refused.value)


@pytest.mark.parametrize("first", ["k1", "shop:k1"])
def test_two_keys_of_one_name_are_refused(first: str) -> None:
    keys = [f"{first}:0123456789abcdef", f"{first}:fedcba9876543210"]
    with pytest.raises(SettingsError, match="a name of its own"):
        load(arguments={"signing_keys": keys}, environ={})
    shown = repr(load(arguments={"signing_keys": keys[:1]}, environ={}))
    assert f"{first}:***" in shown and "0123456789abcdef" not in shown
