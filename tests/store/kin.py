"""Jobs that depend on others, as a test handles them: made, given reports of their parents, and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relevo.engine.carried import InputLacking, results
from relevo.engine.dependents import follow, needs_of
from relevo.engine.edges import LACKING, Edge, Report
from relevo.engine.job import Envelope
from relevo.engine.job_store import cancel, look, revive
from relevo.engine.outbox import notify, relay
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call, Steps
from tests.plans import one_by_one
from tests.store.desk import Desk, kept, moved, plain

#: Milliseconds: far longer than any test takes, since the server counts them in real time.
KEEP_MS = 600_000
BODY = '{"t":"shop.charge","a":[7]}'
#: A parent that does not exist: only its reports do.
PARENT = "0" * 20
OTHER = "1" * 20


# making
def waiting(desk: Desk, parents: int = 1, *, takes: str = "", gated: bool = False, **rich: Any) -> str:
    """A job that waits for so many others."""
    return desk.push_one(BODY, needs=needs_of(parents, KEEP_MS, takes=takes, gated=gated), **rich)


def child_of(desk: Desk, *parents: str, policy: Any = "c", queue: str = "default", **rich: Any) -> str:
    """A job that waits for living ones of the same queue."""
    child = waiting(desk, len(parents), **rich)
    for parent in parents:
        assert desk.run(follow(desk.keys, parent, [Edge(child, queue, policy)])) == ("", 0)
    return child


def workflow(
    desk: Desk, members: int = 1, *edges: Edge, takes: str = "", kept_ms: int = KEEP_MS // 2, gated: bool = False
) -> str:
    """A workflow of so many members; `gated`: it is not founded yet."""
    needs = f"{'F' if gated else 'f'} {members + gated} {KEEP_MS} {kept_ms}"
    return desk.push_one('{"plan":1}', needs=needs, tenant=takes, edges=" ".join(map(str, edges)))


# reporting
def report(
    desk: Desk,
    child: str,
    state: str,
    number: int = 2,
    *,
    parent: str = PARENT,
    dead_max: int = 1000,
    **more: str | bytes,
) -> bool:
    """Report the end of one parent to a child: whether there is something to relay now."""
    one = Report(child, parent, number, state, **more)  # type: ignore[arg-type]
    _, is_more_due = desk.run(notify(desk.keys, [one], dead_max))
    return bool(is_more_due)


def relayed(desk: Desk, others: Mapping[str, QueueKeys] | None = None) -> int:
    """Deliver all outbox messages of this queue, and what follows: how many there were."""

    def keys_of(queue: str) -> QueueKeys:
        return desk.keys if others is None or queue not in others else others[queue]

    return int(desk.run(relay(keys_of, ["default"], 1000)))


def end(desk: Desk, id: str, how: str, *, record: bytes = b"", dead_max: int = 1000) -> int:
    """Take a job and end it so: when the next errand is due, as the worker learns."""
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
    done = desk.turn(0, settled, dead_max=dead_max)
    assert done.refused == []
    return done.errand_ms


def step_by_step(run: Callable[[Any], Any], plan: Steps[Any], before: Callable[[str, Call[Any]], None]) -> Any:
    """Carry out a plan; `before` gets the name of the script of each call, before it is made."""
    answer, calls = None, one_by_one(plan)
    while True:
        try:
            call = calls.send(answer)
        except StopIteration as over:
            return over.value
        before(call.script.name if call.script else "", call)
        answer = run(call)


def cancelling(desk: Desk, id: str, dead_max: int = 1000) -> bool:
    """Cancel a job that has not started: whether there is something to relay now."""
    (said,), posted = desk.run(cancel(desk.keys, [(id, KEEP_MS, "")], dead_max))
    assert said == "cancelled"
    return bool(posted)


def reviving(desk: Desk, id: str) -> int:
    """Bring a job back: 1; 2: there is something to relay now; 0: it was back already; -1: a parent forbids it."""
    code, _ = desk.run(revive(desk.keys, id, Envelope("shop.charge"), BODY.encode(), 0))
    return int(code)


# reading
def state_of(desk: Desk, id: str) -> str:
    """Where a job is."""
    return str(desk.run(look(desk.keys, id)).state.value)


def given(desk: Desk, child: str) -> list[bytes]:
    """What a child would be given."""
    try:
        found: list[bytes] = desk.run(results(desk.keys, child))
    except InputLacking as lacking:
        return [LACKING + str(lacking).encode()]
    return found


def bag(desk: Desk, id: str) -> dict[str, str]:
    """What a job or a workflow carries with it."""
    return _texts(desk.ask("HGETALL", f"carried:{id}"))


def outbox(desk: Desk) -> dict[str, str]:
    """Outbox messages that are not delivered yet."""
    found = _texts(desk.ask("HGETALL", "letters"))
    assert set(found) == set(desk.members("errands")), "each outbox message has its errand"
    return found


def everything(desk: Desk) -> dict[str, Any]:
    """All a queue holds of its jobs, to see that something changed nothing."""
    found: dict[str, Any] = {}
    for key in sorted(desk.server.ask("KEYS", f"{{{desk.keys.address}}}:*")):
        name = key.decode().partition("}:")[2]
        if name == "contact" or name.startswith("sent:"):
            continue
        match desk.server.ask("TYPE", key):
            case b"hash":
                found[name] = desk.server.ask("HGETALL", key)
            case b"zset":
                found[name] = desk.server.ask("ZRANGE", key, 0, -1, "WITHSCORES")
            case b"list":
                found[name] = desk.server.ask("LRANGE", key, 0, -1)
            case _:
                found[name] = desk.server.ask("GET", key)
    return found


def _texts(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): text.decode() for name, text in found.items()}
