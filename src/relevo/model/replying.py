"""What the record of a message's end says to those who wait for it."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from relevo.model.job import Record, State, write
from relevo.model.message import Fault, Reply, Status

#: Reasons after which the same message may go well another time.
_PASSING = frozenset({"retries_exhausted", "poison"})

_STATUS: dict[State, Status] = {State.CANCELLED: "cancelled"}


def fault_of(record: Record) -> Fault:
    """Why it failed. The last attempt tells; where there was none, the reason must do."""
    last = record.story.last
    return Fault(
        last.error or record.reason or record.state.value,
        last.message,
        record.reason in _PASSING,
        record.reason,
        last.traceback if record.shows_traceback else "",
    )


def reply_of(record: Record) -> Reply[Any]:
    """What a callback is told."""
    if record.state is not State.DONE:
        if record.state is State.EXPIRED:
            return Reply("timeout")  # nobody began with it in time: who waits for it has one word for that
        return Reply(_STATUS.get(record.state, "failed"), error=fault_of(record), signature=record.signature)
    if not bytes(record.result):
        why = record.not_kept or "its result was not kept"
        fault = Fault("PayloadError", why, reason="result_not_kept")
        return Reply("failed", error=fault, signature=record.signature)
    return Reply("done", Raw(record.result), signature=record.signature)


def signed_part(status: str, result: bytes, fault: Fault | None) -> bytes:
    """What a signature of a message's end covers, besides the message's id."""
    return write([status, fault]) + b"\n" + result
