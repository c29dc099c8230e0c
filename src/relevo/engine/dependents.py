"""Jobs that depend on others: stored behind a gate, announced to their parents, then let go.

A child may live in another slot than its parents, so it cannot be stored and announced in one step. It is stored first,
behind a gate that only its producer opens; if the producer dies first, an outbox message cancels the job.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from relevo.engine.edges import Edge, Policy, Report, label
from relevo.engine.job_store import remove
from relevo.engine.outbox import KeysOf, notify, notify_all, opened, relay, vouched
from relevo.engine.push import NewJob, chunks, push_rich
from relevo.errors import UnknownJob
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.text.names import is_bus_name


def needs_of(parents: int, keep_ms: int, *, takes: str = "", gated: bool = False) -> str:
    """What a job waits for, as engine/push_with_options.lua reads it: its gate counts as one more parent."""
    return f"{'g' if gated else 'w'} {parents + gated} {keep_ms} {takes}"


def gate_of(first: str) -> str:
    """The id of the outbox message that cancels gated jobs of one call; `first`: the first of these jobs."""
    return first + ".gate"


def follow(queue: QueueKeys, parent: str, edges: Sequence[Edge]) -> Call[tuple[str, int]]:
    """Note edges with their parent in this queue: its state and number, '' while it lives, or 'unknown'."""
    script = queue.script("workflows/register_dependents")
    # An edge noted twice only leads to the same report twice.
    return Call(
        [parent, " ".join(map(str, edges))], lambda reply: (reply[0].decode(), reply[1]), script, queue.of(script)
    )


def forget(queue: QueueKeys, jobs: Sequence[NewJob]) -> Call[Any]:
    """Remove jobs that were stored behind a gate, without a trace."""
    return remove(queue, [(job.id, job.name) for job in jobs], "lapsed")


def push_dependents(
    keys_of: KeysOf,
    queue: str,
    jobs: Sequence[NewJob],
    parents: Mapping[str, Sequence[tuple[str, Policy]]],
    dead_max: int,
    abroad: str = "",
) -> Generator[Call[Any], Any, list[str]]:
    """Store gated jobs that depend on (id, policy)s, given by queue: for each the id that has its name.

    `abroad` is the queue's name on the bus: a parent there may be served, and its end reported, by another app.
    """
    owners: list[str] = []
    for part in chunks(len(job.body) for job in jobs):
        try:
            owners += yield from _chunk(keys_of, queue, jobs[part], parents, dead_max, abroad or queue)
        except UnknownJob as error:
            enqueued = f"The first {len(owners):,} jobs were enqueued" if owners else "Nothing was enqueued"
            raise UnknownJob(f"{error}. {enqueued}") from None
    return owners


def _chunk(
    keys_of: KeysOf,
    queue: str,
    jobs: Sequence[NewJob],
    parents: Mapping[str, Sequence[tuple[str, Policy]]],
    dead_max: int,
    abroad: str,
) -> Generator[Call[Any], Any, list[str]]:
    keys = keys_of(queue)
    owners: list[str] = yield push_rich(keys, jobs, label(queue))
    new = [job for job, owner in zip(jobs, owners, strict=True) if owner == job.id]
    if not new:
        return owners
    reports: list[Report] = []
    for home, named in parents.items():
        for parent, policy in named:
            edges = [Edge(job.id, abroad if is_bus_name(home) else queue, policy) for job in new]
            state, number = yield follow(keys_of(home), parent, edges)
            if state == "unknown":
                yield forget(keys, new)
                yield notify(keys, [], dead_max, gates=[gate_of(new[0].id)])
                raise UnknownJob(
                    f"depends_on: no job {parent} on {home}: it never was, or its record has ended (a job with "
                    "result_ttl=0 leaves none)"
                )
            if state:
                ours = [(queue, Report(job.id, parent, number, state, policy)) for job in new]
                reports += [report for _, report in (yield from vouched(keys_of, keys_of(home), ours))]
    reports += opened([job.id for job in new])
    if (yield from notify_all(keys, reports, dead_max, [gate_of(new[0].id)])):
        yield from relay(keys_of, [queue], dead_max)
    return owners
