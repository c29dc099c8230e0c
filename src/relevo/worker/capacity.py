"""How many jobs a worker may claim, over all its queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relevo.worker.runner import Runner

if TYPE_CHECKING:
    from relevo.worker.consumer import Consumer

#: Jobs are claimed ahead for this many seconds of work, so that a fast worker never waits for the server; no more than
#: the server hands out in about a millisecond, in which it serves no other client.
AHEAD = 0.02
AHEAD_MOST = 300


class Capacity:
    """Shared by the consumers of one worker."""

    def __init__(self, slots: int, runner: Runner, rate: Callable[[], float]) -> None:
        self._slots = slots
        self._runner = runner
        #: ended jobs per second
        self._rate = rate
        self._reserved = 0
        #: a consumer wanted to claim and found no room
        self._is_starving = False
        self._is_closed = False
        self.consumers: Sequence[Consumer] = ()

    @property
    def in_hand(self) -> int:
        """Jobs claimed whose end the server does not know yet."""
        return len(self._runner.runs) + sum(consumer.unsettled for consumer in self.consumers)

    def close(self) -> None:
        """Claim no more."""
        self._is_closed = True

    def room(self) -> int:
        """How many more jobs one consumer may claim now."""
        if self._is_closed:
            self._is_starving = True  # wake it when the last job has ended, whichever queue that came from
            return 0
        ahead = min(AHEAD_MOST, int(self._rate() * AHEAD))
        free = self._slots + ahead - self.in_hand - self._reserved
        if free <= 0:
            self._is_starving = True
            return 0
        hungry = sum(not consumer.is_resting for consumer in self.consumers) or 1
        return -(-free // hungry)

    def reserve(self, n: int) -> None:
        """Room that a turn under way will fill (or, negative, has filled or left to others)."""
        self._reserved += n
        if n < 0:
            self.wake_hungry()

    def wake_hungry(self) -> None:
        """There is room again: consumers that had to wait for it may claim."""
        if self._is_starving:
            self._is_starving = False
            for consumer in self.consumers:
                if not consumer.is_resting:
                    consumer.settle_soon()
