"""Names of queues with a number of slots behind them, as workers take them: `default:80`, `embedding:actions:20`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from relevo.errors import OptionError

_NUMBERED = re.compile(r"(.+):([0-9]+)")
#: The most slots of one queue; the bound of `concurrency`, too.
MOST_SLOTS = 100_000


def queues_with_slots(what: str, given: Iterable[Any]) -> dict[str, int | None]:
    """Queue -> its slots, None: it was named without a number. Names may repeat; two numbers for one are refused."""
    found: dict[str, int | None] = {}
    for text in given:
        name, slots = _one(what, text)
        before = found.get(name)
        if slots is not None and before is not None and slots != before:
            raise OptionError(f"{what}: queue {name!r} has one number of slots, found {before} and {slots}.")
        found[name] = before if slots is None else slots
    return found


def _one(what: str, given: Any) -> tuple[str, int | None]:
    if not isinstance(given, str) or not given:
        raise OptionError(f"{what}: names of queues are needed, such as 'mail' or 'mail:20', found {given!r:.80}.")
    numbered = _NUMBERED.fullmatch(given)
    if numbered is None:
        return given, None
    slots = int(numbered[2][:18])
    if not 1 <= slots <= MOST_SLOTS:
        raise OptionError(f"{what}: slots are a number from 1 to {MOST_SLOTS:,}, found {given!r:.80}.")
    return numbered[1], slots
