"""Error groups: dead letters with one fingerprint. A thousand dead letters may be three problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from relevo.dead import store as letters
from relevo.dead.wanted import check_permanent
from relevo.engine.fingerprint import is_permanent
from relevo.engine.job import Record, State
from relevo.engine.lists import listed_queues
from relevo.queues.queue import check_page
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


class ErrorGroup(Struct, frozen=True, kw_only=True):
    """Dead letters with one fingerprint, over all queues."""

    fingerprint: str
    #: Dead letters that exist now.
    count: int
    #: Of the newest: its error, why it was given up, and whether it would fail again as it is.
    error: str
    reason: str
    permanent: bool
    #: When the first one died, even if it was retried since, and when the newest did.
    first_ms: int
    last_ms: int
    #: How many died in the last hour, and in the 24 hours before that.
    recent: int
    before: int
    #: "new" (the first one died in this hour), "rising", "steady", "falling", or "quiet" (none in the last hour)
    trend: str
    queues: tuple[str, ...]
    #: Of the newest dead letters of each queue, the most affected first.
    tasks: tuple[str, ...]
    tenants: tuple[str, ...]


def grouping(
    engine: Engine, queue: str | None, permanent: bool | None, limit: int, offset: int = 0
) -> Generator[Call[Any], Any, list[ErrorGroup]]:
    """The largest error groups, of one queue or of all."""
    check_page(offset, limit)
    check_permanent(permanent)
    names = yield from listed_queues(engine, queue)
    found: dict[str, dict[str, letters.Alike]] = {}
    for name in names:
        keys = engine.keys_of(name)
        kinds: list[str] = yield letters.kinds(keys)
        for start in range(0, len(kinds), letters.KINDS_AT_ONCE):
            some = kinds[start : start + letters.KINDS_AT_ONCE]
            stands: list[letters.Alike] = yield letters.alike(keys, some)
            for kind, alike in zip(some, stands, strict=True):
                if alike.count:
                    found.setdefault(kind, {})[name] = alike
    now_ms = yield from engine.now_ms()
    groups = [_group(kind, by_queue, now_ms) for kind, by_queue in found.items()]
    if permanent is not None:
        groups = [group for group in groups if group.permanent is permanent]
    return sorted(groups, key=lambda group: (-group.count, -group.last_ms, group.fingerprint))[offset : offset + limit]


def _group(kind: str, by_queue: dict[str, letters.Alike], now_ms: int) -> ErrorGroup:
    parts = by_queue.values()
    heads = [head for part in parts for head in part.newest]
    newest = max(heads, key=lambda head: head.ended_ms, default=None)
    shown = newest or next((part.head for part in parts if part.head), Record(State.DEAD))
    recent, before = sum(part.recent for part in parts), sum(part.before for part in parts)
    first_ms = min(part.first_ms or part.last_ms for part in parts)
    return ErrorGroup(
        fingerprint=kind,
        count=sum(part.count for part in parts),
        error=shown.error,
        reason=shown.reason,
        permanent=is_permanent(shown.reason),
        first_ms=first_ms,
        last_ms=max(part.last_ms for part in parts),
        recent=recent,
        before=before,
        trend=trend(recent, before, is_new=first_ms > now_ms - letters.RECENT_MS),
        queues=tuple(sorted(by_queue)),
        tasks=_most(head.target for head in heads),
        tenants=_most(head.tenant for head in heads),
    )


def trend(recent: int, before: int, *, is_new: bool = False) -> str:
    """Deaths of the last hour compared with an average hour of the day before. A letter that was retried and died again
    is not counted before, and does not make its group new.

    >>> [trend(5, 0, is_new=True), trend(9, 48), trend(2, 48), trend(1, 48), trend(0, 48)]
    ['new', 'rising', 'steady', 'falling', 'quiet']
    """
    if not recent:
        return "quiet"
    if is_new and not before:
        return "new"
    hourly = before / 24
    return "rising" if recent > 1.5 * hourly else "falling" if recent < hourly / 1.5 else "steady"


def _most(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(name for name in names if name).most_common(20))
