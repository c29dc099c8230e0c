"""What a job carries with it and takes as arguments: results of its parents, a reply, data too large for its body."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from relevo.model.ids import LENGTH
from relevo.model.job import Envelope
from relevo.store.edges import LACKING
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: What stands in an envelope that has something to fetch.
TAKES = frozenset({"one", "list", "reply", "claim"})

#: Results fetched per call.
_PART = 500


class InputLacking(Exception):
    """A result that the job takes as its argument was not kept."""


def bag(queue: QueueKeys, id: str) -> bytes:
    """The hash of what a job or a workflow carries with it; see include/hear.lua."""
    return queue.own("carried", id)


def exists(queue: QueueKeys, id: str) -> Call[int]:
    """1: it carries something; 0: nothing."""
    return Call([b"EXISTS", bag(queue, id)])


def claimed(queue: QueueKeys, id: str) -> Call[bytes | None]:
    """The data of a message that is too large to stand in its body; None: it is gone."""
    return Call([b"HGET", bag(queue, id), b"claim"])


def results(queue: QueueKeys, id: str) -> Generator[Call[Any], Any, list[bytes]]:
    """The results of its parents, in order. Those of members that never came to be are left out."""
    key = bag(queue, id)
    takes, late = yield Call([b"HMGET", key, b"takes", b"late"])
    names: list[str] = []
    if takes is not None:
        names = [f"#{i}" for i in range(1 if takes == b"one" else int(takes or 0))]
    if takes != b"one":
        joined = (late or b"").decode()
        names += ["#" + joined[i : i + LENGTH] for i in range(0, len(joined), LENGTH)]
    found: list[bytes] = []
    for start in range(0, len(names), _PART):
        found += [raw for raw in (yield Call([b"HMGET", key, *names[start : start + _PART]])) if raw is not None]
    return found


#: What of a bag a job needs wherever it runs: its inputs, and how far it came. All else is about where it was.
_NEEDED = re.compile(r"claim|takes|late|#.+|[sp]:.+", re.DOTALL)


def needed(known: Mapping[str, str]) -> dict[str, str]:
    """What of a bag goes with its job to another place."""
    return {name: value for name, value in known.items() if _NEEDED.fullmatch(name)}


def packed(queue: QueueKeys, id: str) -> Generator[Call[Any], Any, dict[str, str]]:
    """What a job needs of its bag, to go elsewhere."""
    found: dict[str, str] = {}
    cursor = b"0"
    while True:
        cursor, flat = yield Call([b"HSCAN", bag(queue, id), cursor, b"COUNT", _PART])
        texts = [part.decode(errors="replace") for part in flat]
        found |= zip(texts[::2], texts[1::2], strict=True)
        if cursor == b"0":
            return needed(found)


def is_complete(takes: str, known: Mapping[str, str]) -> bool:
    """Whether all is there that a job takes which says so in its envelope."""
    match takes:
        case "claim":
            return "claim" in known
        case "reply" | "one":
            return "#0" in known
        case "list":
            return "takes" in known or "late" in known
        case _:
            return True


def with_inputs(queue: QueueKeys, id: str, envelope: Envelope) -> Generator[Call[Any], Any, Envelope]:
    """The envelope with the results of the job's parents as its first argument."""
    if envelope.takes == "claim":
        data: bytes | None = yield claimed(queue, id)
        if data is None:
            raise InputLacking("the data that travelled beside the message is gone")
        return msgspec.structs.replace(envelope, kwargs=Raw(data), takes="claimed")
    if envelope.takes == "reply":
        reply: bytes | None = yield Call([b"HGET", bag(queue, id), b"#0"])
        if reply is None:
            raise InputLacking("the reply is gone")
        # Its one argument holds what the sender knew; what came of the message goes in front of that.
        return msgspec.structs.replace(
            envelope, args=Raw(b"[" + reply[:-1] + b"," + bytes(envelope.args)[2:]), takes="taken"
        )
    found = yield from results(queue, id)
    for raw in found:
        if raw.startswith(LACKING):
            raise InputLacking(raw.removeprefix(LACKING).decode(errors="replace"))
    if envelope.takes == "one":
        if not found:
            raise InputLacking("the result of the job before it is gone")
        first = found[0]
    else:
        first = b"[" + b",".join(found) + b"]"
    others = bytes(envelope.args)[1:]
    args = Raw(b"[" + first + (others if others == b"]" else b"," + others))
    return msgspec.structs.replace(envelope, args=args, takes="taken")
