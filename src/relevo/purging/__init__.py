"""The purge: what is in its state for too long is ended, moved or removed, by one table, and told of.

It finds, part by part, what the table calls too old; asks, of entities, whether they still exist; and acts in a step
that looks again at state and age, so that whatever moves meanwhile is spared. A dry run finds and asks in the same way,
and gives the same list. Of a queue or pool only one purge acts at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from relevo.lists import known_queues
from relevo.model.names import is_pool_name
from relevo.pools import Pool
from relevo.purging.asking import aasked, asked
from relevo.purging.entities import purging_entities
from relevo.purging.jobs import purging_jobs
from relevo.purging.orphans import purging_orphans
from relevo.purging.report import Held, Purged, PurgeGroup, PurgeReport, Uncertain, tell
from relevo.purging.run import Ask, Part, Run
from relevo.store.plan import Call
from relevo.store.workers import queues_served

if TYPE_CHECKING:
    from relevo.app import Relevo

__all__ = [
    "Held",
    "PurgeGroup",
    "PurgeReport",
    "Purged",
    "Uncertain",
    "aperformed",
    "performed",
    "purgeable",
    "purging",
]

Steps: TypeAlias = Generator[Call[Any] | Ask, Any, PurgeReport]


def purging(
    app: Relevo, *, dry_run: bool, queue: str | None = None, watch: Callable[[int], None] | None = None
) -> Steps:
    """The plan of one run; what it asks besides calls is for `performed`."""
    run = Run(app, (yield from app.now_ms()), dry_run=dry_run, watch=watch)
    run.served = yield from queues_served(app.keys)
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
    # First: what only a live run takes out of its set must not be met here by that one alone.
    yield from purging_orphans(run, name)
    yield from purging_jobs(run, name)


def _meant(app: Relevo, queue: str | None) -> Generator[Call[Any], Any, tuple[list[str], list[Pool]]]:
    """The queues and pools of a run. Queues of the bus are purged by the apps that serve them, or by name."""
    pools: list[str] = yield from app.listed_pools()
    if queue is None:
        listed = [name for name in (yield from app.listed_queues()) if not is_pool_name(name)]
        return listed, [app.pool(name) for name in pools]
    app.keys_of(queue)  # refuses a name that cannot be one
    named = [pool for pool in map(app.pool, pools) if queue in (pool.name, pool.queue)]
    return [] if is_pool_name(queue) else [queue], named


def purgeable(app: Relevo) -> Generator[Call[Any], Any, list[str]]:
    """All names that a run can be asked to keep to: queues in use, and pools by both of their names."""
    pools = [app.pool(name) for name in (yield from app.listed_pools())]
    return [*(yield from known_queues(app)), *(name for pool in pools for name in (pool.name, pool.queue))]


def performed(app: Relevo, plan: Steps) -> PurgeReport:
    """Carry a run out and block meanwhile."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = plan.send(answer) if error is None else plan.throw(error)
        except StopIteration as end:
            report: PurgeReport = end.value
            return report
        answer = error = None
        try:
            answer = asked(step) if isinstance(step, Ask) else app.run(step)
        except BaseException as raised:  # noqa: BLE001  # the plan has a lock to give back, and raises it again
            error = raised


async def aperformed(app: Relevo, plan: Steps) -> PurgeReport:
    """Carry a run out on the running event loop."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = plan.send(answer) if error is None else plan.throw(error)
        except StopIteration as end:
            report: PurgeReport = end.value
            return report
        answer = error = None
        try:
            answer = await aasked(step) if isinstance(step, Ask) else await app.arun(step)
        except BaseException as raised:  # noqa: BLE001  # as above
            error = raised
