"""Topics of events, and the patterns of subscriptions.

A topic is a dotted name that begins with its publisher: `ingestion.document_processed`. In a pattern, `*` stands for
exactly one segment, and `>` at the end for one or more segments:

    ingestion.*                ingestion.started, ingestion.document_processed
    *.document.>               ingestion.document.parsed, archive.document.page.removed
    >                          everything
"""

from __future__ import annotations

import re
from typing import Any

from relevo.errors import OptionError

#: A topic is part of the name of a subscription's queue, and every key of that queue repeats it.
LONGEST = 200

#: Segments. Subscribers are found by enumerating all matching patterns, whose number doubles with each segment.
DEEPEST = 8

ONE = "*"
REST = ">"

_SEGMENT = re.compile(r"[A-Za-z0-9_-]+")
#: Wildcards of other systems for `>`.
_FOREIGN = ("**", "#")


def check_topic(topic: Any) -> str:
    """The topic, checked; OptionError if it is invalid."""
    for segment in _segments(topic, "topic", "ingestion.document_processed"):
        if ONE in segment or REST in segment:
            raise OptionError(
                f"topic: {topic!r:.80} has a wildcard. Events have one topic each; wildcards are for subscriptions."
            )
        _check(segment, topic, "topic")
    return str(topic)


def check_pattern(pattern: Any) -> str:
    """The pattern, checked; OptionError if it is invalid."""
    segments = _segments(pattern, "pattern", "ingestion.*")
    for place, segment in enumerate(segments, 1):
        if segment in _FOREIGN:
            raise OptionError(f"pattern: {pattern!r:.80} has {segment!r}. Write '>' at its end for all the rest.")
        if segment == REST and place < len(segments):
            raise OptionError(f"pattern: in {pattern!r:.80} something follows '>', which stands for all the rest.")
        if segment not in (ONE, REST):
            if ONE in segment or REST in segment:
                raise OptionError(
                    f"pattern: {pattern!r:.80} has {segment!r:.40}. A wildcard is a whole segment: "
                    "'*' for any one, '>' at the end for all the rest."
                )
            _check(segment, pattern, "pattern")
    return str(pattern)


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic matches a pattern. Scripts use bus/lua/include/topic.lua for the same."""
    wanted, found = pattern.split("."), topic.split(".")
    if wanted[-1] == REST:
        wanted.pop()
        if len(found) <= len(wanted):
            return False
    elif len(found) != len(wanted):
        return False
    return all(want in (ONE, have) for want, have in zip(wanted, found, strict=False))


def _segments(text: Any, what: str, example: str) -> list[str]:
    if not isinstance(text, str) or not text:
        raise OptionError(f"{what}: a dotted name such as {example!r} is needed, found {text!r:.80}.")
    if len(text) > LONGEST:
        raise OptionError(f"{what}: {text[:40]!r}… has {len(text)} characters, the limit is {LONGEST}.")
    segments = text.split(".")
    if len(segments) > DEEPEST:
        raise OptionError(f"{what}: {text!r:.80} has {len(segments)} segments, the limit is {DEEPEST}.")
    return segments


def _check(segment: str, text: str, what: str) -> None:
    if not segment:
        raise OptionError(f"{what}: {text!r:.80} has an empty segment. Put exactly one dot between two names.")
    if not _SEGMENT.fullmatch(segment):
        raise OptionError(f"{what}: {text!r:.80} has {segment!r:.40}. Use letters (a-z), digits, '_' and '-'.")
