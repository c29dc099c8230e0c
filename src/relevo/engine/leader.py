"""Leads a piece of upkeep: one process at a time, with a heartbeat, and positions at which the next run goes on."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from relevo.errors import StoreError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call, Steps
from relevo.store.scripts import Script, script

#: A leader that died blocks the next one for so long.
LEAD_MS = 60_000
#: How long a position is remembered.
POSITION_MS = 86_400_000


class LeadLost(Exception):
    """Another process leads by now, since this one stalled for a minute; it must stop."""


class Leader(Struct, frozen=True):
    """One process that would lead, of a queue, of a pool, or of the bus."""

    keys: QueueKeys
    owner: str

    def take(self) -> Call[bool]:
        """Lead, unless another process does."""
        return self._call("take")

    def keep(self) -> Call[bool]:
        """The heartbeat: whether this process still leads, for another minute."""
        return self._call("keep")

    def leave(self) -> Call[bool]:
        """Let the next one lead at once."""
        return self._call("leave")

    def _call(self, verb: Literal["take", "keep", "leave"]) -> Call[bool]:
        return _lead(self.keys.script("engine/lead"), self.keys.key("leader"), verb, self.owner, LEAD_MS)

    def leading(self, work: Steps[None]) -> Steps[bool]:
        """Do the work while leading; returns whether it was done: another process may lead."""
        if not (yield self.take()):
            work.close()
            return False
        try:
            yield from work
        except LeadLost:
            return False
        except (StoreError, GeneratorExit):  # the server cannot be reached, or is not asked: the lead ends by itself
            raise
        except BaseException:  # interrupted: the next run need not wait
            yield self.leave()
            raise
        yield self.leave()
        return True


def take_turn(key: bytes, worker: str, seconds: float) -> Call[bool]:
    """Whether it is this worker's turn: no worker took one within so many seconds."""
    return _lead(script("engine/lead"), key, "take", worker, max(1, round(seconds * 1000)))


def _lead(by: Script, key: bytes, verb: str, owner: str, lead_ms: int) -> Call[bool]:
    return Call([verb, owner, lead_ms], bool, by, (key,), repeatable=verb != "take")


def remember(keys: QueueKeys, key: bytes, text: str, live_ms: int = POSITION_MS) -> Call[Any]:
    """Note a position, or something else for the next run; '': forget it."""
    return Call([text, live_ms], int, keys.script("engine/remember"), (key,))
