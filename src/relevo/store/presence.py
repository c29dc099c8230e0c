"""Who serves the queues of services, and what they offer."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.store.workers import WorkerInfo

#: A worker says that it serves three times in this span; silent for so long, it is gone.
SERVE_MS = 30_000
SERVE_EVERY = 10.0
#: What a service offered is known for a day after its last worker went, so that one sees what is missing.
KNOWN_MS = 86_400_000


class Served(Struct, frozen=True):
    """A queue of a service, as those who serve it describe it."""

    #: Workers that live.
    instances: tuple[WorkerInfo, ...]
    #: Action -> description, of those that somebody who lives serves.
    actions: dict[str, Any]
    #: The same of those that nobody serves any more.
    missing: dict[str, Any]


def serve(queue: QueueKeys, about: WorkerInfo, actions: Mapping[str, bytes]) -> Call[int]:
    """Say that a worker serves a queue, and which actions, each with its description: how many do."""
    script = queue.script("serve")
    args: list[Argument] = [about.id, SERVE_MS, KNOWN_MS, msgspec.json.encode(about)]
    for action in actions.items():
        args += action
    return Call(args, int, script, queue.of(script))


def retire(queue: QueueKeys, worker: str) -> Call[int]:
    """Say that a worker serves a queue no longer: how many still do."""
    script = queue.script("serve")
    return Call([worker, 0, KNOWN_MS, ""], int, script, queue.of(script))


def instances(queue: QueueKeys, now_ms: int) -> Call[int]:
    """How many workers serve a queue."""
    return Call([b"ZCOUNT", queue.key("instances"), now_ms, b"+inf"])


def served(queue: QueueKeys, now_ms: int) -> Generator[Call[Any], Any, Served]:
    """Who serves a queue, and what."""
    alive: list[bytes] = yield Call([b"ZRANGEBYSCORE", queue.key("instances"), now_ms, b"+inf"])
    found: list[bytes] = yield Call([b"HGETALL", queue.key("offers")])
    offers = dict(zip(found[::2], found[1::2], strict=True))
    instances = [msgspec.json.decode(offers[b"@" + id], type=WorkerInfo) for id in alive if b"@" + id in offers]
    actions: dict[str, Any] = {}
    missing: dict[str, Any] = {}
    for name, text in offers.items():
        if not name.startswith((b"@", b"#")):
            until, _, description = text.partition(b" ")
            lives = alive and int(until) >= now_ms
            (actions if lives else missing)[name.decode()] = msgspec.json.decode(Raw(description or b"null"))
    return Served(tuple(sorted(instances, key=lambda one: one.id)), actions, missing)
