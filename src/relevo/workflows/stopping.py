"""Cancels what is left of a group with `fail_fast` when too many of its members have failed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from relevo.engine import job_store as jobs
from relevo.engine.edges import label
from relevo.engine.outbox import CARRIERS, REPORTS, Carrier, KeysOf, relay
from relevo.store.plan import Call
from relevo.workflows import store as flows

#: First line of an outbox message that cancels members of a group.
STOPS = b"stop\n"


class Stop(Struct, frozen=True, kw_only=True):
    """Members of a workflow, from `first` up to `end`, that are cancelled."""

    workflow: str
    queue: str
    first: int
    end: int
    failure_ms: int
    dead_max: int


def stop_text(workflow: str, queue: str, first: int, end: int, failure_ms: int, dead_max: int) -> str:
    """An outbox message without its first line."""
    return f"{workflow} {label(queue)} {first} {end} {failure_ms} {dead_max}"


def stop_of(text: bytes) -> Stop:
    """Read an outbox message; ValueError if it is none."""
    workflow, queue, *numbers = text.removeprefix(STOPS).decode().split(" ")
    first, end, failure_ms, dead_max = map(int, numbers)
    return Stop(workflow=workflow, queue=unquote(queue), first=first, end=end, failure_ms=failure_ms, dead_max=dead_max)


def cancel_members(keys_of: KeysOf, stops: list[Stop]) -> Generator[Call[Any], Any, None]:
    """Cancel the members that have not ended, the last ones first: they must not start because others end."""
    for stop in stops:
        found: tuple[flows.Plan, str] | None = yield flows.plan_of(keys_of(stop.queue), stop.workflow)
        if found is None or found[1]:  # it is gone, or not signed
            continue
        plan, by_queue = found[0], dict[str, list[str]]()
        for i in reversed(range(stop.first, min(stop.end, len(plan)))):
            by_queue.setdefault(plan.queue(i), []).append(plan.id(i))
        for queue, ids in by_queue.items():
            for start in range(0, len(ids), REPORTS):
                rows = [(id, stop.failure_ms, "") for id in ids[start : start + REPORTS]]
                yield jobs.cancel(keys_of(queue), rows, stop.dead_max)
        yield from relay(keys_of, by_queue, stop.dead_max)


CARRIERS[STOPS] = Carrier(stop_of, cancel_members)
