"""The health of an app: gathered now, or as a worker last found it.

A look makes a fixed number of calls for each queue, however many jobs are in it. With the setting `health` on, one
worker at a time looks in each interval, stores what it finds, and logs it when something changed.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.engine.leader import take_turn
from relevo.engine.lists import job_queues, listed_pools
from relevo.engine.workers import full_since, roll
from relevo.errors import ServerRefused, StoreError
from relevo.health.judging import judge, judge_evictions, judge_memory, judge_pool, judge_tasks, judge_workers
from relevo.health.pool_vitals import pool_vitals
from relevo.health.status import (
    Health,
    PoolHealth,
    QueueHealth,
    Reason,
    Status,
    changed,
    measures,
    stale,
    worst,
)
from relevo.health.store import keep_snapshot, snapshot
from relevo.health.thresholds import limits_of
from relevo.health.vitals import PoolVitals, Vitals
from relevo.health.vitals_store import keep_minute, vitals
from relevo.pools.pool import pool_of
from relevo.store.plan import Ahead, Call, Steps
from relevo.store.server_facts import Memory, memory

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.health")

_LEVELS = {Status.HEALTHY: logging.INFO, Status.DEGRADED: logging.WARNING, Status.UNHEALTHY: logging.ERROR}
#: A look reserves this part of an interval for its worker: if that worker dies, the next look is not late.
_TURN = 0.9
#: Reasons in one line of the log; all are stored.
_LOGGED = 10


def gathering(engine: Engine) -> Steps[Health]:
    """Look at every queue of the app, and at the queues of the bus that it serves."""
    kept: Health | None = yield snapshot(engine.keys)
    return (yield from _looking(engine, kept))


def keeping(engine: Engine, found: Health) -> Steps[None]:
    """Keep the counters of queues in this minute, unless they were kept already, so that the next look has rates.

    Separate from looking, which changes nothing: a read-only user is refused here.
    """
    names = [one.name for one in found.queues if not one.vitals.minute_kept]
    yield Ahead(keep_minute(engine.keys_of(name)) for name in names)


def look(engine: Engine) -> Health:
    """Look at the app, and keep the counters of this minute where the server allows it."""
    found = engine.run(gathering(engine))
    with suppress(StoreError):  # a read-only user or replica
        engine.client.run(keeping(engine, found), patience=0)
    return found


async def alook(engine: Engine) -> Health:
    """`look` for async code."""
    found = await engine.arun(gathering(engine))
    with suppress(StoreError):
        await engine.client.arun(keeping(engine, found), patience=0)
    return found


def cached(engine: Engine) -> Generator[Call[Any], Any, Health]:
    """What a worker found last; `unknown` if that is too long ago or no worker ever looked."""
    kept: Health | None = yield snapshot(engine.keys)
    if kept is None:
        why = "no worker has looked recently: is `health` on, and is one alive?"
        reason = Reason("", "snapshot", Status.UNKNOWN, why)
        return Health(
            app=engine.name, env=engine.settings.env, status=Status.UNKNOWN, checked_at_ms=0, reasons=(reason,)
        )
    now_ms = yield from engine.now_ms()
    return stale(kept, now_ms)


def watching(engine: Engine, worker: str) -> Steps[Health | None]:
    """Look, store and log what changed; None if a worker did so in this interval."""
    every = engine.settings.health_every
    if not (yield take_turn(engine.keys.turn("health"), worker, every * _TURN)):
        return None
    kept: Health | None = yield snapshot(engine.keys)
    found = msgspec.structs.replace((yield from _looking(engine, kept)), every_s=every)
    yield keep_snapshot(engine.keys, found)
    yield from keeping(engine, found)
    _log_change(kept, found)
    return found


def _looking(engine: Engine, kept: Health | None) -> Steps[Health]:
    table, env = engine.settings.health_limits, engine.settings.env
    now_ms = yield from engine.now_ms()
    is_fresh = kept is not None and stale(kept, now_ms).status is not Status.UNKNOWN
    before = measures(kept) if kept is not None and is_fresh else {}
    alive, lost = yield from roll(engine.keys, now_ms)
    names = yield from job_queues(engine)
    pools = yield from judged_pools(engine, before)
    server = yield from _memory()
    evictions = judge_evictions(server.policy, server.evicted)
    if not names and not alive and not lost and not pools:
        why = f"nothing is known of app {engine.name!r} in {env!r}: no recent job and no worker; check the name and env"
        reason = Reason("", "app", Status.UNKNOWN, why)
        status = Status.UNHEALTHY if evictions else Status.UNKNOWN  # the server may have evicted all of it
        return Health(app=engine.name, env=env, status=status, checked_at_ms=now_ms, reasons=(*evictions, reason))
    looks: list[Vitals] = yield Ahead(look_at(engine, name) for name in names)
    queues = []
    for look in looks:
        limits = limits_of(table, look.name)
        workers = sum(look.name in one.queues for one in alive)
        reasons = judge(
            look,
            limits,
            workers=workers,
            before=before.get(look.name),
            dead_max=engine.settings.dead_max,
            full_ms=now_ms - (full_since(alive, look.name) or now_ms),
        )
        status = worst(reason.status for reason in reasons)
        queues.append(
            QueueHealth(name=look.name, status=status, reasons=reasons, workers=workers, slo=limits.slo, vitals=look)
        )
    general = limits_of(table, "")
    of_the_app = judge_workers(lost, general.lost_workers, before=before.get(""))
    of_the_app += judge_tasks([f"{one.id} (process {one.pid} on {one.host})" for one in alive if one.tasks == 0])
    of_the_server = (*judge_memory(server.used, server.most, general, before=before.get("")), *evictions)
    of_queues = [reason for queue in queues for reason in queue.reasons]
    of_pools = [reason for pool in pools for reason in pool.reasons]
    all_reasons = sorted(
        (*of_queues, *of_pools, *of_the_app, *of_the_server),
        key=lambda reason: -reason.status.number,
    )
    return Health(
        app=engine.name,
        env=env,
        status=worst(reason.status for reason in all_reasons),
        checked_at_ms=now_ms,
        reasons=tuple(all_reasons),
        queues=tuple(queues),
        workers=len(alive),
        lost_workers=tuple(lost),
        paused=tuple(one.name for one in looks if one.paused),
        orphans=sum(one.totals.get("orphans", 0) for one in looks) + sum(one.vitals.orphans for one in pools),
        pools=tuple(pools),
    )


def _memory() -> Steps[Memory]:
    """The server's memory; empty if this user may not read it."""
    found = Memory()
    with suppress(ServerRefused):
        found = yield memory()
    return found


