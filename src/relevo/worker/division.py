"""How the queues of one worker share its slots: decisions without side effects.

A queue with a number (`mail:20`) has so many slots: no other queue takes them, and it takes no more. The others share
the rest, of which each keeps a small reserve, so that jobs of one queue that never end cannot silence the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from relevo.errors import OptionError

#: The reserves of all queues together are about this part of the slots, and one slot each at least …
RESERVED = 10
#: … but no queue leaves more than this part of the slots to the reserves of others.
KEPT_MOST = 4


class Division(Struct, frozen=True, kw_only=True):
    """Slots of a worker, or of one of its pools of threads or processes, and what each queue may take of them."""

    size: int
    #: of each queue: the slots given to it; None: it shares the rest
    given: tuple[int | None, ...]
    #: of each queue: what others leave to it
    own: tuple[int, ...]
    #: what one queue leaves to all reserves of others, at most
    kept_most: int

    def free(self, number: int, taken: Sequence[int]) -> int:
        """How many more slots this queue may take; below 0: it has more than it should. `taken`: of each queue."""
        kept = reserved = 0
        for other, own in enumerate(self.own):
            if other != number and taken[other] < own:
                if self.given[other] is None:
                    reserved += own - taken[other]
                else:
                    kept += own - taken[other]
        left = self.size - sum(taken) - kept
        free = left - min(reserved, self.kept_most)
        missing = self.own[number] - taken[number]
        if missing > 0:  # of what is kept for all of them, its own part is for it
            free = max(free, min(missing, left - min(reserved, max(0, self.kept_most - missing))))
        most = self.given[number]
        return free if most is None else min(free, most - taken[number])

    def most(self, number: int) -> int:
        """How many slots this queue may have, if all others are idle."""
        return self.free(number, [0] * len(self.own))


def divided(size: int, given: Sequence[int | None], *, of: int, least: int = 1) -> Division:
    """Divide slots. `given` are slots out of `of`, which is more than `size` for a pool: its part is divided alike.

    `least`: slots that one queue leaves to others, if there are two or more of both.
    """
    fixed = [0 if slots is None else slots * size // of for slots in given]
    rest = size - sum(fixed)
    sharing = sum(slots is None for slots in given)
    reserve = max(1, rest // (RESERVED * max(1, sharing)))
    kept_most = max(rest // KEPT_MOST, least if rest > 1 else 0)
    own = tuple(part if slots is not None else reserve for part, slots in zip(fixed, given, strict=True))
    return Division(size=size, given=tuple(given), own=own, kept_most=kept_most)


def checked_concurrency(given: dict[str, int | None], concurrency: int | None, default: int) -> int:
    """The slots of a worker: as asked for, else the sum if each queue has a number. Refuses numbers that do not fit."""
    numbers = [slots for slots in given.values() if slots is not None]
    is_all = bool(given) and len(numbers) == len(given)
    total = sum(numbers) if concurrency is None and is_all else default if concurrency is None else concurrency
    sharing = [name for name, slots in given.items() if slots is None]
    if sum(numbers) > total or (sharing and sum(numbers) >= total and numbers):
        left = f", and {sharing[0]!r} needs some, too" if sharing else ""
        raise OptionError(f"queues: {sum(numbers)} slots are given to queues, of {total} (-c, concurrency){left}")
    return total
