"""Edges from a job to its dependents, and the outbox messages that report its end to them, as scripts write them.

An edge is stored with the parent and leads to the child: `>c7:<child><queue>`, `c` is the policy and 7 the place of the
parent's result among the child's inputs, if it takes it. The script that ends the parent writes one outbox message
with all its edges; see engine/lua/include/outbox.lua.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal
from urllib.parse import quote, unquote

from msgspec import Struct

from relevo.engine.job import read_record, write
from relevo.engine.message import Reply
from relevo.engine.replies import reply_of
from relevo.engine.signed_ends import passed_on

#: What becomes of a child whose parent fails: cancel it, run it all the same, let it wait until the parent is done
#: after all. Inside: run only if the parent failed; take note of every end (a workflow of its
#: members; t: of those whose failure a group tolerates); be called
#: back with what came of it. In capitals: of members that joined later, see workflows/lua/include/dependents.lua.
Policy = Literal["c", "r", "w", "f", "n", "t", "b", "C", "N", "T"]
_EDGE = re.compile(r">([crwfntbCNT])(\d*|x):([0-9A-Za-z]{20})(\S+)")
#: Parent of every gated job, until its maker is done.
GATE = "gate"
#: Before an input that could not be had. No JSON begins so.
LACKING = b"!"


class Edge(Struct, frozen=True, gc=False):
    """From a job to something that depends on it."""

    child: str
    queue: str
    policy: Policy = "c"
    #: Where the result goes among the child's inputs; "x": behind the others; None: it takes none.
    index: int | Literal["x"] | None = None

    def __str__(self) -> str:
        return f">{self.policy}{'' if self.index is None else self.index}:{self.child}{label(self.queue)}"


@lru_cache(maxsize=1000)
def label(queue: str) -> str:
    """A queue's name without spaces, quotes and other signs with a meaning here."""
    return quote(queue, safe="")


def edges_of(text: str) -> list[Edge]:
    """Read what `' '.join(str(edge) …)` wrote. What is no edge is left out."""
    return [
        Edge(child, unquote(queue), policy, "x" if index == "x" else int(index) if index else None)
        for policy, index, child, queue in _EDGE.findall(text)
    ]


class Report(Struct, frozen=True, gc=False):
    """What one child is notified of about one parent."""

    child: str
    parent: str
    #: Grows with every end and revival of the parent: a number not above the last one received is ignored.
    number: int
    state: str
    policy: str = "c"
    index: str = ""
    input: bytes = b""
    #: Of the child's end, if this report cancels it.
    signature: str = ""


class OutboxMessage(Struct, frozen=True):
    """The end or revival of a job, for its dependents."""

    state: str
    number: int
    parent: str
    edges: list[Edge]
    record: bytes = b""

    def reports(self, place: str) -> list[tuple[str, Report]]:
        """A report for each edge, and the queue it goes to. `place`: of the parent, as signatures spell it."""
        # A callback takes any outcome: the record is in the message even if the others take no result.
        taken = self._result(place) if self.record and self.state == "done" else b""
        return [
            (
                edge.queue,
                Report(
                    edge.child,
                    self.parent,
                    self.number,
                    "timeout" if edge.policy == "b" and self.state == "expired" else self.state,
                    edge.policy,
                    "" if edge.index is None else str(edge.index),
                    self._input(edge, taken),
                ),
            )
            for edge in self.edges
            if self.state != "discarded" or edge.policy == "w"  # the others need no further notice
        ]

    def _input(self, edge: Edge, taken: bytes) -> bytes:
        if self.parent == GATE:  # what is known of members that have no bag: see workflows/lua/store_members.lua
            return self.record
        if edge.index is None:
            return b""
        return self._reply() if edge.policy == "b" else taken

    def _reply(self) -> bytes:
        if not self.record:
            return write(Reply(status="timeout"))
        return write(reply_of(read_record(self.record)))

    def _result(self, place: str) -> bytes:
        record = read_record(self.record)
        raw = bytes(record.result)
        if not raw:
            return LACKING + (record.not_kept or "its result was not kept").encode()
        return passed_on(raw, self.parent, place, record.signature)


def outbox_message(text: bytes) -> OutboxMessage:
    """Read an outbox message; ValueError if it is none."""
    head, edges, record = text.split(b"\n", 2)
    state, number, parent = head.decode().split(" ")
    return OutboxMessage(state, int(number), parent, edges_of(edges.decode()), record)
