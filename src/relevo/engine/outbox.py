"""The relay: carries letters from the queue in which something ended to the queues that must hear of it.

A letter is written in the step that causes it and removed after it was delivered, so it is delivered at least once,
whoever dies in between, and hearing it twice changes nothing. Any process may relay: the worker that settled a job, a
client that cancelled one, and whoever comes by later if they could not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from relevo.engine.edges import GATE, Report, edges_of, label, letter_of
from relevo.engine.job_store import record_of
from relevo.engine.push import CHUNK_BYTES, KEEP_MS
from relevo.engine.signed_ends import cancelled_by_hand, verify_record
from relevo.errors import ConfigurationError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

log = logging.getLogger("relevo.relay")

#: How long a taken errand is ours. Short: delivering takes milliseconds, and when the taker dies, nobody comes sooner.
ERRAND_MS = 2_000
#: Letters per round, and reports per call: no script is long.
LETTERS = 100
REPORTS = 100

#: Ends of a parent for which its children are cancelled.
_FAILED = ("dead", "cancelled", "expired")


#: How the name of a letter ends that holds plain members of a workflow.
MEMBERS = ".members"
#: How a letter begins that starts a workflow.
STARTS = b"start\n"

KeysOf = Callable[[str], QueueKeys]


class Carrier(NamedTuple):
    """Delivers the outbox messages of a feature."""

    #: Reads one; ValueError: it is none.
    read: Callable[[bytes], Any]
    deliver: Callable[[KeysOf, list[Any]], Generator[Call[Any], Any, None]]


#: By the first line of their messages. The features add theirs.
CARRIERS: dict[bytes, Carrier] = {}
#: Verifies the failed end of a job with this target whose record a script wrote; answers what is wrong with it, ''
#: if nothing is. The feature that makes such jobs adds it.
VERIFIERS: dict[str, Callable[[KeysOf, QueueKeys, str, str], Generator[Call[Any], Any, str]]] = {}


class Errands(Struct, frozen=True):
    """What was taken from a queue's errands."""

    now_ms: int
    ids: list[str]
    texts: list[bytes]
    #: When the next one is due; 0: there is none.
    next_ms: int


def take_errands(queue: QueueKeys, finished: Sequence[str] = (), *, ticks: bool = False) -> Call[Errands]:
    """Report letters as delivered and take the next; `ticks`: schedules whose time has come, too, as `@name`."""
    script = queue.script("engine/take_outbox")

    def decode(reply: list[Any]) -> Errands:
        now, ids, texts, following = reply
        return Errands(now, [id.decode() for id in ids], texts, following)

    return Call([ERRAND_MS, LETTERS, int(ticks), *finished], decode, script, queue.of(script))


def hear(
    queue: QueueKeys,
    reports: Sequence[Report],
    dead_max: int,
    gates: Sequence[str] = (),
    *,
    start: str = "",
    start_ms: int = 0,
) -> Call[tuple[int, bool]]:
    """Tell children in this queue of their parents: how much of it was news, whether there is more to relay from here.

    `gates` are letters that need not be delivered any more; `start` is posted if the first report is news;
    it is due after `start_ms`.
    """
    script = queue.script("workflows/notify_dependents")
    args: list[Argument] = [KEEP_MS, 0, dead_max, start, start_ms, len(gates), *gates]
    for one in reports:
        args += (one.child, one.parent, one.number, one.state, one.policy, one.index, one.input, one.signature)
    return Call(args, lambda reply: (reply[0], bool(reply[1])), script, queue.of(script))


def hear_all(
    queue: QueueKeys, reports: Sequence[Report], dead_max: int, gates: Sequence[str] = ()
) -> Generator[Call[Any], Any, bool]:
    """Tell any number of reports, in calls that are bounded in rows and bytes: whether there is more to relay."""
    more = False
    start = size = 0
    for i, one in enumerate(reports):
        if i > start and (i - start >= REPORTS or size + len(one.input) > CHUNK_BYTES):
            more |= (yield hear(queue, reports[start:i], dead_max))[1]
            start, size = i, 0
        size += len(one.input)
    if reports or gates:
        more |= (yield hear(queue, reports[start:], dead_max, gates))[1]
    return more


def opened(ids: Sequence[str]) -> list[Report]:
    """The reports that open the gates of jobs."""
    return [Report(id, GATE, 1, "done") for id in ids]


