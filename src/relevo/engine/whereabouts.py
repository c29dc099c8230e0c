"""Where many jobs are, and since when: less than `jobs.look` returns, and cheap enough for ten thousand of them.

No logs and no results are fetched, since a result may be large; and hundreds of jobs share a round trip.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Any

from msgspec import Struct

from relevo.engine.job import State, read_record
from relevo.engine.job_store import read_claim
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps

#: Jobs per call.
PART = 500
#: Bytes of a done job's record that hold its times, with room for the longest name of a task.
_HEAD = 1024
#: The record of a done job begins so; its result comes later.
_TIMES = re.compile(rb'\{"state":"done","target":"(?:[^"\\]|\\.)*",(?:"started_ms":(\d+),)?"ended_ms":(\d+)')
#: The order in which jobs progress: one that does so between two calls is found in one of them.
_ON_THE_WAY = (State.WAITING, State.SCHEDULED, State.READY, State.RUNNING)


class Whereabouts(Struct, frozen=True):
    """Where a job is."""

    state: State
    started_ms: int | None = None
    ended_ms: int | None = None
    #: Why it was given up, and the error of its last attempt.
    reason: str = ""
    error: str = ""


def of_living(queue: QueueKeys, ids: Sequence[str]) -> Generator[Call[Any], Any, dict[str, Whereabouts]]:
    """Those that have not ended, by id."""
    found: dict[str, Whereabouts] = {}
    for start in range(0, len(ids), PART):
        part = ids[start : start + PART]
        running: list[str] = []
        for state in _ON_THE_WAY:
            scores: list[Any] = yield Call([b"ZMSCORE", queue.key(state), *part])
            running = [id for id, score in zip(part, scores, strict=True) if score is not None]
            found.update(dict.fromkeys(running, Whereabouts(state)))
        if running:
            claims: list[bytes | None] = yield Call([b"HMGET", queue.key("claims"), *running])
            for id, text in zip(running, claims, strict=True):
                claim = read_claim(text or b"")
                found[id] = Whereabouts(State.RUNNING, claim.since_ms if claim else None)
    return found


def of_ended(queue: QueueKeys, ids: Sequence[str]) -> Steps[dict[str, Whereabouts]]:
    """Those whose record still exists, in any state: by id, with the reason."""
    records = yield Ahead(Call([b"GET", queue.own("ended", id)], _ended) for id in ids)
    return {id: one for id, one in zip(ids, records, strict=True) if one is not None}


def of_done(queue: QueueKeys, ids: Sequence[str]) -> Steps[dict[str, Whereabouts]]:
    """The same of done jobs, without fetching their results."""
    records = yield Ahead(Call([b"GETRANGE", queue.own("ended", id), 0, _HEAD - 1], _done) for id in ids)
    return {id: one for id, one in zip(ids, records, strict=True) if one is not None}


def _ended(text: bytes | None) -> Whereabouts | None:
    if text is None:
        return None
    record = read_record(text)
    failed = record.state is not State.DONE and record.story.attempts
    error = ": ".join(part for part in (failed[-1].error, failed[-1].message) if part) if failed else ""
    return Whereabouts(record.state, record.started_ms or None, record.ended_ms or None, record.reason, error)


def _done(head: bytes) -> Whereabouts | None:
    times = _TIMES.match(head)
    return times and Whereabouts(State.DONE, int(times[1]) if times[1] else None, int(times[2]))
