"""Outcome observers: a feature that must know how attempts end gives one to the engine, and every worker calls it.

An observer learns of each outcome except one: a job that is no message (it has no headers) and simply went well. There
are far more of those than of all others, and their way through a worker must not grow with the number of features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from relevo.engine.duty import Host
from relevo.engine.outcome import Happened, Outcome
from relevo.engine.settle import Held

if TYPE_CHECKING:
    from relevo.store.plan import Plan


class Conclusion(Struct, frozen=True, gc=False):
    """The end of an attempt."""

    held: Held
    happened: Happened
    outcome: Outcome
    #: by the server's clock
    now_ms: int


class OutcomeObserver:
    """Observes one queue of one worker. All of it happens on the worker's event loop."""

    def ended(self, conclusion: Conclusion) -> None:
        """An attempt has ended, or the lease of another worker. A later turn settles the job."""

    def before_turn(self) -> Plan[None] | None:
        """A turn is about to settle what has ended so far.

        Returns what the server must know before it hands out more jobs. If that or the turn fails, this is called again
        before the next one.
        """
        return None

    def after_turn(self) -> None:
        """The turn has settled it."""


#: Gives the observer of a feature for a queue of a worker.
GivesObserver: TypeAlias = Callable[[Host, str], OutcomeObserver]
