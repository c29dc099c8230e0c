"""What an app left on the server without an end: everything has a time limit, or belongs to a living job.

These keys of a queue have no time limit and empty with its jobs, so each of their entries must name a job that lives:
`jobs ready scheduled running claims story groups names waiters`. `clock` may be there while something is ready, and
`paused` until the queue is resumed. Any other key without a time limit is a leak.
"""

from __future__ import annotations

from collections.abc import Iterator

import redis

from tests.servers import Server

_PLACES = ("ready", "scheduled", "running")


def leaks(server: Server, app: str) -> list[str]:
    """Keys, and entries as `key[entry]`, of the app of this name that nothing will ever remove."""
    with redis.Redis.from_url(server.url, protocol=2) as client:
        eternal = {_short(key) for key in _keys(client, app) if client.ttl(key) == -1}
        addresses = {key.partition("}:")[0] + "}:" for key in eternal}
        return sorted(leak for address in addresses for leak in _of_queue(client, address, eternal))


def remove(server: Server, app: str) -> None:
    """Delete all keys of an app, so that one test's ten thousand jobs do not slow the next test's look."""
    with redis.Redis.from_url(server.url, protocol=2) as client:
        for key in list(_keys(client, app)):
            client.unlink(key)


def _keys(client: redis.Redis, app: str) -> Iterator[bytes]:
    for key in client.scan_iter(match=f"*{app}*", count=1000):
        assert isinstance(key, bytes)
        yield key


def _short(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _of_queue(client: redis.Redis, address: str, eternal: set[str]) -> Iterator[str]:
    def ask(command: str, name: str, *args: int) -> set[bytes]:
        return set(client.execute_command(command, address + name, *args))  # type: ignore[no-untyped-call]

    jobs = ask("HKEYS", "jobs")
    placed = {name: ask("ZRANGE", name, 0, -1) for name in _PLACES}
    somewhere = set[bytes]().union(*placed.values())
    for key in eternal:
        if not key.startswith(address):
            continue
        name = key.removeprefix(address)
        match name:
            case "jobs":
                strange = jobs - somewhere  # in no set: no worker will ever see it
            case "ready" | "scheduled" | "running":
                strange = placed[name] - jobs
            case "claims" | "story" | "groups" | "waiters":
                strange = ask("HKEYS", name) - jobs
            case "names":
                strange = ask("HVALS", name) - jobs
            case "clock":
                strange = set() if placed["ready"] else {b"*"}
            case "paused":
                strange = set()
            case _:
                strange = {b"*"}
        for entry in strange:
            yield key if entry == b"*" else f"{key}[{_short(entry)}]"
