"""Draws the timeline of an operation: a line for each attempt below its cause, all on one scale of time.

A message is drawn with its attempts together, in the order of their times, and what a handler sent stands below the
attempt that sent it. A message waits from its sending, or from the end of the previous attempt, until it starts.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from relevo.bus.span import Span
from relevo.cli.screen import Branch, Screen, moment, plural
from relevo.engine.job import State
from relevo.text.durations import spoken
from relevo.text.legible import short
from relevo.text.names import parse
from relevo.workflows.cli_tree import SIGNS

#: Lines of a timeline without --all.
ROOM = 200
#: Columns from which there is room for intent, sender and worker; and those assumed for a pipe.
WIDE, ELSEWHERE = 110, 120
#: Columns of a bar, least and most, and the least of a message's name.
BAR, NAME = (10, 40), 20
#: Deepest indentation.
DEEP = 10
_OPEN = {state.value for state in (State.RUNNING, State.READY, State.SCHEDULED, State.WAITING)}
#: Signs and colours of the states, and of other outcomes of an attempt.
_SIGNS = {state.value: sign for state, sign in SIGNS.items()} | {"retry": ("~", "yellow"), "back": ("–", "dim")}
_BAD = ("dead", "expired", "cancelled")
_RIGHT = ("at", "waited", "ran")

#: A message in a queue; an event has the same id in many queues.
Place: TypeAlias = tuple[str, str]


class Row(Struct, frozen=True):
    """An attempt, or a message that waits for one, at its place in the tree."""

    span: Span
    depth: int
    #: It waits from the first to the second of these, and runs from the second to the third.
    since_ms: int
    start_ms: int
    until_ms: int

    @property
    def wait_ms(self) -> int:
        """How long it waited."""
        return self.start_ms - self.since_ms

    @property
    def run_ms(self) -> int:
        """How long it ran."""
        return self.until_ms - self.start_ms

    @property
    def is_open(self) -> bool:
        """Whether it still waits or runs."""
        return self.span.outcome in _OPEN

    @property
    def has_started(self) -> bool:
        """Whether it ever ran."""
        return self.span.started_ms > 0


def rows(spans: Sequence[Span], now_ms: int) -> list[Row]:
    """All attempts, each below its cause."""
    attempts: dict[Place, list[Span]] = {}
    for span in sorted(spans, key=lambda one: (one.sent_ms, one.id, one.attempt, one.started_ms or now_ms)):
        attempts.setdefault((span.queue, span.id), []).append(span)
    by_id: dict[str, list[Place]] = {}
    for place in attempts:
        by_id.setdefault(place[1], []).append(place)
    below: dict[Place | None, list[Place]] = {}
    for place, (first, *_) in attempts.items():
        below.setdefault(_cause(first, by_id), []).append(place)
    found: list[Row] = []
    ahead = [(place, 0) for place in (*attempts, *reversed(below.get(None, [])))]
    drawn: set[Place] = set()
    while ahead:
        place, depth = ahead.pop()
        if place not in drawn:
            drawn.add(place)
            since_ms = attempts[place][0].sent_ms
            for span in attempts[place]:
                row = _row(span, depth, since_ms, now_ms)
                found.append(row)
                since_ms = row.until_ms
            ahead += [(one, depth + 1) for one in reversed(below.get(place, []))]
    return found


def _cause(span: Span, by_id: dict[str, list[Place]]) -> Place | None:
    """The message that caused a span; of an event, which several services handle, the one in the sender's queue."""
    likely = by_id.get(span.causation, []) if span.causation != span.id else []
    return next((place for place in likely if _service(place[0]) == span.source), likely[0] if likely else None)


def _service(queue: str) -> str:
    return parse(queue, prefix=False, env=False).service


def _row(span: Span, depth: int, since_ms: int, now_ms: int) -> Row:
    # Clocks of several machines: no time may run backwards.
    until_ms = span.ended_ms or now_ms
    start_ms = max(since_ms, span.started_ms or until_ms)
    return Row(span, depth, since_ms, start_ms, max(start_ms, until_ms))


def draw(screen: Screen, id: str, rows: Sequence[Row], now_ms: int, room: int | None) -> None:
    """Draw the whole operation."""
    began, ended = min(row.since_ms for row in rows), max(row.until_ms for row in rows)
    _draw_head(screen, id, rows, began, ended)
    screen.line()
    shown = rows if room is None else rows[:room]
    _draw_table(screen, shown, id, began, ended)
    if len(shown) < len(rows):
        screen.line(f"… {len(rows) - len(shown):,} more; --all shows them", "dim")
    living = [row for row in rows if row.is_open]
    if living:
        screen.line("\nstill open")
    for row in living[:room]:
        sign, style = _SIGNS[row.span.outcome]
        since = row.start_ms if row.has_started else row.since_ms
        text = f"{row.span.outcome} for {_took(max(0, now_ms - since))}"
        screen.line(f"{sign} {text}: {_name(row.span)} {row.span.id}", style)


