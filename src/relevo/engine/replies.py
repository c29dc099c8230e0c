"""Replies to messages, from the records of their ends."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from relevo.engine.job import Record, State
from relevo.engine.message import Fault, Reply, Status

#: Reasons after which the same message may go well another time.
_PASSING = frozenset({"retries_exhausted", "poison"})

_STATUS: dict[State, Status] = {State.CANCELLED: "cancelled"}

#: Why a message that succeeded is reported as failed.
NOT_KEPT = "result_not_kept"


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
    """The reply that a callback gets."""
    if record.state is not State.DONE:
        if record.state is State.EXPIRED:
            # No worker began with it in time: for the caller that is the same as no answer.
            return Reply(status="timeout", signature=record.signature)
        return Reply(status=_STATUS.get(record.state, "failed"), error=fault_of(record), signature=record.signature)
    if not bytes(record.result):
        why = record.not_kept or "its result was not kept"
        fault = Fault("PayloadError", why, reason=NOT_KEPT)
        return Reply(status="failed", error=fault, signature=record.signature)
    return Reply(status="done", result=Raw(record.result), signature=record.signature)
