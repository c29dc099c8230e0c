"""The purge: ends, moves or removes and reports entries that are in their state for too long, by a table of ages.

It searches in batches, calls the pools' `still_there` hooks for entities, and acts in a step that checks state and age
again, so that entries that have moved are spared. A dry run searches and calls hooks in the same way and returns the
same list. Only one purge of a queue or pool acts at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from relevo.engine.lists import job_queues, known_queues, listed_pools
from relevo.engine.workers import queues_served
from relevo.pools.pool import Pool, pool_of
from relevo.store.plan import Call, Steps
from relevo.text.names import is_pool_name
from relevo.upkeep.entities import purging_entities
from relevo.upkeep.jobs import purging_jobs
from relevo.upkeep.orphans import purging_orphans
from relevo.upkeep.report import UpkeepReport, log_report
from relevo.upkeep.run import Part, Run

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def purging(
    engine: Engine, *, dry_run: bool, queue: str | None = None, watch: Callable[[int], None] | None = None
) -> Steps[UpkeepReport]:
    """The plan of one run."""
    run = Run(engine, (yield from engine.now_ms()), dry_run=dry_run, watch=watch)
    run.served = yield from queues_served(engine.keys)
    names, pools = yield from _meant(engine, queue)
    for name in names:
        yield from run.leading(engine.keys_of(name), name, _purging_queue(run, name))
    for pool in pools:
        yield from run.leading(pool.keys, pool.name, purging_entities(run, pool))
    if run.to_relay:  # at the end, so that delivered notifications do not change entries that are still to be checked
        yield from engine.relay(*run.to_relay)
    report = run.report()
    log_report(report)
    return report


def _purging_queue(run: Run, name: str) -> Part:
    # First, so that entries which only a live run removes from their sets do not become its orphans.
    yield from purging_orphans(run, name)
    yield from purging_jobs(run, name)


def _meant(engine: Engine, queue: str | None) -> Generator[Call[Any], Any, tuple[list[str], list[Pool]]]:
    """The queues and pools of a run. Bus queues are purged by the apps that serve them, or by name."""
    pools: list[str] = yield from listed_pools(engine)
    if queue is None:
        return (yield from job_queues(engine)), [pool_of(engine, name) for name in pools]
    engine.keys_of(queue)  # refuses an invalid name
    named = [pool for pool in (pool_of(engine, pool) for pool in pools) if queue in (pool.name, pool.queue)]
    return [] if is_pool_name(queue) else [queue], named


def purgeable(engine: Engine) -> Generator[Call[Any], Any, list[str]]:
    """All names to which a run can be limited: queues in use, and pools by both of their names."""
    pools = [pool_of(engine, name) for name in (yield from listed_pools(engine))]
    return [*(yield from known_queues(engine)), *(name for pool in pools for name in (pool.name, pool.queue))]
