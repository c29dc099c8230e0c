"""The purge: what is in its state for too long is ended, moved or removed, by one table, and told of.

It finds, part by part, what the table calls too old; asks, of entities, whether they still exist; and acts in a step
that looks again at state and age, so that whatever moves meanwhile is spared. A dry run finds and asks in the same way,
and gives the same list. Of a queue or pool only one purge acts at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from relevo.errors import OptionError
from relevo.model.names import is_bus_name, is_pool_name
from relevo.pools import Pool
from relevo.purging.entities import purging_entities
from relevo.purging.jobs import purging_jobs
from relevo.purging.orphans import purging_orphans
from relevo.purging.report import Purged, PurgeGroup, PurgeReport, Uncertain, tell
from relevo.purging.run import Ask, Part, Run
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo

__all__ = ["PurgeGroup", "PurgeReport", "Purged", "Uncertain", "aperformed", "performed", "purging"]

log = logging.getLogger("relevo.purge")

Steps: TypeAlias = Generator[Call[Any] | Ask, Any, PurgeReport]


def purging(app: Relevo, *, dry_run: bool, queue: str | None = None) -> Steps:
    """The plan of one run; what it asks besides calls is for `performed`."""
    run = Run(app, (yield from app.now_ms()), dry_run=dry_run)
    names, pools = yield from _meant(app, queue)
    for name in names:
        yield from run.guarded(app.keys_of(name), name, _purging_queue(run, name))
    for pool in pools:
        yield from run.guarded(pool.keys, pool.name, purging_entities(run, pool))
    if run.to_relay:  # at the end, so that nothing that is told changes what was still to be looked at
        yield from app.relay(*run.to_relay)
    report = run.report()
    tell(report)
    return report


def _purging_queue(run: Run, name: str) -> Part:
    yield from purging_jobs(run, name)
    yield from purging_orphans(run, name)


def _meant(app: Relevo, queue: str | None) -> Generator[Call[Any], Any, tuple[list[str], list[Pool]]]:
    """The queues and pools of a run. Queues of the bus are purged by the apps that serve them, or by name."""
    pools: list[str] = yield from app.listed_pools()
    if queue is None:
        served = app.bus.queues("nobody")
        listed = [name for name in (yield from app.listed_queues()) if not is_bus_name(name) or name in served]
        return listed, [app.pool(name) for name in pools]
    app.keys_of(queue)  # refuses a name that cannot be one
    named = [pool for pool in map(app.pool, pools) if queue in (pool.name, pool.queue)]
    return [] if is_pool_name(queue) else [queue], named


def performed(app: Relevo, plan: Steps) -> PurgeReport:
    """Carry a run out and block meanwhile."""
    answer: Any = None
    while True:
        try:
            step = plan.send(answer)
        except StopIteration as end:
            report: PurgeReport = end.value
            return report
        answer = _asked(step) if isinstance(step, Ask) else app.run(step)


async def aperformed(app: Relevo, plan: Steps) -> PurgeReport:
    """Carry a run out on the running event loop."""
    answer: Any = None
    while True:
        try:
            step = plan.send(answer)
        except StopIteration as end:
            report: PurgeReport = end.value
            return report
        answer = await _aasked(step) if isinstance(step, Ask) else await app.arun(step)


def _asked(ask: Ask) -> bool | None:
    if inspect.iscoroutinefunction(ask.pool.still_there):
        return asyncio.run(_aasked(ask))
    assert ask.pool.still_there is not None
    try:
        return _answer(ask.pool.still_there(ask.entity))
    except Exception:  # noqa: BLE001  # somebody's code may raise anything
        _tell_unanswered(ask)
        return None


async def _aasked(ask: Ask) -> bool | None:
    hook = ask.pool.still_there
    assert hook is not None
    try:
        if inspect.iscoroutinefunction(hook):
            return _answer(await hook(ask.entity))
        return _answer(await asyncio.to_thread(hook, ask.entity))
    except Exception:  # noqa: BLE001  # as above
        _tell_unanswered(ask)
        return None


def _answer(said: Any) -> bool:
    if not isinstance(said, bool):
        raise OptionError(f"still_there says True or False, found {said!r:.60}")
    return said


def _tell_unanswered(ask: Ask) -> None:
    """Who cannot be asked has not said that it is gone."""
    log.exception("pool %s: nobody knows whether %s still exists; it is left alone", ask.pool.name, ask.entity.id)
