"""The sweeper: finds what is no longer served or used, by its last use, and removes it.

It reads lists and the ends of queues, never all keys. Queues that hold a message, waiting or running, are only
reported. The step that removes something checks it once more.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from relevo.bus.event_store import relay_events
from relevo.bus.subscription_store import SWEPT, Subscription, Swept, subscriptions, sweep
from relevo.engine.list_store import unlist
from relevo.errors import ServerRefused
from relevo.queues import store as queues
from relevo.store.plan import Ahead, Call
from relevo.text.durations import spoken
from relevo.text.names import is_bus_name
from relevo.upkeep.locks import lock, unlock

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.bus")

#: One sweep at a time: a process that dies during one blocks the next for so long.
LOCK_MS = 30_000


class Orphan(Struct, frozen=True):
    """Something that is no longer served or used."""

    #: subscription or queue
    kind: str
    name: str
    #: When it was last used, by the server's clock.
    used_ms: int
    reason: str
    #: removed, would be removed, warned, or kept because messages wait in it
    what: str


class SweepReport(Struct, frozen=True):
    """What a sweep found."""

    orphans: tuple[Orphan, ...]
    dry_run: bool
    #: Another process was sweeping: nothing was looked at.
    skipped: bool = False

    @property
    def removed(self) -> int:
        """How many were removed, or would be."""
        return sum(one.what in ("removed", "would be removed") for one in self.orphans)


def sweeping(engine: Engine, *, dry_run: bool) -> Generator[Call[Any] | Ahead[Any], Any, SweepReport]:
    """Look once, and remove unless it is a dry run."""
    me = engine.new_id()
    if not dry_run and not (yield lock(engine.bus_keys, me, LOCK_MS)):
        return SweepReport((), dry_run, skipped=True)
    now_ms = yield from engine.now_ms()
    found = yield from _subscriptions(engine, now_ms, dry_run=dry_run)
    found += yield from _queues(engine, now_ms, dry_run=dry_run)
    if not dry_run:
        yield from relay_events(engine.bus_keys, engine.keys_of, engine.settings.dead_max)
        yield unlock(engine.bus_keys, me)
        for one in found:
            level = logging.WARNING if one.what == "warned" else logging.INFO
            log.log(level, "%s %s: %s; %s", one.kind, one.name, one.reason, one.what)
    return SweepReport(tuple(found), dry_run)


def _subscriptions(engine: Engine, now_ms: int, *, dry_run: bool) -> Generator[Call[Any], Any, list[Orphan]]:
    if dry_run:
        listed: list[Subscription] = yield subscriptions(engine.bus_keys)
        # A durable subscription is removed only after a warning, however long all workers were away.
        removed = [one for one in listed if _ends_ms(one) <= now_ms and (one.until_ms or one.warned)]
        warned = [one for one in listed if not one.until_ms and not one.warned and _half_ms(one) <= now_ms]
    else:
        removed, warned = [], []
        while True:
            swept: Swept = yield sweep(engine.bus_keys)
            removed += swept.removed
            warned += swept.warned
            if len(swept.removed) + len(swept.warned) < SWEPT:
                break
    found = []
    for one in removed:
        why = "its process is gone" if one.until_ms else f"not served for {spoken((now_ms - one.seen_ms) / 1000)}"
        found.append(Orphan("subscription", one.queue, one.seen_ms, why, _removal(dry_run=dry_run)))
    for one in warned:
        left_ms = max(_ends_ms(one) - now_ms, 0) or one.inactive_ms // 2  # away even longer: half the limit more
        gone, left = spoken((now_ms - one.seen_ms) / 1000), spoken(left_ms / 1000)
        why = f"not served for {gone}; in {left} it is removed with all that waits in it"
        found.append(Orphan("subscription", one.queue, one.seen_ms, why, "warned"))
    return found


def _ends_ms(one: Subscription) -> int:
    return one.until_ms or one.seen_ms + one.inactive_ms


def _half_ms(one: Subscription) -> int:
    return one.seen_ms + one.inactive_ms // 2


def _queues(engine: Engine, now_ms: int, *, dry_run: bool) -> Generator[Call[Any], Any, list[Orphan]]:
    """Queues of the bus that were unused for long. An empty one has no keys: only its name is removed from the list."""
    before_ms = now_ms - round(engine.settings.orphan_age * 1000)
    key = engine.bus_keys.key("queues")
    rows: list[bytes] = yield Call([b"ZRANGEBYSCORE", key, b"-inf", before_ms, b"WITHSCORES", b"LIMIT", 0, 1000])
    pairs = zip(rows[::2], rows[1::2], strict=True)
    names = [(name.decode(errors="replace"), int(float(used))) for name, used in pairs]
    names = [(name, used) for name, used in names if is_bus_name(name) and engine.can_be_queue(name)]
    found = []
    for name, used in names:
        try:
            one: queues.QueueStats = yield queues.count(engine.keys_of(name), name)
        except ServerRefused:
            continue  # no access: its own services handle it
        why = f"unused for {spoken((now_ms - used) / 1000)}"
        if one.living:
            what = f"kept: {one.living:,} messages are in it"
        elif one.dead:
            what = f"kept: {one.dead:,} dead letters are in it"
        elif one.idle_workers:
            continue
        elif dry_run:
            what = _removal(dry_run=True)
        else:
            what = "removed" if (yield unlist(key, name, used)) else "kept: it was used just now"
        found.append(Orphan("queue", name, used, why, what))
    return found


def _removal(*, dry_run: bool) -> str:
    return "would be removed" if dry_run else "removed"
