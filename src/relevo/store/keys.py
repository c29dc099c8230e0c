"""Every key relevo writes is spelt here.

A queue's address in braces is the hash tag of all its keys, so a queue lives in one slot and every script is
single-slot. A queue has this fixed set of keys however many jobs it holds; only a finished job's record, a job's notes,
a name held for a time and a worker's bell are keys of their own, and each of those carries a time limit from birth.
What a job carries with it (results of its parents, checkpoints) is removed in the step that ends the job.
"""

from __future__ import annotations

from typing import NamedTuple

from relevo.signing import Signer
from relevo.store.scripts import Script, script
from relevo.text.names import encode


class Key(NamedTuple):
    """One kind of key. docs/internals/keys.md is made from these: `./dev docs`."""

    type: str
    holds: str
    #: what removes it, or its time limit
    ends: str
    #: of keys of one job, schedule, worker …: what follows the name, as in `ended:<id>`
    owner: str = ""


#: Keys of one job, schedule, worker ... each, as `name:owner`. The name alone is never a key.
OF_ONE = {
    "ended": Key(
        "string",
        "record of an ended job, with its body; of a done job only up to 4 KiB, beyond that without its arguments",
        "`result_ttl` or `failure_ttl`",
        "id",
    ),
    "notes": Key("hash", "progress and logs", "`failure_ttl`, or `result_ttl` if that is longer", "id"),
    "carried": Key(
        "hash",
        "what a job takes with it: what it waits for, results of its parents, checkpoints, large data; of a workflow: "
        "its plan, and which members have ended",
        "removed with its job; a time limit once the job failed or the workflow ended",
        "id",
    ),
    "unique": Key("string", "the job that holds a name for a time", "that time", "name"),
    "parked": Key(
        "zset",
        "line of a tenant or task that is at its limit: id, by priority × 2^43 + rank; "
        "`parked:r:target\\nrefusals`: jobs that wait for a worker of another build, by priority × 2^43",
        "empties with the jobs",
        "name",
    ),
    "alike": Key(
        "zset", "dead letters of one error group, by time", "time limit of the longest dead letter in it", "fingerprint"
    ),
    "binned": Key(
        "string",
        "record of a discarded dead letter, followed by its own time limit",
        "ten minutes, or that time limit if it is shorter",
        "id",
    ),
    "replay": Key(
        "hash",
        "of an app: progress of a replay of dead letters, its leader, the leader's last sign of life",
        "a week after its last step",
        "id",
    ),
    "placed": Key(
        "zset", "of a pool: entities in one state, by when they came there", "empties with the entities", "state"
    ),
    "entity": Key(
        "hash",
        "of a pool: metadata of one entity, each value as JSON; `@state`, `@since`, `@retries`",
        "the pool's `data_ttl`, once the entity has left all states",
        "id",
    ),
    "made": Key(
        "zset",
        "what was made on behalf of a conversation in this queue; of the bus: in which queues",
        "`conversation_ttl`, renewed by what is made",
        "conversation",
    ),
    "runs": Key(
        "list",
        "latest 50 entries of the history of a schedule",
        "a month, renewed by each tick; removed with its schedule",
        "name",
    ),
    "bell": Key("list", "calls, handed-over jobs and cancellations for one worker", "a minute", "worker"),
    "sent": Key(
        "string",
        "number of calls that a connection has sent to this queue to make jobs; "
        "`sent:<session>:answers` (hash): answers to those that were refused",
        "ten times the caller's `call_timeout`",
        "session",
    ),
    "aside": Key("any", "a key of another type that stood in the place of `<name>`", "a week", "name"),
}
#: Keys that a script may ask for by name.
QUEUE_KEYS = {
    "jobs": Key("hash", "id → body of each living job", "empties with the jobs"),
    "ready": Key("zset", "id, by priority × 2^43 + fair tag", "empties with the jobs"),
    "scheduled": Key("zset", "id, by due time × 1024 + priority", "empties with the jobs"),
    "running": Key("zset", "id, by the end of its lease", "empties with the jobs"),
    "waiting": Key(
        "zset",
        "id, by the time since when it waits: for other jobs, or for a place of its tenant or task",
        "empties with the jobs",
    ),
    "claims": Key(
        "hash",
        "id → `token worker since`, with ` c` if it is to be cancelled; only of jobs that were handed out",
        "empties with the jobs",
    ),
    "story": Key("hash", "id → attempts so far, only of jobs that failed or were interrupted", "empties with the jobs"),
    "groups": Key("hash", "id → `weight tenant`, of scheduled jobs that have a tenant", "empties with the jobs"),
    "names": Key("hash", "name → living job that has it", "empties with the jobs"),
    "waiters": Key(
        "hash",
        "id → channels of processes that wait for its end, and edges to what depends on it",
        "empties with the jobs",
    ),
    "watching": Key(
        "hash",
        "id, or `*` for all jobs → until when the channels of which processes watch what happens",
        "a minute, renewed by those who watch",
    ),
    "errands": Key(
        "zset",
        "what workers do for the queue besides jobs, by time: outbox messages, and `@name` of schedules",
        "empties as outbox messages are delivered and schedules removed",
    ),
    "letters": Key(
        "hash", "outbox message → its text: the outcome of a job, for other queues", "empties as they are delivered"
    ),
    "schedules": Key("hash", "name → record of a schedule", "permanent until the schedule is removed"),
    "ticks": Key("hash", "`due:name`, `job:name`, … → state of a schedule", "permanent until the schedule is removed"),
    "clock": Key(
        "hash", "virtual times of the fair tags, per priority and per tenant", "removed when nothing is ready"
    ),
    "contact": Key(
        "string",
        "when workers last reached the server, and until when no lease is taken back because of an outage",
        "a minute, renewed by workers",
    ),
    "set_back": Key(
        "hash",
        "the step of the server's clock that was handled last, and by how much",
        "three minutes after a step of the clock",
    ),
    "idle": Key("zset", "idle workers, until when they count as alive", "time limit, renewed by idle workers"),
    "paused": Key(
        "hash",
        "exists while the queue is paused: until when, and what was asked since",
        "resuming, or the first turn after its end",
    ),
    "pauses": Key(
        "hash",
        "`q:`, `t:task`, `g:tenant`, `s:schedule`, `b:task` (a breaker) → since when, until when, why, by which user",
        "as the pause or the breaker",
    ),
    "limits": Key(
        "hash",
        "`q:`, `t:task`, `g:tenant` → `concurrency rate burst paused`; of an open breaker also when its next probe may "
        "start, how many failed, and its longest rest; `d:t:task` → the default of its code, ` o` if an operator "
        "set another",
        "permanent until the limit is removed",
    ),
    "holding": Key("hash", "id → names of the limits it runs under; `#name` → how many run", "empties with the jobs"),
    "buckets": Key(
        "hash", "name → when its token bucket is full again, in µs", "time limit: when all buckets are full"
    ),
    "parking": Key(
        "zset",
        "names of lines with jobs, by when to look at them again; pauses, by their end; breakers, by when they close",
        "empties with the jobs, and as pauses and breakers end",
    ),
    "rerouted": Key(
        "hash", "id → `target\\nrefusals` of jobs that wait for a worker of another build", "empties with the jobs"
    ),
    "sought": Key("hash", "target → refusals of its lines", "empties with the jobs"),
    "lines": Key(
        "hash", "virtual times of the ranks in lines, per priority and per tenant", "removed when all lines are empty"
    ),
    "breakers": Key("hash", "`t:task` → when its last attempts failed", "time limit: the longest window"),
    "stats": Key("hash", "counters", "a week without traffic"),
    "timings": Key(
        "hash",
        "`slot task` → sums of how long its jobs waited and ran; a bounded number of tasks",
        "a week without traffic",
    ),
    "minutes": Key(
        "hash", "minute → counters at the first look of that minute, of the last hour", "two hours after the last look"
    ),
    "flows": Key("zset", "workflows, by the time they began", "a month after the last one"),
    "done": Key("zset", "ids of done jobs, by time; the newest `done_max`", "time limit of its longest record"),
    "dead": Key("zset", "ids of dead letters, by time; the newest `dead_max`", "time limit of its longest record"),
    "cancelled": Key(
        "zset", "ids of cancelled jobs, by time; the newest `dead_max`", "time limit of its longest record"
    ),
    "expired": Key("zset", "ids of expired jobs, by time; the newest `dead_max`", "time limit of its longest record"),
    "kinds": Key(
        "hash",
        "fingerprint → when the first of its error group died, and the head of its record; at most 500",
        "time limit of the longest dead letter",
    ),
    "bin": Key("zset", "discarded dead letters, by when", "ten minutes, renewed by what is discarded"),
    "instances": Key(
        "zset", "workers that serve the queue, until when they count as alive", "time limit, renewed by them"
    ),
    "offers": Key(
        "hash",
        "`#worker` → its build; `%build` → what its workers know, as lines `target=signature`; of a service's queue "
        "also action → until when, description; `@worker` → its own description",
        "half an hour after the last worker, of a service's queue a day",
    ),
    "log": Key(
        "stream",
        "of a service's notifications: events that it published, if they are kept; the newest only",
        "time limit, renewed by traffic",
    ),
    "strays": Key(
        "zset",
        "ids that a purge found in no set although data is kept under them, by when",
        "a week after the limit of orphans, renewed by purges",
    ),
    "walk": Key(
        "string",
        "where the last purge stopped among the ready jobs; `walk:strays`: where its search for orphans stopped; "
        "`walk:held`: what it found paused, and when; of a pool `walk:unlisted`: where its search of all keys stopped",
        "a day, `walk:held` 30 days, renewed by purges",
    ),
    # of a pool, which is addressed as a queue: `{prefix:env:app:actions:pool:name}`
    "entities": Key("zset", "of a pool: its entities, by their latest change", "empties with the entities"),
    "states": Key("zset", "of a pool: states that hold entities", "empties with the entities"),
    # of the bus, which is addressed as a queue: `{prefix:env}`
    "queues": Key("zset", "of the bus: its queues, by their last use", "30 days without use"),
    "subscriptions": Key(
        "hash",
        "of the bus: queue → its subscription: pattern and limits",
        "permanent until it is removed; swept when no instance serves it",
    ),
    "topics": Key("hash", "of the bus: pattern → queues that subscribe to it", "as the subscriptions"),
    "closed": Key(
        "hash", "of a subscription's queue: its last ended life, if that received an event", "a day, renewed by events"
    ),
    "leader": Key(
        "string",
        "process that leads the upkeep: of a queue or pool its purge, of the bus the sweep",
        "a minute, renewed by that process",
    ),
    "audit": Key(
        "stream",
        "of the bus: what operators did, the newest 10,000; `audit:refused`: requests that the HTTP API refused, the "
        "newest 1,000",
        "90 days, renewed by each entry",
    ),
    "spans": Key("stream", "of the bus: outcomes of messages, the newest `trace_max`", "a week without traffic"),
    # of the bus, and of an app, which is addressed as a queue, too: `{prefix:env:app}`
    "format": Key(
        "string",
        "of an app and of the bus: the format of their keys, and the oldest format whose processes can work beside "
        "them (`engine/key_format.py`)",
        "a year, renewed by use",
    ),
    "replays": Key(
        "zset",
        "of an app: replays of dead letters, by their last sign of life, the newest 100",
        "a week, renewed by replays",
    ),
    "faults": Key(
        "hash",
        "key or value that another program wrote → when it was met, and what was wrong; at most 100",
        "a week after the last one",
    ),
    **OF_ONE,
}


