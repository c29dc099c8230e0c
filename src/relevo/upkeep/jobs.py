"""The purge of a queue: its jobs by state, and expired jobs."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

from relevo.engine.admission import held_of, recovered
from relevo.engine.job import Attempt, State
from relevo.engine.job_store import read_claim, readable, story_of
from relevo.engine.leader import LeadLost
from relevo.engine.outcome import End
from relevo.engine.settle import Held, settle
from relevo.engine.turn import Limits, Settled, fitting, turn
from relevo.limits.pause_store import pauses, written
from relevo.store.plan import Call
from relevo.text.durations import spoken
from relevo.upkeep import store
from relevo.upkeep.rules import HeldBack, Rule, SeenJob, Standing, Unknown, Verdict, judge_job, rule_of, standing_of
from relevo.upkeep.run import MOST, Entry, Part, Run

E = TypeVar("E", bound=Entry)

#: Ready jobs of one queue that one run checks; the next run continues from there.
WALK = 200_000
#: In this order: a recovered job is ready again and must not be judged a second time.
STATES = ("scheduled", "waiting", "ready", "running", "done")


class JobEntry(Entry, frozen=True, kw_only=True):
    """A job and its verdict."""

    seen: store.Candidate


def purging_jobs(run: Run, name: str) -> Part:
    """All states of a queue."""
    rules = run.ages.of_queue(name)
    standing = yield from _standing(run, name)
    for state in STATES:
        before_ms = _border_ms(run, rule_of(state, standing), rules)
        if before_ms is not None:
            yield from _state(run, name, state, rules, before_ms, standing)


def _standing(run: Run, name: str) -> Generator[Call[Any], Any, Standing]:
    """The queue's pauses, and whether it is served: read once, not for each job."""
    keys = run.engine.keys_of(name)
    rows: list[bytes] = yield written(keys)
    found = (yield from pauses(keys, name, run.now_ms, rows)) if rows else []
    # A custom loop serves the queue without being a worker.
    is_served = name in run.served or (yield Call([b"ZCOUNT", keys.key("running"), run.now_ms, b"+inf"])) > 0
    before: dict[str, int] = yield store.last_held(keys)
    standing = standing_of(found, before, is_served=is_served)
    if not run.dry_run:
        now = {name: at_ms for name, at_ms in before.items() if run.now_ms - at_ms < store.HELD_MS}
        now.update(dict.fromkeys(standing.holds, run.now_ms))
        if now != before:
            yield store.remember_held(keys, now)
    return standing


def _border_ms(run: Run, state: str, rules: dict[str, Rule]) -> int | None:
    """The newest time that any limit can reach."""
    ages = [rules[state].earliest_ms, rules["request"].earliest_ms if state == "ready" else None]
    known = [age for age in ages if age is not None]
    return run.now_ms - min(known) if known else None


def _state(run: Run, name: str, state: str, rules: dict[str, Rule], before_ms: int, standing: Standing) -> Part:
    keys = run.engine.keys_of(name)
    offset: int = (yield store.job_position(keys)) if state == "ready" else 0
    started, looked, acted, has_more = offset, 0, 0, True
    while has_more and acted < MOST and looked < WALK:
        part: store.OldJobs = yield store.find_old_jobs(keys, state, before_ms, offset)
        verdicts = [(one, _verdict(rules, state, one, run.now_ms, standing)) for one in part.found]
        run.note_unknown("queue", name, state, sum(isinstance(verdict, Unknown) for _, verdict in verdicts))
        for _, verdict in verdicts:
            if isinstance(verdict, HeldBack):
                run.note_held("queue", name, state, verdict.why)
        entries = [
            JobEntry(one.id, state, verdict, one.bytes, seen=one)
            for one, verdict in verdicts
            if isinstance(verdict, Verdict)
        ]
        done = yield from end_jobs(run, name, entries)
        acted, looked, has_more = acted + len(entries), looked + part.looked, part.has_more
        offset += part.looked - done
    if has_more and acted >= MOST:
        run.note_unfinished(name)
    if state == "ready" and not run.dry_run and (has_more or started):
        yield store.remember_job_position(keys, offset if has_more else 0)


def _verdict(
    rules: dict[str, Rule], state: str, one: store.Candidate, now_ms: int, standing: Standing
) -> Verdict | Unknown | HeldBack | None:
    if state != "done" and not one.body:
        return Verdict("removed", "orphaned", now_ms, 0)  # an entry without a body cannot run
    seen = SeenJob(readable(one.body) if one.body else None, bool(one.claim), one.is_in_line, one.task)
    return judge_job(rules, state, one.id, float(one.score), seen, now_ms, standing)


