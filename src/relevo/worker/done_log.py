"""Lines in the worker's log about jobs that went well, for those who want one for each (`Engine.logs_done`)."""

from __future__ import annotations

import logging
import time

from relevo.engine.ids import made_ms
from relevo.text.legible import short
from relevo.worker.run import Run

log = logging.getLogger("relevo.worker")

#: Characters of a name.
NAME_MOST = 100


def log_done(run: Run) -> None:
    """One line: which job, how long it ran, and how long after it was made it began."""
    envelope, id = run.held.envelope, run.held.id
    assert envelope is not None
    name = f" ({short(envelope.name, NAME_MOST)})" if envelope.name else ""
    log.info(
        "%s %s%s is done in %.3f s: attempt %d, priority %d, made %.3f s before it began",
        envelope.target,
        id,
        name,
        time.monotonic() - run.started,
        run.context.attempt,
        envelope.priority,
        max(0, run.held.since_ms - made_ms(id)) / 1000,
    )