class QueueKeys:
    """The keys of one queue."""

    def __init__(self, address: str, *, clock_key: str = "", place: str = "", signer: Signer | None = None) -> None:
        self.address = address
        #: the address as signatures spell it, and what signs what is put in the queue; None: nothing is signed
        self.place, self.signer = place or address, signer
        self._clock_key = clock_key
        self._tag = "{" + address + "}:"
        self._shared = (self._tag.encode(), self.key("aside"))

    def key(self, name: str) -> bytes:
        """The key called `name` in QUEUE_KEYS."""
        if name not in QUEUE_KEYS:
            raise KeyError(f"no key of a queue is called {name!r}")
        return (self._tag + name).encode()

    def own(self, name: str, owner: str) -> bytes:
        """The key of that kind that belongs to one job, workflow, schedule or worker."""
        return self.key(name) + b":" + owner.encode()

    def bell(self, worker: str) -> bytes:
        """The list on which one worker is called."""
        return self.own("bell", worker)

    def script(self, name: str) -> Script:
        """A script for this queue; under test, one that lives in the test's time."""
        return script(name, self._clock_key)

    def of(self, script: Script) -> tuple[bytes, ...]:
        """What a script gets as KEYS, see store/scripts.py.

        While its slot moves, a cluster runs a script of several keys only where it finds all of them. The second key
        never exists, so no node runs such a script: half of what it needs may be on the other node.
        """
        if script.spells_keys:
            return self._shared
        return tuple(self.key(name) for name in script.keys)


