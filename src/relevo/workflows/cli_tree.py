"""A workflow as a tree of lines, shortened so that thousands of jobs fit on a screen.

Everything is drawn if there is room. Else failed jobs come first, then some of the others, running before ended ones,
and what is left out is counted. The remaining room is shared by the branches that are shown.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from relevo.cli.screen import Branch, Spans, plural
from relevo.engine.job import State
from relevo.text.durations import spoken
from relevo.text.legible import short
from relevo.workflows.workflow import Member, WorkflowInfo

#: Lines of a tree without --all.
ROOM = 60
#: Where not everything has room: how many failed ones are shown, and how many others.
FAILED, OTHERS = 10, 5
#: A sign and a colour for each state, the most important states first.
SIGNS = {
    State.DEAD: ("✗", "bold red"),
    State.EXPIRED: ("!", "yellow"),
    State.CANCELLED: ("–", "yellow"),
    State.RUNNING: ("▶", "cyan"),
    State.READY: ("○", ""),
    State.SCHEDULED: ("~", ""),
    State.WAITING: ("·", "dim"),
    State.UNKNOWN: ("?", "magenta"),
    State.DONE: ("✓", "green"),
}
_RANKS = {state: rank for rank, state in enumerate(SIGNS)}


class Node(Struct, frozen=True):
    """A chain or a group, with its parts."""

    kind: str
    parts: Sequence[Node | Member]
    #: Members in it, at any depth, by their states.
    counts: Counter[State]
    #: Lines needed to draw all of it.
    size: int


def forest(info: WorkflowInfo, room: int | None = ROOM) -> list[Branch]:
    """All trees of a workflow: its members by their shape, joined members, and its callbacks. None: draw all."""
    places: set[int] = set()
    root = _node(info.shape, info.members, places)
    trees = [root if isinstance(root, Node) else _made("chain", [root])]
    joined = sorted((one for one in info.members if one.joined), key=lambda one: one.id)  # ids sort by age
    if joined:
        trees.append(_made("joined", joined))
    drawn = [_drawn(tree, tree.size if room is None else room, info) for tree in trees]
    gathering = [one for i, one in enumerate(info.members) if i not in places and not one.joined]
    if gathering:  # jobs that relevo adds to gather a list, for several jobs or for one place in a list
        jobs = plural(len(gathering), "job")
        drawn.append(Branch([(f"{jobs} to gather results: ", ""), *_counts(Counter(one.state for one in gathering))]))
    if info.callbacks:
        width = max(len(kind) for kind, _ in info.callbacks)
        lines = _lines([one for _, one in info.callbacks], info.began_ms)
        callbacks = [
            Branch([(f"{kind:<{width}}  ", "bold"), *line.spans])
            for (kind, _), line in zip(info.callbacks, lines, strict=True)
        ]
        drawn.append(Branch([("callbacks", "bold")], callbacks))
    return drawn


def _node(shape: Any, members: Sequence[Member], places: set[int]) -> Node | Member:
    """The part of a workflow that a shape describes; see graph.py. Adds its members' places to `places`."""
    if isinstance(shape, int):
        places.add(shape)
        return members[shape]
    ((kind, inner),) = shape.items()
    parts: list[Node | Member] = []
    for one in inner:
        if isinstance(one, str):
            first, _, last = one.partition("-")
            run = range(int(first), int(last) + 1)
            places.update(run)
            parts += members[run.start : run.stop]
        else:
            parts.append(_node(one, members, places))
    return _made(kind, parts)


def _made(kind: str, parts: Sequence[Node | Member]) -> Node:
    counts: Counter[State] = Counter()
    for part in parts:
        counts.update(part.counts if isinstance(part, Node) else (part.state,))
    return Node(kind, parts, counts, 1 + sum(part.size if isinstance(part, Node) else 1 for part in parts))


