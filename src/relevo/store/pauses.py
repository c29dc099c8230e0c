"""What is paused in a queue, as it is kept for people."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from relevo.model.limits import TASK, read_limit
from relevo.model.pauses import Pause, read_pause
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

_ORDER = ("queue", "task", "breaker", "group", "schedule")


def pauses(queue: QueueKeys, name: str, now_ms: int) -> Generator[Call[Any], Any, list[Pause]]:
    """All that is paused in a queue: itself, tasks, breakers, groups, schedules. What has ended is left out."""
    rows: list[bytes] = yield Call([b"HGETALL", queue.key("pauses")])
    read = (read_pause(name, rows[i].decode(), rows[i + 1].decode()) for i in range(0, len(rows), 2))
    found = [one for one in read if one is not None and (one.until_ms is None or one.until_ms > now_ms)]
    open = [one.name for one in found if one.kind == "breaker"]
    if open:
        texts: list[bytes | None] = yield Call([b"HMGET", queue.key("limits"), *(TASK + task for task in open)])
        probes = {task: read_limit(text.decode()).probe_ms for task, text in zip(open, texts, strict=True) if text}
        found = [
            msgspec.structs.replace(one, until_ms=probes.get(one.name)) if one.kind == "breaker" else one
            for one in found
        ]
    return sorted(found, key=lambda one: (_ORDER.index(one.kind), one.name))
