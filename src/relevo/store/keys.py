"""Every key relevo writes is spelt here.

A queue's address in braces is the hash tag of all its keys, so a queue lives in one slot and every script is
single-slot. A queue has this fixed set of keys however many jobs it holds; only a finished job's record, a job's notes,
a name held for a time and a worker's bell are keys of their own, and each of those carries a time limit from birth.
What a job carries with it (results of its parents, checkpoints) is removed in the step that ends the job.
"""

from __future__ import annotations

from relevo.signing import Signer
from relevo.store.scripts import Script, script
from relevo.text.names import encode

#: Keys of one job, schedule, worker ... each, as `name:owner`, and what ends them. The name alone is never a key.
OF_ONE = {
    "replay": "a week after its last step",
    "alike": "time limit of the longest dead letter in it",
    "binned": "ten minutes, or its record's time limit",
    "parked": "empties with the jobs",
    "placed": "empties with the entities",
    "entity": "the pool's data_ttl, once the entity has left all states",
    "made": "task_ttl, renewed by what is made on behalf of the task",
    "carried": "removed with its job or workflow; a time limit once that has failed or ended",
    "ended": "result_ttl or failure_ttl",
    "notes": "as long as the record",
    "unique": "the time the name is held",
    "bell": "a minute",
    "sent": "ten times the caller's call_timeout",
    "runs": "a month, renewed by each tick; removed with its schedule",
    "aside": "a week",
}
#: Key names a script may ask for, and what ends them.
QUEUE_KEYS = {
    "jobs": "empties with the jobs",
    "ready": "empties with the jobs",
    "scheduled": "empties with the jobs",
    "running": "empties with the jobs",
    "waiting": "empties with the jobs",
    "claims": "empties with the jobs",
    "story": "empties with the jobs",
    "groups": "empties with the jobs",
    "names": "empties with the jobs",
    "waiters": "empties with the jobs",
    "errands": "empties as letters are delivered and schedules removed",
    "letters": "empties as letters are delivered",
    "schedules": "permanent until a schedule is removed",
    "ticks": "permanent until a schedule is removed",
    "clock": "removed when nothing is ready",
    "contact": "a minute, renewed by workers",
    "set_back": "three minutes after a step of the clock",
    "idle": "time limit, renewed by idle workers",
    "paused": "resuming, or the first turn after its end",
    "stats": "time limit, renewed by traffic",
    "timings": "time limit, renewed by traffic",
    "minutes": "two hours, renewed by those who look at rates",
    "flows": "time limit, renewed by new workflows",
    "done": "time limit of its longest record",
    "dead": "time limit of its longest record",
    "cancelled": "time limit of its longest record",
    "expired": "time limit of its longest record",
    "kinds": "time limit of the longest dead letter",
    "bin": "ten minutes, renewed by what is discarded",
    "limits": "permanent until the limit is removed",
    "holding": "empties with the jobs",
    "buckets": "time limit: when all of them are full",
    "parking": "empties with the jobs, and as pauses and breakers end",
    "rerouted": "empties with the jobs",
    "sought": "empties with the jobs",
    "lines": "removed when nobody stands in a line",
    "pauses": "as the pause or the breaker",
    "breakers": "time limit: the longest window",
    "instances": "time limit, renewed by those who serve the queue",
    "offers": "time limit, renewed by those who serve the queue",
    "log": "time limit, renewed by traffic; the newest only",
    "strays": "time limit, renewed by the purge",
    "walk": "a day, renewed by the purge; walk:held 30 days",  # and walk:strays
    # of a pool, which is addressed as a queue: `{prefix:env:app:actions:pool:name}`
    "entities": "empties with the entities",
    "states": "empties with the entities",
    # of the bus, which is addressed as a queue: `{prefix:env}`
    "queues": "time limit, renewed by use",
    "subscriptions": "permanent until a subscription is removed; swept when nobody serves it",
    "topics": "as the subscriptions",
    "closed": "a day, renewed by events",
    "sweeping": "half a minute, of a queue a minute: one sweep at a time",
    "audit": "time limit, renewed by deeds; the newest only",
    "spans": "time limit, renewed by traffic; the newest only",
    # of the bus, and of an app, which is addressed as a queue, too: `{prefix:env:app}`
    "format": "a year, renewed by use",
    "replays": "a week, renewed by replays; the newest only",
    "faults": "a week after the last one",
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
        self._for_script: dict[str, tuple[bytes, ...]] = {}

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
        """The keys a script names in its contract, in its order."""
        try:
            return self._for_script[script.name]
        except KeyError:
            keys = tuple(self.key(name) for name in script.keys)
            if len(keys) > 1 and OF_ONE.keys().isdisjoint(script.keys):
                # While its slot moves, a cluster runs a script that finds all its keys. As others do not find theirs,
                # none shall: renewals, for instance, would say that workers can reach the queue.
                keys += (self.key("aside"),)
            return self._for_script.setdefault(script.name, keys)


def _address(*parts: str) -> str:
    return ":".join(encode(part, what="name") if part else "" for part in parts)


def bus_keys(prefix: str, env: str, *, clock_key: str = "") -> QueueKeys:
    """The keys of the bus as a whole: what all services under one prefix and env share."""
    return QueueKeys(_address(prefix, env), clock_key=clock_key)


def app_keys(prefix: str, env: str, app: str, *, clock_key: str = "") -> QueueKeys:
    """The keys of an app as a whole, for scripts."""
    return QueueKeys(_address(prefix, env, app), clock_key=clock_key)


class AppKeys:
    """The keys of one app: where its queues and workers are listed."""

    def __init__(self, prefix: str, env: str, app: str) -> None:
        self._tag = "{" + _address(prefix, env, app) + "}:"

    @property
    def queues(self) -> bytes:
        """zset: a queue of the app, also of services it serves, when it was last used; a month unused and empty."""
        return (self._tag + "queues").encode()

    @property
    def schedules(self) -> bytes:
        """hash: schedule -> the queue in which it is kept; permanent until it is removed."""
        return (self._tag + "schedules").encode()

    @property
    def pools(self) -> bytes:
        """zset: name of a pool, when it was last used; a month unused and empty."""
        return (self._tag + "pools").encode()

    @property
    def swept(self) -> bytes:
        """Which worker ends what is past its deadline on queues without a worker, in this interval."""
        return (self._tag + "swept").encode()

    @property
    def purged(self) -> bytes:
        """Which worker purges in this interval; the interval."""
        return (self._tag + "purged").encode()

    @property
    def workers(self) -> bytes:
        """zset: worker id, when it was last heard of; time limit, renewed by workers."""
        return (self._tag + "workers").encode()

    @property
    def health(self) -> bytes:
        """hash: how the app is doing, as a worker last found it; four intervals of `health_every`."""
        return (self._tag + "health").encode()

    @property
    def watching(self) -> bytes:
        """string: whose turn it is to look at the app's health; most of an interval."""
        return (self._tag + "watching").encode()

    def worker(self, worker: str) -> bytes:
        """What one worker says of itself; a short time limit."""
        return (self._tag + "worker:" + worker).encode()

    def inbox(self, process: str) -> bytes:
        """Channel on which a waiting process is told of ends. No key: a channel holds nothing."""
        return (self._tag + "inbox:" + process).encode()