def open_gates(keys_of: KeysOf, gates: Sequence[tuple[str, str]], dead_max: int) -> Generator[Call[Any], Any, set[str]]:
    """Let go what waits behind (queue, letter)s: queues from which there is something to relay now."""
    onward = set()
    for queue, letter in gates:
        keys = keys_of(queue)
        if letter.endswith(MEMBERS):
            yield start_members(keys, letter)
            continue
        text: bytes | None = yield Call([b"HGET", keys.key("letters"), letter])
        if text is not None:  # else somebody has done it, or it was too late
            ids = [edge.child for edge in edges_of(text.decode(errors="replace"))]
            if (yield from hear_all(keys, opened(ids), dead_max, [letter])):
                onward.add(queue)
    return onward


def start_members(queue: QueueKeys, letter: str) -> Call[int]:
    """Start plain members of a workflow that one call has stored: how many."""
    script = queue.script("workflows/start_members")
    return Call([letter], int, script, queue.of(script))


def start_letter(gates: Sequence[tuple[str, str]]) -> str:
    """The letter that opens (queue, letter)s, once all members of a workflow are stored."""
    return STARTS.decode() + " ".join(f"{letter} {label(queue)}" for queue, letter in gates)


def _gates(text: bytes) -> list[tuple[str, str]]:
    words = text.removeprefix(STARTS).decode().split()
    return [(unquote(queue), letter) for letter, queue in zip(words[::2], words[1::2], strict=True)]


def deliver(
    keys_of: KeysOf, source: QueueKeys, letters: Iterable[tuple[str, bytes]], dead_max: int
) -> Generator[Call[Any], Any, tuple[list[str], set[str]]]:
    """Carry letters from a queue to where they lead: ids of those that are finished, queues with more to relay now."""
    finished: list[str] = []
    by_queue: dict[str, list[Report]] = {}
    of_features: dict[bytes, list[Any]] = {}
    onward: set[str] = set()
    for id, text in letters:
        try:
            if text.startswith(STARTS):
                onward |= yield from open_gates(keys_of, _gates(text), dead_max)
            elif (kind := text.partition(b"\n")[0] + b"\n") in CARRIERS:
                of_features.setdefault(kind, []).append(CARRIERS[kind].read(text))
            else:
                told = letter_of(text).reports(source.place)
                for queue, _ in told:
                    keys_of(queue)  # refuses a name that cannot be one
                if source.signer is not None:
                    told = yield from vouched(keys_of, source, told)
                for queue, report in told:
                    by_queue.setdefault(queue, []).append(report)
        except (ValueError, ConfigurationError):  # somebody else wrote it; it must not be in the way for ever
            log.error("letter %s cannot be read and is dropped: %.200r", id, text)
        finished.append(id)
    for kind, theirs in of_features.items():
        yield from CARRIERS[kind].deliver(keys_of, theirs)
    for queue, reports in by_queue.items():
        if (yield from hear_all(keys_of(queue), reports, dead_max)):
            onward.add(queue)
    return finished, onward


def vouched(
    keys_of: KeysOf, source: QueueKeys, told: list[tuple[str, Report]]
) -> Generator[Call[Any], Any, list[tuple[str, Report]]]:
    """Reports of one parent, signed where they cancel a child, if a signed record says that the parent ended so.

    The script that cancels the child cannot sign, and whoever waits for the child believes no unsigned end.
    """
    first = next((report for _, report in told if _cancels(report)), None)
    if first is None or source.signer is None:
        return told
    text: bytes | None = yield Call([b"GET", source.own("ended", first.parent)])
    record = record_of(text or b"")
    verify = VERIFIERS.get(record.target) if first.state in _FAILED else None
    if verify is not None:
        error = yield from verify(keys_of, source, first.parent, first.state)
    else:
        error = verify_record(source.signer, first.parent, record)
    if record.state != first.state or error:
        return told
    return [(queue, _signed(keys_of(queue), report) if _cancels(report) else report) for queue, report in told]


def _cancels(report: Report) -> bool:
    return report.state == "done" if report.policy == "f" else report.policy in "cC" and report.state in _FAILED


def _signed(queue: QueueKeys, report: Report) -> Report:
    reason = (
        "not_needed" if report.policy == "f" else "dependency_failed"
    )  # as workflows/lua/include/dependents.lua writes it
    return msgspec.structs.replace(report, signature=cancelled_by_hand(queue.signer, report.child, reason))


def relay(keys_of: KeysOf, queues: Iterable[str], dead_max: int) -> Generator[Call[Any], Any, int]:
    """Deliver all letters of these queues that are due, and those that this causes elsewhere: how many there were."""
    pending, delivered = set(queues), 0
    while pending:
        queue = pending.pop()
        finished: list[str] = []
        while True:
            taken: Errands = yield take_errands(keys_of(queue), finished)
            if not taken.ids:
                break
            letters = zip(taken.ids, taken.texts, strict=True)
            finished, onward = yield from deliver(keys_of, keys_of(queue), letters, dead_max)
            pending |= onward - {queue}
            delivered += len(finished)
    return delivered
