"""What every executor does: it runs attempts in one kind of place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from relevo.worker.run import Run

#: Called where a run starts, in whatever thread that is.
OnStart: TypeAlias = Callable[[Run], None]
#: Called on the event loop with a run that has ended, and its result or its error.
OnEnd: TypeAlias = Callable[[Run, Any, BaseException | None], None]


class Place(Struct, frozen=True):
    """What a worker gives an executor: how many runs it may run at once, and whom to call."""

    concurrency: int
    threads: int
    processes: int
    on_start: OnStart
    on_end: OnEnd


class Executor(Protocol):
    """Called on the event loop, which no method may block. It calls `on_end` once for each run, however it ends."""

    #: Seconds between the interruption of a run and the moment when it is abandoned.
    patience: float

    def submit(self, run: Run) -> None:
        """Run it as soon as there is room. A run that is settled by then is left out."""

    def interrupt(self, run: Run) -> None:
        """Stop it; it ends with an error. No effect if it has ended already."""

    def ask_to_pause(self, run: Run) -> None:
        """The worker is stopping: let a loop with checkpoints end after its current item."""

    def abandon(self, run: Run) -> bool:
        """It was interrupted and does not end. True: so many runs hang that the worker must start anew."""

    def close(self) -> None:
        """End threads and processes."""
