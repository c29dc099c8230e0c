"""Leaks on a server: every key and entry must have a time limit, or belong to a live job or an open workflow.

These keys of a queue have no time limit and empty with its jobs, so each of their entries must name a live job:
`jobs ready scheduled running waiting claims story groups names`. Entries of `names` and `waiters` may also be of open
workflows, and so may the owner of what is carried (`carried:<id>`).

`errands` and `letters` empty as outbox messages are delivered: each message stands in both, each schedule in `errands`
and `schedules`. A message that is overdue by some seconds was lost: a worker, or the process that caused it, delivers
it at once. A message that will cancel jobs whose maker died (`<id>.gate`) may wait only while one of them is alive.

Entries of `holding` are running jobs under limits, and how many each limit has. Each line of jobs that wait for a limit
(`parked:<name>`) stands in `parking`, and all its jobs are live; a limit may stand there without a line.

In a pool, what is in a state (`placed:<state>`) and the metadata (`entity:<id>`) belong to one of its `entities`, each
of which is in a state, and each of its `states` holds some.

`clock` may exist while jobs are ready, `lines` while there are lines, `paused` and `pauses` until the pause is lifted,
`schedules`, `limits` and, of the bus, `subscriptions` until they are removed, `ticks` as long as their schedule, and
`topics` as long as the subscriptions whose queues they name. Any other key without a time limit is a leak.

A time limit alone is not enough: what a job wrote (`notes:<id>`) and carried (`carried:<id>`) must belong to a live
job, or to one with a record (`ended:<id>`), and must not outlive that record by more than half an hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from relevo.engine.edges import edges_of
from relevo.store.plan import Call

Run: TypeAlias = Callable[[Call[Any]], Any]
"""Performs a call and blocks: `app.run`."""

_ALL_OF_IT = {b"*"}
#: A message is delivered within milliseconds, or two seconds after the process that took it died. Busy machine: ten.
_LATE_MS = 10_000
_GATE = b".gate"
#: Keys of single jobs, which end with the job or with its record.
_OF_JOBS = (b"notes:", b"carried:")
#: By how much they may outlive the record: what is stored for a workflow that was never started stays 20 minutes.
_SLACK_MS = 1_800_000


def leaks(run: Run, pattern: str) -> list[str]:
    """Keys, and entries as `key[entry]`, that nothing will ever remove, among the keys that match a pattern."""
    limits = {key: run(Call([b"PTTL", key])) for key in _keys(run, pattern)}
    eternal = {key for key, ms in limits.items() if ms == -1}
    of_jobs = {key: ms for key, ms in limits.items() if ms > 0 and key.partition(b"}:")[2].startswith(_OF_JOBS)}
    addresses = {key.partition(b"}:")[0] + b"}:" for key in (*eternal, *of_jobs)}
    queues = [_Queue(run, address) for address in addresses]
    return sorted(leak for queue in queues for leak in (*queue.leaks(eternal), *queue.outliving(of_jobs)))


def remove(run: Run, pattern: str) -> None:
    """Delete all keys that match a pattern. For the namespace of a test; it scans every key of the server."""
    for key in list(_keys(run, pattern)):
        run(Call([b"UNLINK", key]))


def _keys(run: Run, pattern: str) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        cursor, keys = run(Call(["SCAN", cursor, "MATCH", pattern, "COUNT", 1000]))
        yield from keys
        if cursor == b"0":
            return


class _Queue:
    """The keys under one address, read once."""

    def __init__(self, run: Run, address: bytes) -> None:
        self._run = run
        self._address = address
        self._jobs = self._fields("jobs")
        self._placed = {name: set(self._scores(name)) for name in ("ready", "scheduled", "running", "waiting")}

    def leaks(self, eternal: set[bytes]) -> Iterator[str]:
        """Keys without a time limit, and their entries, that should not exist."""
        for key in eternal:
            if key.startswith(self._address):
                for entry in self._strange(key.removeprefix(self._address).decode(errors="replace")):
                    yield _text(key) if entry == b"*" else f"{_text(key)}[{_text(entry)}]"

    def outliving(self, of_jobs: dict[bytes, int]) -> Iterator[str]:
        """Keys with a time limit whose job neither is alive nor has a record that stays as long."""
        for key, ms in of_jobs.items():
            if key.startswith(self._address):
                id = key.removeprefix(self._address).partition(b":")[2]
                if not self._lives(id) and ms > self._run(Call([b"PTTL", self._address + b"ended:" + id])) + _SLACK_MS:
                    yield f"{_text(key)} (for {ms // 1000} s)"

    def _strange(self, name: str) -> set[bytes]:
        """The entries of a key that belong to nothing; `*` is the whole key."""
        match name:
            case "jobs":
                return self._jobs.difference(*self._placed.values())  # in no state: no worker will ever find it
            case "ready" | "scheduled" | "running" | "waiting":
                return self._placed[name] - self._jobs
            case "claims" | "story" | "groups":
                return self._fields(name) - self._jobs
            case "waiters":
                return {id for id in self._fields(name) if not self._lives(id)}
            case "names":
                return {b"%b of %b" % pair for pair in self._pairs(name) if not self._lives(pair[1])}
            case "errands":
                known = self._fields("letters") | {b"@" + name for name in self._fields("schedules")}
                return self._scores(name).keys() - known
            case "letters":
                return self._lost_letters()
            case "ticks":
                known = self._fields("schedules")
                return {field for field in self._fields(name) if field.partition(b":")[2] not in known}
            case "clock":
                return set() if self._placed["ready"] else _ALL_OF_IT
            case "holding":
                return self._lost_places()
            case "parking":
                lost = self._scores(name).keys() - self._fields("limits")
                return {one for one in lost if not self._scores(f"parked:{_text(one)}")}
            case "lines":
                return set() if self._scores("parking") else _ALL_OF_IT
            case "rerouted":
                stand = {id: line for id, line in self._pairs(name) if id in self._scores(f"parked:r:{_text(line)}")}
                return self._fields(name) - (stand.keys() & self._placed["scheduled"])
            case "sought":
                return {target for target, lines in self._pairs(name) if not self._stands(target, lines)}
            case "pauses":
                known = self._fields("limits") | {b"s:" + name for name in self._fields("schedules")}
                known |= {b"b:" + name[2:] for name in known} | ({b"q:"} if self._fields("paused") else set())
                return self._fields(name) - known
            case "topics":
                known = self._fields("subscriptions")
                return {pattern for pattern, queues in self._pairs(name) if not known.issuperset(queues.split())}
            case "entities":
                return self._scores(name).keys() - self._placed_entities()
            case "states":
                return {word for word in self._scores(name) if not self._scores(f"placed:{_text(word)}")}
            case "paused" | "schedules" | "subscriptions" | "limits":
                return set()
        kind, _, id = name.partition(":")
        if kind == "parked" and id.startswith("r:"):
            return self._scores(name).keys() - self._fields("rerouted")
        if kind == "parked" and id.encode() in self._scores("parking"):
            return self._scores(name).keys() - self._placed["ready"] - self._placed["waiting"]
        if kind == "placed":
            return self._scores(name).keys() - self._scores("entities").keys()
        if kind == "entity" and id.encode() in self._scores("entities"):
            return set()
        return set() if kind == "carried" and self._lives(id.encode()) else _ALL_OF_IT

    def _lost_letters(self) -> set[bytes]:
        seconds, micros = self._run(Call([b"TIME"]))
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        due = self._scores("errands")
        lost = set()
        for letter, text in self._pairs("letters"):
            at = due.get(letter)
            if at is None or at < now_ms - _LATE_MS:
                lost.add(letter)
            elif at > now_ms and letter.endswith(_GATE):
                behind = {edge.child.encode() for edge in edges_of(text.decode(errors="replace"))}
                if not behind & self._jobs:
                    lost.add(letter)
        return lost

    def _stands(self, target: bytes, lines: bytes) -> bool:
        return all(self._scores(f"parked:r:{_text(target)}\n{_text(line)}") for line in lines.split())

    def _placed_entities(self) -> set[bytes]:
        return {id for word in self._scores("states") for id in self._scores(f"placed:{_text(word)}")}

    def _lost_places(self) -> set[bytes]:
        held = dict(self._pairs("holding"))
        names = (name for id, some in held.items() if id in self._placed["running"] for name in some.split(b"\n"))
        counted = {b"#" + name: b"%d" % count for name, count in Counter(names).items()}
        return {id for id in held if id not in self._placed["running"] and held[id] != counted.get(id)}

    def _lives(self, id: bytes) -> bool:
        if id in self._jobs:
            return True
        return bool(self._run(Call([b"HGET", self._address + b"carried:" + id, b"life"])) == b"open")

    def _scores(self, name: str) -> dict[bytes, float]:
        rows = self._run(Call([b"ZRANGE", self._address + name.encode(), 0, -1, b"WITHSCORES"]))
        return {rows[i]: float(rows[i + 1]) for i in range(0, len(rows), 2)}

    def _pairs(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        rows = self._run(Call([b"HGETALL", self._address + name.encode()]))
        return zip(rows[::2], rows[1::2], strict=True)

    def _fields(self, name: str) -> set[bytes]:
        return set(self._run(Call([b"HKEYS", self._address + name.encode()])))


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")