def _draw_head(screen: Screen, id: str, rows: Sequence[Row], began: int, ended: int) -> None:
    outcomes = Counter(row.span.outcome for row in rows)
    is_open, is_bad = any(row.is_open for row in rows), any(outcomes[name] for name in _BAD)
    sign, style = _SIGNS["dead" if is_bad else "running" if is_open else "done"]
    counts = ", ".join(f"{outcomes[name]:,} {name}" for name in _SIGNS if outcomes[name])
    screen.line(f"{sign} {id}: {counts}", style)
    messages = len({(row.span.queue, row.span.id) for row in rows})
    services = len({_service(row.span.queue) for row in rows})
    through = f"{plural(messages, 'message')}, handled by {plural(services, 'service')}"
    operations = {row.span.correlation for row in rows}
    screen.fields(
        [
            ("operation", ", ".join(sorted(operations - {id}))),
            ("conversation", ", ".join(sorted({row.span.conversation for row in rows} - operations - {id, ""}))),
            ("tenant", ", ".join(sorted({row.span.tenant for row in rows} - {""}))),
            ("began", moment(began)),
            ("so far" if is_open else "took", f"{_took(ended - began)}: {through}"),
        ]
    )


def _draw_table(screen: Screen, rows: Sequence[Row], id: str, began: int, ended: int) -> None:
    """Draw a line for each attempt: its columns, and a bar of when it waited and ran."""
    room = shutil.get_terminal_size((ELSEWHERE, 40)).columns if sys.stdout.isatty() else ELSEWHERE
    workers = {
        worker: f"w{n}" for n, worker in enumerate({row.span.worker: None for row in rows} if room >= WIDE else (), 1)
    }
    columns = _columns(rows, began, workers)
    widths = {head: max(len(head), *map(len, cells)) for head, cells in columns.items()}
    taken = sum(widths.values()) + 2 * len(widths)
    widths["message"] = max(NAME, widths["message"] - max(0, taken + BAR[0] - room))  # long names give way to the bar
    bar = max(BAR[0], min(BAR[1], room - sum(widths.values()) - 2 * len(widths)))
    heads = [_padded(head, head.upper(), width) for head, width in widths.items()]
    screen.forest([Branch([("  ".join([*heads, "0" + _took(ended - began).rjust(bar - 1)]), "bold")])])
    for row, *cells in zip(rows, *columns.values(), strict=True):
        style = _SIGNS.get(row.span.outcome, ("", ""))[1]
        styles = {"at": "dim", "message": "bold" if row.span.id == id else "", "outcome": style}
        pairs = zip(widths.items(), cells, strict=True)
        line = [(_padded(head, cell, width) + "  ", styles.get(head, "")) for (head, width), cell in pairs]
        before, waits, runs = _bar(row, began, max(1, ended - began), bar)
        screen.forest([Branch([*line, (before, ""), (waits, "dim"), (runs, style)])])
        if row.span.error:
            screen.line(" " * (widths["at"] + 4 + 2 * min(row.depth, DEEP)) + short(row.span.error), style)
    named = ", ".join(f"{label} is worker {worker}" for worker, label in workers.items() if worker)
    if named:
        screen.line(f"\n{named}", "dim")


def _columns(rows: Sequence[Row], began: int, workers: dict[str, str]) -> dict[str, list[str]]:
    """The columns; intent, sender and worker only if workers have names."""
    names = [_name(row.span) + (f" #{row.span.attempt}" if row.span.attempt > 1 else "") for row in rows]
    more = {
        "intent": [row.span.intent for row in rows],
        "from": [f"{row.span.source or '?'} →" for row in rows],
        "by": [workers.get(row.span.worker, "-") if row.span.worker else "-" for row in rows],
    }
    return {
        "at": [f"+{_took(row.since_ms - began)}" for row in rows],
        "message": ["  " * min(row.depth, DEEP) + short(name) for row, name in zip(rows, names, strict=True)],
        **(more if workers else {}),
        "waited": [_took(row.wait_ms) for row in rows],
        "ran": [_took(row.run_ms) if row.has_started else "-" for row in rows],
        "outcome": [f"{_SIGNS.get(row.span.outcome, ('?', ''))[0]} {row.span.outcome}" for row in rows],
    }


def _name(span: Span) -> str:
    """Its type; of an event, also the handling service, and of a message for a context, that."""
    address = parse(span.queue, prefix=False, env=False)
    if address.kind == "notifications":
        return f"{address.service} on {span.type}"
    return f"{span.type} at {':'.join(address.context)}" if address.context else span.type


def _padded(head: str, text: str, width: int) -> str:
    if len(text) > width:  # the ends of names matter most
        text = f"{text[: width // 3]}…{text[width // 3 + 1 - width :]}"
    return text.rjust(width) if head in _RIGHT else text.ljust(width)


def _took(ms: int) -> str:
    return f"{ms}ms" if ms < 1000 else spoken(ms / 1000)


def _bar(row: Row, began: int, scale: int, cells: int) -> tuple[str, str, str]:
    """The cells before it, the time it waited, and the time it ran. What ran has at least one cell."""
    first, start, last = ((ms - began) * cells / scale for ms in (row.since_ms, row.start_ms, row.until_ms))
    end = min(cells, max(math.ceil(last), int(start) + 1))
    runs = max(1, end - int(start)) if row.has_started else 0
    before = min(int(first), end - 1)
    return " " * before, "░" * max(0, end - before - runs), "█" * min(runs, end - before)
