"""Replays: dead letters retried step by step, at a rate, behind canaries; any process can watch or resume them.

The process that starts a replay leads it, and stores its whole state after each step: its filters, its position, the
canaries it waits for. If that process dies, another one resumes from there. A dead letter is revived once, however
often that is requested, so none runs twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from relevo.dead import replay_store as replays
from relevo.dead import store as letters
from relevo.dead.choosing import asked, refuse_everything, up_to_now
from relevo.dead.deeds import Revival
from relevo.dead.replay import SILENT_MS, Canary, Replay
from relevo.dead.walk import Walk
from relevo.dead.wanted import Filters, fits
from relevo.engine import job_store as jobs
from relevo.engine.ids import looks_like_id
from relevo.engine.job import State
from relevo.engine.lists import listed_queues
from relevo.errors import JobError, OptionError, UnknownJob
from relevo.limits.limit import rate_of
from relevo.store.plan import Ask, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Called after each step of a replay.
Watcher: TypeAlias = Callable[[Replay], None]
#: Seconds between two looks at canaries, and between two heartbeats while there is nothing else to store.
LOOK_EVERY = 0.2
SIGN_EVERY = 5.0


class Leading:
    """One replay led by this process."""

    def __init__(self, engine: Engine, patience_ms: int) -> None:
        self._engine = engine
        self._owner = engine.new_id()
        self._patience_ms = patience_ms
        self._walk: Walk | None = None
        self._due = 0.0  # when the next letter may go
        self._signed = 0.0
        self.run = Replay(id="")

    def begin(self, filters: Filters, all: bool, rate: Any, canary: bool, who: str) -> Generator[Call[Any], Any, None]:
        """Store a new replay, of dead letters that died before now."""
        engine = self._engine
        wanted = yield from asked(engine, filters)
        refuse_everything(all, wanted)
        now_ms = yield from engine.now_ms()
        wanted = yield from up_to_now(engine, wanted)
        total = 0
        for name in (yield from listed_queues(engine, wanted.queue)):
            total += yield letters.count_between(
                engine.keys_of(name), wanted.error_group or "", wanted.since_ms, wanted.until_ms
            )
        self.run = Replay(
            id=engine.new_id(),
            wanted=wanted,
            rate="" if rate is None else str(rate_of(rate)),
            canary=bool(canary),
            who=who,
            started_ms=now_ms,
            total=total,
        )
        yield from self._note("take")

    def resume(self, id: str, who: str) -> Generator[Call[Any], Any, None]:
        """Resume a replay whose leader died, or that was stopped."""
        found = yield from find(self._engine, id)
        self.run = found
        if found.state == "done":
            return
        yield from self._note("take")  # refused while another process leads it; takes the state stored since `find`
        self.run = msgspec.structs.replace(
            self.run, state="running", why="", ended_ms=0, waits_since_ms=0, who=who or self.run.who
        )
        yield from self._note("note")

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do, now or ever."""
        return self.run.state != "running"

    def to_the_end(self, watch: Watcher | None) -> Steps[Replay]:
        """All steps, until there is nothing left to do; calls `watch` after each."""
        while not self.is_over:
            rest = yield from self.step()
            if watch is not None:
                watch(self.run)
            yield Ask(partial(time.sleep, rest), partial(asyncio.sleep, rest))
        return self.run

    def step(self) -> Steps[float]:
        """The next step; returns how many seconds to wait after it."""
        if self._walk is None:
            self._walk = Walk(self._engine, self.run.wanted, after=self.run.place, oldest=True)
        if not self.run.may_send:
            return (yield from self._watch())
        if self._rest():
            yield from self._sign()
            return self._rest()
        letter = yield from self._walk.next()
        if letter is None:
            if self.run.watched:
                return (yield from self._watch())
            now_ms = yield from self._engine.now_ms()
            self.run = msgspec.structs.replace(self.run, state="done", ended_ms=now_ms)
            yield from self._note("end")
            return 0.0
        run = msgspec.structs.replace(self.run, place=letter.place, looked=self.run.looked + 1)
        if fits(run.wanted, letter.record, letter.envelope):
            revival = Revival()
            if (yield from revival.of(self._engine, [letter])):
                run = run.went(Canary(letter.queue, letter.id))
                if run.rate:
                    # Counted from this letter, not from the start: after waiting for canaries or for an unreachable
                    # server, the replay would otherwise catch up at once.
                    self._due = time.monotonic() + 1 / rate_of(run.rate).per_second
            else:
                run = msgspec.structs.replace(run, left=run.left + 1, why=revival.refusal or run.why)
        went = run.retried > self.run.retried
        self.run = run
        yield from self._note("note") if went else self._sign()
        return self._rest()

    def _rest(self) -> float:
        """Seconds until the next letter may go or a heartbeat is due: a slow replay must not look dead."""
        return 0.0 if self.is_over else min(max(0.0, self._due - time.monotonic()), SIGN_EVERY)

    def _watch(self) -> Generator[Call[Any], Any, float]:
        """Check whether canaries have ended."""
        now_ms = yield from self._engine.now_ms()
        before = self.run
        if not before.waits_since_ms:
            self.run = msgspec.structs.replace(before, waits_since_ms=now_ms)
        for canary in before.watched:
            seen: jobs.Seen = yield jobs.look(self._engine.keys_of(canary.queue), canary.id)
            match seen.state:
                case State.DONE | State.UNKNOWN:  # unknown: done without a kept result; or an entity, now restored
                    self.run = self.run.ended_well(canary)
                case State.DEAD | State.CANCELLED | State.EXPIRED:
                    why = seen.record.reason if seen.record else ""
                    return (yield from self._stop(f"canary {canary.id} is {seen.state.value} again: {why}", now_ms))
        if self.run.watched and now_ms - self.run.waits_since_ms > self._patience_ms:
            return (yield from self._stop(f"canary {self.run.watched[0].id} has not ended in time: no worker?", now_ms))
        yield from self._note("note") if self.run != before else self._sign()
        return LOOK_EVERY if self.run.watched else 0.0

    def _stop(self, why: str, now_ms: int) -> Generator[Call[Any], Any, float]:
        # Failed canaries are dead letters again, newer than this replay's range: it does not wait for them.
        self.run = msgspec.structs.replace(self.run.stopped(why, now_ms), watched=(), stage=0, sent=0)
        yield from self._note("end")
        return 0.0

    def let_go(self, why: str) -> Generator[Call[Any], Any, None]:
        """Give up the lead, so that another process may resume at once."""
        if not self.is_over:
            now_ms = yield from self._engine.now_ms()
            self.run = self.run.stopped(why, now_ms)
            yield from self._note("end")

    def _sign(self) -> Generator[Call[Any], Any, None]:
        """Send a heartbeat, unless one was sent just now."""
        if time.monotonic() - self._signed >= SIGN_EVERY:
            yield from self._note("note")

    def _note(self, verb: replays.Verb) -> Generator[Call[Any], Any, None]:
        self._signed = time.monotonic()
        counts, is_unwanted, before = yield replays.lead(self._engine.own_keys, verb, self.run, self._owner)
        if not counts:
            raise JobError(
                f"replay {self.run.id} is led by another process, or was less than {SILENT_MS // 1000} seconds ago; "
                "`relevo dead runs` shows how far it is"
            )
        if verb == "take" and before is not None:
            self.run = before
        elif is_unwanted and not self.is_over:
            now_ms = yield from self._engine.now_ms()
            yield from self._stop("it was asked to stop", now_ms)


def find(engine: Engine, id: str) -> Generator[Call[Any], Any, Replay]:
    """The state of a replay."""
    if not looks_like_id(id):
        raise OptionError(f"{id!r:.60} is not the id of a replay: those have 20 letters and digits")
    found: Replay | None = yield replays.one(engine.own_keys, id)
    if found is None:
        raise UnknownJob(f"no replay {id}: it never existed, or it ended more than a week ago")
    return found


def stopping(engine: Engine, id: str) -> Generator[Call[Any], Any, bool]:
    """Ask the leader of a replay to stop; False if it has none."""
    run = yield from find(engine, id)
    _, is_heard, _ = yield replays.lead(engine.own_keys, "stop", run, "")
    return bool(is_heard)
