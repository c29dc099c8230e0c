"""From a graph to the server: the rows of all its jobs, and the calls that store them as one thing.

All jobs of a small flow in one queue go in one call, so it is there or it is not. A larger one is stored behind gates:
nothing can start until the last call founds the workflow, and should its maker die before that, all of it is given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from relevo.engine.dependents import gate_of, needs_of
from relevo.engine.edges import Edge, Policy, label
from relevo.engine.job import Envelope, Proof, write
from relevo.engine.options import Options, changed
from relevo.engine.outbox import MEMBERS, notify, open_gates, opened, start_letter, start_members
from relevo.engine.push import CHUNK, NewJob, chunks, push_rich
from relevo.engine.signed_bodies import Parent, digest_of_parents
from relevo.errors import OptionError, ServerUnavailable
from relevo.store.plan import Ahead, Call, Steps
from relevo.telemetry import making
from relevo.workflows import graph as graphs
from relevo.workflows import store as flows
from relevo.workflows.graph import Bound, Node
from relevo.workflows.steps import Flow, Step
from relevo.workflows.stopping import stop_text
from relevo.workflows.store import Plan, founding
from relevo.workflows.workflow import Workflow

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: The built-in task that gives the list it gets.
GATHER = "relevo.gather"


async def gather(results: list[Any]) -> list[Any]:
    """Returns the list of results that it gets, for several jobs that take it."""
    return results


#: After so long a worker starts the members of a workflow, if the process that enqueued it has not.
START_MS = 2_000
_WHEN: dict[str, Policy] = {"on_success": "c", "on_complete": "r", "on_failure": "f"}


def stored(rows: Rows) -> Steps[Workflow[Any]]:
    """Store a flow: all of it, or nothing that will ever run."""
    engine = rows.engine
    for queue in rows.queues:
        yield from engine.list_queue(queue)
    if any(step.task.options.expires is not None for step in rows.steps):
        rows.now_ms = yield from engine.now_ms()
    home = engine.keys_of(rows.home)
    if rows.queues == [rows.home] and len(rows.graph.nodes) < CHUNK:
        whole = [rows.founder(gated=False), *rows.make(gated=False)[rows.home]]
        if len(list(chunks(len(row.body) + len(row.edges) for row in whole))) == 1:
            owner, *_ = yield push_rich(home, whole)
            return rows.workflow if owner == rows.id else rows.other(owner)
    if rows.name.text and (owner := (yield from flows.named(home, rows.name.text, rows.name.scope))):
        return rows.other(owner)
    yield push_rich(home, [rows.founder(gated=True)])
    gates: list[tuple[str, str]] = []
    yield Ahead(_plain_parts(rows, gates))
    yield Ahead(_other_parts(rows, gates))
    start = start_letter(gates)
    founded, _ = yield notify(home, opened([rows.id]), engine.settings.dead_max, start=start, start_ms=START_MS)
    if not founded and not (yield flows.is_founded(home, rows.id)):  # the reply to the first call may have been lost
        if rows.name.text and (owner := (yield from flows.named(home, rows.name.text, rows.name.scope))):
            return rows.other(owner)  # another process was faster; what is stored here is given up
        raise ServerUnavailable("storing the workflow took too long: its parts were given up; nothing of it will run")
    yield from _start(engine, rows, gates)
    return rows.workflow


def _plain_parts(rows: Rows, gates: list[tuple[str, str]]) -> Iterator[Call[Any]]:
    """The calls that store the plain members of a large flow; adds the gates that they stand behind."""
    keys_of = rows.engine.keys_of
    for (queue, priority, failure_ms), nodes in rows.plain_members().items():
        keys = keys_of(queue)
        for part in chunks(rows.sizes(nodes)):
            members = [rows.plain_member(i) for i in nodes[part]]
            gates.append((queue, members[0][0] + MEMBERS))
            yield flows.store_members(keys, members, label(queue), priority, failure_ms)


def _other_parts(rows: Rows, gates: list[tuple[str, str]]) -> Iterator[Call[Any]]:
    """The same for all its other jobs."""
    for queue, jobs in rows.make(gated=True).items():
        for part in chunks(len(job.body) + len(job.edges) for job in jobs):
            gates.append((queue, gate_of(jobs[part][0].id)))
            yield push_rich(rows.engine.keys_of(queue), jobs[part], label(queue))


def _start(engine: Engine, rows: Rows, gates: Sequence[tuple[str, str]]) -> Steps[None]:
    """Open the gates. If this process dies before it has opened all, a worker does so after START_MS."""
    keys_of, dead_max = engine.keys_of, engine.settings.dead_max
    members = (start_members(keys_of(queue), letter) for queue, letter in gates if letter.endswith(MEMBERS))
    yield Ahead(members, depth=4)  # short calls
    others = [(queue, letter) for queue, letter in gates if not letter.endswith(MEMBERS)]
    yield from open_gates(keys_of, others, dead_max)  # no outbox message: no member can end before its gate opens
    yield notify(keys_of(rows.home), [], dead_max, [rows.id + ".start"])


class Name(Struct, frozen=True):
    """The name of a workflow, as the store keeps it, and how long it is held; '': it has none."""

    text: str = ""
    scope: str = ""

    @classmethod
    def of(cls, name: str, unique: Any) -> Name:
        """Read the options of `enqueue`."""
        given: dict[str, Any] = {"name": name} if unique is None else {"name": name, "unique": unique}
        options = changed(Options(), given)
        if options.unique in ("queued", "no") or (options.unique and not name):
            raise OptionError("a workflow takes name= with unique=True or a duration, such as unique='1d'")
        if not name:
            return cls()
        held = options.unique if isinstance(options.unique, float) else None
        return cls(flows.NAMED + name, "until_done" if held is None else str(max(1, round(held * 1000))))


class Rows:
    """The rows of one flow."""

    def __init__(self, engine: Engine, flow: Flow[Any, Any], name: Name | None = None) -> None:
        self.engine = engine
        self.name = name or Name()
        self.graph = graph = graphs.compile(flow, limit=engine.settings.max_payload)
        self.now_ms = 0
        ids = engine.new_id.many(len(graph.nodes) + len(graph.callbacks) + 1)
        self._ids, self._callback_ids, self.id = ids[: len(graph.nodes)], ids[len(graph.nodes) : -1], ids[-1]
        self.steps: list[Step[Any, Any]] = [node.step for node in graph.nodes if node.step is not None]
        self.steps += [callback.step for callback in graph.callbacks]
        for step in self.steps:
            if step.task.options.depends_on:
                raise OptionError(
                    f"{step.task.target}: depends_on is not for a step of a flow, whose order the flow says; "
                    "give it to a job that is enqueued by itself"
                )
        first = self.steps[0].task.options if self.steps else None
        #: where the workflow itself is kept, and what gathers results for it
        self.home = first.queue if first else engine.settings.queue
        self._gather_priority = first.priority if first else Envelope("").priority
        self.queues = list(dict.fromkeys([self.home, *(step.task.options.queue for step in self.steps)]))
        self._flow = b',"wf":' + write(self.id + self.home)
        self._flow_passing = self._flow + b',"y":true'
        self._edges = self._all_edges()

    @property
    def workflow(self) -> Workflow[Any]:
        """A handle of what they are, or will be when they are stored."""
        return Workflow(self.engine, self.id, self.home)

    def other(self, id: str) -> Workflow[Any]:
        """The workflow that has the name already."""
        return Workflow(self.engine, id, self.home, created=False)

    def making(self) -> AbstractContextManager[object]:
        """A span around storing them, to which all of them are linked, where traces are on."""
        jobs = len(self._ids) + len(self._callback_ids)
        return making(
            self.engine.telemetry,
            "enqueue",
            self.home,
            **{"messaging.batch.message_count": jobs, "relevo.workflow": self.id},
        )

    def _queue(self, node: Node) -> str:
        return self.home if node.step is None else node.step.task.options.queue

    def _all_edges(self) -> list[list[Edge]]:
        graph, ids = self.graph, self._ids
        edges: list[list[Edge]] = [[] for _ in graph.nodes]
        for i, node in enumerate(graph.nodes):
            for place, parent in enumerate(node.parents):
                edges[parent].append(Edge(ids[i], self._queue(node), "c", place if node.takes else None))
        places = {node: place for place, node in enumerate(graph.outputs)}
        tolerated = {i for nodes in graph.tolerated for i in nodes}
        for i, out in enumerate(edges):
            out.append(Edge(self.id, self.home, "t" if i in tolerated else "n", places.get(i)))
        return edges

    def plain_members(self) -> dict[tuple[str, int, int], list[int]]:
        """Members that wait for nothing but the start, by queue, priority and how long a failed one is kept."""
        found: dict[tuple[str, int, int], list[int]] = {}
        for i, node in enumerate(self.graph.nodes):
            if _is_plain(node) and node.step is not None:
                task = node.step.task
                found.setdefault((task.options.queue, task.options.priority, task.failure_ms), []).append(i)
        return found

    def sizes(self, nodes: Iterable[int]) -> Iterator[int]:
        """About how many bytes each takes."""
        return (len(self.graph.nodes[i].fragment) + 100 + 40 * len(self._edges[i]) for i in nodes)

    def plain_member(self, i: int) -> tuple[str, bytes, str]:
        """Its id, its body and its edges."""
        node, edges = self.graph.nodes[i], self._edges[i]
        assert node.step is not None
        extra = self._flow_passing if any(edge.index is not None for edge in edges) else self._flow
        id = self._ids[i]
        return id, node.step.task.member_body(id, node.fragment, extra), " ".join(map(str, edges))

    def make(self, *, gated: bool) -> dict[str, list[NewJob]]:
        """All jobs, by queue; `gated`: without plain members."""
        made: dict[str, list[NewJob]] = {}
        for i, node in enumerate(self.graph.nodes):
            if gated and _is_plain(node):
                continue
            made.setdefault(self._queue(node), []).append(self._row(i, node, gated))
        for id, callback in zip(self._callback_ids, self.graph.callbacks, strict=True):
            task = callback.step.task
            needs = needs_of(1, task.failure_ms, gated=gated)
            job = task.member(id, callback.fragment, self.now_ms, self._flow, needs, "")
            made.setdefault(task.options.queue, []).append(job)
        return made

    def _row(self, i: int, node: Node, gated: bool) -> NewJob:
        edges = self._edges[i]
        extra = self._flow_passing if any(edge.index is not None for edge in edges) else self._flow
        if node.takes:
            extra += b',"i":"%b"' % node.takes.encode()
        takes = str(len(node.parents)) if node.takes == "list" else node.takes
        if node.takes and self.engine.keyring:
            extra += b',"z":' + write(Proof(parents=digest_of_parents(map(self._as_parent, node.parents))))
        edges_text = " ".join(map(str, edges))
        if node.step is not None:
            task = node.step.task
            keep_ms = task.failure_ms
        else:
            keep_ms = self.engine.failure_ms(None)
        needs = needs_of(len(node.parents), keep_ms, takes=takes, gated=gated) if gated or node.parents else ""
        if node.bound is not None:
            needs += self._bound(node.bound)
        if node.step is not None:
            return task.member(self._ids[i], node.fragment, self.now_ms, extra, needs, edges_text)
        head = write(Envelope(GATHER, priority=self._gather_priority, result_ttl=0.0))[:-1] + extra
        if self.engine.telemetry is not None:
            head += self.engine.telemetry.field()
        body = head + (b"," + node.fragment if node.fragment else b"") + b"}"
        signer = self.engine.keys_of(self.home).signer
        if signer is not None:
            body = signer.signed("job", self._ids[i], body)
        return NewJob(self._ids[i], self._gather_priority, body, needs=needs, edges=edges_text)

    def _bound(self, bound: Bound) -> str:
        """What a group bears, as workflows/lua/include/dependents.lua reads it."""
        if bound.tolerates and self.engine.keyring:
            raise OptionError(
                "tolerate= is not possible with signing_keys: a result that is missing cannot be verified"
            )
        if bound.stops is None:
            return f";{bound.tolerates}"
        engine, (first, end) = self.engine, bound.stops
        stop = stop_text(self.id, self.home, first, end, engine.failure_ms(None), engine.settings.dead_max)
        return f";{bound.tolerates} {stop}"

    def _as_parent(self, i: int) -> Parent:
        return self._ids[i], self.engine.keys_of(self._queue(self.graph.nodes[i])).place

    def founder(self, *, gated: bool) -> NewJob:
        """The row of the workflow itself."""
        graph = self.graph
        named = [(self._queue(node), GATHER if node.step is None else node.step.task.target) for node in graph.nodes]
        queues, targets = (list(dict.fromkeys(column)) for column in zip(*named, strict=True))
        at, what = ({name: i for i, name in enumerate(names)} for names in (queues, targets))
        callbacks = list(zip(self._callback_ids, graph.callbacks, strict=True))
        plan = Plan(
            ids="".join(self._ids),
            queues=queues,
            targets=targets,
            at=[at[queue] for queue, _ in named],
            what=[what[target] for _, target in named],
            outputs=list(graph.outputs),
            is_list=graph.is_list,
            shape=graph.shape,
            callbacks=[(one.kind, id, one.step.task.options.queue, one.step.task.target) for id, one in callbacks],
        )
        edges = [Edge(id, one.step.task.options.queue, _WHEN[one.kind]) for id, one in callbacks]
        kept = max((self._kept_ms(graph.nodes[i]) for i in graph.outputs), default=0)
        signer = self.engine.keys_of(self.home).signer
        row = founding(self.id, plan, edges, self.engine.failure_ms(None), kept, gated=gated, signer=signer)
        return replace(row, name=self.name.text, scope=self.name.scope)

    def _kept_ms(self, node: Node) -> int:
        ttl = self.engine.settings.result_ttl if node.step is None else node.step.task.options.result_ttl
        return round(ttl * 1000)


def _is_plain(node: Node) -> bool:
    return not node.parents and node.step is not None and node.step.task.is_plain
