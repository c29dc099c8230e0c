"""Putting jobs on a queue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain

from msgspec import Struct

from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Argument, Call, Steps

#: Jobs and bytes per call: enough to make the round trip cheap, few enough to keep the server responsive. Where
#: millions are stored already, a job with a delay or a tenant takes it some 10 microseconds, and a plain one 3.
CHUNK = 300
CHUNK_BYTES = 512 * 1024
#: A job whose producer dies before all is stored (edges at its parents, all members) is cancelled after this.
GATE_MS = 600_000
#: TTL of a queue's list of workflows without a new one: a month.
FLOWS_MS = 30 * 86_400_000
#: TTL of a queue's counters without any traffic: a week.
KEEP_MS = 7 * 86_400_000


class NewJob(Struct, frozen=True, gc=False):
    """A job to be stored."""

    id: str
    priority: int
    body: bytes
    #: '' now, '+ms' after a delay, 'ms' at a time of the server's clock.
    when: str = ""
    tenant: str = ""
    weight: float = 1.0
    name: str = ""
    #: How long the name is held: 'queued', 'until_done', or milliseconds; 'add': until done, if no other job has it.
    scope: str = ""
    #: What it waits for, as engine/push_with_options.lua reads it: see `needs_of` and `founding` in flows.py.
    needs: str = ""
    #: Edges to its dependents: see edges.py.
    edges: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing but a priority, so that the short form is enough."""
        return not (self.when or self.tenant or self.name or self.needs or self.edges)


def chunks(sizes: Iterable[int]) -> Iterator[slice]:
    """Cut jobs of these sizes into calls."""
    ends = list(accumulate(sizes))
    start = before = 0
    while start < len(ends):
        end = max(start + 1, bisect_right(ends, before + CHUNK_BYTES, start, min(start + CHUNK, len(ends))))
        yield slice(start, end)
        start, before = end, ends[end - 1]


def push_plain(queue: QueueKeys, jobs: Iterable[tuple[str, bytes]], priority: int, lease_ms: int) -> Call[int]:
    """Store jobs given as (id, body), at most CHUNK: returns how many were new."""
    script = queue.script("engine/push")
    args: list[Argument] = [lease_ms, KEEP_MS, priority]
    for job in jobs:
        args += job
    return Call(args, int, script, queue.of(script), numbered=True)


def push_rich(queue: QueueKeys, jobs: Sequence[NewJob], label: str = "", *, once_ms: int = 0) -> Call[list[str]]:
    """Store jobs with options: for each the id that has its name (its own: it is new).

    `label` is the queue as edges name it, needed where a job is gated. With `once_ms`, the server remembers for so long
    that these jobs were stored: given again, also by another process, none is stored twice.
    """
    script = queue.script("engine/push_with_options")
    args: list[Argument] = [KEEP_MS, label, GATE_MS, FLOWS_MS, once_ms]
    for job in jobs:
        args += (job.id, job.priority, job.body, job.when, job.tenant, job.weight, job.name, job.scope)
        args += (job.needs, job.edges)
    is_named = all(job.name and job.scope.isdigit() for job in jobs)
    return Call(args, _texts, script, queue.of(script), numbered=True, is_named=is_named)


def forget_once(queue: QueueKeys, ids: Sequence[str]) -> Call[int]:
    """Nothing will give these jobs again: the server need not remember that it stored them once."""
    return Call([b"UNLINK", *(queue.own("unique", f"once {id}") for id in ids)], int)


def push(queue: QueueKeys, jobs: Sequence[NewJob], lease_ms: int, label: str = "") -> Steps[list[str]]:
    """Store any number of jobs in order: for each the id that has its name (its own: it is new)."""
    parts = [jobs[part] for part in chunks(len(job.body) for job in jobs)]
    if len(parts) == 1:
        owners: list[str] = yield _push_part(queue, jobs, lease_ms, label)
        return owners
    return (yield from push_parts(queue, parts, lease_ms, label))


def push_parts(queue: QueueKeys, parts: Iterable[Sequence[NewJob]], lease_ms: int, label: str = "") -> Steps[list[str]]:
    """The same for jobs that are cut into calls already; each part is made while the one before it is in flight."""
    answers: list[list[str]] = yield Ahead(_push_part(queue, part, lease_ms, label) for part in parts)
    return list(chain.from_iterable(answers))


def _push_part(queue: QueueKeys, jobs: Sequence[NewJob], lease_ms: int, label: str) -> Call[list[str]]:
    if not all(job.is_plain and job.priority == jobs[0].priority for job in jobs):
        return push_rich(queue, jobs, label)
    ids = [job.id for job in jobs]
    plain = push_plain(queue, [(job.id, job.body) for job in jobs], jobs[0].priority, lease_ms)
    return Call(plain.args, lambda _: ids, plain.script, plain.keys, numbered=True)


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode() for one in reply]
