"""Which workers serve a queue, and what they know and offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from relevo.engine.workers import WorkerInfo, read_worker
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: A worker refreshes its registration three times in this span; without a refresh for so long, it counts as gone.
SERVE_MS = 30_000
SERVE_EVERY = 10.0
#: What a service offered is known for a day after its last worker left, so that missing services are visible.
KNOWN_MS = 86_400_000
#: The same for queues of tasks. Their workers refresh with one command (`stay`), and in full every ten minutes.
STAY_MS = 60_000
TASKS_KNOWN_MS = 1_800_000
TASKS_FULL_EVERY = 600.0


class Known(Struct, frozen=True):
    """The targets that a worker knows, for one queue."""

    #: The same for all workers with the same text.
    build: str
    #: Lines `target=signature`.
    text: str


class Served(Struct, frozen=True):
    """A queue of a service, as its workers describe it."""

    #: Live workers.
    instances: tuple[WorkerInfo, ...]
    #: Action -> description, of those that a live worker serves.
    actions: dict[str, Any]
    #: The same of those that no live worker serves.
    missing: dict[str, Any]


def serve(queue: QueueKeys, about: WorkerInfo, known: Known, actions: Mapping[str, bytes]) -> Call[int]:
    """Register a worker of a bus queue, with its actions and their descriptions: returns how many workers it has."""
    script = queue.script("engine/register_offers")
    args: list[Argument] = [about.id, SERVE_MS, KNOWN_MS, msgspec.json.encode(about), known.build, known.text]
    for action in actions.items():
        args += action
    return Call(args, int, script, queue.of(script))


def serve_tasks(queue: QueueKeys, worker: str, known: Known) -> Call[int]:
    """Register a worker of a queue of tasks, with what it knows: returns how many workers the queue has."""
    script = queue.script("engine/register_offers")
    return Call([worker, STAY_MS, TASKS_KNOWN_MS, "", known.build, known.text], int, script, queue.of(script))


def stay(queue: QueueKeys, worker: str, now_ms: int) -> Call[bool]:
    """Refresh the registration of a worker of a queue of tasks; False: it is unknown and must register in full."""
    return Call([b"ZADD", queue.key("instances"), b"XX", b"CH", now_ms + STAY_MS, worker], bool)


def retire(queue: QueueKeys, worker: str) -> Call[int]:
    """Withdraw a worker from a queue: returns how many are left."""
    script = queue.script("engine/register_offers")
    return Call([worker, 0, KNOWN_MS, "", "", ""], int, script, queue.of(script))


def instances(queue: QueueKeys, now_ms: int) -> Call[int]:
    """How many workers serve a queue."""
    return Call([b"ZCOUNT", queue.key("instances"), now_ms, b"+inf"])


def present_at(queue: QueueKeys, now_ms: int) -> Call[list[bytes]]:
    """Ids of the workers that serve a queue."""
    return Call([b"ZRANGEBYSCORE", queue.key("instances"), now_ms, b"+inf"])


def offers(queue: QueueKeys) -> Call[dict[bytes, bytes]]:
    """What the workers of a queue registered about themselves and its actions."""

    def decode(reply: list[bytes]) -> dict[bytes, bytes]:
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Call([b"HGETALL", queue.key("offers")], decode)


def served(alive: list[bytes], offers: dict[bytes, bytes], now_ms: int) -> Served:
    """Workers and actions of a queue, from the replies to `present_at` and `offers`."""
    registered = [read_worker(offers[b"@" + id]) for id in alive if b"@" + id in offers]
    instances = [one for one in registered if one is not None]
    actions: dict[str, Any] = {}
    missing: dict[str, Any] = {}
    for name, text in offers.items():
        if not name.startswith((b"@", b"#", b"%")):
            until, _, description = text.partition(b" ")
            lives = alive and int(until) >= now_ms
            (actions if lives else missing)[name.decode()] = msgspec.json.decode(Raw(description or b"null"))
    return Served(tuple(sorted(instances, key=lambda one: one.id)), actions, missing)


def read_unknown(rows: Sequence[Any]) -> dict[str, int]:
    """Read the reply of engine/lua/include/unknown_tasks.lua: task -> jobs."""
    return {task.decode(errors="replace"): count for task, count in zip(rows[::2], rows[1::2], strict=True)}
