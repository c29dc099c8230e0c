"""Times in a queue after the server's clock was set back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Jobs that one call moves: about five milliseconds of the server.
MOVED_AT_ONCE = 5000


class Replanned(NamedTuple):
    """A schedule whose next tick has changed."""

    name: str
    due_ms: int
    next_ms: int


def set_back(
    queue: QueueKeys,
    step_ms: int,
    *,
    lease_ms: int,
    idle_ms: int,
    schedules: Sequence[Replanned] = (),
    most: int = MOVED_AT_ONCE,
) -> Call[bool]:
    """The clock was set back by `step_ms`: move due times back, too. Returns whether there is more to move.

    Reports of the same step within three minutes count once.
    """
    script = queue.script("engine/shift_times")
    args: list[Argument] = [step_ms, most, lease_ms, idle_ms]
    for one in schedules:
        args += one
    return Call(args, bool, script, queue.of(script))
