"""Signatures: what they cover, whom we believe, and how keys are changed without losing a message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from relevo.bus.signing import Signer
from relevo.errors import SettingsError
from relevo.model.job import Envelope, read_envelope, write
from relevo.model.message import Headers
from relevo.settings import load

OLD, NEW = "old:0123456789abcdef", "new:fedcba9876543210"
ID = "1m7hqsemvfd826nzz4ps"
TYPE = "billing.charge"
HEADERS = Headers(source="shop", reply_to="relevo:test:shop:callbacks", callback="2" * 20)


def body_of(*, type: str = TYPE, data: bytes = b'{"cents":990}', headers: Headers | None = HEADERS) -> bytes:
    """As a sender writes it: without its closing brace, which the deadline may come before."""
    return write(Envelope(type, headers=headers, priority=50, group="acme"))[:-1] + b',"k":' + data


def is_good(signer: Signer, body: bytes, *, id: str = ID, beside: bytes = b"") -> bool:
    """What a worker asks of a body as it is stored."""
    envelope = read_envelope(body)
    return signer.is_good(id, envelope.target, envelope.signature, body, beside)


def stored(signer: Signer, *, deadline: bytes = b"", beside: bytes = b"", **of: Any) -> bytes:
    """As the server stores it."""
    return signer.signed(ID, of.get("type", TYPE), body_of(**of), beside) + deadline + b"}"


@pytest.mark.parametrize("deadline", [b"", b',"x":1790000000000'])
def test_a_signed_message_is_accepted_with_and_without_the_deadline_that_the_server_writes(deadline: bytes) -> None:
    body = stored(Signer([OLD]), deadline=deadline)
    assert is_good(Signer([OLD]), body)
    plain = read_envelope(body_of() + deadline + b"}")
    assert msgspec.structs.replace(read_envelope(body), signature="") == plain


@pytest.mark.parametrize("type", ["billing.charge", 'a."b', "\\", "ñandú.é", "a.b\n"])
def test_the_type_is_signed_with_any_characters(type: str) -> None:
    assert is_good(Signer([OLD]), stored(Signer([OLD]), type=type))


FORGED = {
    "its data": (b'"cents":990', b'"cents":991'),
    "its type": (b"billing.charge", b"billing.refund"),
    "its sender": (b'"f":"shop"', b'"f":"evil"'),
    "its answer's address": (b":shop:callbacks", b":evil:callbacks"),
    "its tenant": (b'"g":"acme"', b'"g":"evil"'),
    "its priority": (b'"p":50', b'"p":10'),
    "one more field": (b',"k":', b',"r":9,"k":'),
    "its data twice": (b'"k":{"cents":990}', b'"k":{"cents":990},"k":{"cents":1}'),
    "white space": (b',"k":', b', "k":'),
    "a deadline inside": (b',"k":', b',"x":1,"k":'),
    "two deadlines": (b"990}", b'990},"x":1'),
}


@pytest.mark.parametrize("what", FORGED)
@pytest.mark.parametrize("deadline", [b"", b',"x":1790000000000'])
def test_a_message_that_was_changed_is_refused(what: str, deadline: bytes) -> None:
    found, put = FORGED[what]
    body = stored(Signer([OLD]), deadline=deadline)
    assert body.count(found) == 1
    if what == "two deadlines" and not deadline:
        put = b'990},"x":1,"x":2'
    assert not is_good(Signer([OLD]), body.replace(found, put))


def test_a_signature_is_for_one_message_only() -> None:
    body = stored(Signer([OLD]))
    assert not is_good(Signer([OLD]), body, id="3" * 20), "stored once more under another id"


def test_the_deadline_alone_is_not_covered_because_the_server_writes_it() -> None:
    body = stored(Signer([OLD]), deadline=b',"x":1')
    assert is_good(Signer([OLD]), body.replace(b'"x":1', b'"x":1790000000000'))


@pytest.mark.parametrize("body", [body_of() + b"}", body_of().replace(b'"p":50', b'"s":"","p":50') + b"}"])
def test_a_message_without_a_signature_is_refused(body: bytes) -> None:
    assert not is_good(Signer([OLD]), body)


SIGNATURES = [
    "",
    ".",
    "old",
    "old.",
    ".00",
    "old.00",
    "older.00",
    "OLD.00",
    "old.00.00",
    "new.00",
    "\\u0000",
    "old.\\n",
]
SIGNATURES += ["old.é", "old.日本語", "old.\\u00e9"]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_malformed_signature_is_refused(signature: str) -> None:
    body = body_of().replace(b'"t":"billing.charge"', f'"t":"billing.charge","s":"{signature}"'.encode()) + b"}"
    assert not is_good(Signer([OLD]), body)


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_second_signature_does_not_hide_a_forged_body(at: str) -> None:
    good = stored(Signer([OLD]))
    mac = read_envelope(good).signature.encode()
    forged = good.replace(b"990", b"991")
    other = b',"s":"' + mac + b'"'
    body = forged[:-1] + other + b"}" if at == "after" else forged.replace(b',"s":', other + b',"s":', 1)
    assert not is_good(Signer([OLD]), body)


def test_the_first_key_signs_and_all_are_accepted() -> None:
    """Put a new key behind first, everywhere; then in front; then take the old one away."""
    before, knows_both, changed, after = Signer([OLD]), Signer([OLD, NEW]), Signer([NEW, OLD]), Signer([NEW])
    assert read_envelope(stored(knows_both)).signature.startswith("old.")
    assert read_envelope(stored(changed)).signature.startswith("new.")
    for sender, believers, doubters in [
        (before, (knows_both, changed), (after,)),
        (knows_both, (before, changed), (after,)),
        (changed, (knows_both, after), (before,)),
        (after, (knows_both, changed), (before,)),
    ]:
        assert all(is_good(one, stored(sender)) for one in (sender, *believers))
        assert not any(is_good(one, stored(sender)) for one in doubters)


def test_the_name_of_the_key_cannot_be_changed() -> None:
    """Two keys may share a secret by mistake; a signature is still of one of them. Here they do not."""
    body = stored(Signer([OLD])).replace(b'"old.', b'"new.')
    assert not is_good(Signer([OLD, NEW]), body)


def test_data_that_travels_beside_a_message_is_covered() -> None:
    signer = Signer([OLD])
    data = b'{"text":"' + b"x" * 1000 + b'"}'
    head = write(Envelope(TYPE, takes="claim", headers=HEADERS))[:-1]
    body = signer.signed(ID, TYPE, head, data) + b"}"
    assert is_good(signer, body, beside=data)
    for other in (data.replace(b"x", b"y", 1), data + b" ", b"{}", b"", b"null"):
        assert not is_good(signer, body, beside=other)
    plain = signer.signed(ID, TYPE, head) + b"}"
    assert not is_good(signer, plain, beside=data), "nor can data be laid beside one that had none"


def test_without_keys_nothing_is_signed_and_everything_is_accepted() -> None:
    signer = Signer([])
    assert not signer.is_on
    assert signer.signed(ID, TYPE, body_of()) == body_of()
    assert is_good(signer, body_of() + b"}")
    assert is_good(signer, stored(Signer([OLD]))), "also one that was signed"


@pytest.mark.parametrize("key", [OLD, "k1:a:b:c:ñ:0123456789"])
def test_a_key_of_the_same_name_and_another_secret_is_refused(key: str) -> None:
    assert is_good(Signer([key]), stored(Signer([key])))
    assert not is_good(Signer([key + "x"]), stored(Signer([key])))


@pytest.mark.parametrize(
    "keys",
    [["k1"], ["k1:short"], [":0123456789abcdef"], ["k.1:0123456789abcdef"], [7], "k1:short", 7, {"k1": "x" * 20}],
)
def test_keys_that_cannot_be_are_refused_without_showing_them(keys: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        load(arguments={"signing_keys": keys}, environ={})
    assert "name:secret" in str(refused.value)
    assert "short" not in str(refused.value) and "0123456789abcdef" not in str(refused.value)


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError):
        load(arguments={"signing_keys": ["k1:0123456789abcdef", "k1:fedcba9876543210"]}, environ={})
