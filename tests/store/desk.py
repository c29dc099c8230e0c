"""A queue as a test handles it: scripts called by short names, and their keys read directly."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from relevo.engine.ids import Ids
from relevo.engine.offers_store import Known
from relevo.engine.push import NewJob, push_plain, push_rich
from relevo.engine.turn import Limits, Moved, Settled, Turn, turn
from relevo.queues.store import QueueStats, count
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from tests.clock import Clock
from tests.conftest import Runs
from tests.servers import Server

new_id = Ids()
LEASE_MS = 30_000
T = TypeVar("T")


def repeated(call: Call[T]) -> Call[T]:
    """The same call by a client that lost a connection before the server had heard of it."""
    if not call.numbered:
        return Call(call.command(repeated=True, text=True), call.decode)
    return msgspec.structs.replace(call, before="lost 1")


class Desk:
    """One queue."""

    def __init__(self, run: Runs, keys: QueueKeys, server: Server) -> None:
        self.run = run
        self.keys = keys
        self.server = server
        self.clock = Clock(server)

    # scripts
    def push(self, *bodies: str, priority: int = 100) -> list[str]:
        """Store jobs in one call; their ids."""
        rows = [(new_id(), body.encode()) for body in bodies or ("{}",)]
        assert self.run(push_plain(self.keys, rows, priority, LEASE_MS)) == len(rows)
        return [row[0] for row in rows]

    def push_one(self, body: str = "{}", *, priority: int = 100, id: str = "", **rich: Any) -> str:
        """Store one job with times, tenants or names; the id that has its name."""
        job = NewJob(id or new_id(), priority, body.encode(), **rich)
        owners: list[str] = self.run(push_rich(self.keys, [job]))
        return owners[0]

    def turn(
        self,
        want: int = 0,
        settled: Settled | None = None,
        *,
        worker: str = "w",
        lease_ms: int = LEASE_MS,
        idle_ms: int = 0,
        done_max: int = 1000,
        dead_max: int = 1000,
    ) -> Turn:
        """One turn of a worker; it joins the idle ones only with `idle_ms`."""
        limits = Limits(lease_ms, idle_ms, done_max, dead_max)
        found: Turn = self.run(turn(self.keys, worker, limits, want, settled or Settled()))
        return found

    def wait(self, worker: str, idle_ms: int = 30_000) -> Turn:
        """A worker asks in vain and is noted as idle."""
        return self.turn(1, worker=worker, idle_ms=idle_ms)

    def claim(self, want: int = 1, worker: str = "w", lease_ms: int = LEASE_MS) -> list[str]:
        """Take jobs; their ids."""
        return [id.decode() for id in self.turn(want, worker=worker, lease_ms=lease_ms).ids]

    def finish(self, ids: Sequence[str], token: int = 1, **limits: Any) -> list[bytes]:
        """Settle jobs as done without a trace; those refused."""
        return self.turn(0, plain(ids, token), **limits).refused

    def drain(self, want: int = 100) -> list[str]:
        """Take and finish all there is; the ids in the order they came."""
        order: list[str] = []
        while got := self.claim(want):
            assert not self.finish(got)
            order += got
        return order

    def stats(self) -> QueueStats:
        """How the queue stands; its numbers add up whatever a test has done."""
        stats: QueueStats = self.run(count(self.keys, "default"))
        assert stats.living == stats.ready + stats.scheduled + stats.running + stats.waiting
        return stats

    # keys
    def ask(self, command: str, key: str, *args: str | bytes | int | float) -> Any:
        """A command on one of the queue's keys, called by its short name."""
        name, _, rest = key.partition(":")
        full = self.keys.key(name) + (b":" + rest.encode() if rest else b"")
        return self.server.ask(command, full, *args)

    def commands(self, call: Callable[[], Any]) -> Counter[str]:
        """The commands that the server carries out during a call, those of scripts among them."""
        self.server.ask("CONFIG", "RESETSTAT")
        call()
        stats = self.server.ask("INFO", "commandstats")
        counted = Counter({name.removeprefix("cmdstat_"): int(row["calls"]) for name, row in stats.items()})
        for own in ("config|resetstat", "config", "info"):
            del counted[own]
        return counted

    def members(self, key: str) -> list[str]:
        """Ids in one of the sorted sets, in order."""
        return [id.decode() for id in self.ask("ZRANGE", key, 0, -1)]

    def score(self, key: str, id: str) -> float | None:
        """The score of an id in a sorted set."""
        found = self.ask("ZSCORE", key, id)
        return None if found is None else float(found)

    def bell(self, worker: str) -> list[bytes]:
        """What lies on a worker's bell."""
        found: list[bytes] = self.ask("LRANGE", f"bell:{worker}", 0, -1)
        return found

    def record(self, id: str) -> bytes | None:
        """The record of a job that has ended."""
        found: bytes | None = self.ask("GET", f"ended:{id}")
        return found

    @property
    def now_ms(self) -> int:
        """The time that scripts read."""
        return self.clock.now_ms

    def advance(self, ms: int) -> None:
        """Let time pass, while some worker reaches the server."""
        self.clock.advance(ms)
        self.in_contact()

    def jump(self, ms: int) -> None:
        """Let time pass while no worker reaches the server; or set its clock."""
        self.clock.advance(ms)

    def in_contact(self) -> None:
        """Some worker reaches the server now, and no outage came before."""
        self.ask("SET", "contact", f"{self.now_ms} 0", "PX", 60_000)


def knows(*targets: str, **signatures: str) -> Known:
    """What a worker says that it knows; `signatures`: of which version of a target."""
    lines = {**dict.fromkeys(targets, "00000000aa"), **signatures}
    text = "\n" + "".join(f"{target}={signature}\n" for target, signature in sorted(lines.items()))
    return Known(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:10], text)


def plain(ids: Sequence[str], token: int = 1) -> Settled:
    """Done, and nothing is kept."""
    if token != 1:
        return Settled(moved=[row for id in ids for row in moved(id, "done", token, ms=0).moved])
    return Settled(plain=[*ids])


def kept(ids: Sequence[str], token: int = 1, *, ttl_ms: int = 60_000, record: bytes = b'{"state":"done"}') -> Settled:
    """Done, and a record is kept."""
    if token != 1:
        return Settled(moved=[row for id in ids for row in moved(id, "done", token, ms=ttl_ms, text=record).moved])
    return Settled(kept=[*ids], records=[ttl_ms, record] * len(ids))


def moved(id: str, verb: str, token: int = 1, *, ms: int = 60_000, text: bytes = b"", **more: Any) -> Settled:
    """Any other settlement of one job."""
    row: dict[str, Any] = {"priority": 100, "tenant": "", "weight": 1.0, **more}
    return Settled(moved=[Moved(id, token, verb, ms=ms, text=text, **row)])
