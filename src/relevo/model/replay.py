"""A replay: dead letters that are run again under watch, and when the next of them may.

With canaries, one goes first, then ten, then the rest; each of those eleven must end well before more may go. So a
cause that was not mended costs one letter, and not ten thousand.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from relevo.model.wanted import Wanted

#: A leader notes a step every few seconds, also while it waits. One that was silent for so long is dead or cut off.
SILENT_MS = 30_000
#: How many go in each stage of canaries.
STAGES = (1, 10)

Standing = Literal["running", "done", "stopped"]


class Canary(Struct, frozen=True):
    """A letter that was run again and is watched."""

    queue: str
    id: str


class Replay(Struct, frozen=True):
    """How a replay stands."""

    id: str
    #: What it replays: letters that fit, and died before it began.
    wanted: Wanted = Wanted()
    #: As somebody wrote it: "100/m"; '': as fast as it goes.
    rate: str = ""
    canary: bool = False
    state: Standing = "running"
    #: Why it was stopped, or else why the last of those that were left cannot come back.
    why: str = ""
    who: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    #: Letters that there were to look at, as far as an index tells, and that were.
    total: int = 0
    looked: int = 0
    #: Letters that run again, and that could not.
    retried: int = 0
    left: int = 0
    #: Canaries that ended well.
    well: int = 0
    #: Stage of canaries, how many went in it, and those that have not ended.
    stage: int = 0
    sent: int = 0
    watched: tuple[Canary, ...] = ()
    #: Since when nothing but canaries is waited for.
    waits_since_ms: int = 0
    #: Where it goes on.
    place: str = ""
    #: Filled in by whoever looks: when its leader was last heard of, and whether it has one.
    heard_ms: int = 0
    is_led: bool = False

    def is_silent(self, now_ms: int) -> bool:
        """Whether nobody leads it, or its leader is dead or cut off: `resume` goes on."""
        return self.state == "running" and (not self.is_led or now_ms - self.heard_ms > SILENT_MS)

    @property
    def may_send(self) -> bool:
        """Whether another letter may go now; else canaries must end first."""
        return not self.canary or self.stage >= len(STAGES) or self.sent < STAGES[self.stage]

    def went(self, canary: Canary) -> Replay:
        """One more letter runs again."""
        run = msgspec.structs.replace(self, retried=self.retried + 1)
        if not self.canary or self.stage >= len(STAGES):
            return run
        return msgspec.structs.replace(run, sent=self.sent + 1, watched=(*self.watched, canary))

    def ended_well(self, canary: Canary) -> Replay:
        """A canary ended well; if it was the last of a full stage, the next one begins."""
        watched = tuple(one for one in self.watched if one != canary)
        run = msgspec.structs.replace(self, watched=watched, well=self.well + 1)
        if watched or run.may_send:
            return run
        return msgspec.structs.replace(run, stage=run.stage + 1, sent=0, waits_since_ms=0)

    def stopped(self, why: str, now_ms: int) -> Replay:
        """It goes no further until somebody resumes it."""
        return msgspec.structs.replace(self, state="stopped", why=why, ended_ms=now_ms)
