"""Which workers are alive: each announces itself under a short TTL."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from relevo.store.keys import AppKeys
from relevo.store.plan import Call
from relevo.store.scripts import script

#: A worker announces itself three times in this span; silent for so long, it counts as dead.
PRESENT_MS = 60_000
LISTED_MS = 86_400_000
#: How long a silent worker is reported as lost.
LOST_MS = 900_000


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker's own record."""

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
    #: Queues for which it has no free slot although jobs wait -> since when.
    full: dict[str, int] = {}
    #: How many tasks and handlers it knows. None: any function of the allowed modules, or an older version.
    tasks: int | None = None


def read_worker(text: bytes) -> WorkerInfo | None:
    """Read a worker's record; None: another program wrote it, or a version that is too different."""
    try:
        return msgspec.json.decode(text, type=WorkerInfo)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def full_since(workers: Iterable[WorkerInfo], queue: str) -> int | None:
    """Since when no worker that serves a queue has a free slot for it; None: one has, or none serves it."""
    serving = [one.full.get(queue) for one in workers if queue in one.queues]
    full = [since for since in serving if since is not None]
    return max(full) if full and len(full) == len(serving) else None


def present(keys: AppKeys, info: WorkerInfo) -> Call[int]:
    """Announce that the worker is alive."""
    return Call([PRESENT_MS, msgspec.json.encode(info)], int, script("engine/announce_worker"), (keys.worker(info.id),))


def listed(keys: AppKeys, worker: str) -> Call[int]:
    """Put it on the list of workers, through which it is found."""
    return Call([LISTED_MS, worker], int, script("engine/list_names"), (keys.workers,))


def gone(keys: AppKeys, worker: str) -> Generator[Call[Any], Any, None]:
    """Remove a worker that stops."""
    yield Call([b"DEL", keys.worker(worker)])
    yield Call([b"ZREM", keys.workers, worker])


def silenced(keys: AppKeys, worker: str) -> Call[int]:
    """A worker is known to be dead: it is lost from now on, and not only when its record expires."""
    return Call([b"DEL", keys.worker(worker)])


def queues_served(keys: AppKeys) -> Generator[Call[Any], Any, frozenset[str]]:
    """Queues that live workers serve."""
    alive, _ = yield from roll(keys, 0)
    return frozenset(queue for worker in alive for queue in worker.queues)


def roll(keys: AppKeys, now_ms: int) -> Generator[Call[Any], Any, tuple[list[WorkerInfo], list[str]]]:
    """Live workers, and ids of those that stopped reporting in the last 15 minutes. Changes nothing, so that read-only
    users may call it and every call reports the same."""
    known = yield from _known(keys)
    alive = [one for _, _, text in known if text and (one := read_worker(text)) is not None]
    return alive, [id for id, at_ms, text in known if text is None and at_ms >= now_ms - LOST_MS]


def forget_lost(keys: AppKeys, now_ms: int) -> Generator[Call[Any], Any, None]:
    """Take workers off the list that have been silent for longer than they are reported."""
    known = yield from _known(keys)
    gone = [id for id, at_ms, text in known if text is None and at_ms < now_ms - LOST_MS]
    if gone:
        yield Call([b"ZREM", keys.workers, *gone])


def _known(keys: AppKeys) -> Generator[Call[Any], Any, list[tuple[str, int, bytes | None]]]:
    """Of each worker on the list its id, when it was last put there, and its record, if it is alive."""
    rows: list[bytes] = yield Call([b"ZRANGE", keys.workers, 0, 999, b"WITHSCORES"])
    ids = [id.decode(errors="replace") for id in rows[::2]]
    if not ids:
        return []
    texts: list[bytes | None] = yield Call([b"MGET", *(keys.worker(id) for id in ids)])
    return list(zip(ids, (int(float(at)) for at in rows[1::2]), texts, strict=True))
