"""Bodies of a queue that are in no set, so that no worker will ever see them.

Whether there are any is told by the sizes; only then is all of it looked at, part by part. Nobody knows since when one
is there, so it is written down with the time, and removed if it is there still when the limit has passed.
"""

from __future__ import annotations

from relevo.model.purging import Verdict
from relevo.purging.jobs import acting
from relevo.purging.run import MOST, Entry, Part, Run
from relevo.store import purging as store
from relevo.store import queues
from relevo.store.jobs import readable

#: A note outlives its limit by so much: by then a purge has come by that acts on it.
_NOTED_FOR_MS = 7 * 86_400_000


def purging_orphans(run: Run, name: str) -> Part:
    """Note them, and remove those that were noted long ago."""
    rule = run.ages.of_queue(name)["orphaned"]
    keys = run.app.keys_of(name)
    stats: queues.QueueStats = yield queues.count(keys, name)
    if rule.age_ms is None or stats.living == stats.ready + stats.scheduled + stats.running + stats.waiting:
        return
    cursor, seen = b"0", set[str]()
    while len(seen) < MOST:
        cursor, rows = yield store.bodies(keys, cursor)
        new = {id: body for id, body in rows if id not in seen}
        found = (yield store.astray(keys, list(new))) if new else []
        acts = []
        for (id, body), (noted_ms, claim) in zip(new.items(), found, strict=True):
            if noted_ms < 0:
                continue
            seen.add(id)
            if noted_ms and run.now_ms - noted_ms < rule.age_ms:
                run.note_unknown("queue", name, "orphaned", 1)
                continue
            then = rule.then if noted_ms else "noted"
            envelope = readable(body)
            ending = store.Ending(then, rule.age_ms + _NOTED_FOR_MS, name=envelope.name if envelope else "")
            verdict = Verdict(then, "orphaned", noted_ms or run.now_ms, rule.age_ms)
            act = store.Act(id, "orphaned", 0, claim, noted_ms, rule.age_ms, ending)
            acts.append((Entry(id, "orphaned", verdict, len(body)), act))
        if run.dry_run:
            for entry, _ in acts:
                run.note("queue", name, entry)
        else:
            yield from acting(run, name, acts)
        if cursor == b"0":
            return
    run.note_unfinished(name)
