"""The sweep: finds subscriptions and queues of the bus that are no longer served or used, and removes them.

It reads lists and the ends of queues, never all keys. Queues that hold a message, waiting or running, are only
reported. The step that removes something checks it once more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from relevo.bus.event_store import relay_events
from relevo.bus.subscription_store import SWEPT, Subscription, Swept, subscriptions, sweep
from relevo.engine.list_store import unlist
from relevo.errors import ServerRefused
from relevo.queues import store as queues
from relevo.store.plan import Call, Steps
from relevo.text.durations import spoken
from relevo.text.names import is_bus_name
from relevo.upkeep.report import UpkeepReport
from relevo.upkeep.rules import Verdict
from relevo.upkeep.run import UNUSED, Entry, Part, Run

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.bus")

#: What is skipped while another process sweeps: the bus as a whole.
BUS = "bus"


def sweeping(engine: Engine, *, dry_run: bool) -> Steps[UpkeepReport]:
    """The plan of one sweep, which removes unless it is a dry run."""
    run = Run(engine, (yield from engine.now_ms()), dry_run=dry_run)
    yield from run.leading(engine.bus_keys, BUS, _sweeping_bus(run))
    report = run.report()
    if not dry_run:
        log_sweep(log, report)
    return report


def log_sweep(to: logging.Logger, report: UpkeepReport, start: str = "") -> None:
    """Log what a sweep found; a subscription that will be removed is a warning."""
    for one in report.purged:
        to.info("%s%s %s: %s; %s", start, one.kind, one.name, one.reason, one.what)
    for held in report.held:
        level = logging.WARNING if held.kind == "subscription" else logging.INFO
        to.log(level, "%s%s %s: %s", start, held.kind, held.name, held.why)


def _sweeping_bus(run: Run) -> Part:
    yield from _subscriptions(run)
    yield from _queues(run)
    if not run.dry_run:
        engine = run.engine
        yield from relay_events(engine.bus_keys, engine.keys_of, engine.settings.dead_max)


def _subscriptions(run: Run) -> Part:
    bus, now_ms = run.engine.bus_keys, run.now_ms
    if run.dry_run:
        listed: list[Subscription] = yield subscriptions(bus)
        # A durable subscription is removed only after a warning, however long all workers were away.
        removed = [one for one in listed if _ends_ms(one) <= now_ms and (one.until_ms or one.warned)]
        warned = [one for one in listed if not one.until_ms and not one.warned and _half_ms(one) <= now_ms]
    else:
        removed, warned = [], []
        while True:
            swept: Swept = yield sweep(bus)
            removed += swept.removed
            warned += swept.warned
            if len(swept.removed) + len(swept.warned) < SWEPT:
                break
    for one in removed:
        why = "its process is gone" if one.until_ms else f"not served for {spoken((now_ms - one.seen_ms) / 1000)}"
        verdict = Verdict("removed", why, one.seen_ms, _ends_ms(one) - one.seen_ms)
        run.note("subscription", one.queue, Entry("", UNUSED, verdict, 0))
    for one in warned:
        left_ms = max(_ends_ms(one) - now_ms, 0) or one.inactive_ms // 2  # away even longer: half the limit more
        gone, left = spoken((now_ms - one.seen_ms) / 1000), spoken(left_ms / 1000)
        why = f"not served for {gone}; in {left} it is removed with all that waits in it"
        run.note_held("subscription", one.queue, UNUSED, why)


def _ends_ms(one: Subscription) -> int:
    return one.until_ms or one.seen_ms + one.inactive_ms


def _half_ms(one: Subscription) -> int:
    return one.seen_ms + one.inactive_ms // 2


def _queues(run: Run) -> Part:
    """Queues of the bus that were unused for long. An empty one has no keys: only its name is removed from the list."""
    engine, limit_ms = run.engine, round(run.engine.settings.orphan_age * 1000)
    key = engine.bus_keys.key("queues")
    rows: list[bytes] = yield Call(
        [b"ZRANGEBYSCORE", key, b"-inf", run.now_ms - limit_ms, b"WITHSCORES", b"LIMIT", 0, 1000]
    )
    pairs = zip(rows[::2], rows[1::2], strict=True)
    names = [(name.decode(errors="replace"), int(float(used))) for name, used in pairs]
    for name, used_ms in names:
        if not is_bus_name(name) or not engine.can_be_queue(name):
            continue
        try:
            one: queues.QueueStats = yield queues.count(engine.keys_of(name), name)
        except ServerRefused:
            continue  # no access: its own services handle it
        why = f"unused for {spoken((run.now_ms - used_ms) / 1000)}"
        if one.living:
            run.note_held("queue", name, UNUSED, f"{why}; kept: {one.living:,} messages are in it")
        elif one.dead:
            run.note_held("queue", name, UNUSED, f"{why}; kept: {one.dead:,} dead letters are in it")
        elif one.idle_workers:
            continue
        elif run.dry_run or (yield unlist(key, name, used_ms)):
            run.note("queue", name, Entry("", UNUSED, Verdict("removed", why, used_ms, limit_ms), 0))
        else:
            run.note_held("queue", name, UNUSED, f"{why}; kept: it was used just now")
