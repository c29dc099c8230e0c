"""The purge of a queue: its jobs by state, what is past its deadline, and bodies in no set."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

from relevo.model.durations import spoken
from relevo.model.job import Attempt, State
from relevo.model.outcome import End
from relevo.model.purging import Rule, SeenJob, Unknown, Verdict, judge_job
from relevo.purging.run import MOST, Entry, LockLost, Part, Run
from relevo.queue import Queue, held_of
from relevo.store import purging as store
from relevo.store.jobs import read_claim, readable, story_of
from relevo.store.plan import Call
from relevo.store.settlement import Held, settle
from relevo.store.turns import Limits, Settled, fitting, turn

E = TypeVar("E", bound=Entry)

#: Ready jobs of one queue that one run looks at; the next one goes on from there.
WALK = 200_000
#: In this order: what is recovered is ready again, and must not be met a second time.
STATES = ("scheduled", "waiting", "ready", "running", "done")


class JobEntry(Entry, frozen=True, kw_only=True):
    """A job and its verdict."""

    seen: store.Candidate


def purging_jobs(run: Run, name: str) -> Part:
    """All states of a queue."""
    rules = run.ages.of_queue(name)
    for state in STATES:
        before_ms = _border_ms(run, state, rules)
        if before_ms is not None:
            yield from _state(run, name, state, rules, before_ms)


def _border_ms(run: Run, state: str, rules: dict[str, Rule]) -> int | None:
    """What came after this is younger than any limit."""
    ages = [rules[state].earliest_ms, rules["request"].earliest_ms if state == "ready" else None]
    known = [age for age in ages if age is not None]
    return run.now_ms - min(known) if known else None


def _state(run: Run, name: str, state: str, rules: dict[str, Rule], before_ms: int) -> Part:
    keys = run.app.keys_of(name)
    offset: int = (yield store.walked(keys)) if state == "ready" else 0
    started, looked, acted, has_more = offset, 0, 0, True
    while has_more and acted < MOST and looked < WALK:
        part: store.Survey = yield store.survey(keys, state, before_ms, offset)
        verdicts = [(one, _verdict(rules, state, one, run.now_ms)) for one in part.found]
        run.note_unknown("queue", name, state, sum(isinstance(verdict, Unknown) for _, verdict in verdicts))
        entries = [
            JobEntry(one.id, state, verdict, one.bytes, seen=one)
            for one, verdict in verdicts
            if isinstance(verdict, Verdict)
        ]
        done = yield from _act(run, name, state, entries)
        acted, looked, has_more = acted + len(entries), looked + part.looked, part.has_more
        offset += part.looked - done
    if has_more and acted >= MOST:
        run.note_unfinished(name)
    if state == "ready" and not run.dry_run and (has_more or started):
        yield store.walk_on(keys, offset if has_more else 0)


def _verdict(rules: dict[str, Rule], state: str, one: store.Candidate, now_ms: int) -> Verdict | Unknown | None:
    if state != "done" and not one.body:
        # An entry whose body is gone is nobody's. Of one that runs, the next turn gives back the place of its group.
        return Unknown() if state == "running" else Verdict("removed", "orphaned", now_ms, 0)
    seen = SeenJob(readable(one.body) if one.body else None, bool(one.claim), one.is_in_line)
    return judge_job(rules, state, one.id, float(one.score), seen, now_ms)


def _act(run: Run, name: str, state: str, entries: Sequence[JobEntry]) -> Generator[Call[Any], Any, int]:
    """Make the verdicts true: how many have left their state."""
    if run.dry_run:
        for entry in entries:
            run.note("queue", name, entry)
        return 0
    if state == "running":
        count = 0
        for at in range(0, len(entries), store.ACTS):
            count += yield from _recover(run, name, entries[at : at + store.ACTS])
        return count
    return (yield from acting(run, name, [(entry, _act_of(run, name, entry)) for entry in entries]))


def acting(run: Run, name: str, rows: list[tuple[E, store.Act]]) -> Generator[Call[Any], Any, int]:
    """Say to the server what is to be done, in parts: how many of it was."""
    count = 0
    for some in _parts(rows):
        acts = [act for _, act in some]
        answer = yield store.purge(run.app.keys_of(name), run.me, acts, run.app.settings.dead_max)
        if answer is None:
            raise LockLost
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
    seen, verdict = entry.seen, entry.verdict
    act = store.Act(
        entry.id, entry.state, seen.score, seen.claim, verdict.since_ms, verdict.limit_ms, store.Ending(verdict.then)
    )
    if verdict.then == "removed":
        return act
    claim = read_claim(seen.claim)
    held = Held(entry.id, claim.token if claim else 0, seen.body, readable(seen.body), story_of(seen.story))
    _, terms = run.app.terms_of(held.envelope, name)
    row = settle(held, _outcome(run, entry, held), terms, run.now_ms, queue_from=entry.state)
    return act.ending(
        store.Ending(row.verb, row.ms, row.text, row.name, row.follow_id, row.follow_priority, row.follow_body)
    )


def _outcome(run: Run, entry: JobEntry, held: Held) -> End:
    verdict = entry.verdict
    if verdict.then == "expired":
        return End(State.EXPIRED, "expired", held.story)
    age, limit = spoken((run.now_ms - verdict.since_ms) // 1000), spoken(verdict.limit_ms / 1000)
    since = f"due {age} ago" if entry.state == "scheduled" else f"{entry.state} for {age}"
    told = held.story.told(Attempt("purged", ended_ms=run.now_ms, message=f"{since}, the limit is {limit}"))
    return End(State(verdict.then), verdict.reason, told)


def _recover(run: Run, name: str, entries: Sequence[JobEntry]) -> Generator[Call[Any], Any, int]:
    """Take jobs back whose workers are long gone, and decide about them as any worker would."""
    app, keys, queue = run.app, run.app.keys_of(name), Queue(run.app, name)
    shortest_ms = min(entry.verdict.limit_ms for entry in entries)
    held = [(entry.id, entry.seen.score) for entry in entries]
    taken = yield store.recover(keys, run.me, held, store.Recovery(app.lease_ms, shortest_ms))
    if taken is None:
        raise LockLost
    settled = Settled()
    for entry, row in zip(entries, taken, strict=True):
        if row is None:
            run.spared += 1
            continue
        settled.moved.append(queue.recover(held_of(entry.id.encode(), *row), run.now_ms))
        run.note("queue", name, entry)
    count = len(settled.moved)
    lending = Limits(app.lease_ms, 0, app.settings.done_max, app.settings.dead_max)
    while settled.moved:
        answer = yield turn(keys, f"purge-{run.me}", lending, 0, settled.cut())
        if 0 < answer.errand_ms <= answer.now_ms:
            run.to_relay[name] = None
    return count
