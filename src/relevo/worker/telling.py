"""How an attempt is told: its story for the record, its result."""

from __future__ import annotations

import logging
import time
from typing import Any

from relevo.errors import PayloadError
from relevo.model.job import Attempt
from relevo.model.legible import words_of
from relevo.model.verdicts import Verdict
from relevo.worker.run import Encoded, ProcessDied, RemoteFailure, Run
from relevo.worker.traceback_text import text_of

log = logging.getLogger("relevo.worker")

#: Characters of a traceback that are kept: where it was raised matters most, and where it began.
TRACEBACK_MOST = 8_000
MESSAGE_MOST = 2_000


def told(run: Run, how: str, error: BaseException, message: str = "") -> Attempt:
    """The story of an attempt that did not go well."""
    if isinstance(error, RemoteFailure):
        name, text, trace = error.error, error.message, error.traceback
    else:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        text, trace = words_of(error), ""
        if not (isinstance(error, Verdict | ProcessDied) or run.stopped):
            frames = error.__traceback__ and error.__traceback__.tb_next  # without the worker's own
            trace = text_of(error, frames)
    if how == "timed_out":
        name = "TimeoutError"
    if len(trace) > TRACEBACK_MOST:
        trace = trace[: TRACEBACK_MOST // 4] + "\n… left out …\n" + trace[-TRACEBACK_MOST * 3 // 4 :]
    now_ms: int = run.lane.now_ms()
    began = now_ms - int((time.monotonic() - run.started) * 1000) if run.started else now_ms
    return Attempt(
        how, run.context.worker, began, now_ms, name, _storable((message or text)[:MESSAGE_MOST]), _storable(trace)
    )


def _storable(text: str) -> str:
    """Without lone surrogates, as file names may bring them into messages: they cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def encoded(run: Run, result: Any, limit: int) -> Encoded:
    """The result as it is stored, or why it is not."""
    if isinstance(result, Encoded):
        return result
    if run.result_ttl <= 0 and not run.passes:
        return NOTHING
    try:
        return Encoded(run.task.signature.encode_result(result, limit=limit))
    except PayloadError as refused:
        # The work is done and must not be done again because of how it is told.
        log.warning("%s: the result of job %s cannot be kept: %s", run.task.target, run.held.id, refused)
        return Encoded(b"", str(refused)[:MESSAGE_MOST])


NOTHING = Encoded(b"")
