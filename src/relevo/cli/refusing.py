"""Refuses names that do not exist: most often they are misspelt, and "nothing found" would look like good news."""

from __future__ import annotations

from collections.abc import Iterable

from relevo.app import Relevo
from relevo.engine.lists import known_queues
from relevo.errors import ConfigurationError
from relevo.queues.known import Kind, not_known
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


def refuse_unknown(
    app: Relevo, kind: Kind, name: str | None, *, queue: str | None = None, also: Iterable[str] = (), hint: str = ""
) -> None:
    """Refuse a task or a tenant that nothing is known of, in a queue or in all; None is no name.

    `also`: names that are known besides. `hint`: what to do where the name is right.
    """
    if name is not None and (why := app.engine.run(not_known(app.engine, kind, name, queue, also))):
        raise ConfigurationError(f"{why}{hint}")
