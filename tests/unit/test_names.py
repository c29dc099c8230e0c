"""Names of queues: one queue, one name, and back again."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relevo.errors import OptionError
from relevo.text import names
from relevo.text.names import KINDS, Address, Kind, legacy_name, parse, parse_legacy, task_queue

UUID = "0b0f7e0e-5a3c-4c1e-9d8e-2f6a1c7b9d10"

# Any text that fits; the limit has tests of its own. A bare reserved word is drawn often, to try the parser.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16)
_DETAIL = st.one_of(_TEXT, st.sampled_from(KINDS), st.sampled_from(["default", "%3A", ":", "{}", "*", "a b"]))
_HEAD = st.one_of(_TEXT, st.sampled_from(["default", ":actions", "%61ctions", "{x}", "*"])).filter(
    lambda part: part not in KINDS
)


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    kind: Kind = draw(st.sampled_from(get_args(Kind)))
    detail = draw(st.lists(_DETAIL, max_size=3).map(tuple))
    assume(not detail or detail[-1] != "dead_letter")
    if kind == "dead_letter":
        detail = (draw(st.sampled_from(KINDS[:-1])), *detail)
    return Address(
        prefix=draw(st.one_of(st.just(""), _HEAD)),
        env=draw(st.one_of(st.just(""), _HEAD)),
        service=draw(_HEAD),
        context=draw(st.lists(_HEAD, max_size=3).map(tuple)),
        kind=kind,
        detail=detail,
    )


def read(address: Address) -> Address:
    return parse(str(address), prefix=bool(address.prefix), env=bool(address.env))


@given(addresses())
def test_every_address_is_read_back_from_its_name(address: Address) -> None:
    """Whatever the parts hold, the name gives them back."""
    assert read(address) == address
    assert read(address.dead_letter) == address.dead_letter
    assert not any(mark in str(address) for mark in "{} \t\n\u00a0\u2028\x00")


@given(st.text(st.sampled_from("actionsdead_letter:%{}41 é"), max_size=40))
def test_any_text_is_refused_or_stands_for_one_address(text: str) -> None:
    try:
        address = parse(text)
    except OptionError:
        return
    assert parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nooble4:dev:management:actions", ("management", (), "actions", ())),
        ("nooble4:dev:embedding:tenant_xyz:actions", ("embedding", ("tenant_xyz",), "actions", ())),
        (
            f"nooble4:dev:execution_service:responses:get_agent_config:{UUID}",
            ("execution_service", (), "responses", ("get_agent_config", UUID)),
        ),
        (
            "nooble4:dev:execution_service:tenant_abc:session_123:callbacks:query:rag_results",
            ("execution_service", ("tenant_abc", "session_123"), "callbacks", ("query", "rag_results")),
        ),
        (
            "nooble4:dev:ingestion_service:callbacks:embedding:task_987efg",
            ("ingestion_service", (), "callbacks", ("embedding", "task_987efg")),
        ),
        (
            "nooble4:dev:ingestion_service:notifications:document_processed",
            ("ingestion_service", (), "notifications", ("document_processed",)),
        ),
    ],
)
def test_the_names_of_the_standard_are_written_and_read_byte_for_byte(text: str, parts: Any) -> None:
    address = Address("nooble4", "dev", *parts)
    assert str(address) == text
    assert parse(text) == address


def test_a_task_queue_is_an_actions_queue_of_its_app() -> None:
    address = task_queue("relevo", "dev", "shop", "default")
    assert str(address) == "relevo:dev:shop:actions:default"
    assert address == Address("relevo", "dev", "shop", (), "actions", ("default",))


def test_prefix_and_env_may_be_left_out_where_the_reader_knows_it() -> None:
    assert str(Address("", "", "shop")) == "shop:actions"
    assert parse("shop:actions", prefix=False, env=False) == Address("", "", "shop")
    assert parse("a:b:c:actions") == Address("a", "b", "c")
    assert parse("a:b:c:actions", prefix=False) == Address("", "a", "b", ("c",))
    assert parse("a:b:c:actions", env=False) == Address("a", "", "b", ("c",))
    assert parse("a:b:c:actions", prefix=False, env=False) == Address("", "", "a", ("b", "c"))


def test_a_default_context_is_the_same_queue_as_none() -> None:
    spelt = Address("nooble4", "dev", "management", ("default",), "actions")
    assert spelt == Address("nooble4", "dev", "management") == parse("nooble4:dev:management:default:actions")
    assert hash(spelt) == hash(Address("nooble4", "dev", "management"))
    assert str(spelt) == "nooble4:dev:management:actions"
    assert str(Address("p", "e", "s", ("tenant", "default"))) == "p:e:s:tenant:default:actions"


@pytest.mark.parametrize(
    "spelling",
    [
        "nooble4:dev:management:actions:dead_letter",
        "nooble4:dev:management:default:actions:dead_letter",
        "nooble4:dev:management:dead_letter",
        "nooble4:dev:management:dead_letter:actions",
    ],
)
def test_all_spellings_of_a_dead_letter_queue_meet(spelling: str) -> None:
    queue = Address("nooble4", "dev", "management")
    assert parse(spelling) == queue.dead_letter
    assert str(parse(spelling)) == "nooble4:dev:management:dead_letter:actions"


def test_each_queue_has_its_own_dead_letter_queue() -> None:
    queue = task_queue("relevo", "dev", "shop", "mails")
    assert str(queue.dead_letter) == "relevo:dev:shop:dead_letter:actions:mails"
    assert parse("relevo:dev:shop:actions:mails:dead_letter") == queue.dead_letter
    assert queue.dead_letter.dead_letter == queue.dead_letter
    assert queue.dead_letter != task_queue("relevo", "dev", "shop", "default").dead_letter


@pytest.mark.parametrize("word", KINDS)
def test_a_reserved_word_is_refused_before_the_kind(word: str) -> None:
    for parts in (
        {"service": word},
        {"service": "s", "context": ("a", word)},
        {"service": "s", "prefix": word},
        {"service": "s", "env": word},
    ):
        with pytest.raises(OptionError, match=rf"'{word}' is a reserved word"):
            Address(**{"prefix": "p", "env": "e", **parts})  # type: ignore[arg-type]


def test_the_name_of_a_dead_letter_queue_is_not_taken_by_accident() -> None:
    with pytest.raises(OptionError, match="queue: 'dead_letter' is a reserved word"):
        task_queue("relevo", "dev", "shop", "dead_letter")
    with pytest.raises(OptionError, match=r"Use `\.dead_letter`"):
        Address("p", "e", "s", (), "notifications", ("dead_letter",))
    for detail in (("mails",), ("dead_letter", "x"), ("actions", "dead_letter")):
        with pytest.raises(OptionError, match=r"Use `\.dead_letter`"):
            Address("p", "e", "s", (), "dead_letter", detail)


@pytest.mark.parametrize(
    "text",
    [
        *("", "relevo", "relevo:dev:shop", "relevo:dev:shop:action", "actions", "dev:actions", "dev:shop:actions"),
        *(":dev:shop:actions", "relevo::shop:actions", "relevo:dev::actions", "relevo:dev:shop::actions"),
        *("relevo:dev:shop:actions:", "relevo:dev:shop:actions::x", "relevo:dev:my shop:actions"),
        *("{relevo:dev:shop:actions}", "relevo:dev:shop:actions:%", "relevo:dev:shop:actions:%4"),
        *("relevo:dev:shop:actions:%zz", "relevo:dev:shop:actions:%FF", "relevo:dev:shop:actions:%ED%A0%80"),
        *("relevo:dev:shop:actions:x\n", "relevo:dev:shop:actions:\ud800", "p:e:s:%61ctions:actions"),
    ],
)
def test_a_text_that_is_no_name_is_refused(text: str) -> None:
    """Empty parts are refused, and what is left is never guessed by position."""
    with pytest.raises(OptionError):
        parse(text)


@pytest.mark.parametrize("wrong", ["", "\ud800", "x" * 201, "é" * 101, " " * 67, None, 7, b"shop"])
def test_a_part_that_cannot_be_written_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"^service: "):
        Address("p", "e", wrong)
    with pytest.raises(OptionError, match=r"^queue: "):
        task_queue("p", "e", "s", wrong)
    with pytest.raises(OptionError, match=r"^task_id: "):
        legacy_name("d", "a", "t", wrong)


def test_a_part_may_have_two_hundred_bytes() -> None:
    for longest in ("x" * 200, "é" * 100, " " * 66 + "xx"):
        address = Address("p", "e", longest)
        assert read(address) == address


def test_a_wrong_kind_and_a_bare_text_as_context_are_refused() -> None:
    with pytest.raises(OptionError, match="did you mean 'actions'"):
        Address("p", "e", "s", (), "action")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"context: a tuple .* found 'tenant'"):
        Address("p", "e", "s", "tenant")  # type: ignore[arg-type]


def test_all_white_space_and_control_characters_are_encoded() -> None:
    """The set is spelt out in the source; it must cover what this Python calls space or control."""
    for number in range(sys.maxunicode + 1):
        char = chr(number)
        if char.isspace() or unicodedata.category(char) == "Cc":
            assert char not in names.encode(char, what="x"), hex(number)


def test_names_of_the_older_scheme_are_written_and_read() -> None:
    parts = ("execution", "agent_run", "professional", "12345")
    assert legacy_name(*parts) == "execution:agent_run:professional:12345"
    assert parse_legacy("execution:agent_run:professional:12345") == parts


@given(st.tuples(_DETAIL, _DETAIL, _DETAIL, _DETAIL))
def test_any_parts_come_back_from_a_name_of_the_older_scheme(parts: tuple[str, str, str, str]) -> None:
    assert parse_legacy(legacy_name(*parts)) == parts


@pytest.mark.parametrize("text", ["", "a:b:c", "a:b:c:d:e", "a::c:d", "a:b:c:", "a:b:c d:e", "a:b:c:%G0"])
def test_a_text_that_is_no_older_name_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_legacy(text)
