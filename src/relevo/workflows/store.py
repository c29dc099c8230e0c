"""Workflows in the store: created with a plan, notified of the end of each member, read, and listed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.carried import bag
from relevo.engine.edges import GATE, Edge
from relevo.engine.ids import LENGTH
from relevo.engine.job_store import record_of
from relevo.engine.outbox import VERIFIERS
from relevo.engine.push import GATE_MS, KEEP_MS, NewJob
from relevo.engine.signed_ends import Input, late_proof, verify_late, verify_record
from relevo.signing import Signer
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Argument, Call, Steps

#: A workflow that is done is kept so long at least, so that its result can be fetched.
KEPT_MS = 60_000
#: Workflows per page, and entries that one listing reads: the records of most that are done have expired by then.
PAGE = 50
LOOKED_AT = 2000


#: Before the names of workflows, which are no names of jobs.
NAMED = "workflow\n"
#: The target in the record of a workflow.
WORKFLOW = "workflow"


class Plan(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The members of a workflow and their order, in few bytes: there may be ten thousand."""

    #: All ids, concatenated.
    ids: str
    queues: list[str]
    targets: list[str]
    #: Of each member: its queue and its task, as indexes into the two lists.
    at: list[int]
    what: list[int]
    outputs: list[int]
    is_list: bool
    shape: Any
    #: kind, id, queue, task of each callback
    callbacks: list[tuple[str, str, str, str]] = []

    def __len__(self) -> int:
        return len(self.at)

    def id(self, i: int) -> str:
        """The id of a member."""
        return self.ids[i * LENGTH : (i + 1) * LENGTH]

    def queue_of(self, id: str) -> str | None:
        """The index of the member with this id; None: there is none."""
        return next((self.queue(i) for i in range(len(self)) if self.id(i) == id), None)

    def queue(self, i: int) -> str:
        """The queue of a member."""
        return self.queues[self.at[i]]

    def target(self, i: int) -> str:
        """The task of a member."""
        return self.targets[self.what[i]]


class Heard(Struct, frozen=True):
    """The end of a member, as reported to its workflow."""

    state: str
    when_ms: int


class Flow(Struct, frozen=True, kw_only=True):
    """A workflow as it was read."""

    life: str
    state: str
    open: int
    began_ms: int
    ended_ms: int | None
    #: members by the states in which they ended
    ends: dict[str, int]
    plan: Plan | None = None
    #: by id, those that have ended
    heard: dict[str, Heard] = {}
    #: id -> queue and task of members that joined later
    joined: dict[str, tuple[str, str]] = {}


_READ_PLAN = msgspec.json.Decoder(Plan).decode
_ENDS = ("n:done", "n:dead", "n:cancelled", "n:expired")
_SHORT = ("life", "state", "open", "began", "ended", *_ENDS)


def founding(
    id: str, plan: Plan, edges: Sequence[Edge], keep_ms: int, kept_ms: int, *, gated: bool, signer: Signer | None = None
) -> NewJob:
    """The row that creates a workflow (push_with_options.lua). `gated`: it is created when its gate is opened."""
    needs = f"{'F' if gated else 'f'} {len(plan) + gated} {keep_ms} {max(KEPT_MS, kept_ms)}"
    takes = str(len(plan.outputs)) if plan.is_list else "one"
    text = msgspec.json.encode(plan)
    if signer is not None:
        text = signer.signed("flow", id, text)
    return NewJob(id, 0, text, tenant=takes, needs=needs, edges=" ".join(map(str, edges)))


def store_members(
    queue: QueueKeys, members: Sequence[tuple[str, bytes, str]], label: str, priority: int, failure_ms: int
) -> Call[int]:
    """Store plain members, (id, body, edges) each, behind the gate of their workflow: how many were new."""
    script = queue.script("workflows/store_members")
    args: list[Argument] = [KEEP_MS, GATE_MS, label, priority, failure_ms]
    for member in members:
        args += member
    return Call(args, int, script, queue.of(script), numbered=True)


def look(queue: QueueKeys, id: str) -> Call[Flow | None]:
    """A workflow without its members; None: there is none."""
    return Call([b"HMGET", bag(queue, id), *_SHORT], lambda reply: _flow(dict(zip(_SHORT, reply, strict=True))))


def look_closely(queue: QueueKeys, id: str) -> Call[Flow | None]:
    """A workflow with its plan and the reported end of each member; O(members)."""

    def decode(reply: list[bytes]) -> Flow | None:
        return _flow({reply[i].decode(): reply[i + 1] for i in range(0, len(reply), 2) if reply[i][:1] != b"#"})

    return Call([b"HGETALL", bag(queue, id)], decode)


def plan_of(queue: QueueKeys, id: str) -> Call[tuple[Plan, str] | None]:
    """The plan of a workflow, and what is wrong with its signature; '': nothing, or there are no keys."""

    def decode(text: bytes | None) -> tuple[Plan, str] | None:
        if not text:
            return None
        error = "" if queue.signer is None else queue.signer.verify_object("flow", id, text)
        return _READ_PLAN(text), error

    return Call([b"HGET", bag(queue, id), b"plan"], decode)


