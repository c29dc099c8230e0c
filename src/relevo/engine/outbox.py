"""The outbox: messages from the queue in which a job ended to the queues that depend on it, and their delivery.

An outbox message is written in the step that causes it and removed after its delivery. So it is delivered at least
once, whatever process is killed, and a second delivery changes nothing. Any process may deliver: the worker that
settled the job, the client that cancelled it, or a later worker if they could not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from relevo.engine.edges import GATE, Report, edges_of, label, outbox_message
from relevo.engine.job_store import record_of
from relevo.engine.push import CHUNK_BYTES, KEEP_MS
from relevo.engine.signed_ends import cancelled_by_hand, verify_record
from relevo.errors import ConfigurationError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

log = logging.getLogger("relevo.relay")

#: How long a taken outbox message is reserved. Short: delivery takes milliseconds, and if the process dies, the others
#: wait that long.
RESERVED_MS = 2_000
#: Outbox messages per round, and reports per call: no script runs long.
ROUND = 100
REPORTS = 100

#: Ends of a parent for which its children are cancelled.
_FAILED = ("dead", "cancelled", "expired")


#: End of the id of an outbox message that holds plain members of a workflow.
MEMBERS = ".members"
#: First line of an outbox message that starts a workflow.
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


class Taken(Struct, frozen=True):
    """Outbox messages taken from a queue, and schedules that are due there, as `@name`."""

    now_ms: int
    ids: list[str]
    texts: list[bytes]
    #: When the next one is due; 0: there is none.
    next_ms: int


def take_outbox(queue: QueueKeys, finished: Sequence[str] = (), *, ticks: bool = False) -> Call[Taken]:
    """Remove delivered outbox messages and take the next; with `ticks`, due schedules, too, as `@name`."""
    script = queue.script("engine/take_outbox")

    def decode(reply: list[Any]) -> Taken:
        now, ids, texts, following = reply
        return Taken(now, [id.decode() for id in ids], texts, following)

    return Call([RESERVED_MS, ROUND, int(ticks), *finished], decode, script, queue.of(script))


def notify(
    queue: QueueKeys,
    reports: Sequence[Report],
    dead_max: int,
    gates: Sequence[str] = (),
    *,
    start: str = "",
    start_ms: int = 0,
) -> Call[tuple[int, bool]]:
    """Report the ends of parents to dependents in this queue: how many reports were new; whether to relay from here.

    `gates` are outbox messages that need not be delivered any more; `start` is written if the first report is new,
    and is due after `start_ms`.
    """
    script = queue.script("workflows/notify_dependents")
    args: list[Argument] = [KEEP_MS, 0, dead_max, start, start_ms, len(gates), *gates]
    for one in reports:
        args += (one.child, one.parent, one.number, one.state, one.policy, one.index, one.input, one.signature)
    return Call(args, lambda reply: (reply[0], bool(reply[1])), script, queue.of(script))


def notify_all(
    queue: QueueKeys, reports: Sequence[Report], dead_max: int, gates: Sequence[str] = ()
) -> Generator[Call[Any], Any, bool]:
    """Deliver any number of reports, in calls bounded in rows and bytes: whether there is more to relay."""
    more = False
    start = size = 0
    for i, one in enumerate(reports):
        if i > start and (i - start >= REPORTS or size + len(one.input) > CHUNK_BYTES):
            more |= (yield notify(queue, reports[start:i], dead_max))[1]
            start, size = i, 0
        size += len(one.input)
    if reports or gates:
        more |= (yield notify(queue, reports[start:], dead_max, gates))[1]
    return more


def opened(ids: Sequence[str]) -> list[Report]:
    """The reports that open the gates of jobs."""
    return [Report(id, GATE, 1, "done") for id in ids]


def open_gates(keys_of: KeysOf, gates: Sequence[tuple[str, str]], dead_max: int) -> Generator[Call[Any], Any, set[str]]:
    """Open gates, each a queue and the id of its outbox message: the queues from which to relay now."""
    onward = set()
    for queue, id in gates:
        keys = keys_of(queue)
        if id.endswith(MEMBERS):
            yield start_members(keys, id)
            continue
        text: bytes | None = yield Call([b"HGET", keys.key("letters"), id])
        if text is not None:  # else another process has done it, or it was too late
            ids = [edge.child for edge in edges_of(text.decode(errors="replace"))]
            if (yield from notify_all(keys, opened(ids), dead_max, [id])):
                onward.add(queue)
    return onward


def start_members(queue: QueueKeys, id: str) -> Call[int]:
    """Start plain members of a workflow that one call has stored: how many."""
    script = queue.script("workflows/start_members")
    return Call([id], int, script, queue.of(script))


def start_letter(gates: Sequence[tuple[str, str]]) -> str:
    """The outbox message that opens these gates once all members of a workflow are stored."""
    return STARTS.decode() + " ".join(f"{id} {label(queue)}" for queue, id in gates)


def _gates(text: bytes) -> list[tuple[str, str]]:
    words = text.removeprefix(STARTS).decode().split()
    return [(unquote(queue), id) for id, queue in zip(words[::2], words[1::2], strict=True)]


def deliver(
    keys_of: KeysOf, source: QueueKeys, messages: Iterable[tuple[str, bytes]], dead_max: int
) -> Generator[Call[Any], Any, tuple[list[str], set[str]]]:
    """Deliver outbox messages of a queue: the ids of those that are finished; the queues from which to relay now."""
    finished: list[str] = []
    by_queue: dict[str, list[Report]] = {}
    of_features: dict[bytes, list[Any]] = {}
    onward: set[str] = set()
    for id, text in messages:
        try:
            if text.startswith(STARTS):
                onward |= yield from open_gates(keys_of, _gates(text), dead_max)
            elif (kind := text.partition(b"\n")[0] + b"\n") in CARRIERS:
                of_features.setdefault(kind, []).append(CARRIERS[kind].read(text))
            else:
                theirs = outbox_message(text).reports(source.place)
                for queue, _ in theirs:
                    keys_of(queue)  # refuses a name that cannot be one
                if source.signer is not None:
                    theirs = yield from vouched(keys_of, source, theirs)
                for queue, report in theirs:
                    by_queue.setdefault(queue, []).append(report)
        except (ValueError, ConfigurationError):  # another program wrote it; it must not block the outbox
            log.error("outbox message %s cannot be read and is dropped: %.200r", id, text)
        finished.append(id)
    for kind, theirs in of_features.items():
        yield from CARRIERS[kind].deliver(keys_of, theirs)
    for queue, reports in by_queue.items():
        if (yield from notify_all(keys_of(queue), reports, dead_max)):
            onward.add(queue)
    return finished, onward


def vouched(
    keys_of: KeysOf, source: QueueKeys, reports: list[tuple[str, Report]]
) -> Generator[Call[Any], Any, list[tuple[str, Report]]]:
    """Reports of one parent, signed where they cancel a child, if a signed record says that the parent ended so.

    The script that cancels the child cannot sign, and no waiter of the child trusts an unsigned end.
    """
    first = next((report for _, report in reports if _cancels(report)), None)
    if first is None or source.signer is None:
        return reports
    text: bytes | None = yield Call([b"GET", source.own("ended", first.parent)])
    record = record_of(text or b"")
    verify = VERIFIERS.get(record.target) if first.state in _FAILED else None
    if verify is not None:
        error = yield from verify(keys_of, source, first.parent, first.state)
    else:
        error = verify_record(source.signer, first.parent, record)
    if record.state != first.state or error:
        return reports
    return [(queue, _signed(keys_of(queue), report) if _cancels(report) else report) for queue, report in reports]


def _cancels(report: Report) -> bool:
    return report.state == "done" if report.policy == "f" else report.policy in "cC" and report.state in _FAILED


def _signed(queue: QueueKeys, report: Report) -> Report:
    reason = (
        "not_needed" if report.policy == "f" else "dependency_failed"
    )  # as workflows/lua/include/dependents.lua writes it
    return msgspec.structs.replace(report, signature=cancelled_by_hand(queue.signer, report.child, reason))


def relay(keys_of: KeysOf, queues: Iterable[str], dead_max: int) -> Generator[Call[Any], Any, int]:
    """Deliver all due outbox messages of these queues, and those that this causes elsewhere: how many there were."""
    pending, delivered = set(queues), 0
    while pending:
        queue = pending.pop()
        finished: list[str] = []
        while True:
            taken: Taken = yield take_outbox(keys_of(queue), finished)
            if not taken.ids:
                break
            messages = zip(taken.ids, taken.texts, strict=True)
            finished, onward = yield from deliver(keys_of, keys_of(queue), messages, dead_max)
            pending |= onward - {queue}
            delivered += len(finished)
    return delivered
