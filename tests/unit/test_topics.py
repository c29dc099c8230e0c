"""Topics and the patterns that stand for them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo.engine.topics import DEEPEST, LONGEST, check_pattern, check_topic, matches
from relevo.errors import OptionError
from relevo.text.names import Address, parse

#: Few different segments, so that many pairs match.
_SEGMENT = st.sampled_from(["a", "b", "A", "a-b", "a_b", "-", "_", "7"])
TOPICS = st.lists(_SEGMENT, min_size=1, max_size=5).map(".".join)
_WANTED = st.lists(st.one_of(_SEGMENT, st.just("*")), max_size=5)
PATTERNS = st.one_of(
    _WANTED.filter(bool).map(".".join),
    _WANTED.map(lambda segments: ".".join([*segments, ">"])),
)


def naive(pattern: str, topic: str) -> bool:
    """The definition as a regular expression."""
    parts = {"*": r"[^.]+", ">": r"[^.]+(\.[^.]+)*"}
    spelt = r"\.".join(parts.get(segment, re.escape(segment)) for segment in pattern.split("."))
    return re.fullmatch(spelt, topic) is not None


@given(PATTERNS, TOPICS)
@example("a.>", "a")
@example(">", "a")
@example("*", "a.b")
@example("a-b", "a.b")
def test_a_pattern_matches_by_its_definition(pattern: str, topic: str) -> None:
    assert check_pattern(pattern) == pattern
    assert check_topic(topic) == topic
    assert matches(pattern, topic) is naive(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("ingestion.document_processed", ["ingestion.document_processed"], ["ingestion.document", "ingestion"]),
        ("ingestion.*", ["ingestion.started"], ["ingestion", "ingestion.document.parsed", "archive.started"]),
        ("*.document.>", ["a.document.b", "a.document.b.c"], ["a.document", "document.b", "a.b.document.c"]),
        (">", ["a", "a.b", "a.b.c"], []),
    ],
)
def test_wildcards_stand_for_one_segment_or_all_the_rest(pattern: str, yes: list[str], no: list[str]) -> None:
    assert all(matches(pattern, topic) for topic in yes)
    assert not any(matches(pattern, topic) for topic in no)


BAD = ["", ".", "a.", ".a", "a..b", "a b", "a:b", "a/b", "é", "a\n", "a.b\n", "{a}", "a%2Eb", '"', None, 7, ["a"], b"a"]


@pytest.mark.parametrize("bad", BAD)
def test_a_malformed_name_is_refused_for_topics_and_patterns(bad: Any) -> None:
    with pytest.raises(OptionError, match=r"^topic: "):
        check_topic(bad)
    with pytest.raises(OptionError, match=r"^pattern: "):
        check_pattern(bad)


@pytest.mark.parametrize("topic", ["*", "a.*", "a.>", "a*"])
def test_a_topic_with_a_wildcard_is_refused(topic: str) -> None:
    with pytest.raises(OptionError, match="wildcards are for subscriptions"):
        check_topic(topic)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a.**", "Write '>' at its end"),
        ("a.#", "Write '>' at its end"),
        ("a.>.b", "something follows '>'"),
        (">.>", "something follows '>'"),
        ("a.b*", "A wildcard is a whole segment"),
        ("a.>b", "A wildcard is a whole segment"),
        ("***", "A wildcard is a whole segment"),
    ],
)
def test_a_wildcard_in_a_wrong_place_is_refused_with_the_right_one(pattern: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("longest", "more", "why"),
    [
        ("a" * LONGEST, "a", f"{LONGEST + 1} characters, the limit is {LONGEST}"),
        (".".join("a" * DEEPEST), ".a", f"{DEEPEST + 1} segments, the limit is {DEEPEST}"),
    ],
    ids=["characters", "segments"],
)
def test_a_name_at_the_limit_is_taken_and_one_above_is_not(longest: str, more: str, why: str) -> None:
    for check in (check_topic, check_pattern):
        assert check(longest) == longest
        with pytest.raises(OptionError, match=why):
            check(longest + more)


@given(PATTERNS)
def test_a_pattern_can_be_part_of_the_name_of_a_queue(pattern: str) -> None:
    name = str(Address("", "", "mail", (), "notifications", (pattern,)))
    assert name == f"mail:notifications:{pattern}", "nothing in it needs another spelling"
    assert parse(name, prefix=False, env=False).detail == (pattern,)
