"""A replay re-enqueues dead letters and decides when the next one may go.

With canaries, one goes first, then ten, then the rest; all jobs of a stage must succeed before the next stage begins.
So a cause that was not fixed costs one failed job, not ten thousand.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from relevo.dead.wanted import Wanted

#: A leader reports every few seconds, also while it waits. After this time without a report it is dead or cut off.
SILENT_MS = 30_000
#: Jobs in each stage of canaries.
STAGES = (1, 10)

Standing = Literal["running", "done", "stopped"]


class Canary(Struct, frozen=True):
    """A re-enqueued dead letter whose outcome decides whether the replay goes on."""

    queue: str
    id: str


class Replay(Struct, frozen=True, kw_only=True):
    """The state of a replay."""

    id: str
    #: It replays matching dead letters that died before it began.
    wanted: Wanted = Wanted()
    #: As the user wrote it: "100/m"; '': no limit.
    rate: str = ""
    canary: bool = False
    state: Standing = "running"
    #: Why it was stopped, or else why the last skipped dead letter cannot be re-enqueued.
    why: str = ""
    who: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    #: Dead letters to examine, as far as the index tells, and those examined so far.
    total: int = 0
    looked: int = 0
    #: Dead letters re-enqueued, and skipped.
    retried: int = 0
    left: int = 0
    #: Canaries that succeeded.
    well: int = 0
    #: Stage of canaries, how many were sent in it, and those that have not ended.
    stage: int = 0
    sent: int = 0
    watched: tuple[Canary, ...] = ()
    #: Since when it has been waiting for canaries only.
    waits_since_ms: int = 0
    #: Position at which it continues.
    place: str = ""
    #: Filled in when it is read: the time of the leader's last report, and whether it has a leader.
    heard_ms: int = 0
    is_led: bool = False

    def is_silent(self, now_ms: int) -> bool:
        """Whether it runs without a live leader; `resume` continues it."""
        return self.state == "running" and (not self.is_led or now_ms - self.heard_ms > SILENT_MS)

    @property
    def may_send(self) -> bool:
        """Whether another dead letter may be re-enqueued now; else canaries must end first."""
        return not self.canary or self.stage >= len(STAGES) or self.sent < STAGES[self.stage]

    def went(self, canary: Canary) -> Replay:
        """The replay after one more dead letter was re-enqueued."""
        run = msgspec.structs.replace(self, retried=self.retried + 1)
        if not self.canary or self.stage >= len(STAGES):
            return run
        return msgspec.structs.replace(run, sent=self.sent + 1, watched=(*self.watched, canary))

    def ended_well(self, canary: Canary) -> Replay:
        """The replay after a canary succeeded; the last one of a full stage begins the next stage."""
        watched = tuple(one for one in self.watched if one != canary)
        run = msgspec.structs.replace(self, watched=watched, well=self.well + 1)
        if watched or run.may_send:
            return run
        return msgspec.structs.replace(run, stage=run.stage + 1, sent=0, waits_since_ms=0)

    def stopped(self, why: str, now_ms: int) -> Replay:
        """The replay, stopped until it is resumed."""
        return msgspec.structs.replace(self, state="stopped", why=why, ended_ms=now_ms)
