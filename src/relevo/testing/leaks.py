"""What is on a server without an end: everything has a time limit, or belongs to a living job.

These keys of a queue have no time limit and empty with its jobs, so each of their entries must name a job that lives:
`jobs ready scheduled running claims story groups names waiters`. `clock` may be there while something is ready, and
`paused` until the queue is resumed. Any other key without a time limit is a leak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from relevo.store.plan import Call

Run: TypeAlias = Callable[[Call[Any]], Any]
"""Performs a call and blocks: `app.run`."""

_ALL_OF_IT = {b"*"}


def leaks(run: Run, pattern: str) -> list[str]:
    """Keys, and entries as `key[entry]`, that nothing will ever remove, among the keys that match a pattern."""
    eternal = {key for key in _keys(run, pattern) if run(Call([b"TTL", key])) == -1}
    addresses = {key.partition(b"}:")[0] + b"}:" for key in eternal}
    return sorted(leak for address in addresses for leak in _of_queue(run, address, eternal))


def remove(run: Run, pattern: str) -> None:
    """Delete all keys that match a pattern. For the namespace of a test; it looks at every key of the server."""
    for key in list(_keys(run, pattern)):
        run(Call([b"UNLINK", key]))


def _keys(run: Run, pattern: str) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        cursor, keys = run(Call(["SCAN", cursor, "MATCH", pattern, "COUNT", 1000]))
        yield from keys
        if cursor == b"0":
            return


def _of_queue(run: Run, address: bytes, eternal: set[bytes]) -> Iterator[str]:
    def ids(name: str) -> set[bytes]:
        return set(run(Call([b"ZRANGE", address + name.encode(), 0, -1])))

    def fields(key: bytes) -> set[bytes]:
        return set(run(Call([b"HKEYS", key])))

    jobs = fields(address + b"jobs")
    placed = {name: ids(name) for name in ("ready", "scheduled", "running")}
    for key in eternal:
        if not key.startswith(address):
            continue
        match key.removeprefix(address).decode(errors="replace"):
            case "jobs":
                strange = jobs.difference(*placed.values())  # in no set: no worker will ever see it
            case "ready" | "scheduled" | "running" as name:
                strange = placed[name] - jobs
            case "claims" | "story" | "groups" | "waiters":
                strange = fields(key) - jobs
            case "names":
                held = run(Call([b"HGETALL", key]))
                strange = {
                    b"%b of %b" % pair for pair in zip(held[::2], held[1::2], strict=True) if pair[1] not in jobs
                }
            case "clock":
                strange = set() if placed["ready"] else _ALL_OF_IT
            case "paused":
                strange = set()
            case _:
                strange = _ALL_OF_IT
        for entry in strange:
            yield _text(key) if strange is _ALL_OF_IT else f"{_text(key)}[{_text(entry)}]"


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
