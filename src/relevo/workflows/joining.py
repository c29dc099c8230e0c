"""How more jobs join a workflow while one of its jobs runs.

They are stored behind a gate, then announced to all that waits for the job that brings them, which cannot start before
that job has ended; then the gate is opened. If the process dies in between, the workflow does not wait for them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.engine.context import current_job
from relevo.engine.dependents import forget, gate_of, needs_of
from relevo.engine.edges import Edge, Policy, edges_of, label
from relevo.engine.handle import Job
from relevo.engine.ids import LENGTH
from relevo.engine.job import write
from relevo.engine.outbox import notify, open_gates
from relevo.engine.push import NewJob, chunks, push_rich
from relevo.errors import ConfigurationError, OptionError
from relevo.store.plan import Call
from relevo.workflows import store as flows
from relevo.workflows.steps import Step

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: The policies of members that join, by those of the member that brings them; others are cancelled with their parents.
_LATE: dict[str, Policy] = {"n": "N", "N": "N", "t": "T", "T": "T"}


def join(engine: Engine, workflow: str, steps: Sequence[Step[Any, Any]]) -> Generator[Call[Any], Any, list[Job[Any]]]:
    """Let complete calls join the workflow of the job that runs here."""
    me = current_job()
    if me.flow[:LENGTH] != workflow:
        raise ConfigurationError(f"only a job of workflow {workflow} can add others to it, and job {me.id} is none")
    edges = edges_of((yield flows.edges_from(engine.keys_of(me.queue), me.id)))
    if not any(edge.policy in "nNtT" for edge in edges):
        raise ConfigurationError(
            f"job {me.id} is not a member of workflow {workflow} (a callback comes after its end), or it has ended"
        )
    by_queue: dict[str, list[tuple[str, NewJob, Job[Any]]]] = {}
    made: list[Job[Any]] = []
    for step in steps:
        target, row, job = yield from _row(engine, step, me.flow, edges)
        by_queue.setdefault(job.queue, []).append((target, row, job))
        made.append(job)
    for queue, rows in by_queue.items():
        yield from engine.list_queue(queue)
        for part in chunks(len(row.body) + len(row.edges) for _, row, _ in rows):
            yield from _let_in(engine, queue, rows[part], me.id, edges)
    return made


def _row(
    engine: Engine, step: Any, flow: str, edges: Sequence[Edge]
) -> Generator[Call[Any], Any, tuple[str, NewJob, Job[Any]]]:
    if not isinstance(step, Step) or step.task.engine is not engine:
        raise OptionError(f"add: complete calls of the app's tasks such as fetch.s(url) are needed, found {step!r:.80}")
    task = step.task
    if task.options.depends_on or task.options.unique not in ("", "no"):
        raise OptionError(f"{task.target}: depends_on and unique are not for jobs that join a workflow")
    fragment = step.encoded(engine.settings.max_payload)
    now_ms = (yield from engine.now_ms()) if task.options.expires is not None else 0
    own = [
        msgspec.structs.replace(edge, policy=_LATE.get(edge.policy, "C"), index=None if edge.index is None else "x")
        for edge in edges
    ]
    extra = b',"wf":' + write(flow)
    if any(edge.index is not None for edge in own):
        extra += b',"y":true'
    id = engine.new_id()
    needs = needs_of(0, task.failure_ms, gated=True)
    row = task.member(id, fragment, now_ms, extra, needs, " ".join(map(str, own)))
    return task.target, row, Job(engine, id, task.options.queue, task.signature.decode_result)


def _let_in(
    engine: Engine, queue: str, rows: Sequence[tuple[str, NewJob, Job[Any]]], me: str, edges: Sequence[Edge]
) -> Generator[Call[Any], Any, None]:
    keys, jobs = engine.keys_of(queue), [row for _, row, _ in rows]
    yield push_rich(keys, jobs, label(queue))
    members = [(row.id, queue, target) for target, row, _ in rows]
    for edge in edges:
        is_in_time = yield flows.expect(engine.keys_of(edge.queue), edge.child, me, members, keys.place)
        if not is_in_time and edge.policy in "nNtT":  # others may have run already, however this one ends
            yield forget(keys, jobs)
            yield notify(keys, [], engine.settings.dead_max, [gate_of(jobs[0].id)])
            raise ConfigurationError(f"job {me} has ended or lost its lease: nothing can join its workflow now")
    for more in (yield from open_gates(engine.keys_of, [(queue, gate_of(jobs[0].id))], engine.settings.dead_max)):
        yield from engine.relay(more)
