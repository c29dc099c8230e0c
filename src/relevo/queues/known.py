"""Names of tasks and tenants that something is known of: a name that is not among them is most often misspelt.

Nothing lists all names that were ever used. So this looks where they leave traces: the code, what workers know and
measured, limits and pauses, and a few jobs of each state. The cost is bounded for each queue, however many jobs it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from relevo.engine.lists import job_queues
from relevo.limits.limit import CODE, TASK, TENANT
from relevo.queues.searching import ORDER
from relevo.queues.store import Listed, page
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps
from relevo.text.nearest import did_you_mean

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

Kind = Literal["task", "tenant"]

#: Jobs looked at in each state of a queue: those that run next, or that ended last.
LOOKED_AT = 20


def not_known(engine: Engine, kind: Kind, name: str, queue: str | None = None, also: Iterable[str] = ()) -> Steps[str]:
    """Why this is no task or tenant of the app, of a queue or of all, with the nearest that is; '': it is known.

    `also`: names that the caller knows.
    """
    known = {*also, *(engine.tasks if kind == "task" else ())}
    if name in known:
        return ""
    names = (yield from job_queues(engine)) if queue is None else [queue]
    for look in (_traces, _samples):  # the cheap one first
        for one in names:
            known |= yield from look(engine.keys_of(one), kind)
            if name in known:
                return ""
    where = f"app {engine.name!r}" if queue is None else f"queue {queue!r:.80}"
    return f"no {kind} {name!r:.80} is known in {where}{did_you_mean(name, known)}"


def _traces(queue: QueueKeys, kind: Kind) -> Steps[set[str]]:
    """What limits, pauses, workers and their measurements name."""
    keys = ("limits", "pauses", "timings") if kind == "task" else ("limits", "pauses")
    hashes: list[list[str]] = yield Ahead(_names(queue, key) for key in keys)
    found = {name[2:] for name in (*hashes[0], *hashes[1]) if name[:2] == (TASK if kind == "task" else TENANT)}
    if kind == "tenant":
        return found
    found |= {name[len(CODE + TASK) :] for name in hashes[0] if name.startswith(CODE + TASK)}
    found |= {name.partition(" ")[2] for name in hashes[2]}
    texts: list[str] = yield Call([b"HVALS", queue.key("offers")], _decoded)
    return found | {target for text in texts if text.startswith("\n") for target in _targets(text)}


def _names(queue: QueueKeys, key: str) -> Call[list[str]]:
    return Call([b"HKEYS", queue.key(key)], _decoded)


def _decoded(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def _targets(text: str) -> Iterator[str]:
    """The targets of an offer, which has lines `target=signature`."""
    return (line.rpartition("=")[0] for line in text.splitlines() if "=" in line)


def _samples(queue: QueueKeys, kind: Kind) -> Steps[set[str]]:
    """What some jobs of each state name."""
    pages: list[list[Listed]] = yield Ahead(page(queue, state, 0, LOOKED_AT) for state in ORDER)
    found = {_named(job, kind) for jobs in pages for job in jobs}
    return {name for name in found if name}


def _named(job: Listed, kind: Kind) -> Any:
    if kind == "tenant":
        return job.envelope.tenant if job.envelope else job.record.tenant if job.record else ""
    return job.envelope.target if job.envelope else job.record.target if job.record else ""