def end_jobs(run: Run, name: str, entries: Sequence[JobEntry]) -> Generator[Call[Any], Any, int]:
    """Execute the verdicts; returns the number of entries that left their state."""
    if run.dry_run:
        for entry in entries:
            run.note("queue", name, entry)
        return 0
    lost = [entry for entry in entries if entry.verdict.then == "recovered"]
    others = [entry for entry in entries if entry.verdict.then != "recovered"]
    count = yield from acting(run, name, [(entry, _act_of(run, name, entry)) for entry in others])
    for at in range(0, len(lost), store.ACTS):
        count += yield from _recover(run, name, lost[at : at + store.ACTS])
    return count


def acting(run: Run, name: str, rows: list[tuple[E, store.Act]]) -> Generator[Call[Any], Any, int]:
    """Send the actions to the server in batches; returns how many were carried out."""
    count = 0
    for some in _parts(rows):
        acts = [act for _, act in some]
        answer = yield store.purge_jobs(run.engine.keys_of(name), run.me, acts, run.engine.settings.dead_max)
        if answer is None:
            raise LeadLost
        done, posted = answer
        if posted:
            run.to_relay[name] = None
        for (entry, _), was_done in zip(some, done, strict=True):
            if was_done:
                run.note("queue", name, entry)
        count += sum(done)
        run.spared += len(done) - sum(done)
    return count


def _parts(rows: list[tuple[E, store.Act]]) -> Iterator[list[tuple[E, store.Act]]]:
    while rows:
        n = fitting(act.size for _, act in rows[: store.ACTS])
        yield rows[:n]
        rows = rows[n:]


def _act_of(run: Run, name: str, entry: JobEntry) -> store.Act:
    seen, verdict, end = entry.seen, entry.verdict, _ending(run, name, entry)
    return store.Act(
        id=entry.id,
        state=entry.state,
        score=seen.score,
        claim=seen.claim,
        since_ms=verdict.since_ms,
        limit_ms=verdict.limit_ms,
        end=end,
    )


def _ending(run: Run, name: str, entry: JobEntry) -> store.Ending:
    if entry.verdict.then == "removed":
        return store.Ending(verb="removed")
    seen = entry.seen
    claim = read_claim(seen.claim)
    held = Held(entry.id, claim.token if claim else 0, seen.body, readable(seen.body), story_of(seen.story))
    _, terms = run.engine.terms_of(held.envelope, name)
    row = settle(held, _outcome(run, entry, held), terms, run.now_ms, queue_from=entry.state)
    return store.Ending(
        verb=row.verb,
        ms=row.ms,
        text=row.text,
        name=row.name,
        follow_id=row.follow_id,
        follow_priority=row.follow_priority,
        follow_body=row.follow_body,
    )


def _outcome(run: Run, entry: JobEntry, held: Held) -> End:
    verdict = entry.verdict
    if verdict.then == "expired":
        return End(State.EXPIRED, "expired", held.story)
    age, limit = spoken((run.now_ms - verdict.since_ms) // 1000), spoken(verdict.limit_ms / 1000)
    since = f"due {age} ago" if entry.state == "scheduled" else f"{entry.state} for {age}"
    story = held.story.with_attempt(Attempt("purged", ended_ms=run.now_ms, message=f"{since}, the limit is {limit}"))
    return End(State(verdict.then), verdict.reason, story)


def _recover(run: Run, name: str, entries: Sequence[JobEntry]) -> Generator[Call[Any], Any, int]:
    """Recover jobs of dead workers and decide about them as any worker would."""
    engine, keys = run.engine, run.engine.keys_of(name)
    shortest_ms = min(entry.verdict.limit_ms for entry in entries)
    held = [(entry.id, entry.seen.score) for entry in entries]
    taken = yield store.take_back_jobs(keys, run.me, held, lease_ms=engine.lease_ms, limit_ms=shortest_ms)
    if taken is None:
        raise LeadLost
    settled = Settled()
    for entry, row in zip(entries, taken, strict=True):
        if row is None:
            run.spared += 1
            continue
        settled.moved.append(recovered(engine, name, held_of(entry.id.encode(), *row), run.now_ms))
        run.note("queue", name, entry)
    count = len(settled.moved)
    lending = Limits(engine.lease_ms, 0, engine.settings.done_max, engine.settings.dead_max)
    while settled.moved:
        answer = yield turn(keys, f"purge-{run.me}", lending, 0, settled.cut())
        if 0 < answer.errand_ms <= answer.now_ms:
            run.to_relay[name] = None
    return count
