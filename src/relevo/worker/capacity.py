"""How many jobs a worker may claim, over all its queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relevo.worker.divided_runner import DividedRunner
from relevo.worker.division import Division
from relevo.worker.runner import Runner

if TYPE_CHECKING:
    from relevo.worker.consumer import Consumer

#: Jobs are claimed ahead for this many seconds of work, so that a fast worker never waits for the server; no more than
#: the server hands out in about a millisecond, in which it serves no other client.
AHEAD = 0.02
AHEAD_MOST = 300
#: Seconds over which the rate of one of several queues is measured.
RATE_EVERY = 0.1


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

    def room(self, consumer: Consumer) -> int:
        """How many more jobs this consumer may claim now."""
        if self._is_closed:
            self._is_starving = True  # wake it when the last job has ended, whichever queue that came from
            return 0
        free = self.free(consumer)
        if free <= 0:
            self._is_starving = True
            return 0
        hungry = sum(not consumer.is_resting for consumer in self.consumers) or 1
        return -(-free // hungry)

    def free(self, consumer: Consumer) -> int:  # noqa: ARG002  # one queue has all slots
        """How many jobs it could claim, if no other consumer did."""
        ahead = min(AHEAD_MOST, int(self._rate() * AHEAD))
        return self._slots + ahead - self.in_hand - self._reserved

    def most(self, consumer: Consumer) -> int:  # noqa: ARG002  # as above
        """How many slots its queue may have."""
        return self._slots

    def ended(self, consumer: Consumer) -> int:  # noqa: ARG002  # as above
        """How many jobs of its queue have ended."""
        return self._runner.done + self._runner.failed

    def reserve(self, consumer: Consumer, n: int) -> None:  # noqa: ARG002  # as above
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


class DividedCapacity(Capacity):
    """The same for several queues, none of which may take what is kept for the others."""

    def __init__(self, division: Division, runner: DividedRunner) -> None:
        super().__init__(division.size, runner, lambda: 0.0)
        self._division = division
        self._count = runner.count
        #: of each queue: room that its turn under way will fill, jobs claimed ahead, jobs ended when last measured
        self._reserved_of = [0] * len(division.own)
        self._ahead = [0] * len(division.own)
        self._ended = [0] * len(division.own)
        self._measured_at = time.monotonic()

    def free(self, consumer: Consumer) -> int:
        """How many jobs it could claim, if no other consumer did."""
        self._measure()
        in_hand = list(self._count.in_hand)
        for one in self.consumers:
            in_hand[one.number] += one.unsettled + self._reserved_of[one.number]
        # Jobs claimed ahead need no slot yet, so they leave those of other queues alone.
        taken = [max(0, count - ahead) for count, ahead in zip(in_hand, self._ahead, strict=True)]
        number = consumer.number
        taken[number] = in_hand[number] - self._ahead[number]
        return min(self._division.free(number, taken), self._slots + AHEAD_MOST - sum(in_hand))

    def most(self, consumer: Consumer) -> int:
        """How many slots its queue may have."""
        return self._division.most(consumer.number)

    def ended(self, consumer: Consumer) -> int:
        """How many jobs of its queue have ended."""
        return self._count.ended[consumer.number]

    def reserve(self, consumer: Consumer, n: int) -> None:
        """Room that a turn under way will fill (or, negative, has filled or left to others)."""
        self._reserved_of[consumer.number] += n
        super().reserve(consumer, n)

    def _measure(self) -> None:
        """How many jobs of each queue may be claimed ahead, by the rate at which they end."""
        now = time.monotonic()
        seconds = now - self._measured_at
        if seconds < RATE_EVERY:
            return
        ended = list(self._count.ended)
        rates = [(now - before) / seconds for now, before in zip(ended, self._ended, strict=True)]
        self._ahead = [min(AHEAD_MOST, int(rate * AHEAD)) for rate in rates]
        self._ended, self._measured_at = ended, now
