"""Refuses names that do not exist: most often they are misspelt, and "nothing found" would look like good news."""

from __future__ import annotations

from relevo.app import Relevo
from relevo.engine.lists import known_queues
from relevo.errors import ConfigurationError
from relevo.text.names import is_pool_name, pool_of
from relevo.text.nearest import did_you_mean


def refuse_unknown_queue(app: Relevo, queue: str | None) -> None:
    """Refuse a queue that is not in use and that no task of the code names; None is no queue."""
    if queue is None:
        return
    known = {*app.engine.run(known_queues(app.engine)), *(task.options.queue for task in app.tasks.values())}
    if queue not in known:
        of_pool = [name for name in sorted(known) if is_pool_name(name) and pool_of(name) == queue]
        near = f"; the dead letters of that pool are those of {of_pool[0]!r}" if of_pool else did_you_mean(queue, known)
        raise ConfigurationError(f"app {app.name!r} has no queue {queue!r:.80} in use{near}")
