"""Named points at which tests kill a worker for real.

`RELEVO_FAULT=claimed:3` kills the process with SIGKILL the third time it passes the point `claimed`. Without the
variable the points cost one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal
from typing import Literal

Point = Literal[
    "turn_sent",
    "claimed",
    "handed_over",
    "started",
    "returned",
    "settled",
    "renewing",
    "stopping",
    "errand_taken",
    "errand_done",
    "outbox_stored",
    "outbox_locked",
    "outbox_pushed",
    "outbox_deleted",
    "outbox_committed",
    "rows_locked",
    "rows_pushed",
    "rows_marked",
    "rows_committed",
    "jobs_written",
    "jobs_removed",
]

_NAME, _, _COUNT = os.environ.get("RELEVO_FAULT", "").partition(":")
ACTIVE = bool(_NAME)
_passed = itertools.count(1)


def at(point: Point) -> None:
    """Kill this process if this is the chosen point and pass."""
    if point == _NAME and next(_passed) == int(_COUNT or 1):
        os.kill(os.getpid(), signal.SIGKILL)