def look_at(engine: Engine, queue: str) -> Call[Vitals]:
    """Look at one queue; its limits define when a job is stuck."""
    limits = limits_of(engine.settings.health_limits, queue)
    return vitals(engine.keys_of(queue), queue, stuck_ms=limits.stuck_ms, wait_ms=limits.waiting_ms)


def judged_pools(engine: Engine, before: Mapping[str, Mapping[str, Status]]) -> Steps[list[PoolHealth]]:
    """The pools of the app, judged as queues are: by the limits under the pool's queue name."""
    found = [pool_of(engine, name) for name in (yield from listed_pools(engine))]
    limits = {pool.queue: limits_of(engine.settings.health_limits, pool.queue) for pool in found}
    looks: list[PoolVitals] = yield Ahead(
        pool_vitals(pool.keys, pool.name, pool.queue, stuck_ms=limits[pool.queue].stuck_ms) for pool in found
    )
    dead_max = engine.settings.dead_max
    judged = [
        (look, judge_pool(look, limits[look.queue], before=before.get(look.queue), dead_max=dead_max)) for look in looks
    ]
    return [PoolHealth(look.name, worst(one.status for one in why), why, look) for look, why in judged]


def _log_change(before: Health | None, found: Health) -> None:
    if changed(before, found):
        was = "unknown" if before is None else before.status
        texts = [reason.text for reason in found.reasons[:_LOGGED]] or ["nothing is wrong"]
        if len(found.reasons) > _LOGGED:
            texts.append(f"and {len(found.reasons) - _LOGGED} more")
        log.log(_LEVELS.get(found.status, logging.WARNING), "%s, was %s: %s", found.status, was, "; ".join(texts))
    log.info("%s", found.summary)
