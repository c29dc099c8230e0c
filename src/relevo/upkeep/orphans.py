"""Removes orphans: data of ids that are in no set of a queue, so that no worker sees it and no settlement removes it.

A body, a claim, a story, a name, dependents, a slot, an outbox message. The age of an orphan is unknown, so it is noted
with the current time, and removed if it still exists when the limit has passed.
"""

from __future__ import annotations

from relevo.engine.job_store import readable
from relevo.upkeep import store
from relevo.upkeep.jobs import WALK, acting
from relevo.upkeep.rules import Rule, Verdict
from relevo.upkeep.run import MOST, Entry, Part, Run

#: A note outlives its limit by this time, so that a later purge finds and acts on it.
_NOTED_FOR_MS = 7 * 86_400_000
#: The lead is kept by a heartbeat after this many entries.
_KEEP_LEAD_AFTER = 50_000


def purging_orphans(run: Run, name: str) -> Part:
    """Note new orphans, and remove those noted long ago. The next run continues where this one stops."""
    rule = run.ages.of_queue(name)["orphaned"]
    if rule.age_ms is None:
        return
    keys = run.engine.keys_of(name)
    began: store.Position = yield store.orphan_position(keys)
    place: store.Position | None = began
    looked, kept_at, seen = 0, 0, set[str]()
    while place is not None and looked < WALK and len(seen) < MOST:
        part: store.Orphans = yield store.find_orphans(keys, place)
        acts = []
        for one in part.found:
            if one.id in seen:  # in several places, or returned twice by the scan of a growing table
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
        place, looked = part.then, looked + part.looked
        if looked - kept_at > _KEEP_LEAD_AFTER:
            kept_at = looked
            yield from run.keep_lead(keys)
    if place is not None and len(seen) >= MOST:
        run.note_unfinished(name)
    if not run.dry_run and (place is not None or began != store.Position()):
        yield store.remember_orphan_position(keys, place)


def _act_of(run: Run, rule: Rule, limit_ms: int, one: store.Orphan) -> tuple[Entry, store.Act]:
    then = rule.then if one.noted_ms else "noted"
    envelope = readable(one.body) if one.body else None
    ending = store.Ending(verb=then, ms=limit_ms + _NOTED_FOR_MS, name=envelope.name if envelope else one.name)
    verdict = Verdict(then, "orphaned", one.noted_ms or run.now_ms, limit_ms)
    act = store.Act(
        id=one.id, state="orphaned", score=0, claim=one.claim, since_ms=one.noted_ms, limit_ms=limit_ms, end=ending
    )
    return Entry(one.id, "orphaned", verdict, one.bytes), act
