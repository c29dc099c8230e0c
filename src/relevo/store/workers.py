"""Which workers live: each says so under a short time limit."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
from msgspec import Struct

from relevo.store.keys import AppKeys
from relevo.store.plan import Call
from relevo.store.scripts import script

#: A worker speaks three times in this span; silent for so long, it is gone.
PRESENT_MS = 60_000
LISTED_MS = 86_400_000
#: So long it is told that a worker fell silent.
LOST_MS = 900_000


class WorkerInfo(Struct, frozen=True):
    """What a worker says of itself."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    started_ms: int
    running: int = 0
    done: int = 0
    failed: int = 0
    version: str = ""


def present(keys: AppKeys, info: WorkerInfo) -> Call[Any]:
    """Say that the worker lives."""
    return Call([b"SET", keys.worker(info.id), msgspec.json.encode(info), b"PX", PRESENT_MS])


def listed(keys: AppKeys, worker: str) -> Call[int]:
    """Put it on the list of workers, by which it is found."""
    return Call([LISTED_MS, worker], int, script("enlist"), (keys.workers,))


def gone(keys: AppKeys, worker: str) -> Generator[Call[Any], Any, None]:
    """Say goodbye."""
    yield Call([b"DEL", keys.worker(worker)])
    yield Call([b"ZREM", keys.workers, worker])


def living(keys: AppKeys) -> Generator[Call[Any], Any, tuple[list[WorkerInfo], list[str]]]:
    """Workers that live, and ids of those that fell silent (which are then forgotten)."""
    ids: list[bytes] = yield Call([b"ZRANGE", keys.workers, 0, 999])
    if not ids:
        return [], []
    texts: list[bytes | None] = yield Call([b"MGET", *(keys.worker(id.decode()) for id in ids)])
    alive = [msgspec.json.decode(text, type=WorkerInfo) for text in texts if text]
    silent = [id.decode() for id, text in zip(ids, texts, strict=True) if text is None]
    if silent:
        yield Call([b"ZREM", keys.workers, *silent])
    return alive, silent


def roll(keys: AppKeys, now_ms: int) -> Generator[Call[Any], Any, tuple[list[WorkerInfo], list[str]]]:
    """Workers that live, and ids of those that fell silent in the last 15 minutes; who did so before is forgotten."""
    rows: list[bytes] = yield Call([b"ZRANGE", keys.workers, 0, 999, b"WITHSCORES"])
    heard = {id.decode(): int(float(at)) for id, at in zip(rows[::2], rows[1::2], strict=True)}
    if not heard:
        return [], []
    texts: list[bytes | None] = yield Call([b"MGET", *(keys.worker(id) for id in heard)])
    alive = [msgspec.json.decode(text, type=WorkerInfo) for text in texts if text]
    silent = [id for id, text in zip(heard, texts, strict=True) if text is None]
    gone = [id for id in silent if heard[id] < now_ms - LOST_MS]
    if gone:
        yield Call([b"ZREM", keys.workers, *gone])
    return alive, [id for id in silent if id not in gone]