def _address(*parts: str) -> str:
    return ":".join(encode(part, what="name") if part else "" for part in parts)


def bus_keys(prefix: str, env: str, *, clock_key: str = "") -> QueueKeys:
    """The keys of the bus as a whole: what all services under one prefix and env share."""
    return QueueKeys(_address(prefix, env), clock_key=clock_key)


def app_keys(prefix: str, env: str, app: str, *, clock_key: str = "") -> QueueKeys:
    """The keys of an app as a whole, for scripts."""
    return QueueKeys(_address(prefix, env, app), clock_key=clock_key)


class AppKeys:
    """The keys of one app: where its queues and workers are listed. Each docstring is a row: type: what; its end."""

    def __init__(self, prefix: str, env: str, app: str) -> None:
        self._tag = "{" + _address(prefix, env, app) + "}:"

    @property
    def queues(self) -> bytes:
        """zset: queues of the app and of services that it serves, by their last use; 30 days unused and empty."""
        return (self._tag + "queues").encode()

    @property
    def schedules(self) -> bytes:
        """hash: schedule → the queue in which it is kept; permanent until the schedule is removed."""
        return (self._tag + "schedules").encode()

    @property
    def pools(self) -> bytes:
        """zset: pools, by their last use; 30 days unused and empty."""
        return (self._tag + "pools").encode()

    def turn(self, duty: str) -> bytes:
        """string: worker whose turn it is: `deadlines`, `health`, `lists`, `purge` or `sweep`; the interval."""
        return (self._tag + "turn:" + duty).encode()

    @property
    def workers(self) -> bytes:
        """zset: workers, by their last sign of life; a day, renewed by workers."""
        return (self._tag + "workers").encode()

    @property
    def health(self) -> bytes:
        """hash: latest report on the app's health; four intervals of `health_every`."""
        return (self._tag + "health").encode()

    def worker(self, worker: str) -> bytes:
        """string: what one worker reports about itself; a minute."""
        return (self._tag + "worker:" + worker).encode()

    def inbox(self, process: str) -> bytes:
        """channel: ends of jobs, for a process that waits for them; not a key, it holds nothing."""
        return (self._tag + "inbox:" + process).encode()
