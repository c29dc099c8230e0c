"""What the server holds of a queue, read in one step, so that it can be compared with the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relevo.engine.job import Story, read_story
from relevo.engine.job_store import Claim, read_claim
from relevo.store.keys import QUEUE_KEYS, QueueKeys
from relevo.store.plan import Argument, Call
from relevo.store.scripts import Script

_STATES = ("ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired")
_LIMITS = ("limits", "holding", "pauses")
_SETS = (*_STATES, "idle", "errands", "parking")
_HASHES = ("jobs", "claims", "story", "groups", "names", "waiters", "stats", "paused", "letters", *_LIMITS)
#: Keys of one job, worker, name, tenant or schedule each; that none of them stays is seen at the end.
_OF_ONE = ("ended", "notes", "unique", "bell", "carried", "runs", "parked", "alike", "binned")
_COMPARED = (*_SETS, *_HASHES, "clock", "buckets", "lines", "breakers", "kinds", "bin")
#: No job of the machine has dependents, belongs to a workflow, comes from a schedule or is a message of the bus: no
#: other key may ever be there.
ABSENT = tuple(sorted(set(QUEUE_KEYS).difference(_COMPARED, _OF_ONE, {"contact"})))
_FIXED = (*_COMPARED, *ABSENT)
#: All tenants and tasks that have a limit at times, as limits name them.
TENANTS = ("a", "b")
TASKS = ("x", "y")
NAMES = (*(f"g:{tenant}" for tenant in TENANTS), *(f"t:{task}" for task in TASKS))

_SNAPSHOT = Script(
    "snapshot",
    f"""--[[ All of a queue.
KEYS  {" ".join(_FIXED)}
      ended      -     prefix of records
      bell       -     prefix of bells
      parked     -     prefix of lines
      alike      -     prefix of groups of dead letters
ARGV  workers    int   how many workers
                       then the workers, then ids of jobs
GIVES sets, hashes, bells, records, time limits, lines, groups of dead letters ]]
local keys = {{ {", ".join(_FIXED)} }}
local sets, hashes, bells, records, ttls, stands, groups = {{}}, {{}}, {{}}, {{}}, {{}}, {{}}, {{}}
for i = 1, {len(_SETS)} do sets[i] = redis.call('ZRANGE', keys[i], 0, -1, 'WITHSCORES') end
for i = 1, {len(_HASHES)} do hashes[i] = redis.call('HGETALL', keys[{len(_SETS)} + i]) end
for i = 1, workers do bells[i] = redis.call('LRANGE', bell .. ':' .. ARGV[1 + i], 0, -1) end
for i = 2 + workers, #ARGV do records[#records + 1] = redis.call('EXISTS', ended .. ':' .. ARGV[i]) end
for i = 1, {len(_FIXED)} do ttls[i] = redis.call('PTTL', keys[i]) end
for i, name in ipairs({{ {", ".join(f"'{name}'" for name in NAMES)} }}) do
  stands[i] = redis.call('ZRANGE', parked .. ':' .. name, 0, -1, 'WITHSCORES')
end
for i, kind in ipairs(redis.call('HKEYS', kinds)) do groups[i] = redis.call('ZRANGE', alike .. ':' .. kind, 0, -1) end
return {{ sets, hashes, bells, records, ttls, stands, groups }}""",
)


@dataclass(frozen=True)
class Snapshot:
    """A queue on the server. Scores are times or places, as the scripts wrote them."""

    sets: dict[str, dict[str, float]]
    jobs: dict[str, bytes]
    claims: dict[str, Claim]
    stories: dict[str, Story]
    groups: dict[str, bytes]
    names: dict[str, str]
    waiters: set[str]
    totals: dict[str, int]
    is_paused: bool
    letters: dict[str, bytes]
    bells: dict[str, list[bytes]]
    recorded: set[str]
    #: Keys that exist: their time limits in ms, -1 for none.
    ttls: dict[str, int]
    #: name -> its limit, as text
    limits: dict[str, str]
    holding: dict[str, bytes]
    #: name -> the jobs in its line, in order
    lines: dict[str, list[str]]
    pauses: set[str]
    #: dead letters that died alike
    alike: list[list[str]]


def snapshot(queue: QueueKeys, workers: Sequence[str], ids: Iterable[str]) -> Call[Snapshot]:
    """Read a queue, the bells of some workers, and which of some jobs have a record."""
    asked = list(ids)
    args: list[Argument] = [len(workers), *workers, *asked]

    def decode(reply: list[Any]) -> Snapshot:
        sets, hashes, bells, records, ttls, lines, groups = reply
        of = dict(zip(_HASHES, map(_pairs, hashes), strict=True))
        return Snapshot(
            {name: _scores(rows) for name, rows in zip(_SETS, sets, strict=True)},
            of["jobs"],
            {id: _claim(text) for id, text in of["claims"].items()},
            {id: read_story(text) for id, text in of["story"].items()},
            of["groups"],
            {name: id.decode() for name, id in of["names"].items()},
            set(of["waiters"]),
            {name: int(count) for name, count in of["stats"].items()},
            "" in of["paused"],
            of["letters"],
            dict(zip(workers, bells, strict=True)),
            {id for id, found in zip(asked, records, strict=True) if found},
            {name: ttl for name, ttl in zip(_FIXED, ttls, strict=True) if ttl != -2},
            {name: text.decode() for name, text in of["limits"].items()},
            of["holding"],
            {name: list(_scores(rows)) for name, rows in zip(NAMES, lines, strict=True)},
            set(of["pauses"]),
            [[id.decode() for id in ids] for ids in groups],
        )

    return Call(args, decode, _SNAPSHOT, queue.of(_SNAPSHOT))


def _pairs(rows: list[bytes]) -> dict[str, bytes]:
    return {rows[i].decode(): rows[i + 1] for i in range(0, len(rows), 2)}


def _scores(rows: list[bytes]) -> dict[str, float]:
    return {id: float(score) for id, score in _pairs(rows).items()}


def _claim(text: bytes) -> Claim:
    claim = read_claim(text)
    assert claim is not None, f"not a claim: {text!r}"
    return claim
