"""Ends expired jobs and messages in queues that no worker serves. In other queues, workers end them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from relevo.engine.job_store import readable
from relevo.engine.lists import bus_queues, job_queues
from relevo.errors import ServerRefused
from relevo.store.plan import Call, Steps
from relevo.upkeep import store
from relevo.upkeep.jobs import JobEntry, end_jobs
from relevo.upkeep.report import UpkeepReport
from relevo.upkeep.rules import Verdict
from relevo.upkeep.run import Part, Run

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Jobs of one queue and state that one run checks, from the head; the next run continues from there.
MOST_LOOKS = 2_500


def expiring(engine: Engine, offsets: dict[str, int]) -> Steps[UpkeepReport]:
    """End expired jobs in queues that no worker has served in the last minute.

    `offsets`: the position in each long queue at which the last run stopped; updated.
    """
    run = Run(engine, (yield from engine.now_ms()), dry_run=False)
    names = {*(yield from job_queues(engine)), *(yield from bus_queues(engine))}
    for name in sorted(names):
        keys = engine.keys_of(name)
        with suppress(ServerRefused):  # it may be out of reach
            if (yield Call([b"EXISTS", keys.key("contact")])) == 0 and (yield Call([b"EXISTS", keys.key("jobs")])):
                yield from run.leading(keys, name, _expiring_queue(run, name, offsets))
    if run.to_relay:
        yield from engine.relay(*run.to_relay)
    return run.report()


def _expiring_queue(run: Run, name: str, offsets: dict[str, int]) -> Part:
    keys = run.engine.keys_of(name)
    for state, first in (("scheduled", 0), ("ready", offsets.pop(name, 0))):
        offset, looked, has_more = first, 0, True
        while has_more and looked < MOST_LOOKS:
            part: store.OldJobs = yield store.find_old_jobs(keys, state, run.now_ms, offset)
            late = [entry for one in part.found if (entry := _late(state, one, run.now_ms)) is not None]
            done = yield from end_jobs(run, name, late)
            looked, has_more = looked + part.looked, part.has_more
            offset += part.looked - done
        if state == "ready" and has_more:
            offsets[name] = offset


def _late(state: str, one: store.Candidate, now_ms: int) -> JobEntry | None:
    envelope = readable(one.body) if one.body else None
    if envelope is None or envelope.expires_ms is None or now_ms <= envelope.expires_ms:
        return None
    return JobEntry(one.id, state, Verdict("expired", "expired", envelope.expires_ms, 0), one.bytes, seen=one)