def _flow(fields: dict[str, Any]) -> Flow | None:
    if fields.get("life") not in (b"open", b"closed"):
        return None
    heard = {}
    for name, text in fields.items():
        if name.startswith("h:"):
            _, _, _, state, when = text.decode().split()
            if state not in ("expected", "revived"):  # else it has ended
                heard[name[2:]] = Heard(state, int(when))
    ended, plan = fields.get("ended"), fields.get("plan")
    return Flow(
        life=fields["life"].decode(),
        state=(fields.get("state") or b"").decode(),
        open=int(fields["open"]),
        began_ms=int(fields["began"]),
        ended_ms=int(ended) if ended else None,
        ends={name[2:]: int(text) for name, text in fields.items() if name.startswith("n:") and text and int(text)},
        plan=_READ_PLAN(plan) if plan else None,
        heard=heard,
        joined={name[2:]: msgspec.json.decode(text) for name, text in fields.items() if name.startswith("x:")},
    )


def expect(
    queue: QueueKeys, child: str, parent: str, members: Sequence[tuple[str, str, str]], place: str = ""
) -> Call[bool]:
    """Announce members that `parent` adds (id, queue, task): False if it is too late for them.

    `place`: of their queue, as signatures spell it.
    """
    args: list[Argument] = [parent]
    for id, home, target in members:
        proof = "" if queue.signer is None else late_proof(queue.signer, child, id, place)
        args += (id, msgspec.json.encode((home, target)), proof)
    return Call(args, bool, queue.script("workflows/announce_members"), (bag(queue, child),))


def verify_failure(
    keys_of: Callable[[str], QueueKeys], queue: QueueKeys, id: str, state: str
) -> Generator[Call[Any], Any, str]:
    """What is wrong with the failed end of a workflow; '': the signed record of one of its members confirms it.

    The record of a workflow is written by a script, which cannot sign.
    """
    flow: Flow | None = yield look_closely(queue, id)
    ended = [] if flow is None else sorted((one.when_ms, id) for id, one in flow.heard.items() if one.state == state)
    if flow is None or flow.plan is None or not ended:
        return "none of its members ended so"
    member = ended[0][1]
    joined, planned = flow.joined.get(member), flow.plan.queue_of(member)
    if joined is not None:
        home = keys_of(joined[0])
        error = yield _verify_joined(queue, id, member, home.place)
    elif planned is not None:
        home = keys_of(planned)
        _, error = yield plan_of(queue, id)
    else:
        return f"job {member}, which it names as failed, is not one of its members"
    record = record_of((yield Call([b"GET", home.own("ended", member)])) or b"")
    if not error and record.state != state:
        error = f"there is no record of job {member} in that state"
    assert home.signer is not None
    return error or verify_record(home.signer, member, record)


VERIFIERS[WORKFLOW] = verify_failure


def _verify_joined(queue: QueueKeys, id: str, member: str, place: str) -> Call[str]:
    signer, taken = queue.signer, Input(b"", member, place)
    assert signer is not None

    def decode(proof: bytes | None) -> str:
        return verify_late(signer, id, member, taken, (proof or b"").decode(errors="replace"))

    return Call([b"HGET", bag(queue, id), f"l:{member}"], decode)


def named(queue: QueueKeys, name: str, scope: str) -> Generator[Call[Any], Any, str]:
    """The workflow that has a name; '': there is none."""
    if scope.isdigit():
        found: bytes | None = yield Call([b"GET", queue.own("unique", name)])
        return (found or b"").decode()
    found = yield Call([b"HGET", queue.key("names"), name])
    if found is None or (yield Call([b"HGET", bag(queue, found.decode()), b"life"])) != b"open":
        return ""
    return found.decode()


def is_founded(queue: QueueKeys, id: str) -> Call[bool]:
    """Whether the gate of a workflow was opened."""
    return Call([b"HGET", bag(queue, id), "h:" + GATE], bool)


def edges_from(queue: QueueKeys, id: str) -> Call[str]:
    """What depends on a living job, as edges.py reads it."""
    return Call([b"HGET", queue.key("waiters"), id], lambda text: (text or b"").decode())


def listed(queue: QueueKeys, limit: int) -> Steps[list[tuple[str, Flow]]]:
    """The newest workflows of a queue that are still there, newest first."""
    found: dict[str, Flow] = {}  # a new workflow moves another to the next page, where it is found again
    kept = looked_at = 0
    while len(found) < limit and looked_at < LOOKED_AT:
        ids: list[str] = yield Call([b"ZREVRANGE", queue.key("flows"), kept, kept + PAGE - 1], _texts)
        if not ids:
            break
        pairs = list(zip(ids, (yield Ahead(look(queue, id) for id in ids)), strict=True))
        found |= {id: flow for id, flow in pairs if flow is not None}
        gone = [id for id, flow in pairs if flow is None]
        if gone:  # their records have expired; removed from the list, so that they are not read again
            yield Call([b"ZREM", queue.key("flows"), *gone])
        kept, looked_at = kept + len(ids) - len(gone), looked_at + len(ids)
    return list(found.items())[:limit]


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode() for one in reply]
