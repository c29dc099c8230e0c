"""What a job carries with it and takes as arguments: results of its parents, a reply, data too large for its body."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from relevo.engine.edges import LACKING
from relevo.engine.ids import LENGTH
from relevo.engine.job import Envelope, Proof
from relevo.engine.signed_bodies import Parent, digest_of, digest_of_parents
from relevo.engine.signed_ends import Input, input_of, verify_late
from relevo.signing import Signer
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: What stands in an envelope that has something to fetch.
TAKES = frozenset({"one", "list", "reply", "claim"})

#: Whether results are those of the right jobs, in the right order.
AreWanted: TypeAlias = Callable[[list[Parent]], bool]

#: Results fetched per call.
_PART = 500


class InputLacking(Exception):
    """What the job takes as its argument is not there, or (`bad_signature`) is not what it should be."""

    def __init__(self, message: str, reason: str = "input_lacking") -> None:
        super().__init__(message)
        self.reason = reason
        self.error = "InputLacking" if reason == "input_lacking" else ""


def bag(queue: QueueKeys, id: str) -> bytes:
    """The hash of what a job or a workflow carries with it; see workflows/lua/include/dependents.lua."""
    return queue.own("carried", id)


def exists(queue: QueueKeys, id: str) -> Call[int]:
    """1: it carries something; 0: nothing."""
    return Call([b"EXISTS", bag(queue, id)])


def claimed(queue: QueueKeys, id: str) -> Call[bytes | None]:
    """The data of a message that is too large to stand in its body; None: it is gone."""
    return Call([b"HGET", bag(queue, id), b"claim"])


def results(queue: QueueKeys, id: str, are_wanted: AreWanted | None = None) -> Generator[Call[Any], Any, list[bytes]]:
    """The results of its parents, in order. Those of members that never came to be are left out.

    `are_wanted`: where results are signed, whether these are the jobs whose results it takes.
    """
    key = bag(queue, id)
    takes, late = yield Call([b"HMGET", key, b"takes", b"late"])
    own: list[str] = []
    if takes is not None:
        own = [f"{i}" for i in range(1 if takes == b"one" else int(takes or 0))]
    joined = (late or b"").decode() if takes != b"one" else ""
    members = [joined[i : i + LENGTH] for i in range(0, len(joined), LENGTH)]
    texts = yield from _fields(queue, id, "#", [*own, *members])
    found = {name: input_of(text) for name, text in zip([*own, *members], texts, strict=True) if text is not None}
    for one in found.values():
        if one.raw.startswith(LACKING):
            raise InputLacking(one.raw.removeprefix(LACKING).decode(errors="replace"))
    if queue.signer is not None and are_wanted is not None:
        if takes is None or any(name not in found for name in own):
            raise InputLacking("a result that it takes is gone")
        let_in = {name: found[name] for name in members if name in found}
        yield from _refuse_forged(queue, queue.signer, id, [found[name] for name in own], let_in, are_wanted)
    return [one.raw for one in found.values()]


def _fields(
    queue: QueueKeys, id: str, kind: str, names: Sequence[str]
) -> Generator[Call[Any], Any, list[bytes | None]]:
    found: list[bytes | None] = []
    for start in range(0, len(names), _PART):
        found += yield Call([b"HMGET", bag(queue, id), *(kind + name for name in names[start : start + _PART])])
    return found


def _refuse_forged(
    queue: QueueKeys, signer: Signer, id: str, own: Sequence[Input], let_in: Mapping[str, Input], are_wanted: AreWanted
) -> Generator[Call[Any], Any, None]:
    """Refuse results that are not signed, and those of other jobs than it waits for and than were let in."""
    errors = [one.verify(signer.keyring) for one in (*own, *let_in.values())]
    if not are_wanted([(one.parent, one.place) for one in own]):
        errors.append("a result that it takes is not that of a job it waits for")
    proofs = yield from _fields(queue, id, "l:", list(let_in))
    for (name, one), proof in zip(let_in.items(), proofs, strict=True):
        errors.append(verify_late(signer, id, name, one, (proof or b"").decode(errors="replace")))
    if error := next(filter(None, errors), ""):
        raise InputLacking(error, "bad_signature")


#: What of a bag a job needs wherever it runs: its inputs, and how far it came. All else is about where it was.
_NEEDED = re.compile(r"claim|takes|late|#.+|[lsp]:.+", re.DOTALL)


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
        proof = envelope.proof or Proof()
        if queue.signer is not None and proof.data != digest_of(data):
            raise InputLacking("the data that travelled beside the message was changed", "bad_signature")
        return msgspec.structs.replace(envelope, kwargs=Raw(data), takes="claimed")
    if envelope.takes == "reply":
        reply: bytes | None = yield Call([b"HGET", bag(queue, id), b"#0"])
        if reply is None:
            raise InputLacking("the reply is gone")
        # Its one argument holds what the sender knew; what came of the message goes in front of that.
        return msgspec.structs.replace(
            envelope, args=Raw(b"[" + reply[:-1] + b"," + bytes(envelope.args)[2:]), takes="taken"
        )
    wanted = envelope.proof.parents if envelope.proof is not None else ""
    found = yield from results(queue, id, lambda parents: digest_of_parents(parents) == wanted)
    if envelope.takes == "one":
        if not found:
            raise InputLacking("the result of the job before it is gone")
        first = found[0]
    else:
        first = b"[" + b",".join(found) + b"]"
    others = bytes(envelope.args)[1:]
    args = Raw(b"[" + first + (others if others == b"]" else b"," + others))
    return msgspec.structs.replace(envelope, args=args, takes="taken")
