"""What is paused in a queue, as kept for display."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from relevo.engine.pauses import Pause, read_pause
from relevo.limits.limit import TASK, limit_in
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

_ORDER = ("queue", "task", "breaker", "tenant", "schedule")


def written(queue: QueueKeys) -> Call[list[bytes]]:
    """The records of a queue's pauses, for `pauses`."""
    return Call([b"HGETALL", queue.key("pauses")])


def pauses(queue: QueueKeys, name: str, now_ms: int, rows: list[bytes]) -> Generator[Call[Any], Any, list[Pause]]:
    """All that is paused in a queue: itself, tasks, breakers, tenants, schedules. Expired pauses are left out.

    So is a breaker that waits for a probe and has no parked job: it holds nothing back.
    """
    read = (
        read_pause(name, rows[i].decode(errors="replace"), rows[i + 1].decode(errors="replace"))
        for i in range(0, len(rows), 2)
    )
    found = [one for one in read if one is not None and (one.until_ms is None or one.until_ms > now_ms)]
    breakers = [one for one in found if one.kind == "breaker"]
    if breakers:
        found = [one for one in found if one.kind != "breaker"]
        found += yield from _open(queue, now_ms, breakers)
    return sorted(found, key=lambda one: (_ORDER.index(one.kind), one.name))


def _open(queue: QueueKeys, now_ms: int, breakers: list[Pause]) -> Generator[Call[Any], Any, list[Pause]]:
    """Breakers that hold jobs back, each with the time at which it lets a probe start."""
    names = [TASK + one.name for one in breakers]
    texts: list[bytes | None] = yield Call([b"HMGET", queue.key("limits"), *names])
    found = []
    for one, name, text in zip(breakers, names, texts, strict=True):
        limit = limit_in(text) if text else None
        probe_ms = limit.probe_ms if limit else None
        if probe_ms is None:  # it has closed since
            continue
        if probe_ms > now_ms or (yield Call([b"EXISTS", queue.own("parked", name)])):
            found.append(msgspec.structs.replace(one, until_ms=probe_ms))
    return found
