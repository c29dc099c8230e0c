"""Bodies of a queue that are in no set, so that no worker will ever see them.

Whether there are any is told by the sizes; only then is all of it looked at, part by part. Nobody knows since when one
is there, so it is written down with the time, and removed if it is there still when the limit has passed.
"""

from __future__ import annotations

from relevo.model.purging import Rule, Verdict
from relevo.purging.jobs import acting
from relevo.purging.run import MOST, Entry, LockLost, Part, Run
from relevo.store import purging as store
from relevo.store import queues
from relevo.store.jobs import readable
from relevo.store.push import CHUNK_BYTES

#: A note outlives its limit by so much: by then a purge has come by that acts on it.
_NOTED_FOR_MS = 7 * 86_400_000
#: Bodies of the first part, whose size nobody knows yet.
_FIRST = 20
#: After so many the lock is kept for longer.
_HOLD_AFTER = 50_000


def purging_orphans(run: Run, name: str) -> Part:
    """Note them, and remove those that were noted long ago."""
    rule = run.ages.of_queue(name)["orphaned"]
    keys = run.app.keys_of(name)
    stats: queues.QueueStats = yield queues.count(keys, name)
    if rule.age_ms is None or stats.living == stats.ready + stats.scheduled + stats.running + stats.waiting:
        return
    cursor, count, looked, seen = b"0", _FIRST, 0, set[str]()
    while len(seen) < MOST:
        rows: list[tuple[bytes, bytes]]
        cursor, rows = yield store.bodies(keys, cursor, count)
        found: list[store.Stray] = (yield store.astray(keys, rows)) if rows else []
        acts = []
        for one in found:
            if one.id in seen:  # a table that grows meanwhile gives some twice
                continue
            seen.add(one.id)
            if one.noted_ms and run.now_ms - one.noted_ms < rule.age_ms:
                run.note_unknown("queue", name, "orphaned", 1)
            else:
                acts.append(_act_of(run, rule, rule.age_ms, one))
        if run.dry_run:
            for entry, _ in acts:
                run.note("queue", name, entry)
        else:
            yield from acting(run, name, acts)
        if cursor == b"0":
            return
        looked += len(rows)
        if looked > _HOLD_AFTER and not run.dry_run:
            looked = 0
            if not (yield store.hold(keys, run.me)):
                raise LockLost
        # Bodies may be large, and all of a part is in the server's hands at once.
        size = sum(len(body) for _, body in rows) // max(1, len(rows))
        count = max(_FIRST, min(200, CHUNK_BYTES // max(1, size)))
    run.note_unfinished(name)


def _act_of(run: Run, rule: Rule, limit_ms: int, one: store.Stray) -> tuple[Entry, store.Act]:
    then = rule.then if one.noted_ms else "noted"
    envelope = readable(one.body)
    ending = store.Ending(then, limit_ms + _NOTED_FOR_MS, name=envelope.name if envelope else "")
    verdict = Verdict(then, "orphaned", one.noted_ms or run.now_ms, limit_ms)
    act = store.Act(one.id, "orphaned", 0, one.claim, one.noted_ms, limit_ms, ending)
    return Entry(one.id, "orphaned", verdict, len(one.body)), act
