"""The record of an attempt: its failure, or its encoded result."""

from __future__ import annotations

import logging
import time
from typing import Any

from relevo.engine.job import Attempt
from relevo.engine.verdicts import Verdict
from relevo.errors import PayloadError
from relevo.text.legible import words_of
from relevo.worker.run import Encoded, ProcessDied, RemoteFailure, Run
from relevo.worker.soft_limits import task_frames
from relevo.worker.traceback_text import text_of

log = logging.getLogger("relevo.worker")

#: Characters of a traceback that are kept: three quarters of them from its end.
TRACEBACK_MOST = 8_000
MESSAGE_MOST = 2_000


def failed_attempt(run: Run, how: str, error: BaseException, message: str = "") -> Attempt:
    """The record of a failed attempt."""
    if isinstance(error, RemoteFailure):
        name, text, trace = error.error, error.message, error.traceback
    else:
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        text, trace = words_of(error), ""
        if not (isinstance(error, Verdict | ProcessDied) or run.stopped):
            frames = error.__traceback__ and error.__traceback__.tb_next  # without the worker's own frame
            trace = text_of(error, task_frames(frames))
    if how == "timed_out":
        name = "TimeoutError"
    if len(trace) > TRACEBACK_MOST:
        trace = trace[: TRACEBACK_MOST // 4] + "\n… left out …\n" + trace[-TRACEBACK_MOST * 3 // 4 :]
    now_ms = run.origin.now_ms()
    began = now_ms - int((time.monotonic() - run.started) * 1000) if run.started else now_ms
    return Attempt(
        how, run.context.worker, began, now_ms, name, _storable((message or text)[:MESSAGE_MOST]), _storable(trace)
    )


def _storable(text: str) -> str:
    """Escape lone surrogates, e.g. from file names in messages: they cannot be encoded."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def encoded(run: Run, result: Any, limit: int) -> Encoded:
    """The encoded result, or why it cannot be stored."""
    if isinstance(result, Encoded):
        return result
    if run.result_ttl <= 0 and not run.passes:
        return NOTHING
    try:
        return Encoded(run.task.signature.encode_result(result, limit=limit))
    except PayloadError as refused:
        # The job is done; a result that cannot be stored must not cause a retry.
        log.warning("%s: the result of job %s cannot be kept: %s", run.task.target, run.held.id, refused)
        return Encoded(b"", str(refused)[:MESSAGE_MOST])


NOTHING = Encoded(b"")
