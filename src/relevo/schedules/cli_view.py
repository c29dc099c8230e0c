"""Draws schedules for people: times in their own zones, and rules in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from relevo.cli.screen import Screen
from relevo.engine.job import Envelope, State
from relevo.schedules.cron import Cron, When, explain, next_after
from relevo.schedules.cron_text import words
from relevo.schedules.handle import ScheduleInfo
from relevo.schedules.schedule import GRACE_MS
from relevo.schedules.store import Ran, Standing
from relevo.text.durations import spoken

#: Seconds: up to which distance a time is shown to the second, to the minute, to the hour. Else to the day.
_EXACT = ((60, 1), (86_400, 60), (10 * 86_400, 3600))

_ORIGINS = {"code": "a decorator", "settings": "the settings", "call": "app.schedule(…) at run time"}
_OVERLAPS = {
    "skip": "a tick passes while the run before has not ended",
    "queue": "a tick waits until the run before has ended, however it ends",
    "allow": "a tick fires whether or not the run before has ended",
}
_MISSED = {
    "skip": "ticks that no worker fired in time are dropped",
    "once": "one run replaces all ticks that no worker fired in time",
    "all": "ticks that no worker fired in time are caught up, {limit:,} at most",
}


class LastRun(Struct, frozen=True):
    """The last job that a schedule queued."""

    job: str
    state: State
    #: When it entered that state.
    since_ms: int


def draw_list(screen: Screen, rows: Sequence[tuple[ScheduleInfo, LastRun | None]]) -> None:
    """Draw a line for each. On a narrow terminal, task and queue are left to `show`."""
    columns: dict[str, list[object]] = {
        "name": [info.name for info, _ in rows],
        # without its zone, which stands beside the next tick
        "when": [words(info.when) if info.tz else info.words for info, _ in rows],
        "next tick": [_short(info.next_ms, info.tz) if info.next_ms else None for info, _ in rows],
        "": [_near(info.next_ms) if info.next_ms else "" for info, _ in rows],
        "last run": [f"{_state(last.state)} {_near(last.since_ms)}" if last else None for _, last in rows],
    }
    if any(marks := [", ".join(_marks(info)) for info, _ in rows]):
        columns["mark"] = [*marks]
    columns["task"] = [info.task for info, _ in rows]
    columns["queue"] = [info.queue for info, _ in rows]
    screen.columns(columns, spare=["queue", "task"])


def is_late(info: ScheduleInfo) -> bool:
    """Whether its tick is overdue: no worker fires it."""
    return info.next_ms is not None and info.next_ms + GRACE_MS < time.time() * 1000


def _marks(info: ScheduleInfo) -> dict[str, str]:
    """Its unusual properties, each as a word and as a sentence."""
    marks = {}
    if info.paused_ms is not None:
        marks["paused"] = f"paused {_near(info.paused_ms)}: no tick fires until it is resumed"
    if info.stale:
        marks["stale"] = f"stale: no code names it any more; `relevo schedules remove {info.name}` removes it"
    if is_late(info):
        marks["late"] = f"late: the tick of {_near(info.next_ms)} waits, for no worker serves {info.queue!r}"
    return marks


def describe(screen: Screen, info: ScheduleInfo, standing: Standing) -> None:
    """Draw all its settings, explained."""
    when = standing.schedule.when
    screen.line(f"schedule {info.name}", "bold")
    for sentence in _marks(info).values():
        screen.line(sentence, "yellow")
    named = f", named {_near(standing.seen_ms)}" if standing.seen_ms else ""
    arguments = (*map(_compact, info.args), *(f"{name}={_compact(value)}" for name, value in info.kwargs.items()))
    screen.fields(
        [
            ("fires", explain(when)),
            ("cron", f"{when.expression} in {when.tz}" if isinstance(when, Cron) else ""),
            ("every", "" if isinstance(when, Cron) else f"{spoken(when.seconds)}, counted from 1970-01-01 00:00 UTC"),
            ("task", info.task),
            ("arguments", ", ".join(arguments)),
            ("queue", info.queue),
            ("priority", str(info.priority)),
            ("options", ", ".join(f"{name} {_compact(value)}" for name, value in options(standing).items())),
            ("made by", _ORIGINS[info.origin] + named),
            ("overlap", f"{info.overlap}: {_OVERLAPS[info.overlap]}"),
            ("missed", f"{info.missed}: {_MISSED[info.missed].format(limit=info.missed_limit)}"),
            ("jitter", f"starts are spread over the {spoken(info.jitter)} after a tick" if info.jitter else ""),
            ("ticks", f"{info.fired:,} fired, {info.skipped:,} skipped, {info.dropped:,} dropped"),
        ]
    )


def options(standing: Standing) -> dict[str, Any]:
    """The options of its jobs that differ from their task's. Durations are in seconds."""
    schedule = standing.schedule
    body = msgspec.json.decode(schedule.body, type=Envelope)
    values = {"tenant": schedule.tenant, "weight": schedule.weight, "expires": schedule.expires}
    for name in ("tags", "retries", "backoff", "timeout", "result_ttl", "failure_ttl", "on_failure"):
        values[name] = getattr(body, name)
    nothing: dict[str, Any] = {"tenant": "", "weight": 1.0, "tags": ()}
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value != nothing.get(name)}


