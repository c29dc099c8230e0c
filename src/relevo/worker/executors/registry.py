"""Which executor runs an attempt. A new one is a module beside this one, and a line in `EXECUTORS`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from relevo.worker.executors.executor import Executor, Place
from relevo.worker.executors.loop import Loop
from relevo.worker.executors.threads import Threads
from relevo.worker.run import Run

log = logging.getLogger("relevo.worker")

QUARANTINE = "quarantine"


def _processes(place: Place) -> Executor:
    from relevo.worker.executors.processes import Processes  # most workers never need it

    return Processes(place.processes, place.on_start, place.on_end)


def _quarantine(place: Place) -> Executor:
    from relevo.worker.executors.quarantine import Quarantine  # as above

    return Quarantine(place.concurrency, place.threads, place.on_start, place.on_end)


#: By the names that tasks give as `executor` (see `ExecutorName` in engine/options.py).
EXECUTORS: dict[str, Callable[[Place], Executor]] = {
    "loop": lambda place: Loop(place.concurrency, place.on_start, place.on_end),
    "thread": lambda place: Threads(place.threads, place.on_start, place.on_end),
    "process": _processes,
    QUARANTINE: _quarantine,
}


class Executors:
    """The executors of one worker, each made when its first run comes."""

    def __init__(self, place: Place) -> None:
        self._place = place
        #: by the names of `EXECUTORS`
        self.made: dict[str, Executor] = {}

    def of(self, run: Run) -> Executor:
        """The executor of its task, or the quarantine."""
        name = QUARANTINE if run.held.story.crashes and _is_suspect(run) else run.task.executor
        return self.made.get(name) or self._make(name)

    def is_quarantine(self, executor: Executor) -> bool:
        """Whether it is the one for suspects."""
        return executor is self.made.get(QUARANTINE)

    def _make(self, name: str) -> Executor:
        made = self.made[name] = EXECUTORS[name](self._place)
        return made

    def close(self) -> None:
        """Close all of them."""
        for executor in self.made.values():
            executor.close()


def _is_suspect(run: Run) -> bool:
    """Whether one more crash of its worker would dead-letter it.

    Other jobs were running in those workers, so the culprit is unknown. Suspects run in separate processes, which they
    share by halves until the culprit is alone: see quarantine.py.
    """
    crashes = run.held.story.crashes
    if crashes + 1 < run.task.options.max_crashes or run.task.executor == "process":
        return False
    func = run.task.func
    if func.__module__ == "__main__" or "<locals>" in func.__qualname__:
        return False  # another process cannot import it
    text = "%s: job %s was running when its worker died, %d times; it runs in a separate process"
    log.debug(text, run.task.target, run.held.id, crashes)
    return True
