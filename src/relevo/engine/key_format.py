"""The format of the keys of an app, and of the bus: a number beside them, compared once before anything is written.

Raise the number of `FORMAT` with every change after which processes of the previous version read the keys differently,
and state what that means for both:

- `least` is the new number if older processes cannot work beside new ones. They refuse to start from then on; running
  workers stop at their next check, every two minutes, and hand their jobs back; producers check once an hour;
- `reads` is the new number if new processes cannot process old keys. They refuse to start and say what to do.

| format | version | |
|---|---|---|
| 0 | before 0.1.0 | keys without a number |
| 1 | 0.1.0 | processes keys of format 0, and works beside its processes |
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from relevo.engine.list_store import LISTED_MS
from relevo.errors import FormatError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: A year: keys without a TTL (schedules, limits) may be used again after a long time without any process.
KEPT_MS = 366 * 86_400_000


class Format(NamedTuple):
    """What a version writes, and what it is compatible with."""

    number: int
    #: The oldest format whose processes can work beside this one's.
    least: int
    #: The oldest format whose keys this version can process.
    reads: int


FORMAT = Format(1, least=0, reads=0)


def agree(keys: QueueKeys, ours: Format, on: bytes, names: Sequence[str]) -> Call[tuple[int, int]]:
    """Write our format if it is newer, and put names on a list: returns the format found, and the least beside it."""
    args: list[Argument] = ["{} {} {}".format(*ours), KEPT_MS, LISTED_MS, *names]
    return Call(args, lambda reply: (reply[0], reply[1]), keys.script("engine/agree_format"), (keys.key("format"), on))


def agreeing(
    keys: QueueKeys, *names: str, on: bytes | None = None, ours: Format | None = None
) -> Generator[Call[Any], Any, None]:
    """Put names on a list of an app or the bus (`on`: not that of queues), if the format there is compatible."""
    ours = ours or FORMAT
    found, least = yield agree(keys, ours, on or keys.key("queues"), names)
    if ours.number < least:
        raise FormatError(
            f"the keys of {keys.address} have format {found}, written by a newer version of relevo, which works beside "
            f"format {least} or newer; this version writes format {ours.number}: upgrade relevo in this process"
        )
    if found < ours.reads:
        raise FormatError(
            f"the keys of {keys.address} have format {found}, and this version of relevo works off format {ours.reads} "
            f"or newer: let workers of the version before finish the jobs (`relevo status` shows what is left), or "
            f"upgrade to a version between the two first"
        )