def ticks(when: When, next_ms: int | None) -> Iterator[int]:
    """The next ticks: the pending one, and those after it."""
    tick_ms = next_ms or next_after(when, int(time.time() * 1000))
    while True:
        yield tick_ms
        tick_ms = next_after(when, tick_ms)


def draw_ahead(screen: Screen, info: ScheduleInfo, ahead: Sequence[int]) -> None:
    """Draw when it fires next."""
    screen.line("\nnext ticks" + (", were it not paused" if info.paused_ms is not None else ""))
    for tick_ms in ahead:
        screen.line(f"  {_long(tick_ms, info.tz)}  {_near(tick_ms)}")


def draw_history(screen: Screen, info: ScheduleInfo, history: Sequence[Ran], states: Mapping[str, State]) -> None:
    """Draw its recent history."""
    if not history:
        screen.line("\nno runs yet")
        return
    screen.line("\nlast runs")
    screen.table(
        ["tick", "what", "when", "job", "its state"],
        (
            (
                _long(ran.tick_ms, info.tz) if ran.tick_ms else "asked for",
                ran.what,
                _near(ran.at_ms),
                ran.job or None,
                _state(states[ran.job]) if ran.job else None,
            )
            for ran in history
        ),
    )


def _state(state: State) -> str:
    """The state of a job of a schedule: if nothing is known of it, it has ended, and its record has expired."""
    return "ended" if state is State.UNKNOWN else state.value


def _near(ms: int | None) -> str:
    """How far away, rounded to what matters: `in 4m`, `in 3h5m`, `2d1h ago`."""
    seconds = (ms or 0) / 1000 - time.time()
    unit = next((unit for limit, unit in _EXACT if abs(seconds) < limit), 86_400)
    rounded = round(seconds / unit) * unit
    return f"in {spoken(rounded)}" if rounded > 0 else f"{spoken(-rounded)} ago"


def _local(ms: int, tz: str) -> datetime:
    return datetime.fromtimestamp(ms / 1000, ZoneInfo(tz or "UTC"))


def _short(ms: int, tz: str) -> str:
    """A time in the schedule's zone, or its date if that is far away."""
    at, now = _local(ms, tz), _local(int(time.time() * 1000), tz)
    if abs(at.date() - now.date()) >= timedelta(7):
        return f"{at:%Y-%m-%d}"
    day = "" if at.date() == now.date() else f"{at:%a} "
    return f"{day}{at:%H:%M:%S} {at.tzname()}" if at.second else f"{day}{at:%H:%M} {at.tzname()}"


def _long(ms: int, tz: str) -> str:
    at = _local(ms, tz)
    return f"{at:%Y-%m-%d %H:%M:%S} {at.tzname()}"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()
