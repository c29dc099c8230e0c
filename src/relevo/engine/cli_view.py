"""Draws one job with its history, for people."""

from __future__ import annotations

from typing import Any

import msgspec

from relevo.cli.screen import Screen, moment, plural
from relevo.engine.handle import JobInfo
from relevo.engine.job import Attempt, State
from relevo.text.durations import spoken

#: Characters of arguments: a screen full.
LONGEST = 2000

STYLES = {State.DONE: "green", State.DEAD: "bold red", State.CANCELLED: "yellow", State.EXPIRED: "yellow"}


def describe(screen: Screen, info: JobInfo) -> None:
    """Everything known about a job, for people."""
    state = info.state.value + (f": {info.reason}" if info.reason else "")
    if info.cancel_asked:
        state += " (cancellation requested)"
    screen.line(f"job {info.id} is {state}", STYLES.get(info.state, ""))
    progress = f"{info.progress.fraction:.0%} {info.progress.message}".strip() if info.progress else ""
    screen.fields(
        [
            ("task", info.task),
            ("queue", info.queue),
            ("arguments", _not_too_long(_arguments(info.args, info.kwargs))),
            ("priority", "" if info.priority is None else str(info.priority)),
            ("name", info.name or ""),
            ("tenant", info.tenant or ""),
            ("tags", ", ".join(info.tags or ())),
            ("headers", _not_too_long(", ".join(f"{name}={text}" for name, text in (info.headers or {}).items()))),
            ("workflow", info.workflow or ""),
            ("waits for", f"{plural(info.waits_for, 'job')} to end" if info.waits_for else ""),
            ("held up", info.held_up),
            ("enqueued", moment(info.enqueued_ms)),
            ("given up" if info.held_up else "due", moment(info.due_ms)),
            ("started", moment(info.started_ms)),
            ("ended", moment(info.ended_ms)),
            ("worker", info.worker),
            ("progress", progress),
            ("came from", info.came_from),
            ("error group", info.fingerprint),
            ("permanent", "yes: it would fail again as it is" if info.permanent else ""),
            ("in place of", info.origin),
            ("replaced by", info.replaced_by),
            ("operation", info.correlation_id),
            ("caused by", info.causation_id),
            ("sent by", info.source),
            ("session", info.session),
            ("written by", f"relevo {info.version}" if info.version else ""),
            ("result", _compact(info.result) if info.result is not None else ""),
        ]
    )
    seen: dict[str, int] = {}
    for number, attempt in enumerate(info.attempts, 1):
        _show_attempt(screen, number, attempt, seen.get(attempt.traceback))
        seen.setdefault(attempt.traceback, number)


def _show_attempt(screen: Screen, number: int, attempt: Attempt, same_as: int | None) -> None:
    """An attempt. A traceback that an earlier one has is not repeated."""
    took = (attempt.ended_ms - attempt.started_ms) / 1000 if attempt.started_ms and attempt.ended_ms else 0
    parts = [
        f"attempt {number}: {attempt.how}",
        f"after {spoken(took)}" if took > 0 else "",
        f"by {attempt.worker}" if attempt.worker else "",
        f"at {moment(attempt.ended_ms)}" if attempt.ended_ms else "",
    ]
    screen.line("\n" + " ".join(part for part in parts if part))
    error = ": ".join(part for part in (attempt.error, attempt.message) if part)
    if attempt.traceback and same_as:
        screen.line(f"  {error.splitlines()[0] if error else ''}\n  (the traceback is that of attempt {same_as})")
        return
    for line in (attempt.traceback or error).rstrip().splitlines():  # a traceback ends with the error
        screen.line(f"  {line}")


def show_logs(screen: Screen, text: str) -> None:
    screen.line("\nlogs" if text else "\nno logs")
    if text:
        screen.line(text)


def _arguments(args: Any, kwargs: Any) -> str:
    """As they would stand in a call."""
    if args is None and kwargs is None:
        return "not known"
    named = (f"{name}={_compact(value)}" for name, value in (kwargs or {}).items())
    return ", ".join([*map(_compact, args or ()), *named])


def _not_too_long(text: str) -> str:
    cut = f"{text[:LONGEST]}… ({len(text):,} characters; --json tells all)"
    return text if len(text) <= LONGEST else cut


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()
