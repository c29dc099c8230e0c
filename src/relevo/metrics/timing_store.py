"""How long the tasks of a queue wait and run: sums in one hash, to which each worker adds what it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relevo.engine.push import KEEP_MS
from relevo.metrics.timings import SLOTS, TaskTimings, read, written
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Fields of one queue: some fifty tasks that use every bound, or twice as many that do not.
MOST_FIELDS = 50 * (len(SLOTS) + 1)
#: Tasks that one call reports: at most 800 small additions and one scan of all fields, two or three milliseconds.
PART = 20


def measure(queue: QueueKeys, rows: Sequence[tuple[str, Sequence[float]]]) -> Call[int]:
    """Add the sums of some tasks, at most PART. A repeated call would count twice."""
    script = queue.script("metrics/add_timings")
    args: list[Argument] = [KEEP_MS, MOST_FIELDS]
    for task, sums in rows:
        args += (task, written(sums))
    return Call(args, int, script, queue.of(script), repeatable=False)


def timings(queue: QueueKeys) -> Call[dict[str, TaskTimings]]:
    """The timings of each task that ran in this queue recently."""
    return Call([b"HGETALL", queue.key("timings")], _decoded)


def _decoded(reply: Sequence[bytes]) -> dict[str, TaskTimings]:
    by_task: dict[str, dict[str, int]] = {}
    for i in range(0, len(reply), 2):
        slot, parted, task = reply[i].decode(errors="replace").partition(" ")
        if parted:
            by_task.setdefault(task, {})[slot] = int(reply[i + 1])
    return {task: read(slots) for task, slots in by_task.items()}


def heard_since(found: Mapping[str, TaskTimings], now_ms: int) -> dict[str, TaskTimings]:
    """Those that ran within the time for which sums are kept."""
    return {task: one for task, one in found.items() if one.at_ms >= now_ms - KEEP_MS}