def _drawn(node: Node, room: int, info: WorkflowInfo) -> Branch:
    """A node in about so many lines; its head is always drawn."""
    room -= 1
    shown = _chosen(node, room)
    left_out = len(node.parts) - len(shown)
    room -= len(shown) + (left_out > 0)
    shares = iter(_shares([part.size for part in shown if isinstance(part, Node)], room))
    lines = iter(_lines([part for part in shown if isinstance(part, Member)], info.began_ms))
    branches = [next(lines) if isinstance(part, Member) else _drawn(part, next(shares), info) for part in shown]
    if left_out and shown:
        branches.append(Branch([(f"… {left_out:,} more", "dim")]))
    return Branch(_head(node), branches)


def _shares(sizes: Sequence[int], room: int) -> list[int]:
    """Lines for branches of these sizes: one for each, and the room in equal parts, less for those that need less."""
    shares = [1] * len(sizes)
    left, room = len(sizes), max(0, room)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i]):
        shares[i] += min(sizes[i] - 1, room // left)
        room, left = room - (shares[i] - 1), left - 1
    return shares


def _chosen(node: Node, room: int) -> Sequence[Node | Member]:
    """The parts that are shown in so many lines."""
    if len(node.parts) <= room:
        return node.parts
    ranked = sorted(range(len(node.parts)), key=lambda i: _rank(node.parts[i]))  # stable: else in their order
    failed = sum(_rank(part) <= _RANKS[State.CANCELLED] for part in node.parts)
    chosen = (ranked[:failed][:FAILED] + ranked[failed:][:OTHERS])[: max(0, room - 1)]
    return [node.parts[i] for i in (sorted(chosen) if node.kind == "chain" else chosen)]


def _rank(part: Node | Member) -> int:
    return min((_RANKS[state] for state in part.counts), default=99) if isinstance(part, Node) else _RANKS[part.state]


def _head(node: Node) -> Spans:
    if node.kind == "joined":
        return [("joined: ", "bold"), *_counts(node.counts)]
    jobs = node.counts.total()
    size = f" of {len(node.parts):,}" + (f", {plural(jobs, 'job')}" if jobs != len(node.parts) else "")
    return [(node.kind, "bold"), (size + (": " if jobs else ""), ""), *_counts(node.counts)]


def _counts(counts: Counter[State]) -> Spans:
    """How many are in which state, failed states first."""
    spans: list[tuple[str, str]] = []
    for state, (_, style) in SIGNS.items():
        if counts[state]:
            spans += [(", ", "")] if spans else []
            spans.append((f"{counts[state]:,} {state}", style))
    return spans


def _lines(members: Sequence[Member], began_ms: int) -> list[Branch]:
    """A line for each, in columns."""
    state = max((len(one.state) for one in members), default=0)
    task = min(40, max((len(one.task) for one in members), default=0))
    return [Branch(_line(one, state, task, began_ms)) for one in members]


def _line(member: Member, state: int, task: int, began_ms: int) -> Spans:
    sign, style = SIGNS[member.state]
    why = ": ".join(part for part in dict.fromkeys((member.reason, member.error)) if part)  # some are equal
    spans = [
        (f"{sign} {member.state:<{state}}", style),
        (f"  {short(member.task):<{task}}  {member.id}", ""),
        (_times(member, began_ms), "dim"),
        (f"  {short(why)}" if why else "", style),
    ]
    return [(text, style) for text, style in spans if text]


def _times(member: Member, began_ms: int) -> str:
    """When it started and ended, as far as known, and how long it took."""
    started, ended = member.started_ms, member.ended_ms
    if started is None:
        return f"  ended {_clock(ended, began_ms)}" if ended is not None else ""
    if ended is None:
        return f"  since {_clock(started, began_ms)}, {spoken(max(0, round(time.time() - started / 1000)))}"
    first, last = _clock(started, began_ms), _clock(ended, began_ms)
    return f"  {first}{'' if first == last else f'–{last}'}, {spoken(max(0, ended - started) / 1000)}"


def _clock(ms: int, began_ms: int) -> str:
    """A time of day, with the date unless the workflow began on that day."""
    when, began = (datetime.fromtimestamp(one / 1000).astimezone() for one in (ms, began_ms))
    return f"{when:%H:%M:%S}" if when.date() == began.date() else f"{when:%Y-%m-%d %H:%M:%S}"
