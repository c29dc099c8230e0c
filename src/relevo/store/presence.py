"""Who serves a queue, and what they know and offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.store.workers import WorkerInfo, read_worker

#: A worker says that it serves three times in this span; silent for so long, it is gone.
SERVE_MS = 30_000
SERVE_EVERY = 10.0
#: What a service offered is known for a day after its last worker went, so that one sees what is missing.
KNOWN_MS = 86_400_000
#: The same of queues of tasks. Their workers say it in one command (`stay`), and in full once in ten minutes.
STAY_MS = 60_000
TASKS_KNOWN_MS = 1_800_000
TASKS_FULL_EVERY = 600.0


class Known(Struct, frozen=True):
    """What a worker knows of a queue."""

    #: The same for all workers that know the same.
    build: str
    #: Lines `target=signature`.
    text: str


class Served(Struct, frozen=True):
    """A queue of a service, as those who serve it describe it."""

    #: Workers that live.
    instances: tuple[WorkerInfo, ...]
    #: Action -> description, of those that somebody who lives serves.
    actions: dict[str, Any]
    #: The same of those that nobody serves any more.
    missing: dict[str, Any]


def serve(queue: QueueKeys, about: WorkerInfo, known: Known, actions: Mapping[str, bytes]) -> Call[int]:
    """Say that a worker serves a queue of the bus, and which actions, each with its description: how many do."""
    script = queue.script("serve")
    args: list[Argument] = [about.id, SERVE_MS, KNOWN_MS, msgspec.json.encode(about), known.build, known.text]
    for action in actions.items():
        args += action
    return Call(args, int, script, queue.of(script))


def serve_tasks(queue: QueueKeys, worker: str, known: Known) -> Call[int]:
    """Say that a worker serves a queue of tasks, and what it knows of it: how many do."""
    script = queue.script("serve")
    return Call([worker, STAY_MS, TASKS_KNOWN_MS, "", known.build, known.text], int, script, queue.of(script))


def stay(queue: QueueKeys, worker: str, now_ms: int) -> Call[bool]:
    """Say that a worker still serves a queue of tasks; False: nothing is known of it, and it must say so in full."""
    return Call([b"ZADD", queue.key("instances"), b"XX", b"CH", now_ms + STAY_MS, worker], bool)


def retire(queue: QueueKeys, worker: str) -> Call[int]:
    """Say that a worker serves a queue no longer: how many still do."""
    script = queue.script("serve")
    return Call([worker, 0, KNOWN_MS, "", "", ""], int, script, queue.of(script))


def instances(queue: QueueKeys, now_ms: int) -> Call[int]:
    """How many workers serve a queue."""
    return Call([b"ZCOUNT", queue.key("instances"), now_ms, b"+inf"])


def present_at(queue: QueueKeys, now_ms: int) -> Call[list[bytes]]:
    """Ids of the workers that serve a queue."""
    return Call([b"ZRANGEBYSCORE", queue.key("instances"), now_ms, b"+inf"])


def offers(queue: QueueKeys) -> Call[dict[bytes, bytes]]:
    """What the workers of a queue say of themselves and of its actions."""

    def decode(reply: list[bytes]) -> dict[bytes, bytes]:
        return dict(zip(reply[::2], reply[1::2], strict=True))

    return Call([b"HGETALL", queue.key("offers")], decode)


def served(alive: list[bytes], offers: dict[bytes, bytes], now_ms: int) -> Served:
    """Who serves a queue, and what, as `present_at` and `offers` told."""
    said = [read_worker(offers[b"@" + id]) for id in alive if b"@" + id in offers]
    instances = [one for one in said if one is not None]
    actions: dict[str, Any] = {}
    missing: dict[str, Any] = {}
    for name, text in offers.items():
        if not name.startswith((b"@", b"#", b"%")):
            until, _, description = text.partition(b" ")
            lives = alive and int(until) >= now_ms
            (actions if lives else missing)[name.decode()] = msgspec.json.decode(Raw(description or b"null"))
    return Served(tuple(sorted(instances, key=lambda one: one.id)), actions, missing)
