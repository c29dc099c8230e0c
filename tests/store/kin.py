"""Jobs that depend on others, as a test handles them: made, told of their parents, and read with all they carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relevo.store.carried import results
from relevo.store.dependents import follow, needs_of
from relevo.store.edges import Edge, Report
from relevo.store.jobs import look
from relevo.store.keys import QueueKeys
from relevo.store.relay import hear, relay
from tests.store.desk import Desk, kept, moved, plain

KEEP_MS = 60_000
BODY = '{"t":"shop.charge","a":[7]}'
#: A parent that is not there: what is told of it is all there is.
PARENT = "0" * 20
OTHER = "1" * 20


# making
def waiting(desk: Desk, parents: int = 1, *, takes: str = "", gated: bool = False, **rich: Any) -> str:
    """A job that waits for so many others."""
    return desk.push_one(BODY, needs=needs_of(parents, KEEP_MS, takes=takes, gated=gated), **rich)


def child_of(desk: Desk, *parents: str, policy: Any = "c", queue: str = "default", **rich: Any) -> str:
    """A job that waits for living ones of the same queue."""
    child = waiting(desk, len(parents), **rich)
    edges = [(parent, Edge(child, queue, policy)) for parent in parents]
    assert desk.run(follow(desk.keys, edges)) == [("", 0)] * len(parents)
    return child


def workflow(desk: Desk, members: int = 1, *edges: Edge, takes: str = "", kept_ms: int = KEEP_MS // 2) -> str:
    """A workflow of so many members."""
    needs = f"f {members} {KEEP_MS} {kept_ms}"
    return desk.push_one('{"plan":1}', needs=needs, group=takes, edges=" ".join(map(str, edges)))


# telling
def told(desk: Desk, child: str, state: str, number: int = 2, *, parent: str = PARENT, **more: str | bytes) -> bool:
    """Tell a child of one parent: whether there is something to relay now."""
    return bool(desk.run(hear(desk.keys, [Report(child, parent, number, state, **more)], 1000)))  # type: ignore[arg-type]


def relayed(desk: Desk, others: Mapping[str, QueueKeys] | None = None) -> int:
    """Deliver all letters of this queue, and what follows: how many there were."""

    def keys_of(queue: str) -> QueueKeys:
        return desk.keys if others is None or queue not in others else others[queue]

    return int(desk.run(relay(keys_of, ["default"], 1000)))


def end(desk: Desk, id: str, how: str, *, record: bytes = b"") -> int:
    """Take a job and end it so: when the next errand is due, as the worker is told."""
    (found,) = desk.claim(1)
    assert found == id
    claim: bytes = desk.ask("HGET", "claims", id)
    token = int(claim.split()[0])
    if how in ("plain", "kept") and token == 1:
        settled = plain([id]) if how == "plain" else kept([id], record=record or b'{"state":"done"}')
    else:
        verb = "done" if how in ("plain", "kept") else how
        text = record or b'{"state":"%b","body":%b}' % (verb.encode(), BODY.encode())
        settled = moved(id, verb, token, ms=0 if how == "plain" else KEEP_MS, text=text)
    done = desk.turn(0, settled)
    assert done.refused == []
    return done.errand_ms


# reading
def state_of(desk: Desk, id: str) -> str:
    """Where a job is."""
    return str(desk.run(look(desk.keys, id)).state.value)


def given(desk: Desk, child: str) -> list[bytes]:
    """What a child would be given."""
    found: list[bytes] = desk.run(results(desk.keys, child))
    return found


def bag(desk: Desk, id: str) -> dict[str, str]:
    """What a job or a workflow carries with it."""
    return _texts(desk.ask("HGETALL", f"carried:{id}"))


def letters(desk: Desk) -> dict[str, str]:
    """Letters that are written and not delivered."""
    found = _texts(desk.ask("HGETALL", "letters"))
    assert set(found) == set(desk.members("errands")), "each letter has its errand"
    return found


def everything(desk: Desk) -> dict[str, Any]:
    """All a queue holds, to see that something changed nothing."""
    found: dict[str, Any] = {}
    for key in sorted(desk.server.command("KEYS", f"{{{desk.keys.address}}}:*")):
        name = key.decode().partition("}:")[2]
        match desk.server.command("TYPE", key):
            case b"hash":
                found[name] = desk.server.command("HGETALL", key)
            case b"zset":
                found[name] = desk.server.command("ZRANGE", key, 0, -1, "WITHSCORES")
            case b"list":
                found[name] = desk.server.command("LRANGE", key, 0, -1)
            case _:
                found[name] = desk.server.command("GET", key)
    return found


def _texts(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): text.decode() for name, text in found.items()}
