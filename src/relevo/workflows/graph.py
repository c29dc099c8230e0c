"""From the expression to the jobs: a flat list, with what each job waits for and receives.

Where many results go to many jobs, or are one member of another list, an extra job gathers them first. So there are at
most twice as many edges as jobs, and no job contains others.

    group(a, b, c) | group(x, y)        a ─┐            ┌─> x
                                        b ─┼─> gather ──┤
                                        c ─┘            └─> y
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from relevo.errors import OptionError, TargetError
from relevo.middleware.headers import headed
from relevo.workflows.fitting import refuse_misfit
from relevo.workflows.steps import MAX_JOBS, MAX_LEVELS, CallbackKind, Chain, Flow, Group, Step

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task

Takes = Literal["", "one", "list"]
Shape = int | str | dict[str, list[Any]]

_EMPTY_LIST = b"[]"
_GATHERS_NOTHING = b'"a":[[]]'


class Bound(Struct, frozen=True):
    """What a group bears, for the node that waits for it."""

    #: So many of its members may fail.
    tolerates: int
    #: Its nodes, the second one excluded, which are cancelled when more fail; None: they go on.
    stops: tuple[int, int] | None


class Node(Struct, frozen=True):
    """One job of a flow."""

    #: None: a job of the built-in task `relevo.gather`, which returns the list that it gets.
    step: Step[Any, Any] | None
    #: The nodes it waits for, in order; all of them precede it.
    parents: tuple[int, ...]
    #: What it receives from them as its first argument: nothing, the result of the only one, the list of all results.
    takes: Takes
    #: Its encoded arguments without the one it receives.
    fragment: bytes
    bound: Bound | None = None


class Callback(Struct, frozen=True):
    """A job that is made when the flow ends."""

    kind: CallbackKind
    step: Step[Any, Any]
    fragment: bytes


class Graph(Struct, frozen=True, kw_only=True):
    """A flow in the form in which it is stored."""

    nodes: tuple[Node, ...]
    #: The nodes whose results are the flow's result; never empty.
    outputs: tuple[int, ...]
    #: Whether the flow's result is the list of their results, or the result of the only one.
    is_list: bool
    #: The expression, for display: a node, "3-9" for nodes side by side, {"chain": [...]} or {"group": [...]}.
    shape: Shape
    callbacks: tuple[Callback, ...]
    #: The nodes whose failure a group around them tolerates, as ranges.
    tolerated: tuple[range, ...] = ()


def compile(flow: Flow[Any, Any], *, limit: int) -> Graph:
    """The jobs of a flow, each with its arguments checked and encoded in at most `limit` bytes."""
    drawing = _Drawing(flow.engine, limit)
    end, shape = drawing.add(flow, _Feed("", ()), 0)
    if end.kind == "empty" or end.bound is not None:
        end = _Feed("one", (drawing.gather(end),))
    callbacks = flow.callbacks if isinstance(flow, Chain | Group) else ()
    return Graph(
        nodes=tuple(drawing.nodes),
        outputs=end.nodes,
        is_list=end.kind == "list",
        shape=shape,
        callbacks=tuple(Callback(kind, step, drawing.call(step)) for kind, step in callbacks),
        tolerated=tuple(drawing.tolerated),
    )


class _Feed(Struct, frozen=True):
    """What one part of a flow passes to the next."""

    #: "": nothing, this is the beginning; "empty": an empty list, which is known before anything runs.
    kind: Literal["", "one", "list", "empty"]
    #: The nodes that must be done, and that give the result unless it is empty.
    nodes: tuple[int, ...]
    bound: Bound | None = None


class _Drawing:
    """A graph under construction, from the beginning to the end."""

    def __init__(self, app: Engine | None, limit: int) -> None:
        self.nodes: list[Node] = []
        self.tolerated: list[range] = []
        self.engine = app
        self._limit = limit
        self._checked: set[Task[..., Any]] = set()

    def add(self, flow: Flow[Any, Any], feed: _Feed, level: int) -> tuple[_Feed, Shape]:
        """Add one part after those added; returns what it gives, and its shape."""
        if level > MAX_LEVELS:
            raise OptionError(f"a flow of chains and groups goes {MAX_LEVELS} levels deep at the most")
        shapes: list[Shape] = []
        match flow:
            case Step():
                node = self._step(flow, feed)
                return _Feed("one", (node,)), node
            case Chain(parts=parts):
                for part in parts:
                    feed, shape = self.add(part, feed, level + 1)
                    shapes.append(shape)
                return feed, {"chain": list(_runs(shapes))}
            case Group(members=members):
                if feed.bound is not None or (len(members) > 1 and len(feed.nodes) > 1):
                    feed = _Feed("one", (self.gather(feed, if_wanted_by=flow),))
                outputs, first = [], len(self.nodes)
                for member in members:
                    end, shape = self.add(member, feed, level + 1)
                    outputs.append(end.nodes[0] if end.kind == "one" else self.gather(end))
                    shapes.append(shape)
                bound = self._bound(flow, first)
                end = _Feed("list", tuple(outputs), bound) if outputs else _Feed("empty", feed.nodes)
                return end, {"group": list(_runs(shapes))}
        raise TargetError(f"a flow is made of steps, chains and groups, found {flow!r:.80}")

    def _bound(self, group: Group[Any, Any], first: int) -> Bound | None:
        """What a group bears whose nodes are those from `first` on."""
        if group.tolerate:
            self.tolerated.append(range(first, len(self.nodes)))
        elif not group.fail_fast:
            return None
        return Bound(group.tolerate, (first, len(self.nodes)) if group.fail_fast else None)

    def gather(self, feed: _Feed, *, if_wanted_by: Flow[Any, Any] | None = None) -> int:
        """A node whose result is the list of results. If no step takes the list, it only waits: a list may be large."""
        if feed.kind == "list" and (if_wanted_by is None or _takes_result(if_wanted_by)):
            return self._add(Node(None, feed.nodes, "list", b"", feed.bound))
        return self._add(Node(None, feed.nodes, "", _GATHERS_NOTHING, feed.bound))

    def call(self, step: Step[Any, Any]) -> bytes:
        """The arguments of a complete call."""
        self._check(step)
        return step.encoded(self._limit)

    def _step(self, step: Step[Any, Any], feed: _Feed) -> int:
        if feed.kind == "" or not step.takes_result:
            return self._add(Node(step, feed.nodes, "", self.call(step), feed.bound))
        self._check(step)
        encode, first = step.task.signature.encode_rest, _EMPTY_LIST if feed.kind == "empty" else b""
        fragment = encode(step.args, step.kwargs, limit=self._limit, first=first)
        if step.headers:
            fragment = headed(fragment, step.headers, what=step.task.target)
        if feed.kind == "empty":
            return self._add(Node(step, feed.nodes, "", fragment))
        refuse_misfit(step, [self.nodes[i].step for i in feed.nodes], is_list=feed.kind == "list")
        return self._add(Node(step, feed.nodes, feed.kind, fragment, feed.bound))

    def _add(self, node: Node) -> int:
        if len(self.nodes) >= MAX_JOBS:
            raise OptionError(f"a flow has at most {MAX_JOBS:,} jobs, and this one has more: enqueue several")
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _check(self, step: Step[Any, Any]) -> None:
        """Refuse a step that cannot be in this flow."""
        task = step.task
        if task in self._checked:
            return
        if task.engine is not self.engine:
            apps = " and ".join(
                sorted({repr(engine.name) for engine in (self.engine, task.engine) if engine is not None})
            )
            raise TargetError(f"{task.target}: all steps of a flow are tasks of one app, found {apps}")
        if task.options.unique not in ("", "no"):
            raise OptionError(
                f"{task.target}: unique={task.options.unique!r} is not for a flow: a job that is found instead of a "
                "new one cannot be part of it; write .using(unique=False)"
            )
        self._checked.add(task)


def _takes_result(flow: Flow[Any, Any]) -> bool:
    """Whether any of its first steps takes the result of what precedes it."""
    waiting = [flow]
    while waiting:
        match waiting.pop():
            case Step(takes_result=True):
                return True
            case Chain(parts=parts):
                waiting.append(parts[0])
            case Group(members=members):
                waiting.extend(members)
    return False


def _runs(shapes: list[Shape]) -> Iterator[Shape]:
    """The same with consecutive nodes combined: 3, 4, 5 is "3-5"."""
    for _, run in groupby(enumerate(shapes), lambda at: at[1] - at[0] if isinstance(at[1], int) else at[:1]):
        parts = [shape for _, shape in run]
        yield parts[0] if len(parts) == 1 else f"{parts[0]}-{parts[-1]}"
