"""The purge of a pool: its entities by state, and the data of entities in no state."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

from relevo.errors import ServerRefused
from relevo.pools import store
from relevo.pools.pool import Pool
from relevo.pools.store import Entity, Only, Reason
from relevo.store.plan import Call
from relevo.text.durations import spoken
from relevo.upkeep import store as upkeep
from relevo.upkeep.asking import HookCalls
from relevo.upkeep.rules import CLASS_FIELD, Rule, Verdict, judge
from relevo.upkeep.run import MOST, Entry, Part, Run

#: Entities of one step.
ENTITIES = 50
#: Steps of one run in the search for unlisted metadata, so that a large server is searched over several runs.
SCANS = 100


def purging_entities(run: Run, pool: Pool) -> Part:
    """All states of a pool, and its orphans."""
    rules = run.ages.of_pool(pool.name)
    census: store.Census = yield store.count_entities(pool.keys)
    if census.total and not run.dry_run:
        yield from run.engine.list_pool(pool.name)  # while it is not empty
    calls = HookCalls(run, pool)
    for state in sorted(census.counts):
        rule = rules.get(state)
        if rule is not None and rule.earliest_ms is not None and state != "orphaned":
            yield from _state(run, pool, state, rules, calls)
    limit_ms = rules["orphaned"].age_ms
    if limit_ms is None:
        return
    if census.astray > 0:
        yield from _orphans(run, pool, limit_ms)
    with suppress(ServerRefused):  # a user of the server that may not SCAN
        yield from _unlisted(run, pool, limit_ms)


def _state(run: Run, pool: Pool, state: str, rules: dict[str, Rule], calls: HookCalls) -> Part:
    earliest_ms = rules[state].earliest_ms or 0
    offset = acted = 0
    while acted < MOST:
        rows: list[Entity] = yield store.list_entities(pool.keys, pool.name, state, earliest_ms, offset, ENTITIES)
        entries: list[tuple[Entity, Verdict]] = []
        for entity in rows:
            class_ = str(entity.metadata.get(CLASS_FIELD, ""))
            verdict = judge(rules, state, class_, entity.since_ms, run.now_ms)
            if not isinstance(verdict, Verdict):
                continue
            is_there = yield from calls.is_there(entity)
            if is_there is None:
                run.note_unknown("pool", pool.name, state, 1)
            else:
                entries.append((entity, _for_entity(pool, state, verdict, is_there=is_there)))
        if entries:
            yield from run.keep_lead(pool.keys)
        done = 0
        for entity, verdict in entries:
            if run.dry_run or (yield from _act(run, pool, entity, verdict)):
                run.note("pool", pool.name, Entry(entity.id, state, verdict, entity.bytes))
                done += not run.dry_run
            else:
                run.spared += 1
        acted += len(entries)
        offset += len(rows) - done
        if len(rows) < ENTITIES:
            return
    run.note_unfinished(pool.name)


def _for_entity(pool: Pool, state: str, verdict: Verdict, *, is_there: bool) -> Verdict:
    """The verdict, corrected: entities that are gone are not moved on, and unknown target states become `dead`."""
    then, reason = verdict.then, verdict.reason
    if not is_there:
        then, reason = "removed" if then == "removed" else "dead", f"gone_{state}"
    elif then not in ("dead", "removed") and pool.states and then not in pool.states:
        then = "dead"
    return Verdict(then, reason, verdict.since_ms, verdict.limit_ms)


def _act(run: Run, pool: Pool, entity: Entity, verdict: Verdict) -> Generator[Call[Any], Any, bool]:
    only = Only(entity.since_ms, verdict.limit_ms)
    answer: tuple[int, str]
    if verdict.then == "removed":
        answer = yield store.remove_entity(pool.keys, entity.id, entity.state, pool.data_ms, only)
    elif verdict.then == "dead":
        yield from pool._list_dead()
        age, limit = spoken((run.now_ms - entity.since_ms) // 1000), spoken(verdict.limit_ms / 1000)
        gone = ", and it does not exist any more" if verdict.reason.startswith("gone_") else ""
        why = Reason(verdict.reason, "Stale", f"{entity.state} for {age}, the limit is {limit}{gone}", how="purged")
        letter = run.engine.new_id()
        answer = yield store.fail_entity(
            pool.keys, pool.name, entity.id, entity.state, letter, why, pool.keeping, {}, only
        )
    else:
        answer = yield store.move_entity(pool.keys, entity.id, entity.state, verdict.then, {}, only)
    return answer[0] == 1


def _orphans(run: Run, pool: Pool, limit_ms: int) -> Part:
    offset = acted = 0
    while acted < MOST:
        looked, found = yield store.find_unplaced(pool.keys, run.now_ms - limit_ms, offset)
        offset += looked
        for one in found:
            acted += 1
            only = Only(one.since_ms, limit_ms)
            if run.dry_run or (yield store.expire_entity(pool.keys, one.id, only, pool.data_ms)):
                verdict = Verdict("expired", "orphaned", one.since_ms, limit_ms)
                run.note("pool", pool.name, Entry(one.id, "orphaned", verdict, one.bytes))
                offset -= not run.dry_run
            else:
                run.spared += 1
        if looked < store.PART:
            return
    run.note_unfinished(pool.name)


def _unlisted(run: Run, pool: Pool, limit_ms: int) -> Part:
    """Metadata that is on no list: no list names it, so a part of all keys is looked at in each run."""
    cursor: str = yield upkeep.unlisted_cursor(pool.keys)
    for _ in range(SCANS):
        cursor, ids = yield store.scan_metadata(pool.keys, cursor)
        found: list[store.Unlisted] = []
        if ids:
            found = yield store.expire_unlisted(pool.keys, ids, limit_ms, pool.data_ms, dry_run=run.dry_run)
        for one in found:
            if one.is_old:
                verdict = Verdict("expired", "orphaned", one.stray.since_ms, limit_ms)
                run.note("pool", pool.name, Entry(one.stray.id, "orphaned", verdict, one.stray.bytes))
            else:
                run.note_unknown("pool", pool.name, "orphaned", int(not one.stray.since_ms))
        if cursor == "0":
            break
    if not run.dry_run:
        yield upkeep.remember_unlisted_cursor(pool.keys, cursor)
