"""What the record of a message's end says to those who wait for it."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from relevo.model.job import Attempt, Record, State
from relevo.model.message import Fault, Reply, Status

#: Reasons after which the same message may go well another time.
_PASSING = frozenset({"retries_exhausted", "poison"})

_STATUS: dict[State, Status] = {State.DONE: "done", State.CANCELLED: "cancelled", State.EXPIRED: "expired"}


def fault_of(record: Record) -> Fault:
    """Why it failed. The last attempt tells; where there was none, the reason must do."""
    last = record.story.attempts[-1] if record.story.attempts else Attempt("")
    return Fault(
        last.error or record.reason or record.state.value,
        last.message,
        record.reason in _PASSING,
        record.reason,
    )


def reply_of(record: Record) -> Reply[Any]:
    """What a callback is told."""
    if record.state is not State.DONE:
        return Reply(_STATUS.get(record.state, "failed"), error=fault_of(record))
    if not bytes(record.result):
        why = record.not_kept or "its result was not kept"
        return Reply("failed", error=Fault("PayloadError", why, reason="result_not_kept"))
    return Reply("done", Raw(record.result))
