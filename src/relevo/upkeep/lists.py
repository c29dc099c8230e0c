"""Removes from the app's lists what has ended: queues and pools without keys, and workers that were lost long ago.

Without it, each queue ever used would be read forever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relevo.engine.list_store import LISTED_MS, holds_something, register, unlist, unused
from relevo.engine.workers import forget_lost
from relevo.errors import OptionError, ServerRefused
from relevo.store.keys import QueueKeys
from relevo.store.plan import Steps
from relevo.text.names import pool_name
from relevo.upkeep.report import UpkeepReport
from relevo.upkeep.rules import Verdict
from relevo.upkeep.run import UNUSED, Entry, Part, Run

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Names of each list that are checked in one run; the next run continues with the others.
AT_ONCE = 100


def tidying(engine: Engine) -> Steps[UpkeepReport]:
    """Remove queues and pools that are empty and unused for a month, and workers that are reported no longer."""
    run = Run(engine, (yield from engine.now_ms()), dry_run=False)
    yield from _tidying_list(run, "queue", engine.keys.queues, engine.keys_of)
    yield from _tidying_list(run, "pool", engine.keys.pools, lambda name: engine.keys_of(pool_name(engine.name, name)))
    yield from forget_lost(engine.keys, run.now_ms)
    return run.report()


def _tidying_list(run: Run, kind: str, key: bytes, keys_of: Callable[[str], QueueKeys]) -> Part:
    for name, used_ms in (yield unused(key, AT_ONCE, run.now_ms - LISTED_MS)):
        text = name.decode(errors="replace")
        if (yield from _holds_something(keys_of, text)):
            # Counts as a use: it stays, and is checked again in a month.
            yield register(key, [name], run.engine.bus_keys.script("engine/list_names"))
        elif (yield unlist(key, name, used_ms)):
            why = "empty and unused"
            run.note(kind, text, Entry("", UNUSED, Verdict("removed", why, used_ms, LISTED_MS), 0))


def _holds_something(keys_of: Callable[[str], QueueKeys], name: str) -> Steps[bool]:
    try:
        return bool((yield holds_something(keys_of(name))))
    except OptionError:
        return False  # an invalid name, written by another program
    except ServerRefused:
        return True  # another process of the app may know
